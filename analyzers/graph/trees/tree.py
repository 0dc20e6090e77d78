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
from grademl_otel.analyzers.graph.path import GAP, HANDOFF, KINDS, UNEXPLAINED, WORK, Lane, kind_of
from grademl_otel.analyzers.graph.trees.labels import CHILD, PROGRAM, Pieces
from grademl_otel.analyzers.graph.trees.other_lanes import OtherLanes
from grademl_otel.analyzers.graph.trees.siblings import Piece, Siblings
from grademl_otel.analyzers.graph.trees.span_tree import SpanTree
from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE, OverlapTolerance

_WORK, _UNEXPLAINED, _GAP, _HANDOFF = (KINDS.index(kind) for kind in (WORK, UNEXPLAINED, GAP, HANDOFF))
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
    until: int
    """Where its window ends, be that after ``piece``, which ends where the walk came in."""
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
        start = tree.start[root]
        self._tree, self._root = tree, Piece(root, start, max(start, tree.end[root]))
        self._siblings = Siblings(tree, root, tolerance)
        self._others = OtherLanes(tree, self._root, tolerance.of(self._root.hi - start))
        self._rows: list[tuple[int, int, int, int, int]] = []

    def path(self) -> Walked:
        self._go_back()
        self._rows.reverse()
        return Walked(Pieces.of(self._rows), self._siblings.clipped_ns, self._siblings.overlap_ns)

    def _go_back(self) -> None:
        cursor, entered_by = self._root.hi, PROGRAM
        resumed_at = None  # where the walk came back from another lane
        left = None  # the lane or thread of the child that starts at the cursor
        stack = [self._frame(self._root, self._root.hi, None)]
        inside = {self._root.ix}  # what is on the stack
        while stack:
            frame = stack[-1]
            child = frame.next_child(cursor, resumed=cursor == resumed_at)
            if child is None:
                piece = frame.piece
                cursor, entered_by = self._own(piece, piece.lo, cursor, entered_by)
                stack.pop()
                inside.discard(piece.ix)
                there = cursor == piece.lo  # else the walk left it for another lane
                left = self._tree.unit(piece.ix) if there and not frame.beside else None
                if frame.beside:
                    before = self._others.before(piece) if there else None
                    if before is None:
                        resumed_at, entered_by = cursor, CHILD
                    else:
                        self._emit(piece.ix, before.hi, cursor, PROGRAM, _GAP)
                        cursor, entered_by = before.hi, PROGRAM
                        stack.append(self._frame(before, before.hi, self._around(before), beside=True))
                        inside.add(before.ix)
                continue
            if child.hi > cursor:
                child = Piece(child.ix, child.lo, cursor)
            if child.hi < cursor:
                cursor, entered_by = self._own(frame.piece, child.hi, cursor, entered_by)
                left = None
            entered_by = PROGRAM if left and left == self._tree.unit(child.ix) else CHILD
            left = None
            stack.append(self._frame(child, min(frame.until, self._tree.end[child.ix]), frame.lane))
            inside.add(child.ix)
            ended = self._others.that_ended(child, inside)
            if ended is not None:
                awaited, edge = ended
                self._emit(child.ix, awaited.hi, cursor, entered_by, _HANDOFF)
                cursor, entered_by = awaited.hi, edge
                stack.append(self._frame(awaited, awaited.hi, self._around(awaited), beside=True))
                inside.add(awaited.ix)

    def _frame(self, piece: Piece, until: int, inherited: Lane | None, beside: bool = False) -> _Frame:
        lane = self._tree.lane(piece.ix) or inherited
        children, concurrent = self._siblings.of(piece, until, lane)
        if concurrent:
            self._others.add(piece.ix, concurrent)
        return _Frame(piece, until, lane, children, beside)

    def _around(self, piece: Piece) -> Lane | None:
        return self._tree.lane_around(piece.ix)

    def _own(self, piece: Piece, start: int, cursor: int, entered_by: int) -> tuple[int, int]:
        """Give ``[start, cursor)`` to ``piece`` itself if that is any time; return where the walk then is."""
        if start >= cursor:
            return cursor, entered_by
        self._emit(piece.ix, start, cursor, entered_by, self._own_kind(piece.ix))
        return start, CHILD

    def _own_kind(self, ix: int) -> int:
        if self._tree.is_wait(ix):
            # With work inside, as of a loader without workers, the rest of the wait is overhead of that work.
            return _WORK if len(self._tree.children(ix)) else _UNEXPLAINED
        name, facts = self._tree.spans.name(ix), self._tree.facts(ix)
        if facts.inferred or (name in _CONTAINERS and facts.lane is not None):
            return _GAP
        return KINDS.index(kind_of(name))

    def _emit(self, ix: int, start: int, end: int, entered_by: int, kind: int) -> None:
        if start < end:
            self._rows.append((start, end, ix, kind, entered_by))
