# SPDX-License-Identifier: Apache-2.0
"""From calls that enclose each other to what a lane did at each instant: the innermost call.

A call owns the time between its children, as in the tree of a profile. Calls of one lane that cross, which
one thread cannot do, do not overlap here: the earlier ends where the later begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.sources.formats.nesting import nested


@dataclass(frozen=True)
class LanePieces:
    """LanePieces of lanes, sorted by (lane, start); those of one lane are disjoint, none is empty."""

    lane: IntArray
    start: IntArray
    end: IntArray
    owner: IntArray
    """Index of the call, as given to `innermost`; -1 for none."""
    holder: IntArray
    """Index of the outermost call around the piece; -1 for none."""

    def __len__(self) -> int:
        return len(self.start)

    def within(self, lane: IntArray, time: IntArray) -> IntArray:
        """Return the piece of ``lane`` at each ``time``, from its start to before its end; -1 for none."""
        found = self._begun(lane, time)
        return np.where((found >= 0) & (time < self.end[found]), found, -1)

    def until(self, lane: IntArray, time: IntArray) -> IntArray:
        """Return the piece of ``lane`` before each ``time``, from after its start to its end; -1 for none."""
        found = self._begun(lane, time - 1)
        return np.where((found >= 0) & (time <= self.end[found]), found, -1)

    def _begun(self, lane: IntArray, time: IntArray) -> IntArray:
        """Return the last piece of each ``lane`` that begins at ``time`` or before; -1 for none."""
        found: IntArray = np.full(len(lane), -1, np.int64)
        order = np.argsort(lane, kind="stable")
        asked, firsts = np.unique(lane[order], return_index=True)
        for one, mine in zip(asked.tolist(), np.split(order, firsts[1:]), strict=bool(len(asked))):
            low, high = np.searchsorted(self.lane, (one, one + 1)).tolist()
            at = low - 1 + np.searchsorted(self.start[low:high], time[mine], "right")
            found[mine] = np.where(at >= low, at, -1)
        return found


def innermost(lane: IntArray, start: IntArray, end: IntArray) -> LanePieces:
    """Return the pieces of all lanes. Empty calls have none; of equal calls that given first is outside."""
    some = np.flatnonzero(end > start)
    order, parent, _, until = nested(lane[some], start[some], end[some])
    lane, start, parent, end = lane[some][order], start[some][order], parent[order], until[order]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    parent = np.where(parent >= 0, place[parent], -1)  # from here on all is in order: parents before children
    outermost = np.maximum.accumulate(np.where(parent < 0, np.arange(len(order)), 0))
    # A call owns what is before each of its children, from the end of the one before, and what is after all.
    children = np.flatnonzero(parent >= 0)
    children = children[np.argsort(parent[children], kind="stable")]
    above = parent[children]
    first = np.ones(len(children), np.bool_)
    first[1:] = above[1:] != above[:-1]
    before = np.empty(len(children), np.int64)
    before[1:] = end[children[:-1]]
    before[first] = start[above[first]]
    rest = start.copy()
    last = np.roll(first, -1)
    rest[above[last]] = end[children[last]]
    owner = np.concatenate([above, np.arange(len(order))])
    begin = np.concatenate([before, rest])
    stop = np.concatenate([start[children], end])
    real = np.flatnonzero(stop > begin)
    real = real[np.lexsort((begin[real], lane[owner[real]]))]
    owner = owner[real]
    given = some[order]
    return LanePieces(lane[owner], begin[real], stop[real], given[owner], given[outermost[owner]])
