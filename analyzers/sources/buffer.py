# SPDX-License-Identifier: Apache-2.0
"""Where readers put spans one by one and columns come out: duplicates, impossible times, parents."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.model.columns import (
    KIND_CLIENT,
    KIND_SERVER,
    NO_PARENT,
    ORPHAN,
    IntArray,
    Ledger,
    Links,
    SpanColumns,
)

_MAX_TIME: Final = 2**63 - 1
_MASK64: Final = 2**64 - 1


class SpanBuffer:
    """Collects spans of any number of documents and formats, then yields them as `SpanColumns` once."""

    def __init__(self, decode: Callable[[Any], dict[str, Any]], max_spans: int) -> None:
        self._decode = decode
        self.max_spans = max_spans
        self._traces: dict[int, int] = {}
        self._closed: set[int] = set()
        self._again: set[int] = set()
        self._trace_ix = array("q")
        self._span_id = array("Q")
        self._parent_id = array("Q")
        self._start = array("q")
        self._end = array("q")
        self._name_ix = array("q")
        self._kind = array("b")
        self._status = array("b")
        self._resource_ix = array("q")
        self._raw: list[Any] = []
        self._names: dict[str, int] = {}
        self._raws: dict[Any, Any] = {}
        self._resources: list[dict[str, Any]] = []
        self._resource_of: dict[Any, int] = {}
        self._link_span = array("q")
        self._link_trace: list[int] = []
        self._link_id = array("Q")
        self._link_kind: list[str] = []

    def __len__(self) -> int:
        return len(self._raw)

    @property
    def full(self) -> bool:
        """Whether the bound on the number of spans is reached; `add` must not be called then."""
        return len(self._raw) >= self.max_spans

    def resource(self, key: Any, decode: Callable[[Any], dict[str, Any]]) -> int:
        """Return the index of the resource whose raw form is ``key``, decoding it if it is new.

        Resources with equal attributes share one index, whatever their raw forms.
        """
        ix = self._resource_of.get(key)
        if ix is None:
            attributes = decode(key)
            canonical = tuple(sorted((name, repr(value)) for name, value in attributes.items()))
            ix = self._resource_of.setdefault(canonical, len(self._resources))
            if ix == len(self._resources):
                self._resources.append(attributes)
            self._resource_of[key] = ix
        return ix

    def add(
        self,
        trace: int,
        span: int,
        parent: int,
        name: str,
        start: int,
        end: int,
        kind: int,
        status: int,
        resource_ix: int,
        raw: Any,
    ) -> bool:
        """Append one span; false when its trace is closed already.

        Ids are unsigned, times are Unix ns; a time outside int64 counts as impossible.
        """
        if trace in self._closed:
            self._again.add(trace)
            return False
        if not (0 <= start <= _MAX_TIME and 0 <= end <= _MAX_TIME):
            start = end = 0
        self._trace_ix.append(self._traces.setdefault(trace, len(self._traces)))
        self._span_id.append(span)
        self._parent_id.append(parent)
        self._start.append(start)
        self._end.append(end)
        self._name_ix.append(self._names.setdefault(name, len(self._names)))
        self._kind.append(kind if 0 <= kind <= 5 else 0)
        self._status.append(status if 0 <= status <= 2 else 0)
        self._resource_ix.append(resource_ix)
        self._raw.append(self._raws.setdefault(raw, raw))
        return True

    def close_traces(self, since: int) -> tuple[int, int]:
        """Take no more spans of the traces that spans from index ``since`` on are of.

        A server may return a trace more than once, each time as a whole: what comes again is no duplicate.
        Returns (number of traces closed now, number of those closed before that came again since then).
        """
        ids = list(self._traces)
        some = {ids[ix] for ix in self._trace_ix[since:]}
        again = len(self._again)
        self._closed |= some
        self._again.clear()
        return len(some), again

    def link(self, trace: int, span: int, kind: str) -> None:
        """Append a link of the span added last."""
        self._link_span.append(len(self._raw) - 1)
        self._link_trace.append(trace)
        self._link_id.append(span)
        self._link_kind.append(kind)

    def finish(self, ledger: Ledger) -> SpanColumns:
        """Return the columns; counts duplicates, impossible times and broken ancestries in ``ledger``."""
        trace_ix = _ints(self._trace_ix)
        span_id = _ids(self._span_id)
        kind = np.frombuffer(self._kind, np.int8).copy() if self._kind else np.zeros(0, np.int8)
        kept = _first_of_each(trace_ix, span_id, kind)
        ledger.duplicates += len(trace_ix) - len(kept)

        trace_ix, span_id, kind = trace_ix[kept], span_id[kept], kind[kept]
        start, end = _ints(self._start)[kept], _ints(self._end)[kept]
        parent_id = _ids(self._parent_id)[kept]
        status = np.frombuffer(self._status, np.int8)[kept] if self._status else np.zeros(0, np.int8)
        ledger.impossible_times += int(np.count_nonzero((end < start) | (end == 0)))
        parent_ix, cut = resolve_parents(trace_ix, span_id, parent_id, kind, start)
        if cut:
            ledger.warnings.append(
                f"{cut} spans are their own ancestors; each such ring was cut at its earliest span"
            )

        traces = list(self._traces)
        hi = np.array([t >> 64 for t in traces], np.uint64)
        lo = np.array([t & _MASK64 for t in traces], np.uint64)
        return SpanColumns(
            trace_hi=hi[trace_ix],
            trace_lo=lo[trace_ix],
            span_id=span_id,
            parent_id=parent_id,
            parent_ix=parent_ix,
            start=start,
            end=end,
            name_ix=_ints(self._name_ix)[kept],
            names=list(self._names),
            kind=kind,
            status=status,
            resource_ix=_ints(self._resource_ix)[kept],
            resources=self._resources,
            links=self._links(kept),
            raw_attributes=self._raw if len(kept) == len(self._raw) else [self._raw[int(i)] for i in kept],
            decode=self._decode,
        )

    def _links(self, kept: IntArray) -> Links:
        new_ix = np.full(len(self._raw), -1, np.int64)
        new_ix[kept] = np.arange(len(kept))
        span_ix = new_ix[_ints(self._link_span)]
        alive = np.flatnonzero(span_ix >= 0)
        traces = [self._link_trace[int(i)] for i in alive]
        return Links(
            span_ix=span_ix[alive],
            trace_hi=np.array([t >> 64 for t in traces], np.uint64),
            trace_lo=np.array([t & _MASK64 for t in traces], np.uint64),
            span_id=_ids(self._link_id)[alive],
            kind=[self._link_kind[int(i)] for i in alive],
        )


def _ints(values: array[int]) -> IntArray:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _ids(values: array[int]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(values, np.uint64) if values else np.zeros(0, np.uint64)


def _first_of_each(
    trace_ix: IntArray, span_id: npt.NDArray[np.uint64], kind: npt.NDArray[np.int8]
) -> IntArray:
    """Return the indices, ascending, of the first of each (trace, span, kind)."""
    if not len(trace_ix):
        return np.zeros(0, np.int64)
    order = np.lexsort((kind, span_id, trace_ix))  # stable: equal keys stay in the order read
    same = (
        (np.diff(trace_ix[order]) == 0)
        & (span_id[order][1:] == span_id[order][:-1])
        & (np.diff(kind[order]) == 0)
    )
    firsts = order[np.concatenate(([True], ~same))]
    return np.sort(firsts)


def resolve_parents(
    trace_ix: IntArray,
    span_id: npt.NDArray[np.uint64],
    parent_id: npt.NDArray[np.uint64],
    kind: npt.NDArray[np.int8],
    start: IntArray,
) -> tuple[IntArray, int]:
    """Return (parent_ix, number of rings cut); see `SpanColumns.parent_ix`.

    Where a CLIENT and a SERVER span share one id (Zipkin's style), children belong to the SERVER span, and
    the SERVER span is a child of the CLIENT span.
    """
    n = len(span_id)
    parent_ix = np.full(n, NO_PARENT, np.int64)
    if not n:
        return parent_ix, 0
    ids, id_ix = np.unique(span_id, return_inverse=True)
    key = trace_ix * len(ids) + id_ix
    order = np.lexsort((kind != KIND_SERVER, key))
    sorted_key = key[order]

    at = np.minimum(np.searchsorted(ids, parent_id), len(ids) - 1)
    wanted = trace_ix * len(ids) + at
    slot = np.minimum(np.searchsorted(sorted_key, wanted), n - 1)
    found = (ids[at] == parent_id) & (sorted_key[slot] == wanted)
    given = parent_id != 0
    parent_ix[given] = ORPHAN
    parent_ix[given & found] = order[slot[given & found]]

    twins = np.flatnonzero((sorted_key[1:] == sorted_key[:-1]) & (kind[order][:-1] == KIND_SERVER))
    clients = twins[kind[order][twins + 1] == KIND_CLIENT]
    parent_ix[order[clients]] = order[clients + 1]
    return parent_ix, _cut_rings(parent_ix, start)


def _cut_rings(parent_ix: IntArray, start: IntArray) -> int:
    """Make an orphan of the earliest span of each ring of parents, in place; return the number of rings."""
    n = len(parent_ix)
    ancestor = np.append(np.where(parent_ix < 0, n, parent_ix), n)
    for _ in range(n.bit_length()):
        if bool(np.all(ancestor == n)):
            return 0
        ancestor = ancestor[ancestor]
    rings = 0
    walk_of = np.zeros(n, np.int64)  # 0: not walked yet
    for walk, first in enumerate(np.flatnonzero(ancestor[:n] != n), 1):
        at, chain = int(first), []
        while at >= 0 and walk_of[at] == 0:
            walk_of[at] = walk
            chain.append(at)
            at = int(parent_ix[at])
        if at >= 0 and walk_of[at] == walk:
            ring = chain[chain.index(at) :]
            parent_ix[min(ring, key=lambda i: (int(start[i]), i))] = ORPHAN
            rings += 1
    return rings
