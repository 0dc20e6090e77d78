# SPDX-License-Identifier: Apache-2.0
"""The critical paths of all traces: plain trees on arrays, see `plain`, all others by the walk of `tree`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.graph.path import KINDS, UNEXPLAINED, WORK, Path, kind_of
from grademl_otel.analyzers.graph.trees.labels import CHILD, PROGRAM, Pieces, labelled
from grademl_otel.analyzers.graph.trees.plain import PlainPaths, plain_paths
from grademl_otel.analyzers.graph.trees.plainness import MOST_TIME, plain_trees, time_of_trees
from grademl_otel.analyzers.graph.trees.span_tree import SpanTree, trace_roots
from grademl_otel.analyzers.graph.trees.threads import Threads
from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
from grademl_otel.analyzers.graph.trees.trace_paths import MOST_NS, TracePaths
from grademl_otel.analyzers.graph.trees.tree import walk
from grademl_otel.analyzers.model.columns import SpanColumns

_AT_ONCE: Final = 1 << 17
"""About so many spans are looked at at once: few enough for caches."""


def trace_paths(
    spans: SpanColumns,
    overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE,
    roots: Sequence[int] | None = None,
) -> TracePaths:
    """Return the critical path of each trace, ordered by the start of the roots; see `trace_roots`.

    Of the trees under ``roots`` alone, in their order, where any are given.
    """
    chosen = np.array(trace_roots(spans) if roots is None else roots, np.int64)
    return _Forest(spans, chosen, overlap_tolerance).paths()


def tree_path(
    spans: SpanColumns, root_ix: int, overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE
) -> Path:
    """Return the critical path of the tree under span ``root_ix``, over that span's ``[start, end)``.

    A root that ends before it starts, or at once, has an empty path.
    """
    return trace_paths(spans, overlap_tolerance, [root_ix])[0][1]


class _Forest:
    def __init__(self, spans: SpanColumns, roots: IntArray, tolerance: OverlapTolerance) -> None:
        self._spans, self._roots, self._tolerance = spans, roots, tolerance
        self._clipped = np.zeros(len(roots), np.int64)
        self._overlap = np.zeros(len(roots), np.int64)

    @cached_property
    def _tree(self) -> SpanTree:
        return SpanTree(self._spans)

    def paths(self) -> TracePaths:
        spans, roots = self._spans, self._roots
        plain = np.zeros(len(roots), bool)
        parts: list[tuple[IntArray, Pieces]] = []
        if len(roots):
            trace = spans.trace_ix
            of_trace = np.full(int(trace.max()) + 1, -1, np.int64)
            of_trace[trace[roots]] = np.arange(len(roots))
            tree = of_trace[trace]
            time = time_of_trees(spans, tree, len(roots))
            plain = plain_trees(spans, roots, tree, time)
            parts += self._plain(plain, tree, time)
        walked = np.flatnonzero(~plain).tolist()
        parts += [self._walked(number) for number in walked]
        number = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in parts)])
        pieces = Pieces.join([part for _, part in parts])
        if walked:
            order = np.argsort(number, kind="stable")
            number, pieces = number[order], pieces.take(order)
        asked = np.flatnonzero(~plain[number])
        start = spans.start[roots]
        return TracePaths(
            roots=roots,
            start=start,
            end=np.maximum(start, spans.end[roots]),
            sections=labelled(spans, pieces, self._tree if len(asked) else None, asked),
            first=np.searchsorted(number, np.arange(len(roots) + 1)),
            clipped_ns=self._clipped,
            overlap_ns=self._overlap,
        )

    def _walked(self, number: int) -> tuple[IntArray, Pieces]:
        found = walk(self._tree, int(self._roots[number]), self._tolerance)
        self._clipped[number] = min(found.clipped_ns, MOST_NS)
        self._overlap[number] = min(found.overlap_ns, MOST_NS)
        return np.full(len(found.pieces), number, np.int64), found.pieces

    def _plain(self, plain: BoolArray, tree: IntArray, time: FloatArray) -> list[tuple[IntArray, Pieces]]:
        """Return the sections of trees that are ``plain``, with their numbers; mark those that are not."""
        spans, numbers = self._spans, np.flatnonzero(plain)
        members = np.flatnonzero((tree >= 0) & plain[tree])
        if np.any(np.diff(tree[members]) < 0):
            members = members[np.argsort(tree[members], kind="stable")]
        place = np.full(len(spans), -1, np.int64)
        place[members] = np.arange(len(members))
        up = spans.parent_ix[members]
        up = np.where(up >= 0, place[np.maximum(up, 0)], np.arange(len(members)))
        up[place[self._roots[numbers]]] = place[self._roots[numbers]]
        first = np.searchsorted(tree[members], np.append(numbers, len(self._roots)))
        threads, kinds = Threads(spans), _Kinds(spans)
        parts = []
        for begin, end in _batches(first, time[numbers]):
            low, high = int(first[begin]), int(first[end])
            found = plain_paths(
                spans,
                members[low:high],
                up[low:high] - low,
                place[self._roots[numbers[begin:end]]] - low,
                self._tolerance,
                self._choose,
                threads.units,
            )
            number = numbers[begin:end]
            self._clipped[number] = found.clipped_ns
            plain[number[found.overlaps]] = False
            kept = np.flatnonzero(~found.overlaps[found.tree])
            parts.append((number[found.tree[kept]], kinds.pieces(found, kept)))
        return parts

    def _choose(self, alike: IntArray) -> int:
        return min(range(len(alike)), key=lambda at: self._tree.digest(int(alike[at])))


def _batches(first: IntArray, time: FloatArray) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of trees that are looked at together: neither too many spans nor too much time."""
    until = np.append(0.0, np.cumsum(time))
    begin = 0
    while begin < len(time):
        by_spans = np.searchsorted(first, first[begin] + _AT_ONCE)
        by_time = np.searchsorted(until, until[begin] + MOST_TIME) - 1
        end = int(min(max(begin + 1, min(by_spans, by_time)), len(time)))
        yield begin, end
        begin = end


class _Kinds:
    """Kinds of sections and how they were entered, by the rule of `tree` for what is plain."""

    def __init__(self, spans: SpanColumns) -> None:
        self._spans = spans
        self._of_name = np.array([KINDS.index(kind_of(name)) for name in spans.names] or [0], np.int64)
        self._waits = np.array([name in semconv.WAIT_PHASES for name in spans.names] or [False], bool)

    @cached_property
    def _holds(self) -> BoolArray:
        holds = np.zeros(len(self._spans), bool)
        holds[self._spans.parent_ix[self._spans.parent_ix >= 0]] = True
        return holds

    def pieces(self, found: PlainPaths, kept: IntArray) -> Pieces:
        span_ix = found.span_ix[kept]
        name = self._spans.name_ix[span_ix]
        kind = self._of_name[name]
        waits = np.flatnonzero(self._waits[name])
        if len(waits):
            inside = self._holds[span_ix[waits]]
            kind[waits] = np.where(inside, KINDS.index(WORK), KINDS.index(UNEXPLAINED))
        entered = np.where(found.follows[kept], PROGRAM, CHILD)
        return Pieces(found.start[kept], found.end[kept], span_ix, kind, entered)
