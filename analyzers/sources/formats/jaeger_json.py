# SPDX-License-Identifier: Apache-2.0
"""Jaeger's own JSON: what its v1 API returns and its UI saves. Microseconds, truncated."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import IdArray, LinkBatch, SpanBatch, SpanTarget
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable
from grademl_otel.analyzers.sources.formats.jaeger_values import FACTS, JAEGER_JSON, facts, jaeger_tags
from grademl_otel.analyzers.sources.formats.jsonscan import gather

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
    flags: _Number = 0
    startTime: _Number = 0
    duration: _Number = None
    tags: msgspec.Raw = _EMPTY
    logs: msgspec.Raw = _EMPTY
    processID: str | None = None
    process: _Process | None = None  # older documents and Elasticsearch
    warnings: list[Any] | None = None


class _Trace(msgspec.Struct, gc=False):
    traceID: str | None = None
    spans: list[_Span] | None = None
    processes: dict[str, _Process] | None = None


_trace = msgspec.json.Decoder(_Trace)
_traces = msgspec.json.Decoder(list[_Trace])
_spans = msgspec.json.Decoder(list[_Span])
_processes = msgspec.json.Decoder(dict[str, _Process])

_WORDS: Final = tuple(key.encode() for key in FACTS)
_UNKNOWN: Final = _Process()
_NO_REFERENCES: Final[list[_Reference]] = []
_MOVED: Final = re.compile(r"adjusted by (-?)((?:[\d.]+(?:ns|us|µs|ms|s|m|h))+)")
_PART: Final = re.compile(r"([\d.]+)(ns|us|µs|ms|s|m|h)")
_UNIT_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}


def read_trace(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of one trace object to ``builder`` until it is full.

    Raises Unreadable when it is none; spans before the fault may have been added.
    """
    _add(_decoded(_trace, raw), builder, ledger)


def read_traces(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> bool:
    """Add the spans of an array of trace objects; return False, with nothing added, when it is none."""
    try:
        traces: list[_Trace] = _traces.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if any(trace.spans is None and trace.processes is None for trace in traces):
        return False
    for trace in traces:
        _add(trace, builder, ledger)
    return True


def _add(trace: _Trace, builder: SpanTarget, ledger: Ledger) -> None:
    if trace.spans and builder.room:
        batch, of_process = _batch(trace.spans, trace.traceID, builder, ledger)
        builder.add(_placed(batch, of_process, trace.processes or {}, builder))


class TraceReader:
    """Reads a trace object in parts: its processes are told once all spans are there."""

    def __init__(self, builder: SpanTarget, ledger: Ledger) -> None:
        self._builder = builder
        self._ledger = ledger
        self._held: deque[tuple[SpanBatch, Sequence[_Process | str]]] = deque()
        self._count = 0
        self._texts: dict[str, str] = {}

    def add(self, raw: bytes, trace_id: bytes | None) -> None:
        """Take an array of spans; raise Unreadable when it is none."""
        if self._count >= self._builder.room:
            return
        of_trace = _decoded(msgspec.json.Decoder(str | None), trace_id) if trace_id else None
        spans = _decoded(_spans, raw)
        if spans:
            batch, of_process = _batch(spans, of_trace, self._builder, self._ledger)
            batch = replace(batch, names=vectors.shared(batch.names, self._texts))
            keys = [process for process in of_process if isinstance(process, str)]
            held = vectors.shared(keys, self._texts) if len(keys) == len(of_process) else of_process
            self._held.append((batch, held))
            self._count += len(spans)

    def finish(self, processes: bytes | None) -> None:
        """Hand on what was taken; raise Unreadable when ``processes`` are none."""
        known = _decoded(_processes, processes) if processes else {}
        while self._held:  # let go one by one: the builder has its own by then
            self._builder.add(_placed(*self._held.popleft(), known, self._builder))


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Unreadable(f"not a Jaeger trace: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotJson(f"not JSON: {error}") from None


def _batch(
    spans: list[_Span], trace_id: str | None, builder: SpanTarget, ledger: Ledger
) -> tuple[SpanBatch, list[_Process | str]]:
    """Return the spans without their resources, and the process of each or its key.

    Raises Unreadable when none of them has an id.
    """
    _note(spans, ledger)
    try:
        return _columns(spans, trace_id, builder)
    except Unreadable:
        good = [span for span in spans if _identified(span, trace_id)]
        if not good:
            raise
        batch, of_process = _columns(good, trace_id, builder)
        return replace(batch, unidentified=len(spans) - len(good)), of_process


def _identified(span: _Span, trace_id: str | None) -> bool:
    own = vectors.identified(span.traceID or trace_id, span.spanID, span.parentSpanID)
    return own and all(vectors.identified(other.traceID, other.spanID) for other in span.references or ())


def _columns(
    spans: list[_Span], trace_id: str | None, builder: SpanTarget
) -> tuple[SpanBatch, list[_Process | str]]:
    texts = [span.traceID or trace_id for span in spans]
    trace_hi, trace_lo = _trace_ids(texts)
    span_id = vectors.ids([span.spanID for span in spans], 8)
    parent_id, links = _references(spans, texts, trace_hi, trace_lo)
    start, end = _times(spans)
    tags = vectors.raw_column(JAEGER_JSON, [span.tags for span in spans])
    kind, status, scope_ix = _facts(tags, builder)
    batch = SpanBatch(
        trace_hi=trace_hi,
        trace_lo=trace_lo,
        span_id=span_id,
        parent_id=parent_id,
        start=start,
        end=end,
        names=[span.operationName or "" for span in spans],
        kind=kind,
        status=status,
        flags=vectors.flags([span.flags for span in spans]),
        resource_ix=np.zeros(len(spans), np.int32),
        scope_ix=scope_ix,
        attributes=tags,
        events=_logs(spans),
        links=links,
    )
    return batch, [span.process or span.processID or "" for span in spans]


def _placed(
    batch: SpanBatch,
    of_process: Sequence[_Process | str],
    processes: Mapping[str, _Process],
    builder: SpanTarget,
) -> SpanBatch:
    """Return the batch with the resources that its processes are."""
    # Each once first: nearly always all are keys, and few. In their order, on which that of resources rests.
    try:
        index = {key: _index(processes.get(key, _UNKNOWN), builder) for key in dict.fromkeys(of_process)}  # type: ignore[arg-type]
        resource_ix = list(map(index.__getitem__, of_process))
    except TypeError:  # some have their process in them
        resource_ix = [
            _index(processes.get(one, _UNKNOWN) if isinstance(one, str) else one, builder)
            for one in of_process
        ]
    return replace(batch, resource_ix=np.array(resource_ix, np.int32))


def _index(process: _Process, builder: SpanTarget) -> int:
    ix: int = builder.resource(("jaeger", process.serviceName, bytes(process.tags)), _resource)
    return ix


def _resource(key: tuple[str, str | None, bytes]) -> dict[str, Any]:
    _, service, tags = key
    attributes = jaeger_tags(tags)
    if service:
        attributes["service.name"] = service
    return attributes


def _trace_ids(texts: list[str | None]) -> tuple[IdArray, IdArray]:
    """Return the ids; nearly always they are all the same."""
    if len(set(texts)) > 1:
        return vectors.ids(texts, 16)
    hi, lo = vectors.ids(texts[:1], 16)
    return np.repeat(hi, len(texts)), np.repeat(lo, len(texts))


def _times(spans: list[_Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    start = vectors.microseconds([span.startTime for span in spans])
    durations = [span.duration for span in spans]
    length = vectors.microseconds(durations)
    if None in durations:
        length[[duration is None for duration in durations]] = vectors.NO_TIME
    with np.errstate(over="ignore"):
        end = start + length
    end = np.where((length < 0) | (end < start) | (start <= 0), vectors.NO_TIME, end)
    known = end >= 0
    # Without an end the start is still told.
    return np.where(start < 0, 0, start), np.where(known, end, 0)


def _references(
    spans: list[_Span], texts: list[str | None], trace_hi: IdArray, trace_lo: IdArray
) -> tuple[IdArray, LinkBatch | None]:
    """Return the parents, and what other references are: links.

    The parent is the first CHILD_OF of the same trace, else the first FOLLOWS_FROM of it. (A span that links
    to its own parent comes out of Jaeger with the FOLLOWS_FROM only.)
    """
    references = [span.references or _NO_REFERENCES for span in spans]
    parents = [
        some[0].spanID if len(some) == 1 and some[0].traceID == text else None
        for some, text in zip(references, texts, strict=True)
    ]
    odd = [ix for ix, parent in enumerate(parents) if parent is None and _has_parent(spans[ix])]
    parent_id = vectors.ids(parents, 8, optional=True)
    return (parent_id, None) if not odd else _odd_references(spans, odd, parent_id, trace_hi, trace_lo)


def _has_parent(span: _Span) -> bool:
    return bool(span.references) or span.parentSpanID is not None


def _odd_references(
    spans: list[_Span], odd: list[int], parent_id: IdArray, trace_hi: IdArray, trace_lo: IdArray
) -> tuple[IdArray, LinkBatch | None]:
    """Look at the spans ``odd``: of several references, or one to elsewhere, or only the id of a parent."""
    span_ix = np.array([ix for ix in odd for _ in spans[ix].references or ()], np.int64)
    all_of_them = [reference for ix in odd for reference in spans[ix].references or ()]
    hi, lo = vectors.ids([reference.traceID for reference in all_of_them], 16, optional=True)
    to = vectors.ids([reference.spanID for reference in all_of_them], 8, optional=True)
    near = (hi == trace_hi[span_ix]) & (lo == trace_lo[span_ix])
    parent_at: dict[int, int] = {}
    for wanted in ("CHILD_OF", "FOLLOWS_FROM"):
        for at in np.flatnonzero(near).tolist():
            if all_of_them[at].refType == wanted:
                parent_at.setdefault(int(span_ix[at]), at)
    parent_id = parent_id.copy()
    for ix in odd:
        found = parent_at.get(ix)
        parent_id[ix] = (
            to[found] if found is not None else vectors.ids([spans[ix].parentSpanID], 8, optional=True)[0]
        )
    links = ~(near & (to == parent_id[span_ix]))
    if not links.any():
        return parent_id, None
    return parent_id, LinkBatch(
        span_ix[links], hi[links], lo[links], to[links], ["follows"] * int(np.count_nonzero(links))
    )


def _facts(
    tags: RawColumn, builder: SpanTarget
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Return kind, status and scope, which Jaeger keeps among the tags."""
    picked = gather(bytes(tags.data), tags.offsets, _WORDS)
    number = {some: ix for ix, some in enumerate(dict.fromkeys(picked))}
    which = np.fromiter(map(number.__getitem__, picked), np.int64, len(picked))
    found = [facts(some) for some in number]
    scopes = [-1 if one.scope is None else builder.scope(("jaeger", *one.scope), _scope) for one in found]
    kind = np.array([one.kind for one in found], np.int8)
    status = np.array([one.status for one in found], np.int8)
    return kind[which], status[which], np.array(scopes, np.int32)[which]


def _scope(key: tuple[str, str, str]) -> dict[str, Any]:
    return {"name": key[1], "version": key[2], "attributes": {}}


def _logs(spans: list[_Span]) -> RawColumn | None:
    logs = [span.logs for span in spans]
    if b"".join(logs) == b"[]" * len(logs):
        return None
    column = vectors.raw_column(JAEGER_JSON, logs)
    nothing = len(b"null")
    return column if len(logs) and int(np.diff(column.offsets).max()) > nothing else None


def _note(spans: list[_Span], ledger: Ledger) -> None:
    """Tell the ledger of the microseconds, and of spans that Jaeger has moved."""
    ledger.microseconds = True
    for span in spans:
        if span.warnings:
            for warning in span.warnings:
                moved = _MOVED.search(warning) if isinstance(warning, str) else None
                if moved:
                    ledger.moved += 1
                    ledger.moved_most_ns = max(ledger.moved_most_ns, _duration(moved.group(2)))
                    break


def _duration(text: str) -> int:
    """Return ns of a duration as Go writes it, as ``1m2.5s``."""
    try:
        return round(sum(float(number) * _UNIT_NS[unit] for number, unit in _PART.findall(text)))
    except (ValueError, OverflowError):
        return 0
