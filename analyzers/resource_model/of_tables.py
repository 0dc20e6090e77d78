# SPDX-License-Identifier: Apache-2.0
"""The resource tables of window and run spans as series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.columns import SpanColumns, clock_name
from grademl_otel.analyzers.model.resource_tables import Key, Samples, decode_resources, together
from grademl_otel.analyzers.model.tables import MalformedTable
from grademl_otel.analyzers.resource_model.gathering import Told
from grademl_otel.analyzers.resource_model.merging import TIE_NS
from grademl_otel.analyzers.resource_model.naming import of_type
from grademl_otel.analyzers.resource_model.series import Place, Series, averages
from grademl_otel.analyzers.units import count
from grademl_otel.catalog import METRICS
from grademl_otel.catalog.metric import Metric

SOURCE: Final = "resource tables"
_COLUMNS: Final[Mapping[str, Metric]] = {metric.column: metric for metric in METRICS if metric.column}
_ONE_OF_A_HOST: Final = ("cpu", "memory")
_CARRIERS: Final = (semconv.WINDOW, semconv.RUN)
_S: Final = 1e9


def of_tables(spans: SpanColumns, ixs: IntArray) -> Told:
    """Return what the tables of the spans ``ixs`` tell."""
    told = Told()
    refused, why = 0, ""
    tables: list[Mapping[Key, Samples]] = []
    runs: dict[Key, tuple[tuple[str, str], ...]] = {}
    for ix in _carriers(spans, ixs):
        attributes = spans.attributes(ix)
        if semconv.RESOURCES_VERSION not in attributes:
            continue
        resource = spans.resource(ix)
        host = str(resource.get("host.name") or clock_name(resource))
        try:
            table = decode_resources(attributes, host, int(spans.start[ix]))
        except MalformedTable as error:
            refused, why = refused + 1, why or str(error)
            continue
        tables.append(_with_runs(table, resource, runs))
    if refused:
        told.problems.append(f"{count(refused, 'resource table')} cannot be read: {why}")
    unknown: set[str] = set()
    found = together(tables)
    tables.clear()
    for key in list(found):
        samples = found.pop(key)  # millions of numbers are there once, not in all stages
        column = f"{key.kind}.{key.column}"
        if column not in _COLUMNS or of_type(column) is None:
            unknown.add(column)
            continue
        told.series.append(_series(key, samples, runs.get(key, ())))
    if unknown:
        told.problems.append(
            f"resource tables have columns that this release does not know: {', '.join(sorted(unknown))}"
        )
    return told


def _carriers(spans: SpanColumns, ixs: IntArray) -> Iterable[int]:
    """Return those of the spans that may have a table, in order."""
    names = [spans.names.index(name) for name in _CARRIERS if name in spans.names]
    found = ixs[np.isin(spans.name_ix[ixs], names) & spans.possible[ixs]]
    chosen: list[int] = found.tolist()
    return chosen


def _with_runs(
    table: Mapping[Key, Samples], resource: dict[str, Any], runs: dict[Key, tuple[tuple[str, str], ...]]
) -> dict[Key, Samples]:
    """Return the table with processes called so that those of two runs are apart, and note whose they are."""
    owner = identity(resource)
    found = {}
    for key, samples in table.items():
        if key.kind == "process" and owner is not None:
            tags = {"run": owner.run_id, "attempt": str(owner.attempt)}
            rank = key.device.split()[1:2]
            if rank:
                tags["rank"] = rank[0]
            key = key._replace(device=process_id(key.device, owner.run_id, owner.attempt))
            runs[key] = tuple(sorted(tags.items()))
        found[key] = samples
    return found


def process_id(called: str, run: str, attempt: int | str) -> str:
    """Return the id of a process of a run that is called ``rank 0`` in it."""
    return f"{called} of {run[:8]}.{attempt}"


def _series(key: Key, samples: Samples, tags: tuple[tuple[str, str], ...]) -> Series:
    column = f"{key.kind}.{key.column}"
    metric, meaning = _COLUMNS[column], of_type(column)
    assert meaning is not None
    start, end = samples.start, samples.start + samples.length
    if len(start) > 1:
        # Ranks tie the same second to Unix time each for itself: bins that follow each other do so exactly.
        near = np.minimum(TIE_NS, samples.length[1:] // 4)
        off = np.abs(start[1:] - end[:-1]) <= near
        start = start.copy()
        start[1:][off] = end[:-1][off]
    values = samples.values / metric.scale
    if key.added:
        values = values / (samples.length / _S)
    seen, _ = averages(start, end, values)
    capacity = math.inf if not samples.capacity else samples.capacity / metric.scale
    device = "" if key.kind in _ONE_OF_A_HOST else key.device
    place = Place(key.host or None, key.kind, device, tags)
    fixed = meaning.fixed or math.inf
    return Series(place, key.column, meaning.gives, seen, SOURCE, min(capacity, fixed))
