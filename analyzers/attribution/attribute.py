# SPDX-License-Identifier: Apache-2.0
"""Who used what: the phases of an execution model, the metrics of a resource model, and rules between them.

Phases are leaves of the execution model while they are active and not blocked; those of one type, host and
rank have the same rules and are one signature. What a metric comes to is made when it is asked for, and only
the last few of them are kept. For each metric, in its unit times seconds:

    observed = used by phases + background + unplaced

where background is what no phase wanted (and, of fitted metrics, what was always used), and unplaced what was
observed above the capacity.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.activity import Activity, activity_of
from grademl_otel.analyzers.attribution.blocking import Blocked, without_blocked
from grademl_otel.analyzers.attribution.composites import Total, together, total, union_of
from grademl_otel.analyzers.attribution.demand import Demand, Timeline, estimate
from grademl_otel.analyzers.attribution.fit import Fit
from grademl_otel.analyzers.attribution.fitted import Overridden, fit_of
from grademl_otel.analyzers.attribution.mapping import Gpus, Mapped, owners_of, with_peers
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE, Observations, Users
from grademl_otel.analyzers.attribution.rules import FIT, Assignment, Rule, RuleSet
from grademl_otel.analyzers.attribution.upsampling import upsample
from grademl_otel.analyzers.attribution.usage import Attribution, Use
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.resource_model.model import ResourceModel
from grademl_otel.analyzers.sql.paths import path_regex

_SECOND: Final = 1e9
_KEPT: Final = 6_000_000
"""Timelines, and what is made of them, are kept until they have so many segments: some 300 MB."""
_ARRAYS: Final = 5
"""What an attribution comes to hold, as it is asked for: it counts that much."""


@dataclass(frozen=True, eq=False)
class Signatures:
    """Leaves that no rule tells apart: of one type, one host and one rank."""

    type: IntArray
    """(s) Index into the types."""
    owner: IntArray
    """(s) Index into the owners of `Mapped`."""
    of_period: IntArray
    """(p) By period of the activity."""

    def __len__(self) -> int:
        return len(self.type)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Weights that the observations told."""

    types: IntArray
    """Index into the types, by column of the fit."""
    fit: Fit


@dataclass(frozen=True, eq=False)
class MetricUse:
    """How the phases of each signature use one metric."""

    metric: int
    """Index into the metrics of the resource model."""
    rule: npt.NDArray[np.int8]
    """(s) `NONE`, `EXACT`, `VARIABLE`."""
    amount: FloatArray
    """(s) Units of an exact rule, the weight of a variable one."""
    fitted: Fitted | None
    """What the weights of phases without a rule were taken from; None where every phase has one."""

    @property
    def background(self) -> float:
        """The weight of what is always used, whoever is active."""
        return 0.0 if self.fitted is None else self.fitted.fit.background

    @property
    def is_used(self) -> bool:
        """Whether any phase has a rule for it."""
        return bool((self.rule != NONE).any())


@dataclass(frozen=True, eq=False)
class Totals:
    """What phases used of one metric in all; arrays over signatures, or over types."""

    usage: FloatArray
    """In the metric's unit times seconds; NaN for those of whom nothing is said."""
    capacity: FloatArray
    """What they could have used; infinite where nobody knows the capacity."""
    observed: FloatArray
    """Seconds of these phases in which it was observed, those side by side added up."""
    active: FloatArray
    """Seconds of these phases with a rule, those side by side added up."""

    @property
    def utilization(self) -> FloatArray:
        """Use over what could have been used; NaN where that is not known, or nothing."""
        known = (self.capacity > 0) & np.isfinite(self.capacity)
        nothing = np.full(len(self.usage), np.nan)
        return np.asarray(np.divide(self.usage, self.capacity, out=nothing, where=known))

    @property
    def coverage(self) -> FloatArray:
        """Part of the time of these phases in which it was observed; NaN where they have none."""
        nothing = np.full(len(self.usage), np.nan)
        return np.asarray(np.divide(self.observed, self.active, out=nothing, where=self.active > 0))


@dataclass(frozen=True)
class Balance:
    """Where all that was observed of a metric went, in its unit times seconds."""

    observed: float
    used: float
    """By phases."""
    background: float
    """By none of them, or always."""
    unplaced: float
    """Above the capacity, in intervals in which demand changes."""


Value = TypeVar("Value")


class _Kept(Generic[Value]):
    """The last of what was made, as far as there is room for it."""

    def __init__(self, size: Callable[[Value], int]) -> None:
        self._size = size
        self._made: OrderedDict[Hashable, Value] = OrderedDict()
        self._held = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self._made:
            self._made[key] = make()
            self._held += self._size(self._made[key])
            while self._held > _KEPT and len(self._made) > 1:
                self._held -= self._size(self._made.popitem(last=False)[1])
        self._made.move_to_end(key)
        return self._made[key]


class Attributed:
    """All metrics, attributed to all phases."""

    def __init__(
        self,
        model: ExecutionModel,
        resources: ResourceModel,
        rules: RuleSet,
        gpus: Gpus | None = None,
    ) -> None:
        self.model, self.resources, self.rules = model, resources, rules
        phases, types = model.phases, model.types
        self.mapped = Mapped(owners_of(phases, types), resources, gpus or {})
        self.assignment = Assignment(types, rules, with_peers(phases, types))
        self.activity: Activity
        """When leaves were active and not blocked."""
        self.blocked: Blocked
        self.activity, self.blocked = without_blocked(
            activity_of(phases), phases, rules.blocking, self.assignment, self.mapped
        )
        owner = self.mapped.owners.of_phase[self.activity.leaf]
        width = len(self.mapped.owners.all)
        distinct, of_period = np.unique(
            phases.type[self.activity.leaf] * np.int64(width) + owner, return_inverse=True
        )
        self.signatures = Signatures(distinct // width, distinct % width, of_period.reshape(-1))
        self._timelines: _Kept[Timeline] = _Kept(lambda one: len(one.edges))
        self._demands: _Kept[Demand] = _Kept(lambda one: len(one.exact))
        self._attributions: _Kept[Attribution] = _Kept(lambda one: _ARRAYS * len(one.upsampled.value))
        self._uses: dict[int, MetricUse] = {}
        self._totals: dict[int, Totals] = {}
        self._periods: dict[bytes, IntArray] = {}
        self._observed_at: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self.resources.metrics)

    # --- One metric -------------------------------------------------------------------------------------

    def use(self, metric: int) -> MetricUse:
        """Return the rules for ``metric``, those of types without one from the observations."""
        if metric not in self._uses:
            self._uses[metric] = self._use(metric)
        return self._uses[metric]

    def periods(self, metric: int) -> IntArray:
        """Return the periods of the activity of phases that have a rule for ``metric``."""
        mask = self.use(metric).rule != NONE
        return self._periods_of(mask)

    def attribution(self, metric: int) -> Attribution:
        """Return ``metric``, attributed to its `periods`: these are its users, in that order."""
        return self._attributions.get(metric, lambda: self._attribution(metric))

    def of_signatures(self, metric: int) -> Totals:
        """Return what the phases of each signature used."""
        if metric not in self._totals:
            self._totals[metric] = self._of_signatures(metric)
        return self._totals[metric]

    def of_types(self, metric: int) -> Totals:
        """Return what the phases of each type used, with all that is part of them."""
        use, by_signature = self.use(metric), self.of_signatures(metric)
        types = self.model.types
        said = use.rule != NONE
        of = self.signatures.type[said]
        sums = [
            _of_subtrees(np.bincount(of, values[said], len(types)).astype(np.float64), types.size)
            for values in (
                by_signature.usage,
                by_signature.capacity,
                by_signature.observed,
                by_signature.active,
            )
        ]
        some = _of_subtrees(np.bincount(of, minlength=len(types)).astype(np.float64), types.size) > 0
        usage, capacity, observed, active = (np.where(some, each, np.nan) for each in sums)
        self._cap(metric, capacity)
        return Totals(usage, capacity, observed, active)

    def background(self, metric: int) -> Use:
        """Return what was used and is no phase's, over time; the capacity is that of the metric."""
        found = self.attribution(metric)
        values = found.unattributed()
        return Use(
            found.upsampled.demand.timeline.edges, values, np.full(len(values), found.upsampled.capacity)
        )

    def balance(self, metric: int) -> Balance:
        """Return where all that was observed went."""
        observed = self.resources.metrics[metric].observed
        length = (observed.end - observed.start) / _SECOND
        found, rest = self.attribution(metric), self.background(metric)
        return Balance(
            float(observed.value @ length),
            float(np.nansum(self.of_signatures(metric).usage)),
            float(np.nansum(rest.usage * np.diff(rest.edges) / _SECOND)),
            float(found.upsampled.unplaced @ length),
        )

    # --- Phases -----------------------------------------------------------------------------------------

    def metrics_of(self, signature: int) -> list[int]:
        """Return the metrics for which the phases of ``signature`` have a rule."""
        return [metric for metric in range(len(self)) if self.use(metric).rule[signature] != NONE]

    def of_phase(self, node: int, metric: int) -> Use | None:
        """Return what phase ``node`` used, with all that is part of it, over time; None: nothing is said."""
        phases, chosen = self.model.phases, self._users_within(node, metric)
        if not len(chosen):
            return None
        return together(self.attribution(metric), chosen, int(phases.start[node]), int(phases.end[node]))

    def total(self, node: int, metric: int) -> Total | None:
        """Return what phase ``node`` used in all, with all that is part of it; None: nothing is said."""
        phases, chosen = self.model.phases, self._users_within(node, metric)
        if not len(chosen):
            return None
        return total(self.attribution(metric), chosen, int(phases.start[node]), int(phases.end[node]))

    def of_type(self, node: int, metric: int) -> Use | None:
        """Return what all phases of type ``node`` used together over time; None: nothing is said."""
        part = self.model.types.subtree(node)
        of = self.signatures.type[self.signatures.of_period[self.periods(metric)]]
        chosen = np.flatnonzero((of >= part.start) & (of < part.stop))
        if not len(chosen):
            return None
        edges = self.attribution(metric).upsampled.demand.timeline.edges
        return together(self.attribution(metric), chosen, int(edges[0]), int(edges[-1]))

    def of_leaves(self, metric: int) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """Return (leaves with a rule, what each used, what it could have used, seconds observed)."""
        found, periods = self.attribution(metric), self.periods(metric)
        leaves, first = np.unique(self.activity.leaf[periods], return_index=True)
        if not len(leaves):
            none = np.zeros(0)
            return leaves, none, none, none
        usage, capacity, observed = (
            np.asarray(np.add.reduceat(each, first), np.float64)
            for each in (found.usage(), found.capacity(), found.observed())
        )
        return leaves.astype(np.int64), usage, capacity, observed

    # --- What is missing --------------------------------------------------------------------------------

    def concerns(self, rule: Rule) -> bool:
        """Whether there is a metric that ``rule`` is for."""
        return any(
            rule.metrics.fullmatch(one.type)
            and (rule.resource is None or _matches(rule.resource, self.resources.path(one.resource)))
            for one in self.resources.metrics
        )

    @cached_property
    def problems(self) -> list[str]:
        """One line each: what the resource model lacks, what rules lack, what fits leave open."""
        from grademl_otel.analyzers.attribution.missing import problems_of

        return [*self.resources.problems, *problems_of(self)]

    # --- How it is made ---------------------------------------------------------------------------------

    def _use(self, metric: int) -> MetricUse:
        one = self.resources.metrics[metric]
        of_types = self.assignment.of_metric(one.type, self._rules_for(metric))
        near = self.mapped.may_use(one.resource)[self.signatures.owner]
        rule = np.where(near, of_types.kind[self.signatures.type], NONE).astype(np.int8)
        amount = np.where(near, of_types.amount[self.signatures.type], 0.0)
        fitted = self._fit(one.observed, rule, amount) if (rule == FIT).any() else None
        if fitted is not None:
            self._weigh(fitted, rule, amount)
        return MetricUse(metric, rule, amount, fitted)

    def _rules_for(self, metric: int) -> list[int]:
        """Return the user's rules that are not for other resources."""
        path = self.resources.path(self.resources.metrics[metric].resource)
        return [
            ix
            for ix, rule in enumerate(self.rules.rules)
            if rule.resource is None or _matches(rule.resource, path)
        ]

    def _fit(self, observed: Observations, rule: npt.NDArray[np.int8], amount: FloatArray) -> Fitted:
        signatures, activity = self.signatures, self.activity
        unbound = self._periods_of(rule == FIT)
        types, column = np.unique(signatures.type[signatures.of_period[unbound]], return_inverse=True)
        others = self._periods_of((rule == EXACT) | (rule == VARIABLE))
        of = signatures.of_period[others]
        bound = Users(activity.start[others], activity.end[others], rule[of], amount[of])
        start, end = activity.start[unbound], activity.end[unbound]
        return Fitted(types, fit_of(observed, start, end, column.reshape(-1), len(types), Overridden(bound)))

    def _weigh(self, fitted: Fitted, rule: npt.NDArray[np.int8], amount: FloatArray) -> None:
        """Put the weights of a fit in place of the rules that ask for one."""
        weight = np.full(len(self.model.types), np.nan)
        weight[fitted.types] = fitted.fit.weight
        found = weight[self.signatures.type]
        asked = rule == FIT
        if np.isfinite(fitted.fit.beside):
            amount[rule == VARIABLE] *= fitted.fit.beside
        rule[asked] = np.where(np.isnan(found), NONE, VARIABLE)[asked]
        amount[asked] = np.nan_to_num(found)[asked]

    def _periods_of(self, mask: BoolArray) -> IntArray:
        key = np.packbits(mask).tobytes()
        if key not in self._periods:
            self._periods[key] = np.flatnonzero(mask[self.signatures.of_period]).astype(np.int32)
        return self._periods[key].astype(np.int64)

    def _attribution(self, metric: int) -> Attribution:
        use, observed = self.use(metric), self.resources.metrics[metric].observed
        periods = self.periods(metric)
        of = self.signatures.of_period[periods]
        users = Users(self.activity.start[periods], self.activity.end[periods], use.rule[of], use.amount[of])
        same = (self._times(metric), np.packbits(use.rule != NONE).tobytes())
        timeline = self._timelines.get(same, lambda: Timeline.of(observed, users.start, users.end))
        alike = (*same, use.rule.tobytes(), use.amount.tobytes(), use.background)
        demand = self._demands.get(alike, lambda: estimate(timeline, users, use.background))
        return Attribution(upsample(observed, demand), users)

    def _times(self, metric: int) -> bytes:
        """Return what is the same for metrics that were observed at the same times."""
        if metric not in self._observed_at:
            observed = self.resources.metrics[metric].observed
            self._observed_at[metric] = _digest(observed.start, observed.end)
        return self._observed_at[metric]

    def _of_signatures(self, metric: int) -> Totals:
        use, found = self.use(metric), self.attribution(metric)
        periods, number = self.periods(metric), len(self.signatures)
        of = self.signatures.of_period[periods]
        values = (found.usage(), found.capacity(), found.observed())
        usage, capacity, observed = (np.bincount(of, each, number).astype(np.float64) for each in values)
        seconds = (self.activity.end[periods] - self.activity.start[periods]) / _SECOND
        said = use.rule != NONE
        return Totals(
            np.where(said, usage, np.nan),
            np.where(said, capacity, np.nan),
            observed,
            np.bincount(of, seconds, number).astype(np.float64),
        )

    def _cap(self, metric: int, capacity: FloatArray) -> None:
        """Count what phases that want nothing could have used once, not once for each of them."""
        use, types = self.use(metric), self.model.types
        idle = np.zeros(len(types), np.bool_)
        idle[self.signatures.type[(use.rule != NONE) & (use.amount == 0)]] = True
        if not idle.any():
            return
        found = self.attribution(metric)
        of = self.signatures.type[self.signatures.of_period[self.periods(metric)]]
        order = np.argsort(of, kind="stable")
        first = np.searchsorted(of[order], np.arange(len(types) + 1))
        inside = _of_subtrees(idle.astype(float), types.size) > 0
        for node in np.flatnonzero(inside).tolist():
            chosen = order[first[node] : first[node + int(types.size[node])]]
            if (found.users.amount[chosen] > 0).any():
                edges = found.upsampled.demand.timeline.edges
                use_of_all = together(found, np.sort(chosen), int(edges[0]), int(edges[-1]))
                if use_of_all is not None and len(use_of_all.usage):
                    seconds = np.diff(use_of_all.edges) / _SECOND
                    some = ~np.isnan(use_of_all.capacity) & (use_of_all.capacity > 0)
                    capacity[node] = float(use_of_all.capacity[some] @ seconds[some])
            else:
                seconds_of_any = union_of(found, chosen)
                capacity[node] = found.upsampled.capacity * seconds_of_any if seconds_of_any > 0 else 0.0

    def _users_within(self, node: int, metric: int) -> IntArray:
        """Return the users of ``metric`` among the periods of ``node`` and all that is part of it."""
        inside = self.activity.within(self.model.phases.subtree(node))
        periods = self.periods(metric)
        low, high = np.searchsorted(periods, (inside.start, inside.stop))
        return np.arange(low, high)

    def __iter__(self) -> Iterator[MetricUse]:
        """Yield how each metric is used."""
        return (self.use(metric) for metric in range(len(self)))


def _matches(pattern: str, path: str) -> bool:

    return re.fullmatch(path_regex(pattern), path) is not None


def _of_subtrees(values: FloatArray, size: npt.NDArray[np.int32]) -> FloatArray:
    """Return for each node of a tree in preorder the sum of its own value and of all below it."""
    bounds = np.stack((np.arange(len(size)), np.arange(len(size)) + size), axis=1).reshape(-1)
    found: FloatArray = np.add.reduceat(np.append(values, 0.0), bounds)[::2]
    return found


def _digest(*arrays: IntArray) -> bytes:
    state = blake2b(digest_size=16)
    for array in arrays:
        state.update(np.ascontiguousarray(array).data)
    return state.digest()
