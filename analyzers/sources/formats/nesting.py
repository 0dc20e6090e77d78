# SPDX-License-Identifier: Apache-2.0
"""Which interval encloses which: what a trace of calls without parents is made a tree by."""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.model.raw import IntArray


def nested(lane: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return (order, parent, crossings) of intervals that may enclose each other within their lane.

    ``order`` sorts them by lane, start, and at equal starts the longer first; of equal intervals the one
    given first encloses the others. ``parent`` is for each, as given, the innermost that encloses it (an
    interval encloses what ends with it), -1 for none. Of two that cross, neither is the other's parent;
    ``crossings`` counts the intervals that begin in another of their lane and end after it.
    """
    order = np.lexsort((-end, start, lane))
    parent = np.full(len(order), -1, np.int64)
    crossings = 0
    above: list[int] = []
    ends: list[int] = []
    found = []
    here = -1
    columns = (order.tolist(), lane[order].tolist(), start[order].tolist(), end[order].tolist())
    for ix, place, begin, stop in zip(*columns, strict=True):
        if place != here:
            here = place
            above.clear()
            ends.clear()
        crosses = False
        while ends and ends[-1] < stop:
            # What ends before this one ends encloses nothing that is to come and that this one does not.
            crosses = crosses or ends[-1] > begin
            ends.pop()
            above.pop()
        crossings += crosses
        found.append(above[-1] if above else -1)
        above.append(ix)
        ends.append(stop)
    parent[order] = found
    return order, parent, crossings
