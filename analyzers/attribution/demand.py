# SPDX-License-Identifier: Apache-2.0
"""How much is wanted of a metric at each time: step functions of the phases that are active."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import EXACT, VARIABLE, Observations, Users


@dataclass(frozen=True, eq=False)
class Demand:
    """What is wanted between ``edges`` (m + 1, Unix ns): within a segment nothing changes."""

    edges: IntArray
    exact: FloatArray
    """(m) Units that active phases with exact rules use together."""
    variable: FloatArray
    """(m) Weights of active phases with variable rules together."""
    observation: IntArray
    """(m) The interval of observations that a segment lies in; -1 for none."""

    @property
    def length(self) -> IntArray:
        """(m) ns of each segment."""
        return np.diff(self.edges)


def estimate(observed: Observations, users: Users) -> Demand:
    """Return the demand of ``users`` over the time from the first observation to the last.

    Phases that run before or after count with what lies in that time.
    """
    if not len(observed):
        nothing = np.zeros(0)
        return Demand(np.zeros(1, np.int64), nothing, nothing, np.zeros(0, np.int64))
    exact, variable = users.demanding(EXACT), users.demanding(VARIABLE)
    wanting = exact | variable
    low, high = observed.start[0], observed.end[-1]
    start, end = np.clip(users.start, low, high), np.clip(users.end, low, high)
    edges = np.unique(np.concatenate((observed.start, observed.end, start[wanting], end[wanting])))
    within = np.searchsorted(observed.start, edges[:-1], "right") - 1
    return Demand(
        edges,
        _sum_of_active(edges, start[exact], end[exact], users.amount[exact]),
        _sum_of_active(edges, start[variable], end[variable], users.amount[variable]),
        np.where(edges[:-1] < observed.end[within], within, -1),
    )


def _sum_of_active(edges: IntArray, start: IntArray, end: IntArray, amount: FloatArray) -> FloatArray:
    """Return for each segment the sum of what is active in it; exactly 0 where nothing is."""
    segments = len(edges) - 1
    first, after = np.searchsorted(edges, start), np.searchsorted(edges, end)
    change = np.bincount(first, amount, segments + 1) - np.bincount(after, amount, segments + 1)
    active = np.bincount(first, minlength=segments + 1) - np.bincount(after, minlength=segments + 1)
    some: BoolArray = np.cumsum(active)[:-1] > 0
    # What is left of sums that cancelled must not become demand, nor a demand below that of any one phase.
    least = amount.min() if len(amount) else 0.0
    return np.where(some, np.maximum(np.cumsum(change)[:-1], least), 0.0)
