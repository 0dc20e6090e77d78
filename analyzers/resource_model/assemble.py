# SPDX-License-Identifier: Apache-2.0
"""From what was read, and what the user adds, to the resource model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.columns import clock_name
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.modelled import runs_of
from grademl_otel.analyzers.resource_model.capacities import told_capacity, with_capacities
from grademl_otel.analyzers.resource_model.devices import counted_twice
from grademl_otel.analyzers.resource_model.gaps import gaps
from grademl_otel.analyzers.resource_model.gathering import Told
from grademl_otel.analyzers.resource_model.machines import Machines
from grademl_otel.analyzers.resource_model.merging import disagreement, merged
from grademl_otel.analyzers.resource_model.model import NO_PARENT, Resource, ResourceMetric, ResourceModel
from grademl_otel.analyzers.resource_model.of_csv import of_csv
from grademl_otel.analyzers.resource_model.of_points import of_points
from grademl_otel.analyzers.resource_model.of_tables import of_tables
from grademl_otel.analyzers.resource_model.series import Averages, Place, Series
from grademl_otel.analyzers.resource_model.settings import ResourceSettings
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.material import material
from grademl_otel.analyzers.units import count, duration

_LISTED: Final = 8
_LEAST: Final = 10
"""Intervals that two monitors both know, before it is said that they disagree."""
_DIFFERENT: Final = 0.10
_NOISE: Final = 0.01
"""Of a capacity: two monitors that differ by less agree."""
_ORDER: Final = ("host", "cpu", "core", "memory", "gpu", "disk", "network", "port", "pressure", "process")
_PARENTS: Final = {"core": "cpu"}


def resources_of(about: Subject, settings: ResourceSettings | None = None) -> ResourceModel:
    """Return all resources and metrics that are known of the time and the hosts of ``about``.

    What could not be used is in its ``problems``. Raises SourceError, NothingFound and UsageError for a
    further source that cannot be read.
    """
    settings = settings or ResourceSettings()
    reading = _Reading(about, settings)
    told = reading.all()
    machines, window = reading.machines, reading.window
    told.problems = list(dict.fromkeys(told.problems))
    series = [_at(one, machines) for one in told.series]
    capacities = _moved(told, machines)
    series, problems = _in_time(series, window)
    problems = told.problems + problems
    series = _without_stand_ins(series)
    series, left_out = _counted_once(series)
    problems += left_out
    model, known, differing = _model(series, capacities)
    model = replace(model, problems=problems + differing, machines=machines.table())
    model = with_capacities(model, settings.capacities, known)
    return replace(model, problems=[*model.problems, *gaps(model, window), *_hosts(model, machines)])


class _Reading:
    """All sources, one after the other."""

    def __init__(self, about: Subject, settings: ResourceSettings) -> None:
        self._about, self._settings = about, settings
        self._material = material(about)
        self._spans = self._material.spans
        self._runs = runs = runs_of(about)
        possible = np.flatnonzero(self._spans.possible)
        self._ixs: IntArray = possible
        if about.is_part and about.run is not None:
            self._ixs = np.intersect1d(about.run.span_ixs, possible)
        of_spans = self._spans.start[self._ixs], self._spans.end[self._ixs]
        if about.is_part and about.run is not None:
            self.window = (about.run.start, about.run.end)
        elif len(self._ixs):
            self.window = (int(of_spans[0].min()), int(of_spans[1].max()))
        else:
            self.window = (
                min((run.start for run in runs), default=0),
                max((run.end for run in runs), default=0),
            )
        here = np.unique(self._spans.resource_ix[self._ixs]).tolist()
        self.machines = Machines((self._spans.resources[ix] for ix in here), settings.aliases)

    def all(self) -> Told:
        told = of_tables(self._spans, self._ixs)
        points = self._material.points
        if points is not None:
            told.add(self._points(points, "metrics"))
        for path in self._settings.metrics:
            told.add(self._further(path))
        for uri in self._settings.prometheus:
            told.add(self._prometheus(uri))
        for file in self._settings.csv:
            told.add(self._csv(file))
        return told

    def _points(self, points: MetricPoints, source: str) -> Told:
        shift = np.array([self._shift_of_resource(one) for one in points.resources], np.int64)
        return of_points(points, shift, self.machines.learn, source)

    def _further(self, path: str) -> Told:
        from grademl_otel.analyzers.sources import open_source
        from grademl_otel.analyzers.sources.files.metrics import read_metrics

        points = read_metrics(open_source(path, self._options))
        found = self._points(points, f"metrics of {path}")
        found.problems += points.warnings
        return found

    def _prometheus(self, uri: str) -> Told:
        # Brings HTTP and TLS, which a report on a file needs not.
        from grademl_otel.analyzers.resource_model.prometheus import of_prometheus
        from grademl_otel.analyzers.resource_model.prometheus_api import Prometheus

        server = Prometheus(uri, self._settings.headers, self._options)
        try:
            runs = {run.run_id for run in self._runs}
            return of_prometheus(server, self.machines, self.window, self._shift_of_machine, runs)
        finally:
            server.close()

    def _csv(self, file: str) -> Told:
        found = of_csv(file)
        hosts = self.machines.hosts
        for ix, one in enumerate(found.series):
            if one.place.host is None and len(hosts) == 1:
                one = replace(one, place=replace(one.place, host=hosts[0]))
            shift = self._shift_of_machine(self.machines.of(one.place.host)) if one.place.host else 0
            seen = Averages(one.seen.start - shift, one.seen.end - shift, one.seen.value)
            found.series[ix] = replace(one, seen=seen)
        return found

    @property
    def _options(self) -> SourceOptions:
        query = self._about.query
        options = SourceOptions(ca=query.ca, progress=query.progress)
        return options if query.timeout is None else replace(options, timeout_s=query.timeout)

    def _shift_of_resource(self, resource: Mapping[str, Any]) -> int:
        """Return what is taken from times of ``resource``: as of its run on that host, else as of any."""
        run, clock = _run_of(resource), clock_name(dict(resource))
        of_clock = self._shifts
        return of_clock.get((run, clock), of_clock.get((None, clock), 0))

    def _shift_of_machine(self, machine: str) -> int:
        for resource, shift in zip(self._spans.resources, self._material.shift.tolist(), strict=True):
            if shift and self.machines.learn(resource) == machine:
                return int(shift)
        return 0

    @cached_property
    def _shifts(self) -> dict[tuple[str | None, str], int]:
        found: dict[tuple[str | None, str], int] = {}
        for resource, shift in zip(self._spans.resources, self._material.shift.tolist(), strict=True):
            clock = clock_name(resource)
            found[_run_of(resource), clock] = shift
            found.setdefault((None, clock), shift)
        return found


def _run_of(resource: Mapping[str, Any]) -> str | None:
    whose = identity(dict(resource))
    return None if whose is None else f"{whose.run_id}/{whose.attempt}"


# --- From series to metrics ---------------------------------------------------------------------------------


def _machine(place: Place, machines: Machines) -> Place:
    return replace(place, host=None if place.host is None else machines.of(place.host))


def _at(series: Series, machines: Machines) -> Series:
    return replace(series, place=_machine(series.place, machines))


def _moved(told: Told, machines: Machines) -> dict[tuple[Place, str, bool], float]:
    moved = Told()
    for (place, name, stands_in), most in told.capacities.items():
        moved.capacity(_machine(place, machines), name, stands_in, most)
    return moved.capacities


def _in_time(series: Sequence[Series], window: tuple[int, int]) -> tuple[list[Series], list[str]]:
    """Return what there is of the time of the phases, and a line for each source that has nothing of it."""
    kept: list[Series] = []
    outside: dict[str, list[Series]] = {}
    for one in series:
        inside = (one.seen.end > window[0]) & (one.seen.start < window[1])
        if not inside.any():
            outside.setdefault(one.source, []).append(one)
            continue
        seen = one.seen
        if not inside.all():
            seen = Averages(seen.start[inside], seen.end[inside], seen.value[inside])
        kept.append(replace(one, seen=seen))
    problems = []
    sources = {one.source for one in kept}
    for source, some in outside.items():
        if source in sources:
            continue
        first = min(int(one.seen.start[0]) for one in some)
        last = max(int(one.seen.end[-1]) for one in some)
        apart = (
            f"{duration(window[0] - last)} before"
            if last <= window[0]
            else f"{duration(first - window[1])} after"
        )
        problems.append(
            f"{source}: its times do not meet those of the phases: it ends {apart} they begin"
            if last <= window[0]
            else f"{source}: its times do not meet those of the phases: it begins {apart} they end"
        )
    return kept, problems


def _without_stand_ins(series: Sequence[Series]) -> list[Series]:
    """Leave out what is of more than the metric, where something is of the metric itself."""
    proper = {(one.place, one.name) for one in series if not one.stands_in}
    return [one for one in series if not one.stands_in or (one.place, one.name) not in proper]


def _counted_once(series: Sequence[Series]) -> tuple[list[Series], list[str]]:
    """Leave out devices that are parts of others; see `devices`."""
    ids: dict[tuple[str | None, str], set[str]] = {}
    for one in series:
        ids.setdefault((one.place.host, one.place.type), set()).add(one.place.id)
    twice = {key: counted_twice(key[1], some) for key, some in ids.items()}
    kept = [one for one in series if one.place.id not in twice[one.place.host, one.place.type]]
    problems = [
        f"{host or 'hosts that are not named'}: left out, as others of its {type_}s count the same bytes:"
        f" {', '.join(sorted(some)[:_LISTED])}"
        + (f" and {len(some) - _LISTED:,} more" * (len(some) > _LISTED))
        for (host, type_), some in sorted(twice.items(), key=str)
        if some
    ]
    return kept, problems


def _model(
    series: Sequence[Series], capacities: Mapping[tuple[Place, str, bool], float]
) -> tuple[ResourceModel, list[float], list[str]]:
    """Return the model, a capacity for each metric, and where monitors disagree: in units, in values."""
    series = _one_run(series)
    by_metric: dict[tuple[Place, str], list[Series]] = {}
    for one in series:
        by_metric.setdefault((one.place, one.name), []).append(one)
    tree = _Tree(series)
    metrics, known, units, values = [], [], [], []
    for (place, name), some in sorted(
        by_metric.items(), key=lambda item: (_sort_key(item[0][0]), item[0][1])
    ):
        some, in_other_units = _of_one_unit(some)
        units += in_other_units
        capacity = told_capacity(place, name, some[0].stands_in, (one.capacity for one in some), capacities)
        values += _disagreements(some, capacity)
        seen = merged([one.seen for one in some], [one.sampled for one in some])
        metrics.append(
            ResourceMetric(
                tree.number(place),
                name,
                f"{place.type}.{name}",
                some[0].unit,
                Observations(seen.start, seen.end, seen.value),
                tuple(dict.fromkeys(one.source for one in some)),
            )
        )
        known.append(capacity)
    problems = [
        *_first(units, "that monitors have in another unit"),
        *_first(values, "of which monitors disagree"),
    ]
    return ResourceModel(tree.resources, metrics), known, problems


def _first(lines: Sequence[str], what: str) -> list[str]:
    """Return the first of ``lines``, one a metric, and how many more there are of ``what``."""
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], *([f"and {count(more, 'more metric')} {what}"] if more > 0 else [])]


def _one_run(series: Sequence[Series]) -> list[Series]:
    """Call processes by their ranks alone where all are of one run and attempt."""
    owners = {
        (tags.get("run"), tags.get("attempt"))
        for one in series
        if one.place.type == "process" and "run" in (tags := dict(one.place.tags))
    }
    if len(owners) != 1:
        return list(series)
    return [
        replace(one, place=replace(one.place, id=one.place.id.partition(" of ")[0]))
        if one.place.type == "process"
        else one
        for one in series
    ]


def _of_one_unit(some: Sequence[Series]) -> tuple[list[Series], list[str]]:
    unit = some[0].unit
    odd = sorted({one.source for one in some if one.unit != unit})
    if not odd:
        return list(some), []
    line = f"{some[0].type}: {', '.join(odd)} has it in another unit than {some[0].source} ({unit}): left out"
    return [one for one in some if one.unit == unit], [line]


def _disagreements(some: Sequence[Series], capacity: float) -> list[str]:
    """Return a line for each monitor that tells something else than the finest one."""
    some = sorted(some, key=lambda one: float(np.median(one.seen.length)))
    noise = _NOISE * capacity if np.isfinite(capacity) else 0.0
    lines = []
    for other in some[1:]:
        # What a source has told twice it has read once.
        if other.source == some[0].source:
            continue
        found = disagreement(some[0].seen, other.seen, _LEAST, noise)
        if found is not None and found.fraction > _DIFFERENT:
            place = other.place
            where = f" of {place.id}" if place.id else ""
            where += f" on {place.host}" if place.host else ""
            lines.append(
                f"{other.type}{where}: {some[0].source} says {found.fine:.4g}, {other.source}"
                f" {found.coarse:.4g} {other.unit} over the same {duration(found.seconds * 1e9)}; the former"
                " counts"
            )
    return lines


def _sort_key(place: Place) -> tuple[str, int, str, str]:
    known = _ORDER.index(place.type) if place.type in _ORDER else len(_ORDER)
    return (place.host or "", known, place.type, _numbers_in_order(place.id))


def _numbers_in_order(text: str) -> str:
    return text.rjust(12) if text.isdigit() else text


class _Tree:
    """The resources, hosts first; each below its host, some below another one of it."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.resources: list[Resource] = []
        self._numbers: dict[tuple[str | None, str, str], int] = {}
        tags: dict[Place, dict[str, str]] = {}
        for one in series:
            tags.setdefault(one.place, {}).update(one.place.tags)
        for place in sorted(tags, key=_sort_key):
            self._add(place, tags[place])

    def number(self, place: Place) -> int:
        return self._numbers[place.host, place.type, place.id]

    def _add(self, place: Place, tags: Mapping[str, str]) -> int:
        key = (place.host, place.type, place.id)
        if key not in self._numbers:
            if place.type == "host":
                parent = NO_PARENT
            else:
                above = Place(place.host, _PARENTS.get(place.type, "host"))
                parent = self._host(place.host) if above.type == "host" else self._add(above, {})
            self._numbers[key] = len(self.resources)
            self.resources.append(Resource(place.type, place.id, parent, place.host, dict(tags)))
        return self._numbers[key]

    def _host(self, host: str | None) -> int:
        key = (host, "host", "")
        if key not in self._numbers:
            self._numbers[key] = len(self.resources)
            self.resources.append(Resource("host", host or "", NO_PARENT, host))
        return self._numbers[key]


def _hosts(model: ResourceModel, machines: Machines) -> list[str]:
    """Return lines on hosts of which only phases, or only resources are known."""
    if not model.resources:
        return []
    monitored = {one.machine for one in model.resources if one.machine is not None}
    strange = sorted(monitored - set(machines.hosts)) if machines.hosts else []
    blind = [host for host in machines.hosts if machines.of(host) not in monitored]
    lines = []
    if strange:
        shown = ", ".join(strange[:_LISTED])
        example = f'[hosts] {blind[0] if blind else machines.hosts[0]} = ["{strange[0]}"]'
        lines.append(
            f"no phase ran on {shown}: if that is another name of a host, say so in the rules file, as"
            f" {example}"
        )
    if blind and monitored:
        lines.append(f"nothing is known of the resources of {', '.join(blind[:_LISTED])}, where phases ran")
    return lines


__all__ = ["ResourceSettings", "resources_of"]
