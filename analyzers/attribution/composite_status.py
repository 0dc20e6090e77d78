# SPDX-License-Identifier: Apache-2.0
"""What was a bottleneck of phases that consist of others: what it was of those of them that were active.

A predicate says, of the children that are active at a time, whether a group of metrics is a bottleneck of
their parent: any of them, all, most; or one within each type of children and another across types. Which one
may differ by parent. Time goes on without slices: between two changes nothing changes.

Where children disagree on what kind it is, any: global if it is of one of them; all and most: global if it is
of all, or of most. (Grade10 takes what the first child in a list says; here the order of children says
nothing. Its first form of grouping by type kept the children of one type while it went on to the next; here
each type stands alone.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.bottlenecks import GLOBAL, LOCAL, NOT_FULL
from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE, Bottlenecks
from grademl_otel.analyzers.execution.model import Phases
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.tables.inherited import depths

States = npt.NDArray[np.int8]

_SECOND: Final = 1e9


class Predicate(Protocol):
    """Whether a group is a bottleneck of a parent."""

    def __call__(self, active: IntArray, local: IntArray, full: IntArray) -> States:
        """Return what it is: of so many ``active`` children (m, 1) it was a local bottleneck of ``local``
        (m, g), a global one of ``full`` (m, g).
        """
        ...


def any_of(active: IntArray, local: IntArray, full: IntArray) -> States:
    """It is one of any active child."""
    return _state(local + full > 0, full > 0)


def all_of(active: IntArray, local: IntArray, full: IntArray) -> States:
    """It is one of all active children."""
    return _state((local + full == active) & (active > 0), full == active)


def most_of(active: IntArray, local: IntArray, full: IntArray) -> States:
    """It is one of at least half of the active children."""
    both = local + full
    return _state((both * 2 >= active) & (both > 0), (full * 2 >= active) & (full > 0))


def _state(bottleneck: BoolArray, everywhere: BoolArray) -> States:
    return np.where(bottleneck, np.where(everywhere, GLOBAL, LOCAL), NOT_FULL).astype(np.int8)


@dataclass(frozen=True)
class ByType:
    """One predicate among the children of a type, then another among the types that are active."""

    within: Predicate = any_of
    across: Predicate = all_of


Choice = Predicate | ByType


@dataclass(frozen=True, eq=False)
class Timeline:
    """What groups were to phases over time: rows by phase and time, those of one phase apart."""

    phase: IntArray
    start: IntArray
    end: IntArray
    state: States
    """(rows, g) `NOT_FULL`, `LOCAL`, `GLOBAL`."""

    def __len__(self) -> int:
        return len(self.phase)

    def where(self, chosen: BoolArray | IntArray) -> Timeline:
        return Timeline(self.phase[chosen], self.start[chosen], self.end[chosen], self.state[chosen])

    def of(self, phase: int) -> Timeline:
        """Return the rows of one phase."""
        return self.where(self.phase == phase)

    @classmethod
    def join(cls, parts: Sequence[Timeline], groups: int) -> Timeline:
        """Return all rows of ``parts``, in no order."""
        if not parts:
            nothing = np.zeros(0, np.int64)
            return cls(nothing, nothing, nothing, np.zeros((0, groups), np.int8))
        names = ("phase", "start", "end", "state")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class Statuses:
    """What groups of metrics were to all phases, in seconds; arrays over phases (n), or phases and groups."""

    names: Sequence[str]
    """Of groups."""
    active: FloatArray
    """(n) In which any part of the phase was active, or stopped."""
    full: FloatArray
    """(n, g) In which the group was a bottleneck."""
    full_globally: FloatArray
    """(n, g) In which it was a global one."""
    uniquely_full: FloatArray
    """(n, g) In which it was the only one."""
    never_full: FloatArray
    """(n) In which none was known to be one, of the time that was active."""
    kept: Timeline
    """Of the phases that were asked for."""


def statuses_of(
    bottlenecks: Bottlenecks,
    phases: Phases,
    grouping: str = RESOURCE_TYPE,
    predicate: Choice = any_of,
    of_type: Mapping[int, Choice] | None = None,
    keep: BoolArray | None = None,
) -> Statuses:
    """Return what groups of metrics were to all ``phases``, the leaves of which have ``bottlenecks``.

    ``of_type``: the predicate of parents of some types. ``keep``: phases of which the times are asked for.
    """
    names = bottlenecks.names(grouping)
    leaves = leaf_timeline(bottlenecks, grouping)
    return composed(leaves, phases, names, predicate, of_type or {}, keep)


def composed(
    leaves: Timeline,
    phases: Phases,
    names: Sequence[str],
    predicate: Choice = any_of,
    of_type: Mapping[int, Choice] | None = None,
    keep: BoolArray | None = None,
) -> Statuses:
    """Return what groups were to all ``phases``, from what they were to ``leaves``."""
    count, groups = len(phases), len(names)
    choices = _Choices(phases, predicate, of_type or {})
    active, never = np.zeros((2, count))
    full, full_globally, unique = np.zeros((3, count, groups))
    kept: list[Timeline] = []
    depth = depths(phases.size)
    level = np.zeros(0, np.int64)
    of_depth = np.argsort(depth[leaves.phase], kind="stable")
    bounds = np.searchsorted(depth[leaves.phase][of_depth], np.arange(int(depth.max(initial=0)) + 2))
    above = Timeline.join([], groups)
    for at in range(len(bounds) - 2, -1, -1):
        level = of_depth[bounds[at] : bounds[at + 1]]
        rows = Timeline.join([leaves.where(level), above], groups)
        if not len(rows):
            continue
        _add(rows, active, never, full, full_globally, unique)
        if keep is not None and (asked := keep[rows.phase]).any():
            kept.append(rows.where(asked))
        above = choices.parents(rows) if at else Timeline.join([], groups)
    found = Timeline.join(kept, groups)
    found = found.where(np.lexsort((found.start, found.phase)))
    return Statuses(names, active, full, full_globally, unique, never, found)


def leaf_timeline(bottlenecks: Bottlenecks, grouping: str = RESOURCE_TYPE) -> Timeline:
    """Return what groups were to leaves over time: of all the time in which they were active or stopped."""
    activity, groups = bottlenecks.source.activity, len(bottlenecks.names(grouping))
    parts, said = [], np.zeros(len(activity), np.bool_)
    for alike in bottlenecks.alike():
        which, of_group = bottlenecks.group_states(alike, grouping)
        state = np.zeros((of_group.shape[1] + 1, groups), np.int8)
        state[1:, which] = of_group.T
        # Before the first change, and after the last one, nothing was observed.
        edges = np.append(alike.found.edges, np.iinfo(np.int64).max)
        state = np.append(state, np.zeros((1, groups), np.int8), axis=0)
        begins = np.concatenate((np.full(1, np.iinfo(np.int64).min), edges[:-1]))
        different = changes(*state.T) if groups else np.ones(len(state), np.bool_)
        begins, state = begins[different], state[different]
        at = alike.periods
        said[at] = True
        first = np.searchsorted(begins, activity.start[at], "right") - 1
        after = np.searchsorted(begins, activity.end[at], "left")
        parts.append(
            _spread(activity.leaf[at], activity.start[at], activity.end[at], begins, state, first, after)
        )
    rest = np.flatnonzero(~said)
    nothing = np.zeros((len(rest), groups), np.int8)
    parts.append(Timeline(activity.leaf[rest], activity.start[rest], activity.end[rest], nothing))
    stopped = bottlenecks.stopped()
    if stopped is not None:
        state = np.zeros((len(stopped.leaf), groups), np.int8)
        state[:, groups - stopped.by.shape[1] :] = np.where(stopped.by, GLOBAL, NOT_FULL)
        parts.append(Timeline(stopped.leaf, stopped.start, stopped.end, state))
    return Timeline.join(parts, groups)


def _spread(
    leaf: IntArray,
    start: IntArray,
    end: IntArray,
    begins: IntArray,
    state: States,
    first: IntArray,
    after: IntArray,
) -> Timeline:
    """Return a row for each period and each of the states that it has, from ``first`` to before ``after``."""
    number = after - first
    row = np.repeat(np.arange(len(leaf)), number)
    at = np.arange(len(row)) - np.repeat(np.cumsum(number) - number - first, number)
    until = np.append(begins[1:], np.iinfo(np.int64).max)
    return Timeline(leaf[row], np.maximum(start[row], begins[at]), np.minimum(end[row], until[at]), state[at])


def _add(
    rows: Timeline,
    active: FloatArray,
    never: FloatArray,
    full: FloatArray,
    full_globally: FloatArray,
    unique: FloatArray,
) -> None:
    length = (rows.end - rows.start) / _SECOND
    some = rows.state > NOT_FULL
    number = some.sum(axis=1)
    np.add.at(active, rows.phase, length)
    np.add.at(never, rows.phase, np.where(number == 0, length, 0.0))
    for group in range(some.shape[1]):
        mine = np.flatnonzero(some[:, group])
        phase, ns = rows.phase[mine], length[mine]
        np.add.at(full[:, group], phase, ns)
        np.add.at(full_globally[:, group], phase, np.where(rows.state[mine, group] == GLOBAL, ns, 0.0))
        np.add.at(unique[:, group], phase, np.where(number[mine] == 1, ns, 0.0))


class _Choices:
    """Which predicate each parent has."""

    def __init__(self, phases: Phases, predicate: Choice, of_type: Mapping[int, Choice]) -> None:
        self._phases = phases
        self._all: list[Choice] = [predicate, *of_type.values()]
        number = np.zeros(int(phases.type.max(initial=0)) + 1, np.int64)
        for ix, kind in enumerate(of_type):
            number[kind] = ix + 1
        self._of_phase: IntArray = number[phases.type]

    def parents(self, rows: Timeline) -> Timeline:
        """Return what groups were to the parents of the phases in ``rows``."""
        phases = self._phases
        parent = phases.parent[rows.phase].astype(np.int64)
        found = []
        for number, choice in enumerate(self._all):
            mine = rows.where(chosen := self._of_phase[parent] == number)
            if not len(mine):
                continue
            of = parent[chosen]
            if not isinstance(choice, ByType):
                found.append(_swept(of, mine, choice))
                continue
            width = int(phases.type.max()) + 1
            by_type = _swept(of * width + phases.type[mine.phase], mine, choice.within)
            found.append(_swept(by_type.phase // width, by_type, choice.across))
        return Timeline.join(found, rows.state.shape[1])


def _swept(key: IntArray, rows: Timeline, predicate: Predicate) -> Timeline:
    """Return what ``predicate`` says of the rows of each key, over time; ``phase`` holds the key."""
    count = len(rows)
    time = np.concatenate((rows.start, rows.end))
    of = np.concatenate((key, key))
    order = np.lexsort((time, of))
    time, of = time[order], of[order]
    sign = np.where(order < count, 1, -1)
    state = rows.state[order % count]
    active = np.cumsum(sign)
    local, full = (np.cumsum(np.where(state == what, sign[:, None], 0), axis=0) for what in (LOCAL, GLOBAL))
    at = np.flatnonzero((np.diff(of) == 0) & (np.diff(time) > 0) & (active[:-1] > 0))
    found = predicate(active[at][:, None], local[at], full[at])
    start, end, phase = time[at], time[at + 1], of[at]
    new = changes(phase, *found.T)
    if len(new):
        new[1:] |= start[1:] != end[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(at)) - 1
    return Timeline(phase[first], start[first], end[last], found[first])
