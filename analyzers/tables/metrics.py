# SPDX-License-Identifier: Apache-2.0
"""The table ``metrics``: one row a metric point, with what it added since the one before it in its series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.attempts import identity, whole
from grademl_otel.analyzers.model.columns import clock_name
from grademl_otel.analyzers.model.metrics import (
    GAUGE,
    KINDS,
    SUM,
)
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.metric_series import MetricSeries
from grademl_otel.analyzers.tables.schema import TableSchema, flag, fraction, number, text, word
from grademl_otel.analyzers.tables.values import Coded, Makers, Masked, Values, distinct

_TEMPORALITIES: Final = ("delta", "cumulative")

METRICS: Final = TableSchema(
    "metrics",
    "A metric point, in the order read. Those of one series have the same name, unit, kind, resource, scope"
    " and attributes.",
    (
        number("point_ix", "its number, from 0"),
        number("series_ix", "number of its series, from 0"),
        number("time_ns", "Unix ns: when it was measured; null: not told", nullable=True),
        number("start_ns", "since when a sum or histogram counts; null: not told", nullable=True),
        number(
            "since_ns",
            "since when `delta` was added: time of the point before it in its series, or when counting began"
            " after that; of a gauge the former. Null: not known",
            nullable=True,
        ),
        word("name", ""),
        word("unit", "empty where it is not told"),
        word("kind", "gauge, sum, histogram, exponential histogram, summary"),
        word(
            "temporality",
            "of sums and histograms: delta, cumulative; null: not told",
            nullable=True,
        ),
        flag("monotonic", "whether a sum only grows; null for other kinds", nullable=True),
        fraction(
            "value",
            "of a gauge or sum; of others the sum of all values; null: none, or NaN",
            nullable=True,
        ),
        number("whole", "the value where it was written as an integer, exactly; else null", nullable=True),
        number("count", "of histograms and summaries, how many values; null for others", nullable=True),
        fraction(
            "delta",
            "what was added to `value` since `since_ns`; null for gauges, and where that is not known: of a"
            " first point that does not tell its start",
            nullable=True,
        ),
        number("count_delta", "the same of `count`", nullable=True),
        word("service", "of the resource; empty without one"),
        word("run", "null: of no run", nullable=True),
        number("attempt", "null: of no run", nullable=True),
        number("rank", "null: not told", nullable=True),
        word("host", "null: not told", nullable=True),
        text("attributes", "of the point, as JSON with sorted keys"),
    ),
)


def metrics(material: Material) -> Makers:
    points = material.points
    if points is None:
        return dict.fromkeys(METRICS.column_names, list)
    at = material.points_of_part
    series = MetricSeries(points, material.shift_of_points)

    def of_resource(values: Callable[[dict[str, Any]], int | None]) -> Callable[[], Values]:
        def make() -> Values:
            found = [values(one) for one in points.resources]
            numbers = np.array([-1 if one is None else one for one in found], np.int64)[
                points.resource_ix[at]
            ]
            return Masked(numbers, numbers < 0)

        return make

    def words_of_resource(values: Callable[[dict[str, Any]], str | None]) -> Callable[[], Values]:
        def make() -> Values:
            codes, words = distinct([values(one) for one in points.resources])
            return Coded(codes[points.resource_ix[at]], words)

        return make

    def some(values: Masked) -> Masked:
        return Masked(values.numbers[at], values.absent[at])

    counted = (points.kind != GAUGE) & (points.kind != SUM)
    told = points.temporality > 0
    return {
        "point_ix": lambda: at,
        "series_ix": lambda: series.of_point[at],
        "time_ns": lambda: some(series.time),
        "start_ns": lambda: some(series.start),
        "since_ns": lambda: some(series.since),
        "name": lambda: Coded(points.name_ix[at], points.names),
        "unit": lambda: Coded(points.unit_ix[at], points.units),
        "kind": lambda: Coded(points.kind[at], KINDS),
        "temporality": lambda: Coded(np.where(told, points.temporality - 1, -1)[at], _TEMPORALITIES),
        "monotonic": lambda: some(Masked(points.monotonic, points.kind != SUM)),
        "value": lambda: some(Masked(points.value, np.isnan(points.value))),
        "whole": lambda: some(Masked(points.whole, ~points.is_whole)),
        "count": lambda: some(Masked(points.count, ~counted)),
        "delta": lambda: some(series.delta),
        "count_delta": lambda: some(series.count_delta),
        "service": words_of_resource(lambda one: str(one.get("service.name", ""))),
        "run": words_of_resource(lambda one: None if (whose := identity(one)) is None else whose.run_id),
        "attempt": of_resource(lambda one: None if (whose := identity(one)) is None else whose.attempt),
        "rank": of_resource(lambda one: whole(one.get(semconv.RANK))),
        "host": words_of_resource(lambda one: str(one.get("host.name") or clock_name(one)) or None),
        "attributes": lambda: [series.attributes[ix] for ix in at.tolist()],
    }
