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
from grademl_otel.analyzers.graph.labels import CHILD, PROGRAM, Pieces
from grademl_otel.analyzers.graph.other_lanes import OtherLanes
from grademl_otel.analyzers.graph.path import GAP, HANDOFF, KINDS, UNEXPLAINED, WORK, kind_of
from grademl_otel.analyzers.graph.siblings import Piece, Siblings
from grademl_otel.analyzers.graph.span_tree import Lane, SpanTree
from grademl_otel.analyzers.graph.tolerance import DEFAULT_TOLERANCE, OverlapTolerance

_CONTAINERS = frozenset(
    {
        semconv.RUN, semconv.FIT, semconv.EPOCH, semconv.EVALUATE,
        semconv.PREDICT, semconv.TRIAL, semconv.WINDOW, semconv.STEP,
    }
)  # fmt: skip
"""Spans of ours that only hold others: their own time is a gap, not work."""


@dataclass(frozen=True)
class Walked:
    """The path of one tree, and what was cut off to get it."""

    pieces: Pieces
    clipped_ns: int
    overlap_ns: int


def walk(tree: SpanTree, root_ix: int, tolerance: OverlapTolerance = DEFAULT_TOLERANCE) -> Walked:
    """Return the critical path under span ``root_ix`` of ``tree``."""
    return _Walk(tree, root_ix, tolerance).path()


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
        self._rows: list[tuple[int, int, int, int, int]] = []

    def path(self) -> Walked:
        self._go_back()
        self._rows.reverse()
        return Walked(Pieces.of(self._rows), self._siblings.clipped_ns, self._siblings.overlap_ns)

    def _go_back(self) -> None:
        cursor, entered_by = self._end, PROGRAM
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
                        resumed_at, entered_by = cursor, CHILD
                    else:
                        self._emit(frame.piece, before.hi, cursor, PROGRAM, GAP)
                        cursor, entered_by = before.hi, PROGRAM
                        stack.append(self._frame(before, None, beside=True))
                continue
            child = Piece(child.ix, child.lo, min(child.hi, cursor))
            if child.hi < cursor:
                cursor, entered_by = self._own(frame.piece, child.hi, cursor, entered_by)
                left = None
            entered_by = PROGRAM if left and left == self._tree.unit(child.ix) else CHILD
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

    def _own(self, piece: Piece, start: int, cursor: int, entered_by: int) -> tuple[int, int]:
        """Give ``[start, cursor)`` to ``piece`` itself if that is any time; return where the walk then is."""
        if start >= cursor:
            return cursor, entered_by
        self._emit(piece, start, cursor, entered_by, self._own_kind(piece.ix))
        return start, CHILD

    def _own_kind(self, ix: int) -> str:
        name = self._spans.name(ix)
        if name in semconv.WAIT_PHASES:
            # With work inside, as of a loader without workers, the rest of the wait is overhead of that work.
            return WORK if self._tree.children(ix) else UNEXPLAINED
        if self._tree.facts(ix).inferred or (name in _CONTAINERS and self._tree.facts(ix).lane is not None):
            return GAP
        return kind_of(name)

    def _emit(self, piece: Piece, start: int, end: int, entered_by: int, kind: str) -> None:
        if start >= end:
            return
        self._rows.append((start, end, piece.ix, KINDS.index(kind), entered_by))
