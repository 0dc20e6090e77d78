# SPDX-License-Identifier: Apache-2.0
"""The critical path of a span tree.

The walk goes backwards from the root's end. At the cursor it takes the child that ended last (at equal ends
the one that started first, and a wait-class phase only when nothing else ended then), works through it the
same way, and goes on at its start; what no child covers belongs to the parent. Children are clipped to their
parent's already clipped window, so that the sections tile the root's duration exactly, in integers.

What may not block its parent does not enter this way: a CONSUMER child of a PRODUCER, and a *concurrent*
child, whose `grademl.lane` differs from its parent's. A concurrent span enters only at the end of a wait that
an observed edge ends: the queue (the same `grademl.item` on both) or a link of kind ``blocking``.
"""

from __future__ import annotations

from dataclasses import dataclass

from grademl_otel import semconv
from grademl_otel.analyzers.graph.other_lanes import OtherLanes
from grademl_otel.analyzers.graph.path import (
    GAP,
    HANDOFF,
    UNEXPLAINED,
    WORK,
    EnteredBy,
    Path,
    Section,
    Sections,
    kind_of,
)
from grademl_otel.analyzers.graph.siblings import Piece, Siblings
from grademl_otel.analyzers.graph.span_tree import Lane, SpanTree, trace_roots
from grademl_otel.analyzers.graph.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
from grademl_otel.analyzers.model.columns import SpanColumns

_CHILD = EnteredBy("child")
_PROGRAM = EnteredBy("program")

_CONTAINERS = frozenset(
    {
        semconv.RUN, semconv.FIT, semconv.EPOCH, semconv.EVALUATE,
        semconv.PREDICT, semconv.TRIAL, semconv.WINDOW, semconv.STEP,
    }
)  # fmt: skip
"""Spans of ours that only hold others: their own time is a gap, not work."""


def tree_path(
    spans: SpanColumns,
    root_ix: int,
    overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE,
    tree: SpanTree | None = None,
) -> Path:
    """Return the critical path of the tree under span ``root_ix``, over that span's ``[start, end)``.

    A root that ends before it starts, or at once, has an empty path. ``tree`` saves building the index again.
    """
    return _Walk(tree or SpanTree(spans), root_ix, overlap_tolerance).path()


def trace_paths(
    spans: SpanColumns, overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE
) -> list[tuple[int, Path]]:
    """Return one (root, path) per trace, ordered by the start of the roots; see `trace_roots`."""
    tree = SpanTree(spans)
    return [(root, tree_path(spans, root, overlap_tolerance, tree)) for root in trace_roots(spans)]


@dataclass
class _Frame:
    """A span that the walk is in."""

    piece: Piece
    lane: Lane | None
    """Its own or inherited; None when no ancestor tells."""
    children: list[Piece]
    """Those that may block it, in the order in which the walk asks for them."""
    beside: bool = False
    """Entered from another lane."""
    at: int = 0

    def next_child(self, cursor: int, resumed: bool) -> Piece | None:
        """Return the next child on the path, and move past it; None when the rest is the frame's own.

        Where the walk comes back from another lane it lands in the middle of what this lane was doing: then
        the child around the cursor is on the path too, up to the cursor.
        """
        while self.at < len(self.children) and cursor > self.piece.lo:
            child = self.children[self.at]
            self.at += 1
            if child.lo < cursor and (child.hi <= cursor or resumed):
                return child
        return None


class _Walk:
    def __init__(self, tree: SpanTree, root: int, tolerance: OverlapTolerance) -> None:
        self._tree, self._spans, self._root = tree, tree.spans, root
        self._start = int(tree.spans.start[root])
        self._end = max(self._start, int(tree.spans.end[root]))
        self._siblings = Siblings(tree, root, tolerance)
        self._others = OtherLanes(tree, root, tolerance.of(self._end - self._start))
        self._sections: list[Section] = []

    def path(self) -> Path:
        self._go_back()
        self._sections.reverse()
        sections = Sections.of(self._sections)
        return Path(self._start, self._end, sections, self._siblings.clipped_ns, self._siblings.overlap_ns)

    def _go_back(self) -> None:
        cursor, entered_by = self._end, _PROGRAM
        resumed_at = None  # where the walk came back from another lane
        left = None  # the lane or thread of the child that starts at the cursor
        stack = [self._frame(Piece(self._root, self._start, self._end), None)]
        while stack:
            frame = stack[-1]
            child = frame.next_child(cursor, resumed=cursor == resumed_at)
            if child is None:
                cursor, entered_by = self._own(frame.piece, frame.piece.lo, cursor, entered_by)
                stack.pop()
                left = self._tree.unit(frame.piece.ix)
                if frame.beside:
                    left = None
                    before = self._others.before(frame.piece)
                    if before is None:
                        resumed_at, entered_by = cursor, _CHILD
                    else:
                        self._emit(frame.piece, before.hi, cursor, _PROGRAM, GAP)
                        cursor, entered_by = before.hi, _PROGRAM
                        stack.append(self._frame(before, None, beside=True))
                continue
            child = Piece(child.ix, child.lo, min(child.hi, cursor))
            if child.hi < cursor:
                cursor, entered_by = self._own(frame.piece, child.hi, cursor, entered_by)
                left = None
            entered_by = _PROGRAM if left and left == self._tree.unit(child.ix) else _CHILD
            left = None
            stack.append(self._frame(child, frame.lane))
            ended = self._others.that_ended(child)
            if ended is not None:
                awaited, edge = ended
                self._emit(child, awaited.hi, cursor, entered_by, HANDOFF)
                cursor, entered_by = awaited.hi, edge
                stack.append(self._frame(awaited, None, beside=True))

    def _frame(self, piece: Piece, inherited: Lane | None, beside: bool = False) -> _Frame:
        lane = self._tree.lane(piece.ix) or inherited
        children, concurrent = self._siblings.of(piece, lane)
        if concurrent:
            self._others.add(piece.ix, concurrent)
        return _Frame(piece, lane, children, beside)

    def _own(self, piece: Piece, start: int, cursor: int, entered_by: EnteredBy) -> tuple[int, EnteredBy]:
        """Give ``[start, cursor)`` to ``piece`` itself if that is any time; return where the walk then is."""
        if start >= cursor:
            return cursor, entered_by
        self._emit(piece, start, cursor, entered_by, self._own_kind(piece.ix))
        return start, _CHILD

    def _own_kind(self, ix: int) -> str:
        name = self._spans.name(ix)
        if name in semconv.WAIT_PHASES:
            # With work inside, as of a loader without workers, the rest of the wait is overhead of that work.
            return WORK if self._tree.children(ix) else UNEXPLAINED
        if self._tree.facts(ix).inferred or (name in _CONTAINERS and self._tree.facts(ix).lane is not None):
            return GAP
        return kind_of(name)

    def _emit(self, piece: Piece, start: int, end: int, entered_by: EnteredBy, kind: str) -> None:
        if start >= end:
            return
        facts = self._tree.facts(piece.ix)
        self._sections.append(
            Section(
                start=start,
                end=end,
                phase=self._spans.name(piece.ix),
                kind=kind,
                rank=self._tree.rank(piece.ix),
                lane=facts.lane or "",
                step=facts.step,
                item=facts.item,
                span_ix=piece.ix,
                entered_by=entered_by,
            )
        )
