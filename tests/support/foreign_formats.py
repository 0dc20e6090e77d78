# SPDX-License-Identifier: Apache-2.0
"""Spans written as Jaeger's own JSON, as Zipkin's and as a profiler's, by the rules of what converts them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .truth import Resource, Span

KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
CODES: Final = ("UNSET", "OK", "ERROR")

Spans = Sequence[Span]
Json = dict[str, Any]


def by_trace(spans: Spans) -> list[Spans]:
    traces: dict[int, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).append(span)
    return list(traces.values())


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def number(value: float) -> float | int | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() else value


# --- Jaeger's own JSON ------------------------------------------------------------------------------------


def jaeger_v1(spans: Spans) -> bytes:
    """The answer of Jaeger's v1 API to a raw request, by the rules of its own conversion of OTLP."""
    return dump(
        {
            "data": [jaeger_trace(part) for part in by_trace(spans)],
            "total": 0,
            "limit": 0,
            "offset": 0,
            "errors": None,
        }
    )


def jaeger_bare(spans: Spans) -> bytes:
    """One trace object after the other."""
    return b"\n".join(dump(jaeger_trace(part)) for part in by_trace(spans))


def jaeger_trace(spans: Spans) -> Json:
    processes: list[Resource] = []
    for span in spans:
        if span.resource not in processes:
            processes.append(span.resource)
    return {
        "traceID": f"{spans[0].trace:032x}",
        "spans": [_jaeger_span(span, f"p{processes.index(span.resource) + 1}") for span in spans],
        "processes": {
            f"p{number}": {"serviceName": process.service, "tags": _tags(process.attributes)}
            for number, process in enumerate(processes, 1)
        },
        "warnings": None,
    }


def _jaeger_span(span: Span, process: str) -> Json:
    references = []
    pointed = [(link.trace, link.span) for link in span.links]
    # A link to the parent takes the place of the reference to it.
    if span.parent and (span.trace, span.parent) not in pointed:
        references.append(_reference("CHILD_OF", span.trace, span.parent))
    references += [_reference("FOLLOWS_FROM", *target) for target in pointed]
    tags = _tags(span.attributes)
    if span.kind:
        tags.append(_tag("span.kind", KINDS[span.kind].lower()))
    if span.status:
        tags.append(_tag("otel.status_code", CODES[span.status]))
    if span.status == 2:
        tags.append(_tag("error", True))
    for key, text in (
        ("otel.status_description", span.message),
        ("otel.scope.name", span.scope.name),
        ("otel.scope.version", span.scope.version),
        ("w3c.tracestate", span.state),
    ):
        if text:
            tags.append(_tag(key, text))
    return {
        "traceID": f"{span.trace:032x}",
        "spanID": f"{span.id:016x}",
        "operationName": span.name,
        "references": references,
        "startTime": span.start // 1000,
        "duration": (span.end - span.start) // 1000,
        "tags": tags,
        "logs": [
            {
                "timestamp": event.time // 1000,
                "fields": [_tag("event", event.name), *_tags(event.attributes)],
            }
            for event in span.events
        ],
        "processID": process,
        "warnings": None,
    }


def _reference(kind: str, trace: int, span: int) -> Json:
    return {"refType": kind, "traceID": f"{trace:032x}", "spanID": f"{span:016x}"}


def _tags(attributes: Mapping[str, Any]) -> list[Json]:
    return [_tag(key, value) for key, value in attributes.items()]


def _tag(key: str, value: Any) -> Json:
    if isinstance(value, bool):
        return {"key": key, "type": "bool", "value": value}
    if isinstance(value, int):
        # What a double cannot hold is written as text.
        return {"key": key, "type": "int64", "value": value if abs(value) < 2**53 else str(value)}
    if isinstance(value, float):
        return {"key": key, "type": "float64", "value": number(value)}
    if isinstance(value, bytes):
        return {"key": key, "type": "binary", "value": base64.b64encode(value).decode()}
    text = value if isinstance(value, str) else dump(value).decode()
    return {"key": key, "type": "string", "value": text}


# --- Zipkin v2 --------------------------------------------------------------------------------------------


def zipkin(spans: Spans) -> bytes:
    """What OpenTelemetry's rules for Zipkin make of the spans: texts, microseconds, no links."""
    return dump([_zipkin_span(span) for span in spans])


def _zipkin_span(span: Span) -> Json:
    tags = {key: _text(value) for key, value in span.attributes.items()}
    tags["otel.scope.name"] = span.scope.name
    if span.scope.version:
        tags["otel.scope.version"] = span.scope.version
    if span.status:
        tags["otel.status_code"] = CODES[span.status]
    if span.status == 2:
        tags["error"] = span.message
    fields = {
        "traceId": f"{span.trace:032x}",
        "id": f"{span.id:016x}",
        "parentId": f"{span.parent:016x}" if span.parent else None,
        "name": span.name,
        "kind": KINDS[span.kind] if span.kind > 1 else None,
        "timestamp": span.start // 1000,
        # Zipkin has no length of zero.
        "duration": max(1, (span.end - span.start) // 1000),
        "localEndpoint": {"serviceName": span.resource.service},
        "tags": tags,
        "annotations": [
            {
                "timestamp": event.time // 1000,
                "value": f'"{event.name}": {dump(event.attributes).decode()}'
                if event.attributes
                else event.name,
            }
            for event in span.events
        ],
    }
    return {key: value for key, value in fields.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str) else dump(value).decode()


# --- Profilers --------------------------------------------------------------------------------------------


def kineto(spans: Spans, lane: int = 1) -> bytes:
    """The spans of one thread as complete events of PyTorch's profiler: µs with three digits, arguments."""
    events: list[Json] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
    ]
    events += [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": span.name,
            "pid": 7,
            "tid": lane,
            "ts": (span.start - spans[0].start) / 1000,
            "dur": (span.end - span.start) / 1000,
            "args": dict(span.attributes),
        }
        for span in spans
    ]
    return dump(
        {
            "schemaVersion": 1,
            "baseTimeNanoseconds": spans[0].start,
            "displayTimeUnit": "ms",
            "traceEvents": events,
        }
    )
