# SPDX-License-Identifier: Apache-2.0
"""When leaves of the execution model were active: one period each, of self time one for every gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.execution.model import BESIDE, SELF, Phases
from grademl_otel.analyzers.execution.self_time import gaps


@dataclass(frozen=True, eq=False)
class Activity:
    """Periods ``[start, end)`` in Unix ns, none empty, by leaf and start; those of one leaf are apart."""

    leaf: IntArray
    """(p) Number of a leaf among the phases."""
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.leaf)

    def within(self, nodes: slice) -> slice:
        """Return the slice of the periods of a subtree, which stand together."""
        first, after = np.searchsorted(self.leaf, (nodes.start, nodes.stop))
        return slice(int(first), int(after))

    def seconds(self) -> float:
        return float((self.end - self.start).sum()) / 1e9


def activity_of(phases: Phases) -> Activity:
    """Return when each leaf of ``phases`` was active."""
    of_self = phases.has(SELF)
    plain = np.flatnonzero(phases.leaves & ~of_self & (phases.end > phases.start))
    leaf, start, end = _gaps(phases, np.flatnonzero(of_self))
    leaf = np.concatenate((plain, leaf))
    start, end = (np.concatenate(pair) for pair in ((phases.start[plain], start), (phases.end[plain], end)))
    order = np.lexsort((start, leaf))
    return Activity(leaf[order], start[order], end[order])


def _gaps(phases: Phases, of_self: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return (leaf, start, end) of all gaps that leaves of self time stand for."""
    leaf_of = np.full(len(phases), -1, np.int64)
    leaf_of[phases.parent[of_self]] = of_self
    others = np.flatnonzero((phases.parent >= 0) & ~phases.has(SELF))
    others = others[leaf_of[phases.parent[others]] >= 0]
    of = phases.parent[others].astype(np.int64)
    # What runs beside its parent covers nothing of it.
    beside = phases.has(BESIDE)[others]
    since = np.where(beside, phases.start[of], phases.start[others])
    until = np.where(beside, phases.start[of], phases.end[others])
    order = np.lexsort((since, of))
    found = gaps(of[order], since[order], until[order], phases.start, phases.end)
    return leaf_of[found.phase], found.start, found.end
