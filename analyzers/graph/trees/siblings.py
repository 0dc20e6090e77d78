# SPDX-License-Identifier: Apache-2.0
"""The children of a span that may block it, in the order in which the walk asks for them."""

from __future__ import annotations

from itertools import groupby, pairwise

import msgspec

from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.graph.trees.span_tree import SpanTree, Unit
from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER


class Piece(msgspec.Struct, gc=False):
    """A span clipped to the window in which it can matter; never empty but for the root."""

    ix: int
    lo: int
    hi: int


class Siblings:
    """Clips, settles and sorts children, and counts what that took away."""

    def __init__(self, tree: SpanTree, root: int, tolerance: OverlapTolerance) -> None:
        self._tree, self._root, self._tolerance = tree, root, tolerance
        self._nested: dict[int, list[Piece]] = {}
        self._counted: set[int] = set()  # parents: the walk can come back to one
        self.clipped_ns = 0
        self.overlap_ns = 0

    def of(self, parent: Piece, until: int, lane: Lane | None) -> tuple[list[Piece], list[Piece]]:
        """Return the children of ``parent``, which runs in ``lane``: in the order of the walk; concurrent.

        ``until`` is where the window of ``parent`` ends, be that after what the walk sees of it.
        """
        tree, low, high = self._tree, parent.lo, parent.hi
        starts, ends, kinds = tree.start, tree.end, tree.kind
        producer = kinds[parent.ix] == KIND_PRODUCER
        blocking = [
            Piece(mate.ix, mate.lo, min(mate.hi, high))
            for mate in self._nested.get(parent.ix, ())
            if mate.lo < high
        ]
        concurrent: list[Piece] = []
        clipped = 0
        for ix in tree.children(parent.ix):
            start, end = starts[ix], ends[ix]
            # A child that is the root closes a cycle of parents; one that ends before it starts has no place.
            if ix == self._root or end < start or (producer and kinds[ix] == KIND_CONSUMER):
                continue
            child = Piece(ix, start if start > low else low, end if end < until else until)
            clipped += (end - start) - max(0, child.hi - child.lo)
            if child.lo < child.hi:
                own = tree.lane(ix) if lane is not None else None
                if own is not None and own != lane:
                    concurrent.append(child)
                elif child.lo < high:
                    child.hi = min(child.hi, high)
                    blocking.append(child)
        settled, overlap = self._settled(parent, blocking)
        if parent.ix not in self._counted:
            self._counted.add(parent.ix)
            self.clipped_ns += clipped
            self.overlap_ns += overlap
        return self._in_order(settled), concurrent

    def _settled(self, parent: Piece, children: list[Piece]) -> tuple[list[Piece], int]:
        """Let siblings of one lane nest, or end where the next starts: it does one thing at a time.

        Returns those that remain, and how much was cut.
        """
        children.sort(key=lambda child: child.lo)
        if all(before.hi <= after.lo for before, after in pairwise(children)):
            return children, 0
        units: dict[Unit, list[Piece]] = {}
        for child in children:
            unit = self._tree.unit(child.ix)
            if unit is not None:
                units.setdefault(unit, []).append(child)
        allowed = self._tolerance.of(parent.hi - parent.lo)
        nested: set[int] = set()
        overlap = 0
        for (sort, _, _), mates in units.items():
            # Of mates alike the one that the walk prefers comes last: what lies within both is in that one.
            mates = self._in_order(mates)[::-1]
            mates.sort(key=lambda mate: (mate.lo, -mate.hi))
            around: list[Piece] = []
            for mate in mates:
                while around and around[-1].hi <= mate.lo:
                    around.pop()
                if around:
                    outer = around[-1]
                    same = (outer.lo, outer.hi) == (mate.lo, mate.hi)
                    if mate.hi <= outer.hi and not same and sort == "lane":
                        # Phases of a lane nest by time, whatever their parents.
                        self._nested.setdefault(outer.ix, []).append(mate)
                        nested.add(mate.ix)
                    elif outer.lo < mate.lo and outer.hi <= mate.hi and outer.hi - mate.lo <= allowed:
                        overlap += outer.hi - mate.lo
                        outer.hi = mate.lo
                        around.pop()
                around.append(mate)
        return [child for child in children if child.ix not in nested], overlap

    def _in_order(self, children: list[Piece]) -> list[Piece]:
        """Sort by the rule of the walk; what is alike to the last bit is told apart by its subtree only."""

        def key(child: Piece) -> tuple[int, bool, int, str]:
            return -child.hi, self._tree.is_wait(child.ix), child.lo, self._tree.spans.name(child.ix)

        ordered: list[Piece] = []
        for _, alike in groupby(sorted(children, key=key), key=key):
            group = list(alike)
            if len(group) > 1:
                group.sort(key=lambda child: self._tree.digest(child.ix))
            ordered += group
        return ordered
