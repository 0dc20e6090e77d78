# SPDX-License-Identifier: Apache-2.0
"""The time of phases in which none of their children runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.arrays import changes


@dataclass(frozen=True)
class Gaps:
    """Intervals ``[start, end)``, none empty, sorted by (phase, start)."""

    phase: IntArray
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.phase)


def gaps(of: IntArray, start: IntArray, end: IntArray, low: IntArray, high: IntArray) -> Gaps:
    """Return what ``[low[p], high[p])`` of each phase p has that none of its children covers.

    ``of``, ``start`` and ``end`` tell the children, sorted by (of, start); what of them lies outside of p
    counts nothing. Phases without children have no gaps.
    """
    if not len(of):
        none = np.zeros(0, np.int64)
        return Gaps(none, none, none)
    begins = changes(of)
    first = np.flatnonzero(begins)
    start = np.clip(start, low[of], high[of])
    end = np.maximum(np.clip(end, low[of], high[of]), start)
    covered = _reached(end, first, start)
    before = np.empty_like(covered)
    before[1:] = covered[:-1]
    before[first] = low[of[first]]
    last = np.append(first[1:], len(of)) - 1
    phase = np.concatenate([of, of[last]])
    since = np.concatenate([before, covered[last]])
    until = np.concatenate([start, high[of[last]]])
    some = np.flatnonzero(until > since)
    some = some[np.lexsort((since[some], phase[some]))]
    return Gaps(phase[some], since[some], until[some])


def _reached(end: IntArray, first: IntArray, start: IntArray) -> IntArray:
    """Return the latest of each family's ends so far; ``first`` tells where families begin.

    In a family without overlaps that is each one's own end. In the others the reach doubles (Hillis and
    Steele, 1986), so that no family is walked through one by one.
    """
    reached = end.copy()
    family = np.zeros(len(end), np.int64)
    family[first] = 1
    family = np.cumsum(family) - 1
    overlaps = np.flatnonzero((start[1:] < end[:-1]) & (family[1:] == family[:-1]))
    some = np.isin(family, np.unique(family[overlaps]))
    at = np.flatnonzero(some)
    place = at - first[family[at]]
    reach = 1
    while len(at) and reach <= int(place.max()):
        far = place >= reach
        at, place = at[far], place[far]
        reached[at] = np.maximum(reached[at], reached[at - reach])
        reach *= 2
    return reached
