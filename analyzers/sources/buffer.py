# SPDX-License-Identifier: Apache-2.0
"""Where readers put batches of spans and columns come out: names, resources, repeats, times, parents."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import Ledger, Links, SpanColumns
from grademl_otel.analyzers.sources.batch import CodedNames, IdArray, LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.parents import repeats, resolve
from grademl_otel.analyzers.sources.parts import Arrays, Parts

_COLUMNS: Final = {
    "trace_hi": np.uint64,
    "trace_lo": np.uint64,
    "span_id": np.uint64,
    "parent_id": np.uint64,
    "start": np.int64,
    "end": np.int64,
    "name_ix": np.int32,
    "kind": np.int8,
    "status": np.int8,
    "flags": np.uint32,
    "resource_ix": np.int32,
    "scope_ix": np.int32,
    "dropped": np.int64,
}
_LAST_KIND: Final = 5
_LAST_STATUS: Final = 2

Decode = Callable[[Any], dict[str, Any]]


class SpanBuilder:
    """Collects spans of any number of documents and formats, then yields them as `SpanColumns`."""

    def __init__(self, max_spans: int, expected: int = 0) -> None:
        """``expected``: how many spans will come, where the source tells; there may be more or fewer."""
        self.max_spans = max_spans
        self._parts = Parts(_COLUMNS, min(expected, max_spans))
        self._names: dict[str, int] = {}
        self._resources = _Distinct()
        self._scopes = _Distinct()
        self._links = _Links()
        self._closed: set[tuple[int, int]] = set()
        self._again: set[tuple[int, int]] = set()
        self._unidentified = 0

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def room(self) -> int:
        """How many more spans are taken; readers stop where it is 0."""
        return max(0, self.max_spans - len(self._parts))

    @property
    def full(self) -> bool:
        """Whether the bound on the number of spans is reached."""
        return self.room == 0

    def resource(self, key: Hashable, decode: Decode) -> int:
        """Return the index of the resource whose raw form is ``key``; its attributes are ``decode(key)``.

        Resources with equal attributes share one index, whatever their raw forms.
        """
        return self._resources.index(key, decode)

    def scope(self, key: Hashable, decode: Decode) -> int:
        """Return the index of the scope whose raw form is ``key``.

        ``decode(key)`` gives a dict with ``name``, ``version`` (both str) and ``attributes`` (a dict).
        """
        return self._scopes.index(key, decode)

    def add(self, batch: SpanBatch) -> int:
        """Append spans; return how many were taken: none of closed traces, none beyond `room`."""
        rows = self._wanted(batch)
        base, count = len(self._parts), len(batch) if rows is None else len(rows)
        if not count:
            return 0
        self._unidentified += batch.unidentified
        arrays = {name: getattr(batch, name) for name in _COLUMNS if name != "name_ix"}
        if batch.dropped is None:
            arrays["dropped"] = np.zeros(len(batch), np.int64)
        arrays["name_ix"] = self._name_ix(batch.names)
        arrays["kind"] = _known(batch.kind, _LAST_KIND)
        arrays["status"] = _known(batch.status, _LAST_STATUS)
        self._parts.append(arrays, batch.attributes, batch.events, rows)
        if batch.links is not None:
            self._links.add(batch.links, base, len(batch), rows)
        return count

    def spans_of_traces(self, since: int) -> dict[int, int]:
        """Return trace id -> number of spans, of the spans from index ``since`` on."""
        found: dict[int, int] = {}
        for (high, low), spans in _by_trace(*self._ids_since(since)):
            found[high << 64 | low] = found.get(high << 64 | low, 0) + spans
        return found

    def close_traces(self, since: int) -> tuple[int, int]:
        """Take no more spans of the traces that spans from index ``since`` on are of.

        A server may return a trace more than once, each time as a whole: what comes again is no duplicate.
        Returns (number of traces closed now, number of those closed before that came again since then).
        """
        some = {trace for trace, _ in _by_trace(*self._ids_since(since))}
        again = len(self._again)
        self._closed |= some
        self._again.clear()
        return len(some), again

    def starts_since(self, since: int, shares: Sequence[float]) -> list[int]:
        """Return quantiles of when the spans from index ``since`` on begin, in Unix ns; none of no span."""
        starts = self._since("start", since)
        return [int(at) for at in np.quantile(starts, shares, method="nearest")] if len(starts) else []

    def _ids_since(self, since: int) -> tuple[IdArray, IdArray]:
        """Return the halves of the trace ids of the spans from index ``since`` on."""
        return self._since("trace_hi", since), self._since("trace_lo", since)

    def _since(self, column: str, since: int) -> npt.NDArray[Any]:
        return self._parts.last(column, len(self) - since)

    def finish(self, ledger: Ledger) -> SpanColumns:
        """Return the columns of all spans so far; what was repaired is counted in ``ledger``.

        More may be added after that; arrays are shared with what was returned, and never written to again.
        """
        arrays, attributes, events = self._parts.join()
        links = self._links.join()
        by_id = np.argsort(arrays["span_id"])
        identity = ("trace_hi", "trace_lo", "span_id", "kind")
        later, first = repeats(by_id, *(arrays[name] for name in identity))
        if len(later):
            same = _same(arrays, later, first)
            for store, decoded in ((attributes, attributes.attributes), (events, events.events)):
                same = same[store.same(later[same], first[same], decoded)]
            ledger.duplicates += len(same)
            ledger.conflicting += len(later) - len(same)
            kept = np.delete(np.arange(len(self._parts)), later)
            arrays = {name: array[kept] for name, array in arrays.items()}
            attributes, events = attributes.take(kept), events.take(kept)
            links = links.take(kept, len(self._parts))
            by_id = np.argsort(arrays["span_id"])
        ledger.sdk_dropped += int(arrays.pop("dropped").sum())
        ledger.unidentified += self._unidentified
        start, end = arrays["start"], arrays["end"]
        ledger.impossible_times += int(np.count_nonzero((end < start) | (end == 0)))
        needed = ("trace_hi", "trace_lo", "span_id", "parent_id", "kind", "start")
        parent_ix, cut = resolve(by_id, *(arrays[name] for name in needed))
        if cut:
            they = "1 ring of spans" if cut == 1 else f"{cut:,} rings of spans"
            ledger.warnings.append(f"{they}, each the ancestor of all: cut at the earliest")
        return SpanColumns(
            **arrays,
            parent_ix=parent_ix,
            names=list(self._names),
            resources=self._resources.values[:],
            scopes=self._scopes.values[:],
            links=links,
            raw_attributes=attributes,
            raw_events=events,
        )

    def _wanted(self, batch: SpanBatch) -> IntArray | None:
        """Return the rows of ``batch`` that are taken; None for all of them."""
        keep = None
        if self._closed:
            stretches = list(_by_trace(batch.trace_hi, batch.trace_lo))
            came = {trace for trace, _ in stretches} & self._closed
            self._again |= came
            if came:
                keep = np.repeat([t not in came for t, _ in stretches], [count for _, count in stretches])
        if keep is None and len(batch) <= self.room:
            return None
        rows = np.arange(len(batch)) if keep is None else np.flatnonzero(keep)
        return rows[: self.room]

    def _name_ix(self, names: Sequence[str]) -> npt.NDArray[np.int32]:
        known = self._names
        if isinstance(names, CodedNames):
            codes, number = names.codes, np.zeros(len(names.words), np.int32)
            first = np.full(len(names.words), -1, np.int64)
            # Of what is written to one place the last stays: the first row of each word.
            first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
            used = np.flatnonzero(first >= 0)
            for word in used[np.argsort(first[used])].tolist():
                number[word] = known.setdefault(names.words[word], len(known))
            return number[codes]
        for name in dict.fromkeys(names):
            known.setdefault(name, len(known))
        return np.fromiter(map(known.__getitem__, names), np.int32, len(names))


class _Distinct:
    """Dicts, each once, found again by a raw form of theirs."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self._of_key: dict[Hashable, int] = {}
        self._of_value: dict[str, int] = {}

    def index(self, key: Hashable, decode: Decode) -> int:
        ix = self._of_key.get(key)
        if ix is None:
            value = decode(key)
            ix = self._of_value.setdefault(repr(sorted(value.items())), len(self.values))
            if ix == len(self.values):
                self.values.append(value)
            self._of_key[key] = ix
        return ix


class _Links:
    """Links by batches."""

    def __init__(self) -> None:
        self._span_ix: list[IntArray] = []
        self._target: list[tuple[IdArray, IdArray, IdArray]] = []
        self._kind: list[str] = []

    def add(self, links: LinkBatch, base: int, count: int, rows: IntArray | None) -> None:
        """Append the links of ``rows`` (None: all) of a batch of ``count`` spans, which begin at ``base``."""
        some = Links(links.span_ix, links.trace_hi, links.trace_lo, links.span_id, list(links.kind))
        if rows is not None:
            some = some.take(rows, count)
        self._span_ix.append(some.span_ix + base)
        self._target.append((some.trace_hi, some.trace_lo, some.span_id))
        self._kind += some.kind

    def join(self) -> Links:
        if len(self._span_ix) > 1:
            self._span_ix = [np.concatenate(self._span_ix)]
            hi, lo, span_id = (np.concatenate(some) for some in zip(*self._target, strict=True))
            self._target = [(hi, lo, span_id)]
        none = np.zeros(0, np.uint64)
        hi, lo, span_id = self._target[0] if self._target else (none, none, none)
        span_ix = self._span_ix[0] if self._span_ix else np.zeros(0, np.int64)
        return Links(span_ix, hi, lo, span_id, self._kind[:])


def _known(values: npt.NDArray[np.int8], last: int) -> npt.NDArray[np.int8]:
    """Return ``values`` with 0 for those that no version of OTLP knows."""
    odd = (values < 0) | (values > last)
    return np.where(odd, np.int8(0), values) if odd.any() else values


def _by_trace(trace_hi: IdArray, trace_lo: IdArray) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield (trace, number of spans) of spans of one trace that follow each other, as they mostly do."""
    begins = np.flatnonzero(changes(trace_hi, trace_lo))
    counts = np.diff(np.append(begins, len(trace_hi)))
    traces = zip(trace_hi[begins].tolist(), trace_lo[begins].tolist(), strict=True)
    yield from zip(traces, counts.tolist(), strict=True)


def _same(arrays: Arrays, some: IntArray, others: IntArray) -> IntArray:
    """Return which pairs of rows of ``arrays`` are equal."""
    same = np.ones(len(some), np.bool_)
    for array in arrays.values():
        same &= array[some] == array[others]
    return np.flatnonzero(same)
