# SPDX-License-Identifier: Apache-2.0
"""The most that metrics can be: as the user says, as monitors told, by definition; else nobody knows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution.patterns import DEEP, Component, InvalidPattern, Pattern
from grademl_otel.analyzers.resource_model import units
from grademl_otel.analyzers.resource_model.model import ResourceModel
from grademl_otel.analyzers.resource_model.naming import capacity_by_definition
from grademl_otel.analyzers.resource_model.series import Place
from grademl_otel.analyzers.resource_model.settings import Capacity

_LISTED: Final = 6
_OF_THE_HOST: Final = {
    "cpu.throttled": "cpu.busy",
    "process.cpu": "cpu.busy",
    "process.own_cpu": "cpu.busy",
    "process.memory": "memory.used",
    "process.tree_memory": "memory.used",
}
"""Metrics that can be no more than another one of their host."""
_LOOPBACK: Final = "lo"
"""What it carries depends on the CPUs, and is nobody's to give."""
_ABOVE: Final = 1.05
"""A value this many times its capacity says that it is not the capacity."""


def told_capacity(
    place: Place,
    name: str,
    stands_in: bool,
    own: Iterable[float],
    told: Mapping[tuple[Place, str, bool], float],
) -> float:
    """Return what is known of a metric's capacity without the user; infinite: nothing.

    ``own``: of its series. What a metric of its host can be at most is no capacity of a part of it.
    """
    fixed = capacity_by_definition(f"{place.type}.{name}")
    if fixed is not None:
        return fixed
    known = [one for one in own if math.isfinite(one)]
    for key in ((place, name, stands_in), (place, name, True)):
        if key in told:
            return told[key]
        if known:
            return max(known)
    return math.inf


def with_capacities(
    model: ResourceModel, given: Sequence[Capacity], capacities: Sequence[float]
) -> ResourceModel:
    """Return the model with these capacities of its metrics, or those that the user gives; see problems."""
    found = list(capacities)
    of_host = {
        (model.resources[metric.resource].machine, metric.type): capacity
        for metric, capacity in zip(model.metrics, found, strict=True)
    }
    for ix, metric in enumerate(model.metrics):
        whole = _OF_THE_HOST.get(metric.type)
        if whole is not None and math.isinf(found[ix]):
            found[ix] = of_host.get((model.resources[metric.resource].machine, whole), math.inf)
    problems = list(model.problems)
    for one in given:
        problems += _apply(model, one, found)
    metrics = [
        replace(metric, observed=replace(metric.observed, capacity=capacity))
        for metric, capacity in zip(model.metrics, found, strict=True)
    ]
    model = replace(model, metrics=metrics)
    return replace(model, problems=[*problems, *_unknown(model), *_exceeded(model)])


def _apply(model: ResourceModel, one: Capacity, found: list[float]) -> list[str]:
    """Set the capacity of what ``one`` is about; return a line where that is nothing."""
    where = f"{one.where}: " if one.where else ""
    of_type = re.compile(".*".join(map(re.escape, one.metric.split("*"))))
    of_path = None if one.resource is None else _paths(one.resource, where)
    if not (math.isfinite(one.value) and one.value > 0):
        raise UsageError(f"{where}a capacity of {one.value:g} holds nothing")
    matched = False
    for ix, metric in enumerate(model.metrics):
        if not of_type.fullmatch(metric.type):
            continue
        if of_path is not None and not of_path.fullmatch(model.path(metric.resource)):
            continue
        factor = units.factor(one.unit, metric.unit) if one.unit else 1.0
        if factor is None:
            raise UsageError(
                f"{where}the capacity of {metric.type} is in {metric.unit}; {one.unit!r} is"
                f" {'another thing' if units.is_known(one.unit) else 'no unit that is known'}"
            )
        matched = True
        found[ix] = one.value * factor
    if matched:
        return []
    what = one.metric if one.resource is None else f"{one.metric} of {one.resource}"
    types = ", ".join(sorted({metric.type for metric in model.metrics}))
    return [f"{where}a capacity is given for {what}, and there is no such metric; there are {types}"]


def _paths(text: str, where: str) -> re.Pattern[str]:
    """Return what matches the paths that a pattern of the path language selects, from the root on."""
    try:
        pattern = Pattern(text)
    except InvalidPattern as error:
        raise UsageError(f"{where}{error}") from None
    regex = ""
    for number, step in enumerate(pattern.steps):
        if step == DEEP:
            regex += r"(?:/.+)" if number == len(pattern.steps) - 1 else r"(?:/.+?)?"
        elif isinstance(step, Component):
            regex += "/" + step.regex
        else:
            raise UsageError(f"{where}{text!r}: paths of resources are named from the root, without . and ..")
    return re.compile(regex, re.DOTALL)


def _unknown(model: ResourceModel) -> list[str]:
    """Return a line on all metrics of whose capacity nothing is known."""
    types = sorted(
        {
            metric.type
            for metric in model.metrics
            if math.isinf(metric.observed.capacity) and model.resources[metric.resource].id != _LOOPBACK
        }
    )
    if not types:
        return []
    listed = ", ".join(types[:_LISTED]) + (f" and {len(types) - _LISTED:,} more" * (len(types) > _LISTED))
    example = next(metric for metric in model.metrics if metric.type == types[0])
    return [
        f"nothing tells the capacity of {listed}: whether it was used up cannot be said; give it in the rules"
        f' file, as [[capacity]] metric = "{example.type}" value = ... unit = "{example.unit}"'
    ]


def _exceeded(model: ResourceModel) -> list[str]:
    """Return a line on capacities that were exceeded for long: they are none."""
    found = []
    for ix, metric in enumerate(model.metrics):
        seen = metric.observed
        above = seen.value > _ABOVE * seen.capacity
        length = seen.end - seen.start
        if above.any() and int(length[above].sum()) > 0.01 * int(length.sum()):
            found.append(f"{model.metric_path(ix)} up to {seen.value.max():.3g} of {seen.capacity:.3g}")
    if not found:
        return []
    listed = "; ".join(found[:_LISTED]) + (f" and {len(found) - _LISTED:,} more" * (len(found) > _LISTED))
    return [f"capacities that were exceeded, so are not the most there can be: {listed}"]
