# SPDX-License-Identifier: Apache-2.0
"""OTLP/JSON requests and trace data: typed, attributes left raw, liberal in what it accepts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from grademl_otel import semconv
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import (
    OTLP_JSON,
    Unreadable,
    otlp_attributes,
    parse_id,
    parse_int,
)
from grademl_otel.analyzers.sources.formats.rows import Rows

_EMPTY: Final = msgspec.Raw(b"[]")
_Number = int | str | float | None


class _Link(msgspec.Struct, gc=False):
    traceId: str | None = None
    spanId: str | None = None
    attributes: msgspec.Raw = _EMPTY


class _Status(msgspec.Struct, gc=False):
    code: _Number = 0


class _Span(msgspec.Struct, gc=False):
    traceId: str | None = None
    spanId: str | None = None
    parentSpanId: str | None = None
    name: str | None = ""
    kind: _Number = 0
    startTimeUnixNano: _Number = 0
    endTimeUnixNano: _Number = 0
    attributes: msgspec.Raw = _EMPTY
    links: list[_Link] | None = None
    status: _Status | None = None


class _ScopeSpans(msgspec.Struct, gc=False):
    spans: list[_Span] | None = None


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = _EMPTY


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopeSpans: list[_ScopeSpans] | None = None
    instrumentationLibrarySpans: list[_ScopeSpans] | None = None  # before 2022


_decoder = msgspec.json.Decoder(list[_ResourceSpans])

_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_CODES: Final = {"OK": 1, "ERROR": 2}
_FIELDS: Final = {
    "resource_spans": "resourceSpans",
    "scope_spans": "scopeSpans",
    "instrumentation_library_spans": "instrumentationLibrarySpans",
    "trace_id": "traceId",
    "span_id": "spanId",
    "parent_span_id": "parentSpanId",
    "start_time_unix_nano": "startTimeUnixNano",
    "end_time_unix_nano": "endTimeUnixNano",
}


def read_resource_spans(raw: bytes | msgspec.Raw, buffer: SpanBuilder) -> None:
    """Add the spans of a ``resourceSpans`` array to ``buffer`` until it is full.

    Raises Unreadable when the array is not one of resource spans; spans before the fault may have been added.
    """
    try:
        groups = _decoder.decode(raw)
        if not _has_ids(groups):
            groups = _decoder.decode(msgspec.json.encode(_renamed(msgspec.json.decode(raw))))
    except msgspec.ValidationError as error:
        raise Unreadable(f"not OTLP trace data: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    rows = Rows(OTLP_JSON)
    try:
        for group in groups:
            raw_resource = bytes(group.resource.attributes) if group.resource else b"[]"
            resource_ix = buffer.resource(raw_resource, otlp_attributes)
            for scope in (*(group.scopeSpans or ()), *(group.instrumentationLibrarySpans or ())):
                for span in scope.spans or ():
                    if len(rows) == buffer.room:
                        return
                    _add(span, resource_ix, rows)
    finally:
        buffer.add(rows.batch())


def _add(span: _Span, resource_ix: int, rows: Rows) -> None:
    trace, own = parse_id(span.traceId, 16), parse_id(span.spanId, 8)
    if not trace or not own:
        raise Unreadable("a span without an id")
    rows.add(
        (
            trace,
            own,
            parse_id(span.parentSpanId, 8),
            span.name or "",
            parse_int(span.startTimeUnixNano),
            parse_int(span.endTimeUnixNano),
            _enum(span.kind, _KINDS),
            _enum(span.status.code, _CODES) if span.status else 0,
            resource_ix,
            bytes(span.attributes),
        )
    )
    for link in span.links or ():
        kind = otlp_attributes(bytes(link.attributes)).get(semconv.LINK_KIND, "follows")
        rows.link(parse_id(link.traceId, 16), parse_id(link.spanId, 8), str(kind))


def _enum(value: _Number, names: dict[str, int]) -> int:
    """Enums are integers in OTLP/JSON; names such as SPAN_KIND_SERVER (protobuf's own JSON) are taken too."""
    if isinstance(value, str) and not value.isdigit():
        return names.get(value.rpartition("_")[2].upper(), 0)
    return parse_int(value)


def _has_ids(groups: list[_ResourceSpans]) -> bool:
    """Whether the field names are OTLP/JSON's own: false if there are groups but no span with an id."""
    if not groups:
        return True
    scopes = [s for group in groups for s in group.scopeSpans or group.instrumentationLibrarySpans or ()]
    if not scopes:
        return False
    spans = next((scope.spans for scope in scopes if scope.spans), None)
    return not spans or spans[0].traceId is not None


def _renamed(value: Any) -> Any:
    """Return ``value`` with protobuf's field names (snake_case) replaced by OTLP/JSON's."""
    if isinstance(value, dict):
        return {_FIELDS.get(k, k): _renamed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(v) for v in value]
    return value
