# SPDX-License-Identifier: Apache-2.0
"""Spans written in every format that is read, after the formats' own rules and by nothing of ours."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from .foreign_formats import CODES, KINDS, Json, Spans, by_trace, dump, jaeger_bare, jaeger_v1, number, zipkin
from .truth import Scope, Span

# --- OTLP/JSON --------------------------------------------------------------------------------------------


def otlp(spans: Spans) -> Json:
    """OTLP/JSON as the Collector writes it: hex ids, integers as strings, zero values left out."""
    return {"resourceSpans": _groups(spans, _otlp_span)}


def tempo_otlp(spans: Spans) -> list[Json]:
    """The ``resourceSpans`` of Tempo: base64 ids, names of enums, no flags once they are in a block."""
    return _groups(spans, _tempo_span)


def otlp_document(spans: Spans) -> bytes:
    return json.dumps(otlp(spans), indent=2).encode()


def otlp_lines(spans: Spans) -> bytes:
    """One request a trace; U+2028 as it is, as Go's encoder of the Collector leaves it."""
    return b"".join(dump(otlp(part)) + b"\n" for part in by_trace(spans))


def tempo_v1_json(spans: Spans) -> bytes:
    return dump({"batches": tempo_otlp(spans)})


def tempo_v2_json(spans: Spans) -> bytes:
    return dump({"trace": {"resourceSpans": tempo_otlp(spans)}, "metrics": {"inspectedBytes": "1026612"}})


def jaeger_v3(spans: Spans) -> bytes:
    return dump({"result": otlp(spans)})


def _groups(spans: Spans, write: Callable[[Span], Json]) -> list[Json]:
    groups = []
    for resource, of_resource in itertools.groupby(spans, lambda span: span.resource):
        scopes = [
            {"scope": _otlp_scope(scope), "spans": [write(span) for span in of_scope]}
            for scope, of_scope in itertools.groupby(of_resource, lambda span: span.scope)
        ]
        attributes = {"service.name": resource.service, **resource.attributes}
        groups.append({"resource": {"attributes": _pairs(attributes)}, "scopeSpans": scopes})
    return groups


def _otlp_scope(scope: Scope) -> Json:
    return _without_zeros(
        {"name": scope.name, "version": scope.version, "attributes": _pairs(scope.attributes)}
    )


def _otlp_span(span: Span) -> Json:
    fields = _without_zeros(
        {
            "traceId": f"{span.trace:032x}",
            "spanId": f"{span.id:016x}",
            "traceState": span.state,
            "parentSpanId": f"{span.parent:016x}" if span.parent else "",
            "flags": span.flags,
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.start),
            "endTimeUnixNano": str(span.end),
            "attributes": _pairs(span.attributes),
            "events": [
                _without_zeros(
                    {
                        "timeUnixNano": str(event.time),
                        "name": event.name,
                        "attributes": _pairs(event.attributes),
                    }
                )
                for event in span.events
            ],
            "links": [
                _without_zeros(
                    {
                        "traceId": f"{link.trace:032x}",
                        "spanId": f"{link.span:016x}",
                        "attributes": _pairs(link.attributes),
                    }
                )
                for link in span.links
            ],
        }
    )
    fields["status"] = _without_zeros({"message": span.message, "code": span.status})
    return fields


def _tempo_span(span: Span) -> Json:
    fields = _otlp_span(span)
    fields.pop("flags", None)
    for link in fields.get("links", ()):
        link["traceId"], link["spanId"] = _hex_to_base64(link["traceId"]), _hex_to_base64(link["spanId"])
    for key in ("traceId", "spanId", "parentSpanId"):
        if key in fields:
            fields[key] = _hex_to_base64(fields[key])
    fields["kind"] = f"SPAN_KIND_{KINDS[span.kind]}"
    if span.status:
        fields["status"]["code"] = f"STATUS_CODE_{CODES[span.status]}"
    return fields


def _pairs(attributes: Mapping[str, Any]) -> list[Json]:
    return [{"key": key, "value": otlp_value(value)} for key, value in attributes.items()]


def otlp_value(value: Any) -> Json:
    """AnyValue as JSON; a whole double is written without a point, as Go does."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": number(value)}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value)}}
    return {"arrayValue": {"values": [otlp_value(item) for item in value]}}


# --- OTLP protobuf ----------------------------------------------------------------------------------------


def otlp_protobuf(spans: Spans) -> bytes:
    """``TracesData``; an export request has the same bytes."""
    return bytes(TracesData(resource_spans=_messages(spans)).SerializeToString())


def otlp_request(spans: Spans) -> bytes:
    return bytes(ExportTraceServiceRequest(resource_spans=_messages(spans)).SerializeToString())


def tempo_v1_protobuf(spans: Spans) -> bytes:
    return otlp_protobuf(spans)


def tempo_v2_protobuf(spans: Spans) -> bytes:
    """Field 1 the trace, field 2 metrics (here with one number), as Tempo answers."""
    trace = otlp_protobuf(spans)
    return b"\x0a" + varint(len(trace)) + trace + b"\x12\x04\x08\xa4\xd4\x3e"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _messages(spans: Spans) -> list[ResourceSpans]:
    messages = []
    for resource, of_resource in itertools.groupby(spans, lambda span: span.resource):
        message = ResourceSpans()
        message.resource.attributes.extend(
            _key_values({"service.name": resource.service, **resource.attributes})
        )
        for scope, of_scope in itertools.groupby(of_resource, lambda span: span.scope):
            scope_spans = message.scope_spans.add()
            scope_spans.scope.name, scope_spans.scope.version = scope.name, scope.version
            scope_spans.scope.attributes.extend(_key_values(scope.attributes))
            for span in of_scope:
                out = scope_spans.spans.add(
                    trace_id=span.trace.to_bytes(16, "big"),
                    span_id=span.id.to_bytes(8, "big"),
                    trace_state=span.state,
                    parent_span_id=span.parent.to_bytes(8, "big") if span.parent else b"",
                    flags=span.flags,
                    name=span.name,
                    kind=span.kind,
                    start_time_unix_nano=span.start,
                    end_time_unix_nano=span.end,
                    attributes=_key_values(span.attributes),
                )
                out.status.message, out.status.code = span.message, span.status
                for event in span.events:
                    out.events.add(
                        time_unix_nano=event.time, name=event.name, attributes=_key_values(event.attributes)
                    )
                for link in span.links:
                    out.links.add(
                        trace_id=link.trace.to_bytes(16, "big"),
                        span_id=link.span.to_bytes(8, "big"),
                        attributes=_key_values(link.attributes),
                    )
        messages.append(message)
    return messages


def _key_values(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()]


def _any_value(value: Any) -> AnyValue:
    out = AnyValue()
    if isinstance(value, bool):
        out.bool_value = value
    elif isinstance(value, int):
        out.int_value = value
    elif isinstance(value, float):
        out.double_value = value
    elif isinstance(value, bytes):
        out.bytes_value = value
    elif isinstance(value, str):
        out.string_value = value
    elif isinstance(value, Mapping):
        out.kvlist_value.SetInParent()
        out.kvlist_value.values.extend(_key_values(value))
    elif value is not None:
        out.array_value.SetInParent()
        out.array_value.values.extend(_any_value(item) for item in value)
    return out


# --- The Collector's file exporter ------------------------------------------------------------------------


def framed(messages: Iterable[bytes], compress: bool = False) -> bytes:
    """Length (4 bytes, the highest first) and message, each message compressed for itself."""
    if compress:
        messages = map(zstd, messages)
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def collector_protobuf(spans: Spans) -> bytes:
    return framed(map(otlp_protobuf, by_trace(spans)))


def collector_protobuf_zstd(spans: Spans) -> bytes:
    return framed(map(otlp_protobuf, by_trace(spans)), compress=True)


def collector_json_zstd(spans: Spans) -> bytes:
    return framed((dump(otlp(part)) for part in by_trace(spans)), compress=True)


def zstd(data: bytes) -> bytes:
    return bytes(zstandard.ZstdCompressor().compress(data))


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


# --- All of them ------------------------------------------------------------------------------------------

FORMATS: Final[dict[str, Callable[[Spans], bytes]]] = {
    "OTLP JSON document": otlp_document,
    "OTLP JSON lines": otlp_lines,
    "OTLP protobuf": otlp_protobuf,
    "OTLP export request": otlp_request,
    "Collector protobuf": collector_protobuf,
    "Collector protobuf zstd": collector_protobuf_zstd,
    "Collector JSON zstd": collector_json_zstd,
    "Jaeger v3": jaeger_v3,
    "Jaeger v1": jaeger_v1,
    "Jaeger traces": jaeger_bare,
    "Tempo v1 JSON": tempo_v1_json,
    "Tempo v2 JSON": tempo_v2_json,
    "Tempo v1 protobuf": tempo_v1_protobuf,
    "Tempo v2 protobuf": tempo_v2_protobuf,
    "Zipkin": zipkin,
}
"""Name -> what writes it. Kineto is not here: it has no ids, traces or services."""

PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {"": lambda data: data, "gzip": gz, "zstd": zstd}


def _without_zeros(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value not in ("", 0, [])}


def _hex_to_base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()
