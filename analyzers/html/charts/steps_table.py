# SPDX-License-Identifier: Apache-2.0
"""The durations of steps, or traces, as a table: one by one, or of each bin of the coarsest level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from grademl_otel.analyzers.html.parts import Cell, DataTable, Heading
from grademl_otel.analyzers.html.series.durations import Durations
from grademl_otel.analyzers.units import milliseconds

_MOST: Final = 400


def steps_table(durations: Durations, total_ns: int) -> DataTable:
    """Return the table below the chart of ``durations`` over ``total_ns``."""
    return _points_table(durations) if not durations.levels else _bins_table(durations, total_ns)


def _points_table(durations: Durations) -> DataTable:
    points, noun = durations.points, durations.noun
    kept = points.take(np.arange(min(len(points), _MOST)))
    several = durations.ranks > 1
    rows = []
    for start, ns, number, rank, steady in zip(
        kept.start.tolist(),
        kept.ns.tolist(),
        kept.number.tolist(),
        kept.rank.tolist(),
        kept.steady.tolist(),
        strict=True,
    ):
        row = [Cell(f"{number:,}", number), Cell(milliseconds(start), start), Cell(milliseconds(ns), ns)]
        row += [Cell(str(rank), rank)] if several else []
        row += [Cell("yes" if steady else "no", "yes" if steady else "no")] if noun == "step" else []
        rows.append(row)
    left = len(points) - len(kept)
    return DataTable(
        id="steps-data",
        caption=f"Duration of each {noun}",
        headings=[
            Heading(noun, noun.capitalize(), numeric=True),
            Heading("start_ns", "Began at", numeric=True),
            Heading("duration_ns", "Took", numeric=True),
            *([Heading("rank", "Rank", numeric=True)] if several else []),
            *([Heading("steady", "Steady")] if noun == "step" else []),
        ],
        rows=rows,
        omitted=f"{left:,} more are in the data that the page holds." if left else "",
    )


def _bins_table(durations: Durations, total_ns: int) -> DataTable:
    level, noun = durations.levels[0], durations.noun
    of = level.spread
    columns: Sequence[tuple[Heading, list[int], bool]] = (
        (
            Heading("start_ns", "From", numeric=True),
            [total_ns * at // level.bins for at in of.bin.tolist()],
            True,
        ),
        (Heading(f"first_{noun}", f"First {noun}", numeric=True), level.first.tolist(), False),
        (Heading(f"last_{noun}", f"Last {noun}", numeric=True), level.last.tolist(), False),
        (Heading("count", f"{noun.capitalize()}s", numeric=True), of.count.tolist(), False),
        (Heading("min_ns", "Shortest", numeric=True), of.least.tolist(), True),
        (Heading("p50_ns", "Median", numeric=True), of.p50.tolist(), True),
        (Heading("p95_ns", "95 %", numeric=True), of.p95.tolist(), True),
        (Heading("max_ns", "Longest", numeric=True), of.most.tolist(), True),
    )
    rows: list[list[Cell]] = [[] for _ in of.bin.tolist()]
    for _, values, is_time in columns:
        for row, value in zip(rows, values, strict=True):
            row.append(_cell(value, is_time))
    return DataTable(
        id="steps-data",
        caption=f"Durations of the {noun}s that began in each of {level.bins} equal parts of time",
        headings=[heading for heading, _, _ in columns],
        rows=rows,
    )


def _cell(value: int, is_time: bool) -> Cell:
    return Cell(milliseconds(value) if is_time else f"{value:,}", value)
