# SPDX-License-Identifier: Apache-2.0
"""From averages over intervals to what was used within them, by what phases wanted (GradeML, section 4).

Within an interval what was observed goes first to exact demand, up to what each segment wants; then to
variable demand, by weight; what nobody wanted is background, spread evenly. No segment gets more than the
capacity, and the average over the interval stays what was observed. An interval in which demand does not
change is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray
from grademl_otel.analyzers.attribution.demand import Demand
from grademl_otel.analyzers.attribution.filling import fill
from grademl_otel.analyzers.attribution.observations import Observations


@dataclass(frozen=True, eq=False)
class Upsampled:
    """What was used on each segment of a demand."""

    demand: Demand
    value: FloatArray
    """(m) In the metric's unit; NaN where nothing was observed."""
    capacity: float
    unplaced: FloatArray
    """(n) By observation: what the capacity has no room for, in the metric's unit."""


def upsample(observed: Observations, demand: Demand) -> Upsampled:
    """Return ``observed`` on the segments of ``demand``, which was made of the same observations."""
    value = np.full(len(demand.timeline.observation), np.nan)
    unplaced = np.zeros(len(observed))
    inside = np.flatnonzero(demand.timeline.observation >= 0)
    owner = demand.timeline.observation[inside]
    value[inside] = observed.value[owner]
    exact, variable = demand.exact[inside], demand.variable[inside]
    same = (np.diff(owner) == 0) & ((np.diff(exact) != 0) | (np.diff(variable) != 0))
    varied = np.zeros(len(observed), np.bool_)
    varied[owner[1:][same]] = True
    chosen = np.flatnonzero(varied[owner])
    if not len(chosen):
        return Upsampled(demand, value, observed.capacity, unplaced)
    owner, exact, variable = owner[chosen], exact[chosen], variable[chosen]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    which = owner[first]
    fraction = demand.timeline.length[inside[chosen]] / (observed.end - observed.start)[owner]
    capacity = np.full(len(chosen), observed.capacity)
    got, left = fill(first, fraction, exact, np.minimum(exact, capacity), observed.value[which])
    for weight in (variable, np.ones(len(chosen))):
        more, left = fill(first, fraction, weight, capacity - got, left)
        got = np.minimum(got + more, capacity)
    value[inside[chosen]] = got
    unplaced[which] = left
    return Upsampled(demand, value, observed.capacity, unplaced)
