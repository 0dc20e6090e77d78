# SPDX-License-Identifier: Apache-2.0
"""What each phase used of a metric, and what it could have used (GradeML, section 4; the table below).

====================  =========================  ============================
rule                  usage                      available capacity
====================  =========================  ============================
exact, d > 0          min(x · d / E, d)          min(C · d / E, d)
variable, w > 0       max(x - E, 0) · w / V      max(C - E, 0) · w / V
demand of 0           0                          C
none                  nothing is said            nothing is said
====================  =========================  ============================

x is what was used, E and V the exact and variable demand, C the capacity. For all phases of a rule that is
one function of time, times the phase's amount: so the use of a phase is a difference of two sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.demand import estimate
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE, Users
from grademl_otel.analyzers.attribution.upsampling import Upsampled

_SECOND: Final = 1e9


@dataclass(frozen=True, eq=False)
class Use:
    """What one phase used, on segments of time."""

    edges: IntArray
    """(m + 1) Unix ns."""
    usage: FloatArray
    """(m) In the metric's unit; NaN where nothing was observed."""
    capacity: FloatArray
    """(m) What it could have used; infinite where nobody knows the capacity."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """One metric of one resource, attributed to the phases that use it."""

    upsampled: Upsampled
    users: Users

    def usage(self) -> FloatArray:
        """(k) What each phase used in all, in units times seconds; NaN for those of whom nothing is said."""
        return self._of_phases(self.usage_per_exact, self.usage_per_variable, 0.0)

    def capacity(self) -> FloatArray:
        """(k) What each phase could have used in all, in units times seconds, while it was observed."""
        return self._of_phases(self.capacity_per_exact, self.capacity_per_variable, self.upsampled.capacity)

    def observed(self) -> FloatArray:
        """(k) Seconds of each phase in which the metric was observed."""
        return self._between(np.where(self.known, 1.0, 0.0))

    def unattributed(self) -> FloatArray:
        """(m) What was used and is nobody's, in the metric's unit; NaN where nothing was observed."""
        demand = self.upsampled.demand
        of_phases = np.maximum(demand.variable - demand.always, 0.0)
        return self.upsampled.value - (
            self.usage_per_exact * demand.exact + self.usage_per_variable * of_phases
        )

    def of_phase(self, phase: int) -> Use | None:
        """Return what ``phase`` used over time; None where nothing is said of it."""
        users, timeline = self.users, self.upsampled.demand.timeline
        rule, amount = int(users.rule[phase]), float(users.amount[phase])
        if rule == NONE:
            return None
        cut = slice(int(timeline.first[phase]), int(timeline.after[phase]))
        edges = timeline.edges[cut.start : cut.stop + 1]
        if amount == 0:
            nothing = np.where(self.known[cut], 0.0, np.nan)
            return Use(edges, nothing, np.full(len(nothing), self.upsampled.capacity))
        per_unit = (
            (self.usage_per_exact, self.capacity_per_exact)
            if rule == EXACT
            else (self.usage_per_variable, self.capacity_per_variable)
        )
        return Use(edges, *(values[cut] * amount for values in per_unit))

    def together(self, chosen: BoolArray) -> FloatArray:
        """(m) What the phases that are ``chosen`` (k) used together; NaN where nothing was observed."""
        users = replace(self.users, amount=np.where(chosen, self.users.amount, 0.0))
        demand = estimate(self.upsampled.demand.timeline, users)
        return self.usage_per_exact * demand.exact + self.usage_per_variable * demand.variable

    # --- What one unit of demand gets: (m) each, NaN where nothing was observed -----------------------------

    @cached_property
    def usage_per_exact(self) -> FloatArray:
        return _share(np.minimum(self.upsampled.value, self._exact), self._exact, self.known)

    @cached_property
    def usage_per_variable(self) -> FloatArray:
        rest = np.maximum(self.upsampled.value - self._exact, 0.0)
        return _share(rest, self.upsampled.demand.variable, self.known)

    @cached_property
    def capacity_per_exact(self) -> FloatArray:
        return _share(np.minimum(self.upsampled.capacity, self._exact), self._exact, self.known)

    @cached_property
    def capacity_per_variable(self) -> FloatArray:
        rest = np.maximum(self.upsampled.capacity - self._exact, 0.0)
        return _share(rest, self.upsampled.demand.variable, self.known)

    @property
    def _exact(self) -> FloatArray:
        return self.upsampled.demand.exact

    @cached_property
    def known(self) -> BoolArray:
        return self.upsampled.demand.timeline.observation >= 0

    # --- Over the time of phases ----------------------------------------------------------------------------

    def _of_phases(self, exact: FloatArray, variable: FloatArray, of_no_demand: float) -> FloatArray:
        users = self.users
        found = np.full(len(users), np.nan)
        for rule, per_unit in ((EXACT, exact), (VARIABLE, variable)):
            mask = (users.rule == rule) & (users.amount > 0)
            found[mask] = self._between(np.where(self.known, per_unit, 0.0))[mask] * users.amount[mask]
        idle = (users.rule != NONE) & (users.amount == 0)
        seconds = self.observed()[idle]
        found[idle] = np.multiply(seconds, of_no_demand, out=np.zeros(len(seconds)), where=seconds > 0)
        return found

    def _between(self, per_second: FloatArray) -> FloatArray:
        """Return the integral of ``per_second`` (m, without NaN) over each phase, in seconds."""
        timeline = self.upsampled.demand.timeline
        sums = np.zeros(len(timeline.edges))
        finite = np.isfinite(per_second)
        np.cumsum(np.where(finite, per_second, 0.0) * (timeline.length / _SECOND), out=sums[1:])
        found: FloatArray = np.maximum(sums[timeline.after] - sums[timeline.first], 0.0)
        if not finite.all():
            endless = np.concatenate((np.zeros(1, np.int64), np.cumsum(~finite)))
            found[endless[timeline.after] > endless[timeline.first]] = np.inf
        return found


def _share(amount: FloatArray, demand: FloatArray, known: BoolArray) -> FloatArray:
    """Return ``amount`` for each unit of ``demand``, 0 without demand, NaN where nothing is known."""
    shared = np.divide(amount, demand, out=np.zeros(len(demand)), where=demand > 0)
    return np.where(known, shared, np.nan)
