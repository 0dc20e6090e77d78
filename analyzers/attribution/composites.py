# SPDX-License-Identifier: Apache-2.0
"""What a phase used that consists of others: the sum of these, within its own time.

What they could have used is the sum as well, and no more than there is: a leaf that wants nothing could have
had all of it, and several of them no more than one. (In GradeML they may have several times the capacity.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.attribution.usage import Attribution, Use

_SECOND: Final = 1e9


@dataclass(frozen=True)
class Total:
    """What some phases used of a metric in all."""

    usage: float
    """In the metric's unit times seconds."""
    capacity: float
    """What they could have used; infinite where nobody knows the capacity."""
    observed: float
    """Seconds in which any of them was active and the metric observed."""
    active: float
    """Seconds in which any of them was active, as far as they are known to the metric: those with a rule."""

    @property
    def utilization(self) -> float:
        """Use over what could have been used; NaN where that is not known, or nothing."""
        known = self.capacity > 0 and np.isfinite(self.capacity)
        return self.usage / self.capacity if known else float("nan")

    @property
    def mean(self) -> float:
        """Use while they were active and it was observed, in the metric's unit; NaN where it never was."""
        return self.usage / self.observed if self.observed > 0 else float("nan")


def together(attribution: Attribution, chosen: IntArray, low: int, high: int) -> Use | None:
    """Return what the ``chosen`` users used together from ``low`` to ``high`` (Unix ns).

    None where nothing is said of any of them. Where none of them is active they use nothing and could use
    nothing.
    """
    users, timeline = attribution.users, attribution.upsampled.demand.timeline
    chosen = chosen[users.rule[chosen] != NONE]
    if not len(chosen):
        return None
    edges = timeline.edges
    low, high = max(low, int(edges[0])), min(high, int(edges[-1]))
    if high <= low:
        nothing = np.zeros(0)
        return Use(np.full(1, low, np.int64), nothing, nothing)
    first = int(np.searchsorted(edges, low, "right")) - 1
    after = int(np.searchsorted(edges, high, "left"))
    cut = slice(first, after)
    within = edges[first : after + 1].copy()
    within[0], within[-1] = low, high
    usage, capacity = np.zeros(after - first), np.zeros(after - first)
    for rule, used, could in (
        (EXACT, attribution.usage_per_exact, attribution.capacity_per_exact),
        (VARIABLE, attribution.usage_per_variable, attribution.capacity_per_variable),
    ):
        some = chosen[(users.rule[chosen] == rule) & (users.amount[chosen] > 0)]
        if len(some):
            amount = _active(attribution, some, users.amount[some], cut)
            usage += used[cut] * amount
            capacity += np.multiply(could[cut], amount, where=amount > 0, out=np.zeros(len(amount)))
    idle = chosen[users.amount[chosen] == 0]
    if len(idle):
        wants_nothing = _active(attribution, idle, np.ones(len(idle)), cut) > 0
        capacity[wants_nothing] = attribution.upsampled.capacity
    capacity = np.minimum(capacity, attribution.upsampled.capacity)
    known = attribution.known[cut]
    return Use(within, np.where(known, usage, np.nan), np.where(known, capacity, np.nan))


def total(attribution: Attribution, chosen: IntArray, low: int, high: int) -> Total | None:
    """Return `together` in all."""
    use = together(attribution, chosen, low, high)
    if use is None:
        return None
    users = attribution.users
    chosen = chosen[users.rule[chosen] != NONE]
    active = _union(np.maximum(users.start[chosen], low), np.minimum(users.end[chosen], high))
    seconds = np.diff(use.edges) / _SECOND
    known = ~np.isnan(use.usage)
    observed = 0.0
    if len(seconds):
        at = int(np.searchsorted(attribution.upsampled.demand.timeline.edges, use.edges[0], "right")) - 1
        some = _active(attribution, chosen, np.ones(len(chosen)), slice(at, at + len(seconds))) > 0
        observed = float(seconds[known & some].sum())
    return Total(
        float((use.usage * seconds)[known].sum()),
        float(np.multiply(use.capacity, seconds, where=known, out=np.zeros(len(seconds))).sum()),
        observed,
        active / _SECOND,
    )


def _active(attribution: Attribution, chosen: IntArray, amount: FloatArray, cut: slice) -> FloatArray:
    """Return for each segment of ``cut`` the sum of ``amount`` of the chosen that are active in it."""
    timeline, number = attribution.upsampled.demand.timeline, cut.stop - cut.start
    first = np.clip(timeline.first[chosen] - cut.start, 0, number)
    after = np.clip(timeline.after[chosen] - cut.start, 0, number)
    change = np.bincount(first, amount, number + 1) - np.bincount(after, amount, number + 1)
    count = np.bincount(first, minlength=number + 1) - np.bincount(after, minlength=number + 1)
    some: BoolArray = np.cumsum(count)[:-1] > 0
    # What is left of sums that cancelled is nothing.
    return np.where(some, np.maximum(np.cumsum(change)[:-1], 0.0), 0.0)


def _union(start: IntArray, end: IntArray) -> int:
    """Return the length of the union of intervals; those that end before they start count nothing."""
    some = end > start
    order = np.argsort(start[some], kind="stable")
    start, reach = start[some][order], np.maximum.accumulate(end[some][order])
    before = np.concatenate((start[:1], reach[:-1]))
    return int(np.maximum(reach - np.maximum(start, before), 0).sum())


def union_of(attribution: Attribution, chosen: IntArray) -> float:
    """Return the seconds in which any of the ``chosen`` users was active and the metric observed."""
    timeline = attribution.upsampled.demand.timeline
    known = np.where(attribution.known, timeline.length, 0)
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(known)))
    first, after = timeline.first[chosen], timeline.after[chosen]
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(after[order])
    before = np.concatenate((first[:1], reach[:-1]))
    begin = np.maximum(first, before)
    return float((sums[np.maximum(reach, begin)] - sums[begin]).sum()) / _SECOND
