# SPDX-License-Identifier: Apache-2.0
"""OTLP/JSON requests and trace data: typed, attributes left raw, liberal in what it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch, SpanTarget
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.otlp_beside import OTLP_JSON_SPAN, Beside, LinkBeside
from grademl_otel.analyzers.sources.formats.otlp_values import (
    NO_SCOPE,
    OTLP_JSON,
    STATUS_DESCRIPTION,
    otlp_attributes,
    otlp_scope,
)

_EMPTY: Final = msgspec.Raw(b"[]")
_NONE: Final = msgspec.Raw(b"")
_Number = int | str | float | None


class _Link(msgspec.Struct, gc=False):
    traceId: str | None = None
    spanId: str | None = None
    traceState: str | None = None
    attributes: msgspec.Raw = _EMPTY
    droppedAttributesCount: _Number = 0
    flags: _Number = 0


class _Status(msgspec.Struct, gc=False):
    code: _Number = 0
    message: str | None = None


class _Span(msgspec.Struct, gc=False):
    traceId: str | None = None
    spanId: str | None = None
    parentSpanId: str | None = None
    traceState: str | None = None
    name: str | None = ""
    kind: _Number = 0
    startTimeUnixNano: _Number = 0
    endTimeUnixNano: _Number = 0
    flags: _Number = 0
    attributes: msgspec.Raw = _EMPTY
    events: msgspec.Raw = _NONE
    links: list[_Link] | None = None
    status: _Status | None = None
    droppedAttributesCount: _Number = 0
    droppedEventsCount: _Number = 0
    droppedLinksCount: _Number = 0


class _ScopeSpans(msgspec.Struct, gc=False):
    spans: list[_Span] | None = None
    scope: msgspec.Raw = _NONE
    instrumentationLibrary: msgspec.Raw = _NONE  # before 2022


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = _EMPTY


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopeSpans: list[_ScopeSpans] | None = None
    instrumentationLibrarySpans: list[_ScopeSpans] | None = None  # before 2022


_groups = msgspec.json.Decoder(list[_ResourceSpans])

_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_CODES: Final = {"OK": 1, "ERROR": 2}
_FIELDS: Final = {
    "resource_spans": "resourceSpans",
    "scope_spans": "scopeSpans",
    "instrumentation_library_spans": "instrumentationLibrarySpans",
    "instrumentation_library": "instrumentationLibrary",
    "trace_id": "traceId",
    "span_id": "spanId",
    "parent_span_id": "parentSpanId",
    "trace_state": "traceState",
    "start_time_unix_nano": "startTimeUnixNano",
    "end_time_unix_nano": "endTimeUnixNano",
    "time_unix_nano": "timeUnixNano",
    "dropped_attributes_count": "droppedAttributesCount",
    "dropped_events_count": "droppedEventsCount",
    "dropped_links_count": "droppedLinksCount",
}


def read_resource_spans(raw: bytes | msgspec.Raw, builder: SpanTarget) -> None:
    """Add the spans of a ``resourceSpans`` array to ``builder`` until it is full.

    Raises Unreadable when the array is not one of resource spans; spans before the fault may have been added.
    """
    try:
        groups = _groups.decode(raw)
        if not _has_ids(groups):
            groups = _groups.decode(msgspec.json.encode(_renamed(msgspec.json.decode(raw))))
    except msgspec.ValidationError as error:
        raise Unreadable(f"not OTLP trace data: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    _add(groups, builder)


def _add(groups: Sequence[_ResourceSpans], builder: SpanTarget) -> None:
    """Add all groups as one batch: small ones, as of one span each, would cost more than their spans."""
    spans: list[_Span] = []
    of_groups: list[tuple[int, int, int]] = []
    room = builder.room
    for group in groups:
        resource = bytes(group.resource.attributes) if group.resource else b"[]"
        resource_ix = builder.resource(resource, otlp_attributes)
        for scope in chain(group.scopeSpans or (), group.instrumentationLibrarySpans or ()):
            if not scope.spans or len(spans) >= room:
                continue
            own = bytes(scope.scope) or bytes(scope.instrumentationLibrary)
            scope_ix = -1 if own in NO_SCOPE else builder.scope(own, otlp_scope)
            of_groups.append((resource_ix, scope_ix, len(scope.spans)))
            spans += scope.spans
    if spans:
        resources, scopes, counts = np.array(of_groups, np.int32).T
        resource_ixs, scope_ixs = np.repeat(resources, counts), np.repeat(scopes, counts)
        try:
            batch = _batch(spans, resource_ixs, scope_ixs)
        except Unreadable:
            good = [
                ix
                for ix, span in enumerate(spans)
                if vectors.identified(span.traceId, span.spanId, span.parentSpanId)
            ]
            if not good:
                raise
            some = _batch([spans[ix] for ix in good], resource_ixs[good], scope_ixs[good])
            batch = replace(some, unidentified=len(spans) - len(good))
        builder.add(batch)


def _batch(
    spans: Sequence[_Span], resource_ix: npt.NDArray[np.int32], scope_ix: npt.NDArray[np.int32]
) -> SpanBatch:
    trace_hi, trace_lo = vectors.ids([span.traceId for span in spans], 16)
    start, end = vectors.settled(
        vectors.times([span.startTimeUnixNano for span in spans]),
        vectors.times([span.endTimeUnixNano for span in spans]),
    )
    statuses = [span.status for span in spans]
    events = [span.events for span in spans]
    return SpanBatch(
        trace_hi=trace_hi,
        trace_lo=trace_lo,
        span_id=vectors.ids([span.spanId for span in spans], 8),
        parent_id=vectors.ids([span.parentSpanId for span in spans], 8, optional=True),
        start=start,
        end=end,
        names=[span.name or "" for span in spans],
        kind=vectors.enums([span.kind for span in spans], _KINDS),
        status=vectors.enums([status.code if status else 0 for status in statuses], _CODES),
        flags=vectors.flags([span.flags for span in spans]),
        resource_ix=resource_ix,
        scope_ix=scope_ix,
        attributes=_attributes(spans),
        events=vectors.raw_column(OTLP_JSON, events) if any(event is not _NONE for event in events) else None,
        links=_links(spans),
        dropped=_dropped(spans),
    )


def _attributes(spans: Sequence[_Span]) -> RawColumn:
    """Return raw attributes, with what a span says beside them where one of ``spans`` says something."""
    raws = [
        _with_message(span.attributes, span.status.message)
        if span.status and span.status.message
        else span.attributes
        for span in spans
    ]
    if not any(map(_says_more, spans)):
        return vectors.raw_column(OTLP_JSON, raws)
    some = zip(spans, raws, strict=True)
    return vectors.raw_column(
        OTLP_JSON_SPAN, [msgspec.json.encode(_beside(span, msgspec.Raw(raw))) for span, raw in some]
    )


def _says_more(span: _Span) -> bool:
    return bool(
        span.traceState
        or span.droppedAttributesCount
        or span.droppedEventsCount
        or span.droppedLinksCount
        or (span.links and any(map(_link_says_more, span.links)))
    )


def _link_says_more(link: _Link) -> bool:
    return bool(
        link.traceState
        or link.droppedAttributesCount
        or link.flags
        or not _is_kind_alone(bytes(link.attributes))
    )


@lru_cache(maxsize=1024)
def _is_kind_alone(attributes: bytes) -> bool:
    return otlp_attributes(attributes).keys() <= {semconv.LINK_KIND}


def _beside(span: _Span, attributes: msgspec.Raw) -> Beside:
    dropped = (span.droppedAttributesCount, span.droppedEventsCount, span.droppedLinksCount)
    attribute_count, events, links = vectors.flags(dropped).tolist()
    return Beside(
        attributes=attributes,
        traceState=span.traceState or "",
        droppedAttributesCount=attribute_count,
        droppedEventsCount=events,
        droppedLinksCount=links,
        links=[_link_beside(link) for link in span.links or () if _is_read(link)],
    )


def _link_beside(link: _Link) -> LinkBeside:
    dropped, flags = vectors.flags((link.droppedAttributesCount, link.flags)).tolist()
    return LinkBeside(link.traceState or "", link.attributes, dropped, flags)


def _is_read(link: _Link) -> bool:
    """Whether a link is among those of the columns: one that points somewhere."""
    return bool(link.traceId and link.spanId) and vectors.identified(link.traceId, link.spanId)


def _with_message(attributes: msgspec.Raw, message: str) -> bytes:
    """Return raw attributes with the message of the status among them."""
    own = msgspec.json.encode({"key": STATUS_DESCRIPTION, "value": {"stringValue": message}})
    given = bytes(attributes).strip()
    return (given[:-1] + b"," if len(given) > len(b"[]") and given.endswith(b"]") else b"[") + own + b"]"


def _links(spans: Sequence[_Span]) -> LinkBatch | None:
    """Return the links of ``spans``; those that point nowhere are left out."""
    linking = [ix for ix, span in enumerate(spans) if span.links]
    found = [(ix, link) for ix in linking for link in spans[ix].links or () if link.traceId and link.spanId]
    if not found:
        return None
    try:
        trace_hi, trace_lo = vectors.ids([link.traceId for _, link in found], 16)
        span_id = vectors.ids([link.spanId for _, link in found], 8)
    except Unreadable:
        found = [(ix, link) for ix, link in found if vectors.identified(link.traceId, link.spanId)]
        trace_hi, trace_lo = vectors.ids([link.traceId for _, link in found], 16)
        span_id = vectors.ids([link.spanId for _, link in found], 8)
    return LinkBatch(
        span_ix=np.array([ix for ix, _ in found], np.int64),
        trace_hi=trace_hi,
        trace_lo=trace_lo,
        span_id=span_id,
        kind=[_link_kind(bytes(link.attributes)) for _, link in found],
    )


@lru_cache(maxsize=1024)
def _link_kind(attributes: bytes) -> str:
    return str(otlp_attributes(attributes).get(semconv.LINK_KIND, "follows"))


def _dropped(spans: Sequence[_Span]) -> IntArray | None:
    lacking = [
        ix
        for ix, span in enumerate(spans)
        if span.droppedAttributesCount or span.droppedEventsCount or span.droppedLinksCount
    ]
    if not lacking:
        return None
    some = [spans[ix] for ix in lacking]
    counts = [(s.droppedAttributesCount, s.droppedEventsCount, s.droppedLinksCount) for s in some]
    dropped = np.zeros(len(spans), np.int64)
    for each in zip(*counts, strict=True):
        dropped[lacking] += vectors.flags(each)
    return dropped


def _has_ids(groups: Sequence[_ResourceSpans]) -> bool:
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
