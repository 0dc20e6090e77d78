# SPDX-License-Identifier: Apache-2.0
"""From samples to metrics: those of one name together, with the points' own times in Unix ns."""

from __future__ import annotations

from collections.abc import Iterable

from grademl_otel.catalog.metric import COUNTER, GAUGE
from grademl_otel.catalog.metric import Metric as Row
from grademl_otel.convert.spans import Gauge, Metric, Point, Sum, UpDown
from grademl_otel.sampling.sampler import Sample


def metrics_of_samples(samples: Iterable[Sample], unix_offset_ns: int) -> list[Metric]:
    """Return ``samples`` as metrics; ``unix_offset_ns`` is what makes a perf_counter time a Unix time.

    One metric for each name, in the order in which they came. Rows of the catalog that share a name share
    unit and kind.
    """
    found: dict[str, tuple[Row, list[Point]]] = {}
    for sample in samples:
        series = sample.series
        row = series.metric
        entry = found.get(row.name)
        if entry is None:
            entry = found[row.name] = (row, [])
        start, time = sample.start_ns + unix_offset_ns, sample.time_ns + unix_offset_ns
        entry[1].append(Point(sample.value, series.attributes, start, time))
    return [_metric(row, points) for row, points in found.values()]


def _metric(row: Row, points: list[Point]) -> Metric:
    time = max(point.time_ns for point in points)
    if row.kind == GAUGE:
        return Gauge(row.name, row.unit, row.description, time, points)
    start = min(point.start_ns for point in points)
    kind = Sum if row.kind == COUNTER else UpDown
    return kind(row.name, row.unit, row.description, start, time, points)
