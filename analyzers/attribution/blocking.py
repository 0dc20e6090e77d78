# SPDX-License-Identifier: Apache-2.0
"""What stops phases: while it goes on they are not active, and use nothing (Grade10, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.attribution.activity import Activity
from grademl_otel.analyzers.attribution.mapping import Mapped
from grademl_otel.analyzers.attribution.rules import Assignment, Blocking, glob
from grademl_otel.analyzers.execution.model import Phases
from grademl_otel.analyzers.execution.self_time import gaps
from grademl_otel.analyzers.resource_model.model import ResourceModel


@dataclass(frozen=True, eq=False)
class Blocked:
    """Periods in which leaves were stopped, by leaf and start; those of one leaf may overlap."""

    leaf: IntArray
    start: IntArray
    end: IntArray
    by: IntArray
    """Index of the blocking rule that says so."""

    def __len__(self) -> int:
        return len(self.leaf)


def without_blocked(
    activity: Activity,
    phases: Phases,
    rules: Sequence[Blocking],
    assignment: Assignment,
    mapped: Mapped,
) -> tuple[Activity, Blocked]:
    """Return when leaves were active and not stopped by what ``rules`` say, and when they were stopped."""
    targets = _targets(rules, assignment)
    type_of = phases.type[activity.leaf]
    parts: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
    for number, rule in enumerate(rules):
        if rule.none or not targets[number].any():
            continue
        aimed = targets[number][type_of]
        for chosen, start, end in _stops(activity, phases, rule, assignment, mapped, aimed):
            period, low, high = _overlaps(activity, chosen, *_merged(start, end))
            parts.append((period, low, high, np.full(len(period), number)))
    if not sum(len(part[0]) for part in parts):
        none = np.zeros(0, np.int64)
        return activity, Blocked(none, none, none, none)
    period, start, end, by = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((start, period))
    period, start, end, by = period[order], start[order], end[order], by[order]
    kept = np.ones(len(activity), np.bool_)
    kept[period] = False
    left = gaps(period, start, end, activity.start, activity.end)
    owner = np.concatenate((np.flatnonzero(kept), left.phase))
    begin = np.concatenate((activity.start[kept], left.start))
    finish = np.concatenate((activity.end[kept], left.end))
    again = np.lexsort((begin, owner))  # periods are sorted by leaf and start
    return (
        Activity(activity.leaf[owner[again]], begin[again], finish[again]),
        Blocked(activity.leaf[period], start, end, by),
    )


def _targets(rules: Sequence[Blocking], assignment: Assignment) -> list[BoolArray]:
    """Return for each rule the mask of the types that it stops, less what later rules free."""
    found: list[BoolArray] = []
    for rule in rules:
        mask = assignment.below(rule.phase)
        if rule.none:
            for earlier in found:
                earlier &= ~mask
        found.append(mask)
    return found


def _stops(
    activity: Activity,
    phases: Phases,
    rule: Blocking,
    assignment: Assignment,
    mapped: Mapped,
    aimed: BoolArray,
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield (periods that are stopped, start, end of what stops them), those of one place together."""
    owner = mapped.owners.of_phase[activity.leaf]
    if rule.by is not None:
        stopping = assignment.below(rule.by)[phases.type[activity.leaf]]
        place = _places(mapped)[owner]
        aimed = aimed & ~stopping
        for one in np.unique(place[stopping]).tolist():
            here = place == one
            yield np.flatnonzero(aimed & here), activity.start[stopping & here], activity.end[stopping & here]
        return
    for metric in _called(mapped.resources, rule.metric or ""):
        seen = mapped.resources.metrics[metric].observed
        full = seen.value >= rule.at_least
        near = mapped.may_use(mapped.resources.metrics[metric].resource)[owner]
        yield np.flatnonzero(aimed & near), seen.start[full], seen.end[full]


def _places(mapped: Mapped) -> IntArray:
    """Return for each owner a number, the same for those of one process, else of one host."""
    keys = [one.node if one.node >= 0 else f"host {one.host}" for one in mapped.owners.all]
    known: dict[int | str, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def _called(resources: ResourceModel, metric: str) -> Iterator[int]:
    pattern = glob(metric)
    return (ix for ix, one in enumerate(resources.metrics) if pattern.fullmatch(one.type))


def _merged(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return the union of intervals, none empty, as those that do not touch, sorted."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(start), np.bool_)
    first[1:] = start[1:] > reach[:-1]
    at = np.flatnonzero(first)
    return start[at], reach[np.append(at[1:], len(start)) - 1]


def _overlaps(
    activity: Activity, chosen: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return (period, start, end) of what the ``chosen`` periods have in common with intervals."""
    first = np.searchsorted(end, activity.start[chosen], "right")
    after = np.searchsorted(start, activity.end[chosen], "left")
    number = np.maximum(after - first, 0)
    period = np.repeat(chosen, number)
    at = np.arange(len(period)) - np.repeat(np.cumsum(number) - number, number) + np.repeat(first, number)
    return period, np.maximum(activity.start[period], start[at]), np.minimum(activity.end[period], end[at])
