# SPDX-License-Identifier: Apache-2.0
"""Metric points of OTLP as series: gauges as they were sampled, counters as rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.metrics import CUMULATIVE, GAUGE, SUM, MetricPoints
from grademl_otel.analyzers.resource_model import naming, units
from grademl_otel.analyzers.resource_model.gathering import Gathering, Told, tags_of
from grademl_otel.analyzers.resource_model.naming import Meaning
from grademl_otel.analyzers.resource_model.of_tables import process_id
from grademl_otel.analyzers.resource_model.series import MOST, Averages, Place, averages, is_told, of_samples
from grademl_otel.analyzers.tables.metric_series import MetricSeries
from grademl_otel.analyzers.units import count

SOURCE: Final = "metrics"
_S: Final = 1e9
_LISTED: Final = 8
HostOf = Callable[[Mapping[str, Any]], "str | None"]
"""Returns what the host of a resource is called."""


def of_points(points: MetricPoints, shift: IntArray, host_of: HostOf, source: str = SOURCE) -> Told:
    """Return what ``points`` tell. ``shift`` is what is taken from the times of each resource."""
    known = naming.by_metric()
    used = np.array([name in known for name in points.names], np.bool_)
    problems = _unknown(points)
    mask = used[points.name_ix] if len(used) else np.zeros(0, np.bool_)
    mask &= ((points.kind == GAUGE) | (points.kind == SUM)) & (points.time > 0)
    some = _some(points, mask)
    gathering = Gathering(source)
    if len(some):
        problems += _Reading(some, shift, host_of, gathering).read()
    told = gathering.finish()
    told.problems += problems
    return told


def _unknown(points: MetricPoints) -> list[str]:
    """Return a line on the metrics that should tell of resources, and are none that is known here."""
    here = np.unique(points.name_ix).tolist()
    names = sorted(points.names[ix] for ix in here if naming.is_unknown(points.names[ix]))
    if not names:
        return []
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED:,} more" * (len(names) > _LISTED))
    return [f"{count(len(names), 'metric')} of resources that this release does not know: {listed}"]


def _some(points: MetricPoints, mask: BoolArray) -> MetricPoints:
    """Return the points of ``mask``."""
    arrays = ("time", "start", "name_ix", "unit_ix", "kind", "temporality", "monotonic", "value", "whole",
              "is_whole", "count", "resource_ix", "scope_ix", "form_ix")  # fmt: skip
    raws = [points.raws[ix] for ix in np.flatnonzero(mask).tolist()]
    return replace(points, raws=raws, **{name: getattr(points, name)[mask] for name in arrays})


class _Reading:
    """The series of points, one after the other."""

    def __init__(self, points: MetricPoints, shift: IntArray, host_of: HostOf, gathering: Gathering) -> None:
        self._points = points
        self._series = MetricSeries(points, shift)
        self._host_of = host_of
        self._gathering = gathering
        self._wrong: dict[str, set[str]] = {"unit": set(), "kind": set(), "id": set()}
        self._no_numbers = 0

    def read(self) -> list[str]:
        """Return the problems."""
        of_point = self._series.of_point
        order = np.lexsort((self._series.time.numbers, of_point))
        bounds = np.flatnonzero(np.diff(of_point[order])) + 1
        for ixs in np.split(order, bounds):
            self._one(ixs)
        found = [
            f"{what}: {', '.join(sorted(self._wrong[kind])[:_LISTED])}"
            for kind, what in (
                ("unit", "metrics in a unit that is not theirs were left out"),
                (
                    "kind",
                    "metrics that are a gauge where a counter is known, or the other way round, left out",
                ),
                ("id", "metrics that do not say which device they are of were left out"),
            )
            if self._wrong[kind]
        ]
        if self._no_numbers:
            found.append(
                f"{count(self._no_numbers, 'metric point')} with no number, or one below 0 or above {MOST:g},"
                " left out"
            )
        return found

    def _one(self, ixs: IntArray) -> None:
        """Read a series, whose points are ``ixs`` in the order of time."""
        points, first = self._points, int(ixs[0])
        name = points.name(first)
        resource = points.resource(first)
        attributes = naming.attributes_of(name, {**_of_resource(resource), **points.attributes(first)})
        seen: dict[bool, list[Averages]] = {}
        for meaning in naming.by_metric()[name]:
            if not meaning.fits(attributes):
                continue
            factor = units.factor(points.unit(first) or meaning.unit, meaning.unit)
            if factor is None:
                self._wrong["unit"].add(f"{name} ({points.unit(first)!r}, not {meaning.unit!r})")
                continue
            if meaning.counter != (points.kind[first] == SUM and bool(points.monotonic[first])):
                self._wrong["kind"].add(name)
                continue
            place = self._place(meaning, attributes, resource)
            if place is None:
                self._wrong["id"].add(name)
                continue
            if meaning.counter not in seen:
                seen[meaning.counter] = self._averages(ixs, meaning.counter)
            for one in seen[meaning.counter]:
                self._gathering.add(place, meaning, attributes, one.scaled(factor * meaning.factor))

    def _averages(self, ixs: IntArray, counter: bool) -> list[Averages]:
        """Return the averages of points of one series: of a counter those of each of its starts."""
        value = self._points.value[ixs]
        self._no_numbers += int((~is_told(value)).sum())
        time = self._series.time.numbers[ixs]
        if not counter:
            return [of_samples(time, value)]
        since, delta = self._series.since, self._series.delta
        known = ~(since.absent[ixs] | delta.absent[ixs])
        ixs, time = ixs[known], time[known]
        start = np.asarray(since.numbers[ixs], np.int64)
        rate = np.asarray(delta.numbers[ixs], np.float64) / (np.maximum(time - start, 1) / _S)
        # Two starts are two counts, perhaps of two who count the same at one time.
        begun = self._points.start[ixs]
        if (self._points.temporality[ixs] != CUMULATIVE).any() or len(np.unique(begun)) < 2:
            return [averages(start, time, rate)[0]]
        of_each = [begun == one for one in np.unique(begun).tolist()]
        return [averages(start[mine], time[mine], rate[mine])[0] for mine in of_each]

    def _place(
        self, meaning: Meaning, attributes: Mapping[str, str], resource: Mapping[str, Any]
    ) -> Place | None:
        found = _process(resource) if meaning.type == "process" else meaning.id_of(attributes)
        if found is None:
            return None
        return Place(self._host_of(resource), meaning.type, found, tags_of(attributes))


def _process(resource: Mapping[str, Any]) -> str | None:
    """Return the id of a process: by its run and rank, else by what its resource says."""
    owner = identity(dict(resource))
    if owner is not None:
        return process_id(f"rank {owner.rank}", owner.run_id, owner.attempt)
    if resource.get("process.pid"):
        return f"pid {resource['process.pid']}"
    instance = resource.get("service.instance.id")
    return str(instance) if instance else None


def _of_resource(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a resource that tell which process points are of."""
    keys = (semconv.RUN_ID, semconv.ATTEMPT, semconv.RANK)
    return {key: resource[key] for key in keys if key in resource}
