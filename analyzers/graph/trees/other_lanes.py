# SPDX-License-Identifier: Apache-2.0
"""The lanes beside the one that a walk is in: what there ended a wait, and what came before that."""

from __future__ import annotations

from collections.abc import Iterator, Set
from heapq import heappop, heappush
from typing import Final

from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.graph.trees.labels import LINK, QUEUE
from grademl_otel.analyzers.graph.trees.siblings import Piece
from grademl_otel.analyzers.graph.trees.span_tree import SpanTree

_NEVER: Final = 2**63


class OtherLanes:
    """Concurrent spans of one tree, found as the walk comes by their parents; each is entered once.

    So is what a link of kind ``blocking`` names, wherever it is.
    """

    def __init__(self, tree: SpanTree, root: Piece, pause_ns: int) -> None:
        """``pause_ns``: up to this much between two spans of a lane it went from one to the next directly."""
        self._tree, self._root, self._pause_ns = tree, root, pause_ns
        self._known: dict[int, Piece] = {}
        self._of_item: dict[str, _Latest] = {}
        self._of_lane: dict[tuple[int, Lane | None], _Latest] = {}
        self._entered: set[int] = set()
        self._windows = {root.ix: (root.lo, root.hi)}  # of what links name, and of all above

    def add(self, parent: int, pieces: list[Piece]) -> None:
        """Remember the concurrent children of ``parent``, with what lies below, as possible ends of waits."""
        for piece in pieces:
            lane = parent, self._tree.lane(piece.ix)
            self._of_lane.setdefault(lane, _Latest(self._tree, self._entered)).add(piece)
            for below in self._subtree(piece):
                self._known[below.ix] = below
                item = self._tree.facts(below.ix).item
                if item is not None and not self._tree.is_wait(below.ix):
                    self._of_item.setdefault(item, _Latest(self._tree, self._entered)).add(below)

    def _subtree(self, top: Piece) -> Iterator[Piece]:
        """Yield ``top`` and what lies below, but for what is known."""
        tree, pending = self._tree, [top]
        while pending:
            piece = pending.pop()
            if piece.ix in self._known:
                continue
            yield piece
            for ix in tree.children(piece.ix):
                lo, hi = max(tree.start[ix], piece.lo), min(tree.end[ix], piece.hi)
                if lo < hi and ix != self._root.ix:
                    pending.append(Piece(ix, lo, hi))

    def that_ended(self, wait: Piece, inside: Set[int]) -> tuple[Piece, int] | None:
        """Return what ended ``wait``, the last of all that ended within it, and the edge that says so.

        ``wait`` ends where the walk is, which never goes forward, ``inside`` all these spans.
        """
        tree = self._tree
        found: list[tuple[Piece, int]] = []
        if tree.is_wait(wait.ix) and self._of_item:
            ends = self._of_item.get(tree.facts(wait.ix).item or "")
            piece = ends and ends.until(wait.hi)
            if piece and piece.ix not in inside:
                found.append((piece, QUEUE))
        for ix in tree.blockers(wait.ix):
            if ix not in inside and ix not in self._entered:
                piece = self._known.get(ix) or self._elsewhere(ix)
                if piece and piece.hi <= wait.hi:
                    found.append((piece, LINK))
        found = [(piece, edge) for piece, edge in found if piece.hi > wait.lo]
        if not found:
            return None
        piece, edge = min(found, key=lambda one: _ranked(tree, one[0]))
        self._entered.add(piece.ix)
        return piece, edge

    def _elsewhere(self, ix: int) -> Piece | None:
        """Return span ``ix``, clipped to all that is above it; None where none is left.

        Of another tree it ends when it does, be that after the root; it matters from the root's start on.
        """
        tree, windows = self._tree, self._windows
        chain: dict[int, None] = {}
        while ix >= 0 and ix not in windows and ix not in chain:
            chain[ix] = None
            ix = tree.parent[ix]
        lo, hi = windows.get(ix, (self._root.lo, _NEVER))
        for ix in reversed(chain):
            lo, hi = max(lo, tree.start[ix]), min(hi, tree.end[ix])
            windows[ix] = lo, hi
        return Piece(ix, lo, hi) if lo < hi else None

    def before(self, piece: Piece) -> Piece | None:
        """Return what the lane of ``piece`` did just before, if it went on without a pause."""
        mates = self._of_lane.get((self._tree.parent[piece.ix], self._tree.lane(piece.ix)))
        before = mates and mates.until(piece.lo)
        if not before or piece.lo - before.hi > self._pause_ns:
            return None
        self._entered.add(before.ix)
        return before


class _Below:
    """A span that is told from others, alike so far, by what lies below it."""

    __slots__ = ("_tree", "piece")

    def __init__(self, tree: SpanTree, piece: Piece) -> None:
        self._tree, self.piece = tree, piece

    def __lt__(self, other: _Below) -> bool:
        return self._tree.digest(self.piece.ix) < self._tree.digest(other.piece.ix)


_Ranked = tuple[int, int, str, _Below]


def _ranked(tree: SpanTree, piece: Piece) -> _Ranked:
    """Return what sorts spans by the rule of the walk: latest end, earliest start, name, what lies below."""
    return -piece.hi, piece.lo, tree.spans.name(piece.ix), _Below(tree, piece)


class _Latest:
    """Spans of which the one that ended last is asked for, again and again, until earlier and earlier."""

    def __init__(self, tree: SpanTree, entered: set[int]) -> None:
        self._tree, self._entered = tree, entered
        self._heap: list[_Ranked] = []

    def add(self, piece: Piece) -> None:
        heappush(self._heap, _ranked(self._tree, piece))

    def until(self, moment: int) -> Piece | None:
        """Return the one that ended last, at ``moment`` or before, of those that were not entered."""
        while self._heap:
            piece = self._heap[0][-1].piece
            if piece.hi <= moment and piece.ix not in self._entered:
                return piece
            heappop(self._heap)  # the walk does not come to a later moment again
        return None
