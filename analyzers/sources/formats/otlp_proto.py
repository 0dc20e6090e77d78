# SPDX-License-Identifier: Apache-2.0
"""OTLP protobuf: ``TracesData`` and export requests, which have the same bytes; attributes stay raw.

A reduced descriptor of the same messages decodes what becomes a column; the rest of a span stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import STATUS_ERROR, Ledger
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats import otlp_messages, vectors, wire
from grademl_otel.analyzers.sources.formats.decoding import Unreadable

SPANS: Final = "spans"
METRICS: Final = "metrics"
LOGS: Final = "logs"
_RESOURCE_SPANS: Final = 1
_TOGETHER: Final = 2048
"""Spans that become one batch; one group with more is a batch of its own."""
_PARSED: Final = 1 << 19
"""Bytes of spans that are decoded at a time: more do not fit into caches."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_SPAN: Final = (
    ("trace_id", 1, _FIELD.TYPE_BYTES),
    ("span_id", 2, _FIELD.TYPE_BYTES),
    ("parent_id", 4, _FIELD.TYPE_BYTES),
    ("name", 5, _FIELD.TYPE_BYTES),  # not checked to be UTF-8: one bad name would take all spans with it
    ("kind", 6, _FIELD.TYPE_INT32),
    ("start", 7, _FIELD.TYPE_FIXED64),
    ("end", 8, _FIELD.TYPE_FIXED64),
    ("dropped_attributes", 10, _FIELD.TYPE_UINT32),
    ("an_event", 11, _FIELD.TYPE_BYTES),  # the last of them: whether there is one
    ("dropped_events", 12, _FIELD.TYPE_UINT32),
    ("a_link", 13, _FIELD.TYPE_BYTES),
    ("dropped_links", 14, _FIELD.TYPE_UINT32),
    ("status", 15, _FIELD.TYPE_BYTES),
    ("flags", 16, _FIELD.TYPE_FIXED32),
)


def _reduced() -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Return the decoders of a ``ScopeSpans``: to spans of few fields, and to the bytes of each span."""
    file = descriptor_pb2.FileDescriptorProto(name="grademl_spans.proto", package="grademl", syntax="proto3")
    span = file.message_type.add(name="Span")
    for name, number, kind in _SPAN:
        span.field.add(name=name, number=number, type=kind, label=_FIELD.LABEL_OPTIONAL)
    decoded = file.message_type.add(name="Spans")
    decoded.field.add(
        name="spans",
        number=2,
        type=_FIELD.TYPE_MESSAGE,
        type_name=".grademl.Span",
        label=_FIELD.LABEL_REPEATED,
    )
    raw = file.message_type.add(name="RawSpans")
    raw.field.add(name="scope", number=1, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
    raw.field.add(name="spans", number=2, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    spans, raws = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grademl.{name}"))
        for name in ("Spans", "RawSpans")
    )
    return spans.FromString, raws.FromString


_spans, _raws = _reduced()


def read_traces(data: bytes | memoryview, builder: SpanBuilder, ledger: Ledger) -> None:
    """Add the spans of one message to ``builder``, as `TracesReader.read` does."""
    with TracesReader(builder, ledger) as reader:
        reader.read(data)


def signal(message: bytes | memoryview) -> str:
    """Return what a resource's message holds: `SPANS`, `METRICS` or `LOGS`; empty where that is nothing."""
    return _signal(_parts(memoryview(message))[1])


def _parts(message: memoryview) -> tuple[bytes, list[memoryview]]:
    """Return the resource and the spans by scope of ``ResourceSpans``."""
    resource: bytes = b""
    scopes: list[memoryview] = []
    for field in wire.fields(message):
        if field.wire == wire.LENGTH and field.number == 1:
            resource = bytes(message[field.start : field.end])
        elif field.wire == wire.LENGTH and field.number in (2, 1000):  # 1000: before 2022
            scopes.append(message[field.start : field.end])
    return resource, scopes


def _signal(scopes: Sequence[memoryview]) -> str:
    """Return what the scopes of a resource hold.

    Their messages differ only from the third level on: a span has times of a fixed width in fields 7 and 8,
    and ids of 16 and 8 bytes, a metric has a name and no field of a fixed width, a log record a time first.
    """
    for scope in scopes:
        item = next((f for f in wire.fields(scope) if (f.number, f.wire) == (2, wire.LENGTH)), None)
        if item is None:
            continue
        found = {field.number: field for field in wire.fields(scope, item.start, item.end)}
        size = {n: field.end - field.start for n, field in found.items() if field.wire == wire.LENGTH}
        timed = any(n in found and found[n].wire == wire.FIXED64 for n in (7, 8))
        if timed or (size.get(1) == 16 and size.get(2) == 8 and 7 not in size):
            return SPANS
        if 1 in size:
            return METRICS
        return LOGS if found and 2 not in size else SPANS
    return ""


class TracesReader:
    """Adds the spans of any number of messages to ``builder``; small ones are put together to batches.

    It is to be used in a ``with`` statement: at its end all spans have been added, whatever went wrong.
    """

    def __init__(self, builder: SpanBuilder, ledger: Ledger) -> None:
        self._builder = builder
        self._ledger = ledger
        self._clear()

    def __enter__(self) -> TracesReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    @property
    def full(self) -> bool:
        """Whether the builder will be full."""
        return len(self._spans) >= self._builder.room

    def _clear(self) -> None:
        self._spans: list[Any] = []
        self._raws: list[bytes] = []
        self._groups: list[tuple[int, int, int]] = []

    def read(self, data: bytes | memoryview) -> None:
        """Take the spans of ``TracesData`` or an export request, until the builder is full.

        Requests of metrics and logs are passed over and counted in the ledger. Raises Unreadable when the
        message is none of these; spans before the fault are taken.
        """
        view = memoryview(data)
        for field in wire.fields(view):
            if (field.number, field.wire) == (_RESOURCE_SPANS, wire.LENGTH):
                self.read_resource(view[field.start : field.end])

    def read_resource(self, message: bytes | memoryview) -> None:
        """Take the spans of one ``ResourceSpans``; as `read` otherwise."""
        resource, scopes = _parts(memoryview(message))
        found = _signal(scopes)
        if found == SPANS:
            self._take(resource, scopes)
        elif found:
            self._ledger.passed_over += 1

    def _take(self, resource: bytes, scopes: Sequence[memoryview]) -> None:
        """Take the spans of all scopes of one resource."""
        resource_ix = self._builder.resource(resource, otlp_messages.resource)
        for scope in scopes:
            own = wire.first(scope, 1) if len(scope) > _PARSED else None  # is decoded in several parts
            for part in wire.split(scope, _PARSED):
                if self.full:
                    return
                message = bytes(part)
                try:
                    decoded, raw = _spans(message), _raws(message)
                except DecodeError:
                    raise Unreadable("not OTLP protobuf, or a damaged message") from None
                name = raw.scope if own is None else own
                scope_ix = self._builder.scope(name, otlp_messages.scope) if name else -1
                self._groups.append((resource_ix, scope_ix, len(raw.spans)))
                self._spans += decoded.spans
                self._raws += raw.spans
                if len(self._spans) >= _TOGETHER:
                    self._flush()

    def _flush(self) -> None:
        """Hand what was gathered to the builder."""
        spans, raws, groups = self._spans, self._raws, self._groups
        self._clear()
        if not spans:
            return
        resources, scopes, counts = np.array(groups, np.int32).T
        resource_ixs, scope_ixs = np.repeat(resources, counts), np.repeat(scopes, counts)
        try:
            batch = _batch(spans, raws, resource_ixs, scope_ixs)
        except Unreadable:
            good = [ix for ix, span in enumerate(spans) if _ids(span.trace_id, span.span_id, span.parent_id)]
            if not good:
                raise
            chosen = [spans[ix] for ix in good], [raws[ix] for ix in good]
            some = _batch(*chosen, resource_ixs[good], scope_ixs[good])
            batch = replace(some, unidentified=len(spans) - len(good))
        self._builder.add(batch)


def _ids(trace: bytes, span: bytes, parent: bytes) -> bool:
    """Whether these are ids; a parent may be absent."""
    return 0 < len(trace) <= 16 and any(trace) and 0 < len(span) <= 8 and any(span) and len(parent) <= 8


def _batch(spans: Sequence[Any], raws: Sequence[bytes], resource_ix: Any, scope_ix: Any) -> SpanBatch:
    trace_hi, trace_lo = vectors.binary_ids([span.trace_id for span in spans], 16)
    start, end = vectors.settled(_times([span.start for span in spans]), _times([span.end for span in spans]))
    names = [span.name for span in spans]
    text = {name: name.decode("utf-8", "replace") for name in set(names)}
    attributes = vectors.raw_column(otlp_messages.OTLP_PROTO, raws)
    dropped = [span.dropped_attributes + span.dropped_events + span.dropped_links for span in spans]
    return SpanBatch(
        trace_hi=trace_hi,
        trace_lo=trace_lo,
        span_id=vectors.binary_ids([span.span_id for span in spans], 8),
        parent_id=vectors.binary_ids([span.parent_id for span in spans], 8, optional=True),
        start=start,
        end=end,
        names=[text[name] for name in names],
        kind=_small([span.kind for span in spans]),
        status=_small([_code(span.status) for span in spans]),
        flags=np.array([span.flags for span in spans], np.uint32),
        resource_ix=resource_ix,
        scope_ix=scope_ix,
        attributes=attributes,
        events=attributes if any(span.an_event for span in spans) else None,
        links=_links([ix for ix, span in enumerate(spans) if span.a_link], raws),
        dropped=np.array(dropped, np.int64) if any(dropped) else None,
    )


def _times(values: Sequence[int]) -> IntArray:
    """Return Unix ns; `vectors.NO_TIME` for what is beyond int64."""
    return np.array(values, np.uint64).astype(np.int64)  # the upper half becomes negative


def _small(values: Sequence[int]) -> Any:
    """Return small numbers; those that are none become 0."""
    wide = np.array(values, np.int64)
    return np.where((wide < 0) | (wide > 100), 0, wide).astype(np.int8)


@lru_cache(maxsize=1024)
def _code(status: bytes) -> int:
    """Return the code of a ``Status``; 0 where it is damaged or none that there is."""
    if not status:
        return 0
    try:
        codes = [
            wire.varint(status, f.start, f.end)[0]
            for f in wire.fields(status)
            if f.number == 3 and not f.wire
        ]
    except Unreadable:
        return 0
    return codes[-1] if codes and codes[-1] <= STATUS_ERROR else 0


def _links(linking: Sequence[int], raws: Sequence[bytes]) -> LinkBatch | None:
    """Return the links of the spans with numbers ``linking``; those that point nowhere are left out."""
    found = [
        (ix, trace, span, str(attributes.get(semconv.LINK_KIND, "follows")))
        for ix in linking
        for trace, span, attributes in otlp_messages.links(raws[ix])
        if any(span) and len(span) <= 8 and any(trace) and len(trace) <= 16
    ]
    if not found:
        return None
    span_ix, traces, spans, kinds = zip(*found, strict=True)
    trace_hi, trace_lo = vectors.binary_ids(traces, 16)
    return LinkBatch(np.array(span_ix, np.int64), trace_hi, trace_lo, vectors.binary_ids(spans, 8), kinds)
