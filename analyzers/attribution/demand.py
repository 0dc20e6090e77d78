# SPDX-License-Identifier: Apache-2.0
"""How much is wanted of a metric at each time: step functions of the phases that are active."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import EXACT, VARIABLE, Observations, Users


@dataclass(frozen=True, eq=False)
class Timeline:
    """All moments at which an observation or a phase begins or ends, from the first observation to the last.

    Metrics that one monitor saw at the same times share it: sorting is most of the work.
    """

    edges: IntArray
    """(m + 1) Unix ns; between two of them, in a segment, nothing changes."""
    observation: IntArray
    """(m) The interval of observations that a segment lies in; -1 for none."""
    first: IntArray
    """(k) By phase, its first segment within this time."""
    after: IntArray
    """(k) The segment after its last; no less than ``first``."""

    @cached_property
    def length(self) -> IntArray:
        """(m) ns of each segment."""
        return np.diff(self.edges)

    @classmethod
    def of(cls, observed: Observations, start: IntArray, end: IntArray) -> Timeline:
        """Return the timeline of ``observed`` and of phases from ``start`` to ``end`` (k, Unix ns)."""
        if not len(observed):
            nothing = np.zeros(len(start), np.int64)
            return cls(np.zeros(1, np.int64), np.zeros(0, np.int64), nothing, nothing)
        low, high = observed.start[0], observed.end[-1]
        start = np.clip(start, low, high)
        end = np.maximum(np.clip(end, low, high), start)
        edges = np.concatenate((observed.start, observed.end, start, end))
        edges.sort()
        edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
        within = np.searchsorted(observed.start, edges[:-1], "right") - 1
        observation = np.where(edges[:-1] < observed.end[within], within, -1)
        return cls(edges, observation, np.searchsorted(edges, start), np.searchsorted(edges, end))


@dataclass(frozen=True, eq=False)
class Demand:
    """What is wanted in each segment of a timeline."""

    timeline: Timeline
    exact: FloatArray
    """(m) Units that active phases with exact rules use together."""
    variable: FloatArray
    """(m) Weights of active phases with variable rules together, and ``always``."""
    always: float = 0.0
    """The weight of what uses the metric all the time, and is no phase."""


def estimate(timeline: Timeline, users: Users, always: float = 0.0) -> Demand:
    """Return the demand of ``users``, the phases that ``timeline`` was made of, and what is ``always`` there.

    Phases that run before or after the time of the observations count with what lies in it.
    """
    return Demand(
        timeline,
        _sum_of_active(timeline, users.demanding(EXACT), users.amount),
        _sum_of_active(timeline, users.demanding(VARIABLE), users.amount) + always,
        always,
    )


def _sum_of_active(timeline: Timeline, chosen: BoolArray, amount: FloatArray) -> FloatArray:
    """Return for each segment the sum of ``amount`` of what is active in it; exactly 0 where nothing is."""
    segments = len(timeline.observation)
    if not chosen.any():
        return np.zeros(segments)
    first, after, amount = timeline.first[chosen], timeline.after[chosen], amount[chosen]
    change = np.bincount(first, amount, segments + 1) - np.bincount(after, amount, segments + 1)
    active = np.bincount(first, minlength=segments + 1) - np.bincount(after, minlength=segments + 1)
    some: BoolArray = np.cumsum(active)[:-1] > 0
    # What is left of sums that cancelled must not become demand, nor a demand below that of any one phase.
    return np.where(some, np.maximum(np.cumsum(change)[:-1], amount.min()), 0.0)
