# SPDX-License-Identifier: Apache-2.0
"""Which interval encloses which: what a trace of calls without parents is made a tree by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grademl_otel.analyzers.arrays import IntArray


class Nesting(NamedTuple):
    """How intervals enclose each other within their lanes; see `nested`."""

    order: IntArray
    """Sorts them by lane, start, and at equal starts the longer first; of equal ones the one given first."""
    parent: IntArray
    """For each, as given, the innermost that encloses it (an interval encloses what ends with it), or -1."""
    crossings: int
    """How many begin in another of their lane and end after it."""
    until: IntArray
    """Their ends; of those that others cross, where the first of these begins: so they nest or are apart."""


def nested(lane: IntArray, start: IntArray, end: IntArray) -> Nesting:
    """Return how intervals of lanes enclose each other. Of two that cross, neither is the other's parent."""
    order = np.lexsort((-end, start, lane))
    parent = np.full(len(order), -1, np.int64)
    until: IntArray = end.copy()
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
            if ends[-1] > begin:
                crosses = True
                until[above[-1]] = begin
            ends.pop()
            above.pop()
        crossings += crosses
        found.append(above[-1] if above else -1)
        above.append(ix)
        ends.append(stop)
    parent[order] = found
    return Nesting(order, parent, crossings, until)
