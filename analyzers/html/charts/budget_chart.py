# SPDX-License-Identifier: Apache-2.0
"""The lane budget: a bar for each rank, as long as the run, in pieces of what its main lane did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grademl_otel.analyzers.html.charts.drawing import (
    STRIPES,
    group,
    legend,
    rect,
    share,
    shown,
    svg,
    text,
    tip,
)
from grademl_otel.analyzers.html.charts.palette import is_wait, phase_class
from grademl_otel.analyzers.html.parts import Cell, Chart, DataTable, Heading
from grademl_otel.analyzers.html.series.budgets import Budget
from grademl_otel.analyzers.units import count, duration, milliseconds, percent

KEY: Final = "budget"
_IN_LEGEND: Final = 16
_FEW: Final = 8
"""Up to so many ranks bars are high, with a label above each."""


def budget_chart(budget: Budget) -> Chart | None:
    """Return the chart of the main lanes; None when the run took no time."""
    wall = int(budget.ns[0].sum())
    if not wall:
        return None
    few = len(budget.ranks) <= _FEW
    label, bar = (15, 24) if few else (13, 10)
    pitch = label + bar + 4
    bars = [
        part for row in range(len(budget.ranks)) for part in _bar(budget, row, wall, row * pitch, label, bar)
    ]
    totals = budget.ns.sum(axis=0).tolist()
    entries = [
        (phase_class(phase), shown(phase, 40), percent(ns / (wall * len(budget.ranks))))
        for phase, ns in zip(budget.phases, totals, strict=True)
    ]
    what = (
        f"What the main lane of {count(len(budget.ranks), 'rank')} did in {duration(wall)}:"
        f" {', '.join(f'{name} {number}' for _, name, number in entries[:4])}"
    )
    figure = legend(entries[:_IN_LEGEND]) + svg(
        KEY, len(budget.ranks) * pitch, what, [STRIPES.format(id=KEY), *bars]
    )
    left = (
        f" Of {budget.of:,} ranks there are {len(budget.ranks)}: those with most and least of each phase, and"
        " some between."
        if budget.of > len(budget.ranks)
        else ""
    )
    about = f"Where the {duration(wall)} of each rank's main lane went; each bar is all of it.{left}"
    return Chart(
        id=f"chart-{KEY}", title="Lane budget", about=about, figure=figure, table=_table(budget, wall)
    )


def _bar(budget: Budget, row: int, wall: int, top: float, label: float, bar: float) -> Iterator[str]:
    rank, before = budget.ranks[row], 0
    yield group("labels", [text("0", top + label - 4, f"rank {rank}")])
    for phase, ns in zip(budget.phases, budget.ns[row].tolist(), strict=True):
        if not ns:
            continue
        x, width = share(before, wall), share(ns, wall)
        before += ns
        what = f"rank {rank} · {shown(phase)}: {milliseconds(ns)}, {percent(ns / wall)}"
        yield rect(x, top + label, width, bar, f' class="{phase_class(phase)}"{tip(what)}')
        if is_wait(phase):
            yield group(f"striped {phase_class(phase)}", [rect(x, top + label, width, bar)])


def _table(budget: Budget, wall: int) -> DataTable:
    return DataTable(
        id="budget-data",
        caption="Time of each rank's main lane",
        headings=(
            Heading("rank", "Rank", numeric=True),
            Heading("phase", "Phase"),
            Heading("ns", "Time", numeric=True),
            Heading("share", "Share", numeric=True),
        ),
        rows=[
            (
                Cell(str(rank), rank),
                Cell(shown(phase), shown(phase)),
                Cell(milliseconds(ns), ns),
                Cell(percent(ns / wall), ns / wall, ns / wall),
            )
            for rank, row in zip(budget.ranks, budget.ns.tolist(), strict=True)
            for phase, ns in zip(budget.phases, row, strict=True)
            if ns
        ],
    )
