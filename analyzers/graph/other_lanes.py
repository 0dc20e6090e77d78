# SPDX-License-Identifier: Apache-2.0
"""The lanes beside the one that a walk is in: what there ended a wait, and what came before that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from grademl_otel.analyzers.graph.labels import LINK, QUEUE
from grademl_otel.analyzers.graph.siblings import Piece
from grademl_otel.analyzers.graph.span_tree import Lane, SpanTree


class OtherLanes:
    """Concurrent spans of one tree, found as the walk comes by their parents; each is entered once."""

    def __init__(self, tree: SpanTree, root: int, pause_ns: int) -> None:
        """``pause_ns``: up to this much between two spans of a lane it went from one to the next directly."""
        self._tree, self._root, self._pause_ns = tree, root, pause_ns
        self._known: dict[int, Piece] = {}
        self._by_item: dict[str, list[Piece]] = {}
        self._mates: dict[tuple[int, Lane | None], list[Piece]] = {}
        self._entered: set[int] = set()

    def add(self, parent: int, pieces: list[Piece]) -> None:
        """Remember the concurrent children of ``parent``, with what lies below, as possible ends of waits."""
        for piece in pieces:
            self._mates.setdefault((parent, self._tree.lane(piece.ix)), []).append(piece)
            for below in self._subtree(piece):
                self._known[below.ix] = below
                item = self._tree.facts(below.ix).item
                if item is not None:
                    self._by_item.setdefault(item, []).append(below)
        for lane in {self._tree.lane(piece.ix) for piece in pieces}:
            self._mates[parent, lane].sort(key=lambda piece: (piece.hi, piece.lo))

    def _subtree(self, top: Piece) -> Iterator[Piece]:
        spans, pending = self._tree.spans, [top]
        while pending:
            piece = pending.pop()
            yield piece
            for ix in self._tree.children(piece.ix):
                lo, hi = max(int(spans.start[ix]), piece.lo), min(int(spans.end[ix]), piece.hi)
                if lo < hi and ix != self._root:
                    pending.append(Piece(ix, lo, hi))

    def that_ended(self, wait: Piece) -> tuple[Piece, int] | None:
        """Return what ended ``wait``, the last of all that ended within it, and the edge that says so."""
        if not self._known:
            return None
        item = self._tree.facts(wait.ix).item if self._tree.is_wait(wait.ix) else None
        found = [(piece, QUEUE) for piece in self._by_item.get(item or "", ())]
        found += [(self._known[ix], LINK) for ix in self._tree.blockers(wait.ix) if ix in self._known]
        found = [
            (piece, edge)
            for piece, edge in found
            if wait.lo < piece.hi <= wait.hi and piece.ix not in self._entered
        ]
        if not found:
            return None
        piece, edge = max(found, key=lambda f: (f[0].hi, -f[0].lo, self._tree.digest(f[0].ix)))
        self._entered.add(piece.ix)
        return piece, edge

    def before(self, piece: Piece) -> Piece | None:
        """Return what the lane of ``piece`` did just before, if it went on without a pause."""
        key = int(self._tree.spans.parent_ix[piece.ix]), self._tree.lane(piece.ix)
        mates = self._mates.get(key, [])
        at = bisect_right(mates, piece.lo, key=lambda mate: mate.hi)
        while at > 0 and mates[at - 1].ix in self._entered:
            at -= 1
        if at == 0 or piece.lo - mates[at - 1].hi > self._pause_ns:
            return None
        self._entered.add(mates[at - 1].ix)
        return mates[at - 1]
