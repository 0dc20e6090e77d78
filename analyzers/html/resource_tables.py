# SPDX-License-Identifier: Apache-2.0
"""The tables of a page about resources: bottlenecks, use, metrics, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.html import cells
from grademl_otel.analyzers.html.parts import Cell, DataTable
from grademl_otel.analyzers.reporting.quantities import used_in_words, value_in_words
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument
from grademl_otel.analyzers.reporting.resources_screen import issue_in_words, unattributed_share
from grademl_otel.analyzers.units import seconds

MOST_ROWS: Final = 400


def bottlenecks(document: ResourcesDocument) -> DataTable | None:
    """Return one row for each type of phases and of resources that was full in them."""
    rows = [one for one in document.bottlenecks if one.full_ns]
    if not rows:
        return None
    return DataTable(
        "bottlenecks",
        "How long phases were kept from being faster, by what was full",
        [
            cells.text("key", "Phase"),
            cells.text("resource", "Full"),
            cells.number("full_ns", "For"),
            cells.number("share", "Of the observed time"),
            cells.number("globally_ns", "All there is was used"),
            cells.number("uniquely_ns", "Nothing else was full"),
            cells.number("gain_ns", "Shorter without it by, at most"),
        ],
        [
            [
                cells.words(one.key),
                cells.words(one.resource),
                cells.time(one.full_ns, seconds),
                cells.share(one.share),
                cells.time(one.globally_ns, seconds),
                cells.time(one.uniquely_ns, seconds),
                cells.time(one.gain_ns, seconds),
            ]
            for one in rows[:MOST_ROWS]
        ],
        _omitted(len(rows)),
    )


def use(document: ResourcesDocument) -> DataTable | None:
    """Return one row for each type of phases and of metrics."""
    rows = document.use
    if not rows:
        return None
    return DataTable(
        "use",
        "Use by phase and type of metrics",
        [
            cells.text("key", "Phase"),
            cells.text("metric", "Metric"),
            cells.text("unit", "Unit"),
            cells.number("mean", "Mean"),
            cells.number("utilization", "Of what it could"),
            cells.number("used", "In all, unit times s"),
            cells.number("share", "Share of the metric"),
            cells.number("observed_ns", "Observed"),
        ],
        [
            [
                cells.words(one.key),
                cells.words(one.metric),
                cells.words(one.unit),
                _value(one.mean, one.unit),
                cells.UNKNOWN if one.utilization is None else cells.share(one.utilization),
                Cell(used_in_words(one.used, one.unit), one.used),
                cells.UNKNOWN if one.share is None else cells.part(one.share),
                cells.time(one.observed_ns, seconds),
            ]
            for one in rows[:MOST_ROWS]
        ],
        _omitted(len(rows)),
    )


def metrics(document: ResourcesDocument) -> DataTable | None:
    """Return one row a metric."""
    rows = document.metrics
    if not rows:
        return None
    return DataTable(
        "metrics",
        "Resources: what was observed, and how much of it is no phase's",
        [
            cells.text("resource", "Resource"),
            cells.text("metric", "Metric"),
            cells.text("unit", "Unit"),
            cells.number("mean", "Mean"),
            cells.number("peak", "Peak"),
            cells.number("capacity", "Capacity"),
            cells.number("full_ns", "Full for"),
            cells.number("coverage", "Observed, of the time"),
            cells.number("unattributed", "No phase's"),
            cells.text("sources", "Told by"),
        ],
        [
            [
                cells.words(one.resource),
                cells.words(one.metric),
                cells.words(one.unit),
                _value(one.mean, one.unit),
                _value(one.peak, one.unit),
                _value(one.capacity, one.unit),
                cells.time(one.full_ns, seconds),
                cells.share(one.coverage),
                cells.UNKNOWN if (none := unattributed_share(one)) is None else cells.part(none),
                cells.words(", ".join(one.sources)),
            ]
            for one in rows[:MOST_ROWS]
        ],
        _omitted(len(rows)),
    )


def issues(document: ResourcesDocument) -> DataTable | None:
    """Return one row a change that would help."""
    rows = document.issues
    if not rows:
        return None
    return DataTable(
        "issues",
        "What would help, each alone, as simulated: gains are never to be added up",
        [
            cells.text("kind", "Kind"),
            cells.prose("what", "If"),
            cells.number("gain_ns", "All is shorter by"),
            cells.number("least_ns", "At least"),
            cells.number("most_ns", "At most"),
            cells.number("relative", "Of all as measured"),
            cells.number("relative_simulated", "As simulated"),
        ],
        [
            [
                cells.words(one.kind),
                cells.words(issue_in_words(one)),
                cells.time(one.gain_ns, seconds),
                cells.time(one.least_ns, seconds),
                cells.time(one.most_ns, seconds),
                cells.part(one.relative),
                cells.part(one.relative_simulated),
            ]
            for one in rows[:MOST_ROWS]
        ],
        _omitted(len(rows)),
    )


def problems(lines: Sequence[str]) -> DataTable | None:
    """Return what could not be used, or is doubtful."""
    if not lines:
        return None
    return DataTable(
        "problems",
        "What could not be used of the metrics, or is doubtful",
        [cells.prose("problem", "Problem")],
        [[cells.words(line)] for line in lines[:MOST_ROWS]],
        _omitted(len(lines)),
    )


def _value(value: float | None, unit: str) -> Cell:
    return cells.UNKNOWN if value is None else Cell(value_in_words(value, unit), value)


def _omitted(there: int) -> str:
    left = there - MOST_ROWS
    return f"{left:,} more are in the JSON document." if left > 0 else ""
