# SPDX-License-Identifier: Apache-2.0
"""Jaeger's own JSON: what its v1 API returns and its UI saves. Microseconds, truncated."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from grademl_otel.analyzers.model.columns import STATUS_ERROR, STATUS_OK, STATUS_UNSET
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import (
    JAEGER_JSON,
    JaegerTags,
    Unreadable,
    jaeger_tags,
    parse_id,
    parse_int,
)
from grademl_otel.analyzers.sources.formats.rows import Rows

_EMPTY: Final = msgspec.Raw(b"[]")
_Number = int | str | float | None


class _Reference(msgspec.Struct, gc=False):
    refType: str | None = None
    traceID: str | None = None
    spanID: str | None = None


class _Process(msgspec.Struct, gc=False):
    serviceName: str | None = None
    tags: msgspec.Raw = _EMPTY


class _Span(msgspec.Struct, gc=False):
    traceID: str | None = None
    spanID: str | None = None
    parentSpanID: str | None = None  # older documents and Elasticsearch
    operationName: str | None = ""
    references: list[_Reference] | None = None
    startTime: _Number = 0
    duration: _Number = None
    tags: msgspec.Raw = _EMPTY
    processID: str | None = None
    process: _Process | None = None


class _Trace(msgspec.Struct, gc=False):
    traceID: str | None = None
    spans: list[_Span] | None = None
    processes: dict[str, _Process] | None = None


_decoder = msgspec.json.Decoder(_Trace)

_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_UNKNOWN_PROCESS: Final = _Process()


def read_trace(raw: bytes | msgspec.Raw, buffer: SpanBuilder) -> None:
    """Add the spans of one Jaeger trace object to ``buffer`` until it is full.

    Raises Unreadable when it is none; spans before the fault may have been added.
    """
    try:
        trace = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Unreadable(f"not a Jaeger trace: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    processes = trace.processes or {}
    rows = Rows(JAEGER_JSON)
    try:
        for span in trace.spans or ():
            if len(rows) == buffer.room:
                return
            process = span.process or processes.get(span.processID or "", _UNKNOWN_PROCESS)
            resource_ix = buffer.resource((process.serviceName, JaegerTags(process.tags)), _resource)
            _add(span, parse_id(span.traceID or trace.traceID, 16), resource_ix, rows)
    finally:
        buffer.add(rows.batch())


def _add(span: _Span, trace: int, resource_ix: int, rows: Rows) -> None:
    own = parse_id(span.spanID, 8)
    if not trace or not own:
        raise Unreadable("a span without an id")
    references = [(r.refType, parse_id(r.traceID, 16), parse_id(r.spanID, 8)) for r in span.references or ()]
    parent = _parent(references, trace) or parse_id(span.parentSpanID, 8)
    tags = JaegerTags(span.tags)
    kind, status = _facts(tags)
    start, duration = parse_int(span.startTime), parse_int(span.duration)
    known = start > 0 and duration >= 0 and span.duration is not None
    rows.add(
        (
            trace,
            own,
            parent,
            span.operationName or "",
            start * 1000,
            (start + duration) * 1000 if known else 0,
            kind,
            status,
            resource_ix,
            tags,
        )
    )
    for _, other, span_id in references:
        if (other, span_id) != (trace, parent):
            rows.link(other, span_id, "follows")


def _parent(references: list[tuple[str | None, int, int]], trace: int) -> int:
    """The parent is the first CHILD_OF of the same trace, else the first FOLLOWS_FROM of it.

    (A span that links to its own parent comes out of Jaeger with the FOLLOWS_FROM only.)
    """
    for wanted in ("CHILD_OF", "FOLLOWS_FROM"):
        for kind, other, span_id in references:
            if kind == wanted and other == trace:
                return span_id
    return 0


@lru_cache(maxsize=4096)
def _facts(tags: JaegerTags) -> tuple[int, int]:
    """Return (kind, status) that Jaeger keeps among the tags."""
    found: dict[str, Any] = {}
    try:
        for item in msgspec.json.decode(tags):
            found[item["key"]] = item.get("value")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, TypeError, KeyError, AttributeError):
        pass
    code = found.get("otel.status_code")
    if code in ("ERROR", "OK"):
        status = STATUS_ERROR if code == "ERROR" else STATUS_OK
    else:
        status = STATUS_ERROR if found.get("error") in (True, "true") else STATUS_UNSET
    kind = found.get("span.kind")
    return _KINDS.get(kind, 0) if isinstance(kind, str) else 0, status


def _resource(process: tuple[str | None, JaegerTags]) -> dict[str, Any]:
    service, tags = process
    attributes = jaeger_tags(tags)
    if service:
        attributes["service.name"] = service
    return attributes
