# SPDX-License-Identifier: Apache-2.0
"""Metrics as counters: gauges as they are, sums as what they add in a second, histograms as their mean.

A number holds from its time to the next of its track. What was added between two points is that much in a
second from the first of them on; before the first point of a count that does not tell its start nothing is
known, and nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.packets import Packets
from grademl_otel.analyzers.exports.perfetto.spans import key_of
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.metrics import CUMULATIVE, GAUGE, SUM, MetricPoints
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.metric_series import MetricSeries

_SECOND: Final = 1e9
_GROUP: Final = "metrics"
"""Track of a process in which its counters are."""


@dataclass(frozen=True)
class Counter:
    """One series."""

    name: str
    unit: str
    resource: dict[str, Any]
    time: IntArray
    """Unix ns, ascending."""
    value: npt.NDArray[np.float64]


def counters_of(material: Material) -> Iterator[Counter]:
    """Yield the counters of the points that are beside the spans, sorted by name."""
    points = material.points
    if points is None:
        return
    series = MetricSeries(points, material.shift_of_points)
    chosen = material.points_of_part
    if material.run is not None:
        whose = (material.run.run_id, material.run.attempt)
        owners = [identity(resource) for resource in points.resources]
        ours = [one is None or (one.run_id, one.attempt) == whose for one in owners]
        chosen = chosen[np.array(ours, np.bool_)[points.resource_ix[chosen]]]
    of_series = series.of_point[chosen]
    by_series = np.lexsort((series.time.numbers[chosen], of_series))
    bounds = np.flatnonzero(np.diff(of_series[by_series])) + 1
    parts = [chosen[part] for part in np.split(by_series, bounds) if len(part)]
    for part in sorted(parts, key=lambda part: _called(points, series, int(part[0]))):
        counter = _counter(points, series, part)
        if len(counter.time):
            yield counter


def _called(points: MetricPoints, series: MetricSeries, ix: int) -> str:
    """Return the name of the series with point ``ix``, with what tells it from others of that metric."""
    said = ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in json.loads(series.attributes[ix]).items()
    )
    return f"{points.name(ix)} {{{said}}}" if said else points.name(ix)


def _counter(points: MetricPoints, series: MetricSeries, part: IntArray) -> Counter:
    """Return the series of the points ``part``, which are in order of time."""
    first = int(part[0])
    name, unit, kind = _called(points, series, first), points.unit(first), int(points.kind[first])
    time, value, known = series.time.numbers[part], points.value[part], ~series.time.absent[part]
    grows = bool(points.monotonic[first]) or points.temporality[first] != CUMULATIVE
    if kind == SUM and grows:
        name, unit = f"{name} per second", f"{unit or '1'}/s"
        since, added = series.since.numbers[part], series.delta.numbers[part]
        known &= ~series.since.absent[part] & ~series.delta.absent[part] & (time > since)
        value = added * _SECOND / np.where(known, time - since, 1)
        time = since
    elif kind not in (GAUGE, SUM):
        name = f"{name} mean"
        added, count = series.delta.numbers[part], series.count_delta.numbers[part]
        known &= ~series.delta.absent[part] & ~series.count_delta.absent[part] & (count > 0)
        known &= ~series.since.absent[part]
        value = added / np.where(known, count, 1)
        time = series.since.numbers[part]
    known &= ~np.isnan(value) & (time >= 0)
    time, value = time[known], value[known]
    order = np.argsort(time, kind="stable")
    return Counter(name, unit, points.resource(first), time[order], value[order])


def write_counters(material: Material, packets: Packets, processes: dict[Hashable, int]) -> int:
    """Write all counters, each in the process of its resource; return how many numbers that is.

    ``processes``: what a process is known by -> its track. Those of others have none.
    """
    written = 0
    groups: dict[int, int] = {}
    for place, counter in enumerate(counters_of(material)):
        process = processes.get(key_of(counter.resource), -1)
        if process not in groups:
            groups[process] = packets.track(_GROUP, process, 0)
        track = packets.counter(counter.name, groups[process], place, counter.unit)
        for time, value in zip(counter.time.tolist(), counter.value.tolist(), strict=True):
            packets.count(track, time, value)
        written += len(counter.time)
    return written
