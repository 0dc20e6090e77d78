# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of all leaves by groups of metrics: by metric, resource, type of metric, type of resource.

Leaves that use the same metrics in the same way have one utilization over time (`bottlenecks.utilizations`),
and are looked at together. A blocking metric is a group of its own: while it stops a phase it is all that
keeps it, a global bottleneck, and nothing else is one.

**Types across resources.** A type of metric is a global bottleneck only where every metric of the type is
full, also those that the phase does not use: else there is room elsewhere. Where one that it uses is full it
is a local one. That others are full which it does not use makes it none (Grade10 counts these, too).

**Not known is not the same as not full.** ``known`` says how long anything was known; what is not known is
never a bottleneck, and its time is no overhead.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IndexArray, IntArray
from grademl_otel.analyzers.attribution.activity import Activity
from grademl_otel.analyzers.attribution.blocking import Blocked
from grademl_otel.analyzers.attribution.bottlenecks import (
    FULL_FROM,
    GLOBAL,
    LOCAL,
    Impacts,
    Part,
    Utilizations,
    impacts,
    statuses,
    strongest,
    utilizations,
)
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.attribution.usage import Attribution
from grademl_otel.analyzers.resource_model.model import ResourceModel

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.attribute import Attributed, Signatures

METRIC: Final = "metric"
RESOURCE: Final = "resource"
METRIC_TYPE: Final = "metric type"
RESOURCE_TYPE: Final = "resource type"
GROUPINGS: Final = (METRIC, RESOURCE, METRIC_TYPE, RESOURCE_TYPE)

_SECOND: Final = 1e9
_KEPT: Final = 64
"""Attributions: those of the metrics of an owner, which all of its phases use."""


class Uses(Protocol):
    """How phases use metrics: the rules of a `MetricUse`, by signature."""

    @property
    def rule(self) -> npt.NDArray[np.int8]: ...
    @property
    def amount(self) -> FloatArray: ...


class Source(Protocol):
    """What of `Attributed` is asked for here."""

    resources: ResourceModel
    activity: Activity
    blocked: Blocked
    signatures: Signatures

    def use(self, metric: int, /) -> Uses: ...
    def attribution(self, metric: int, /) -> Attribution: ...


@dataclass(frozen=True, eq=False)
class Rows:
    """What groups of metrics were to phases: a row for each phase and group that is known of it. Seconds."""

    phase: IntArray
    """Phase, or type of phases."""
    group: IntArray
    known: FloatArray
    """In which at least one metric of the group was known."""
    gain: FloatArray
    """By so much the phase would be shorter if the group were endlessly fast, the others kept their share."""
    full: FloatArray
    """In which the group was a bottleneck, local or global."""
    full_globally: FloatArray
    uniquely_full: FloatArray
    """In which it was the only one."""

    def __len__(self) -> int:
        return len(self.phase)

    def of(self, phase: int) -> Rows:
        """Return the rows of one phase."""
        return self.where(self.phase == phase)

    def where(self, mask: BoolArray) -> Rows:
        return Rows(*(getattr(self, name)[mask] for name in _COLUMNS))


_COLUMNS: Final = ("phase", "group", "known", "gain", "full", "full_globally", "uniquely_full")


@dataclass(frozen=True, eq=False)
class Grouped:
    """The bottlenecks of phases, or of types of phases (their sums), by one grouping. Seconds."""

    grouping: str
    names: Sequence[str]
    """Of groups; behind those of metrics what stops phases."""
    phase: IntArray
    """Those that were active, ascending."""
    rows: Rows
    active: FloatArray
    """How long, with the time in which it was stopped."""
    known: FloatArray
    """In which at least one metric was known."""
    without_overhead: FloatArray
    """How long the use of resources takes if no two overlap; of the time that is known."""
    never_full: FloatArray
    """In which no group was a bottleneck, of the time that is known."""

    def of_types(self, type_of: IntArray | IndexArray) -> Grouped:
        """Return the sums by type; ``type_of``: of each phase of the model."""
        types, of_phase = np.unique(type_of[self.phase], return_inverse=True)
        values = (self.active, self.known, self.without_overhead, self.never_full)
        rows = self.rows
        columns = [type_of[rows.phase].astype(np.int64), *(getattr(rows, name) for name in _COLUMNS[1:])]
        return Grouped(
            self.grouping,
            self.names,
            types.astype(np.int64),
            _summed([columns], len(self.names)),
            *_sums(of_phase, values, len(types)),
        )


@dataclass(frozen=True, eq=False)
class Alike:
    """Periods of leaves that use the same metrics in the same way."""

    periods: IntArray
    metrics: Sequence[int]
    found: Utilizations
    state: npt.NDArray[np.int8]
    """(metrics, m)"""


@dataclass(frozen=True, eq=False)
class Bottlenecks:
    """What is asked about the bottlenecks of leaves; answered by grouping."""

    source: Source
    stops: Sequence[str] = ()
    """What each blocking rule is called, in the order of the rules."""
    full_from: float = FULL_FROM
    full_from_of: Mapping[str, float] = field(default_factory=dict)
    """Type of a metric -> from which utilization on it is full, where that is not ``full_from``."""

    def by(self, grouping: str = RESOURCE_TYPE) -> Grouped:
        """Return the bottlenecks by one of `GROUPINGS`."""
        group_of, names = self._groups(grouping)
        activity = self.source.activity
        known, explained, never = np.zeros((3, len(activity)))
        columns: list[list[npt.NDArray[Any]]] = []
        for alike in self.alike():
            groups, group = np.unique(group_of[list(alike.metrics)], return_inverse=True)
            at = alike.periods
            of = impacts(
                activity.start[at],
                activity.end[at],
                alike.found,
                group.tolist(),
                state=self._state(alike, grouping, group.tolist()),
            )
            known[at], explained[at], never[at] = of.known, of.without_overhead, of.never_full
            columns.append(_columns(activity.leaf[at], groups, of))
        seconds = (activity.end - activity.start) / _SECOND
        leaf = activity.leaf
        stopped = self.stopped()
        if stopped is not None:
            length = (stopped.end - stopped.start) / _SECOND
            leaf = np.concatenate((leaf, stopped.leaf))
            seconds, known, explained = (
                np.concatenate((values, length)) for values in (seconds, known, explained)
            )
            never = np.concatenate((never, np.zeros(len(length))))
            columns += _columns_of_stops(stopped, length, len(names))
        phase, of_phase = np.unique(leaf, return_inverse=True)
        sums = _sums(of_phase, (seconds, known, explained, never), len(phase))
        names = [*names, *self.stops]
        return Grouped(grouping, names, phase, _summed(columns, len(names)), *sums)

    def alike(self) -> Iterator[Alike]:
        """Yield the periods of leaves that use any metric, those that use the same in one."""
        activity = self.source.activity
        kept: OrderedDict[int, Attribution] = OrderedDict()
        for periods, codes in self._signatures():
            metrics = [metric for metric, _ in codes]
            parts = [Part(self._attribution(metric, kept), *_RULES[code]) for metric, code in codes]
            found = utilizations(parts, (activity.start[periods], activity.end[periods]))
            thresholds = np.array([[self._full_from(metric)] for metric in metrics])
            yield Alike(periods, metrics, found, statuses(found, thresholds))

    def group_states(self, alike: Alike, grouping: str) -> tuple[IntArray, npt.NDArray[np.int8]]:
        """Return (groups, (g, m) what each of them is)."""
        group_of, _ = self._groups(grouping)
        groups, group = np.unique(group_of[list(alike.metrics)], return_inverse=True)
        return groups, self._state(alike, grouping, group.tolist())

    def names(self, grouping: str) -> list[str]:
        """Return the names of the groups, behind those of metrics those of what stops phases."""
        return [*self._groups(grouping)[1], *self.stops]

    def stopped(self) -> Stopped | None:
        """Return when leaves were stopped, by sets of what stopped them; None where nothing did."""
        blocked = self.source.blocked
        return Stopped.of(blocked, len(self.stops)) if len(blocked) else None

    # --- Groups ---------------------------------------------------------------------------------------------

    def _groups(self, grouping: str) -> tuple[IntArray, list[str]]:
        """Return (of each metric of the model its group, the names of groups)."""
        if grouping not in GROUPINGS:
            raise ValueError(f"{grouping!r} is none of {', '.join(GROUPINGS)}")
        model = self.source.resources
        if grouping == METRIC:
            keys = [model.metric_path(ix) for ix in range(len(model.metrics))]
        elif grouping == RESOURCE:
            keys = [model.path(metric.resource) for metric in model.metrics]
        elif grouping == METRIC_TYPE:
            keys = [metric.type for metric in model.metrics]
        else:
            keys = [model.resources[metric.resource].type for metric in model.metrics]
        names = list(dict.fromkeys(key for key, used in zip(keys, self._used, strict=True) if used))
        number = {name: ix for ix, name in enumerate(names)}
        return np.array([number.get(key, -1) for key in keys], np.int64), names

    def _state(self, alike: Alike, grouping: str, group: Sequence[int]) -> npt.NDArray[np.int8]:
        if grouping in (METRIC, RESOURCE):
            return strongest(alike.state, group)
        # Of a type: global only where every metric of that type is.
        types = [self.source.resources.metrics[metric].type for metric in alike.metrics]
        distinct = list(dict.fromkeys(types))
        of_type = strongest(alike.state, [distinct.index(each) for each in types])
        for row, each in enumerate(distinct):
            everywhere = self._all_full(each)
            if everywhere is not None:
                elsewhere = ~everywhere(alike.found.edges[:-1])
                of_type[row, elsewhere & (of_type[row] == GLOBAL)] = LOCAL
        group_of_type = [group[types.index(each)] for each in distinct]
        return strongest(of_type, group_of_type)

    def _all_full(self, metric_type: str) -> _When | None:
        """Return when all metrics of a type are full; None where there is one only."""
        if metric_type not in self._made:
            mine = [one.observed for one in self.source.resources.metrics if one.type == metric_type]
            limit = self.full_from_of.get(metric_type, self.full_from)
            full = [one.value >= limit * one.capacity for one in mine]
            pairs = [(one.start[mask], one.end[mask]) for one, mask in zip(mine, full, strict=True)]
            self._made[metric_type] = _When.all_of(pairs) if len(pairs) > 1 else None
        return self._made[metric_type]

    @cached_property
    def _made(self) -> dict[str, _When | None]:
        return {}

    def _full_from(self, metric: int) -> float:
        return self.full_from_of.get(self.source.resources.metrics[metric].type, self.full_from)

    # --- Who uses the same ----------------------------------------------------------------------------------

    @cached_property
    def _used(self) -> list[bool]:
        """Of each metric, whether any phase uses it."""
        metrics = range(len(self.source.resources.metrics))
        return [bool((self.source.use(metric).rule != NONE).any()) for metric in metrics]

    def _signatures(self) -> Iterator[tuple[IntArray, Sequence[tuple[int, int]]]]:
        """Yield (periods, (metric, key of `_RULES`) of all that they use and whose capacity is known)."""
        signatures = self.source.signatures
        codes: list[list[tuple[int, int]]] = [[] for _ in signatures.type]
        for metric, one in enumerate(self.source.resources.metrics):
            if not self._used[metric] or not math.isfinite(one.observed.capacity) or not len(one.observed):
                continue
            code = _codes(self.source.use(metric))
            for signature in np.flatnonzero(code).tolist():
                codes[signature].append((metric, int(code[signature])))
        # Owner by owner: those of one use the same metrics.
        number: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        owners = signatures.owner.tolist()
        keys = [(owner, tuple(mine)) for owner, mine in zip(owners, codes, strict=True)]
        for key in sorted(set(keys)):
            number[key] = len(number)
        of_period = np.array([number[key] for key in keys] or [0], np.int64)[signatures.of_period]
        order = np.argsort(of_period, kind="stable")
        bounds = np.searchsorted(of_period[order], np.arange(len(number) + 1)).tolist()
        for (_, mine), low, high in zip(number, bounds, bounds[1:], strict=False):
            if mine and high > low:
                yield order[low:high], mine

    def _attribution(self, metric: int, kept: OrderedDict[int, Attribution]) -> Attribution:
        if metric not in kept:
            kept[metric] = self.source.attribution(metric)
            if len(kept) > _KEPT:
                kept.popitem(last=False)
        kept.move_to_end(metric)
        return kept[metric]


def bottlenecks_of(
    attributed: Attributed, full_from: float = FULL_FROM, full_from_of: Mapping[str, float] | None = None
) -> Bottlenecks:
    """Return the bottlenecks of the leaves of ``attributed``; what stops them is called as in its rules."""
    stops = [rule.by or rule.metric or "" for rule in attributed.rules.blocking]
    return Bottlenecks(attributed, stops, full_from, full_from_of or {})


_RULES: Final = {1: (EXACT, True), 2: (EXACT, False), 3: (VARIABLE, True), 4: (VARIABLE, False)}


def _codes(use: Uses) -> IntArray:
    """Return how each signature uses a metric, as a key of `_RULES`; 0: not at all."""
    code = np.where(use.rule == EXACT, 1, 3) + (use.amount <= 0)
    return np.where(use.rule == NONE, 0, code)


@dataclass(frozen=True, eq=False)
class _When:
    """Times at which something holds: that it changes, and whether it does from then on."""

    edges: IntArray
    holds: BoolArray

    @classmethod
    def all_of(cls, intervals: Sequence[tuple[IntArray, IntArray]]) -> _When:
        """Return when each of ``intervals``, (starts, ends) without overlaps, has one."""
        time = np.concatenate([side for pair in intervals for side in pair])
        step = np.concatenate([np.repeat((1, -1), len(start)) for start, _ in intervals])
        order = np.argsort(time, kind="stable")
        time, running = time[order], np.cumsum(step[order])
        last = np.flatnonzero(np.diff(time, append=time[-1:] + 1)) if len(time) else time
        return cls(time[last], running[last] == len(intervals))

    def __call__(self, at: IntArray) -> BoolArray:
        place = np.searchsorted(self.edges, at, "right") - 1
        found: BoolArray = np.append(self.holds, False)[place]
        return found


@dataclass(frozen=True, eq=False)
class Stopped:
    """Periods in which leaves were stopped, those of one leaf apart; each by one or several things."""

    leaf: IntArray
    start: IntArray
    end: IntArray
    by: BoolArray
    """(p, stops)"""

    @classmethod
    def of(cls, blocked: Blocked, stops: int) -> Stopped:
        leaf = np.concatenate((blocked.leaf, blocked.leaf))
        time = np.concatenate((blocked.start, blocked.end))
        order = np.lexsort((time, leaf))
        leaf, time = leaf[order], time[order]
        count = np.zeros((len(time), stops), np.int64)
        sign = np.repeat((1, -1), len(blocked))[order]
        count[np.arange(len(time)), np.concatenate((blocked.by, blocked.by))[order]] = sign
        running = np.cumsum(count, axis=0)[:-1] > 0
        some = np.flatnonzero((np.diff(leaf) == 0) & (np.diff(time) > 0) & running.any(axis=1))
        return cls(leaf[some], time[some], time[some + 1], running[some])


def _sums(of: IntArray, columns: Sequence[npt.NDArray[Any]], count: int) -> list[FloatArray]:
    """Return the sums of each of ``columns``, by ``of``."""
    return [np.bincount(of, each, count).astype(np.float64) for each in columns]


def _columns(leaf: IntArray, groups: IntArray, of: Impacts) -> list[npt.NDArray[Any]]:
    number = len(groups)
    values = (of.known_of_group, of.gain, of.full, of.full_globally, of.uniquely_full)
    return [np.tile(leaf, number), np.repeat(groups, len(leaf)), *(each.reshape(-1) for each in values)]


def _columns_of_stops(stopped: Stopped, length: FloatArray, first: int) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield the columns of each thing that stops: all of the time that it does so alone."""
    alone = stopped.by.sum(axis=1) == 1
    for number in range(stopped.by.shape[1]):
        mine = stopped.by[:, number]
        all_of, only = length[mine], np.where(alone, length, 0.0)[mine]
        group = np.full(len(all_of), first + number)
        yield [stopped.leaf[mine], group, all_of, only, all_of, all_of, only]


def _summed(columns: Sequence[Sequence[npt.NDArray[Any]]], groups: int) -> Rows:
    """Return the rows of ``columns``, those of one phase and group added up."""
    if not columns:
        nothing = np.zeros(0, np.int64)
        return Rows(nothing, nothing, *np.zeros((5, 0)))
    phase, group, *values = (np.concatenate(column) for column in zip(*columns, strict=True))
    keys, of_row = np.unique(phase.astype(np.int64) * groups + group.astype(np.int64), return_inverse=True)
    of_row = of_row.reshape(-1)
    return Rows(keys // groups, keys % groups, *_sums(of_row, values, len(keys)))
