# SPDX-License-Identifier: Apache-2.0
"""How often steady steps, or traces, took how long; and the quantiles of each rank below each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.html.charts.drawing import group, line, rect, share, svg, text, tip
from grademl_otel.analyzers.html.charts.scales import value_ticks
from grademl_otel.analyzers.html.parts import Cell, Chart, DataTable, Heading
from grademl_otel.analyzers.html.series.durations import Distribution
from grademl_otel.analyzers.units import count, milliseconds, percent

KEY: Final = "distribution"
TOP: Final = 38
PLOT: Final = 150
ROW: Final = 26
MOST_RANKS: Final = 16
"""Rows of quantiles; of more ranks the slowest and the fastest."""
P99_NEEDS: Final = 100
"""Values below which a 99 % quantile is no more than the longest."""


def distribution_chart(of: Distribution) -> Chart:
    """Return the chart of a distribution."""
    values = of.rows[0][1]
    quantiles = _quantiles(values)
    ranks = _ranks_shown(of)
    bottom = TOP + PLOT
    height = bottom + 20 + len(ranks) * ROW
    content = [
        group("axis", _axis(of, bottom)),
        group("bars", _bars(of, bottom)),
        group("quantiles", _lines(of, quantiles, bottom)),
        *(_row(of, name, some, bottom + 20 + at * ROW) for at, (name, some) in enumerate(ranks)),
    ]
    said = ", ".join(f"{name} {milliseconds(ns)}" for name, ns in quantiles)
    left = len(of.rows) - 1 - len(ranks)
    more = f" Of the ranks the {len(ranks)} slowest and fastest are shown." if ranks and left else ""
    notes = [
        f"How long {count(len(values), of.noun)} took: {said}.",
        "Bars are equally wide on a logarithmic scale." if of.log else "",
        "The last bar is of all that took longer." if of.open else "",
    ]
    return Chart(
        id=f"chart-{KEY}",
        title="Distribution of steady steps" if of.noun == "steady step" else "Distribution of the traces",
        about=" ".join(filter(None, notes)) + more,
        figure=svg(KEY, height, f"Distribution of {count(len(values), of.noun)}: {said}", content),
        table=_table(of),
    )


def _quantiles(values: IntArray) -> list[tuple[str, int]]:
    wanted = [("p50", 0.5), ("p95", 0.95)] + ([("p99", 0.99)] if len(values) >= P99_NEEDS else [])
    return [(name, round(float(np.quantile(values, q)))) for name, q in wanted]


def _ranks_shown(of: Distribution) -> list[tuple[str, IntArray]]:
    """Return the rows of ranks, by rank; of many those at both ends."""
    ranks = of.rows[1:]
    if len(ranks) <= MOST_RANKS:
        return ranks
    by_median = sorted(range(len(ranks)), key=lambda at: float(np.median(ranks[at][1])))
    half = MOST_RANKS // 2
    return [ranks[at] for at in sorted([*by_median[:half], *by_median[-half:]])]


def _ends(of: Distribution) -> tuple[int, int]:
    """Return the axis: to the edge of the last bar, or of the one before if that is open."""
    return int(of.edges[0]), int(of.edges[-2 if of.open else -1])


def _x(of: Distribution, ns: float) -> float:
    """Return where a time lies, 0 to 1; an open last bar has a place as wide as one of the others."""
    low, high = _ends(of)
    closed = len(of.counts) - of.open
    room = closed / len(of.counts)
    if ns > high:
        return 1.0
    if of.log:
        low = max(low, 1)
        return room * math.log(max(ns, low) / low) / math.log(max(high, low + 1) / low)
    return room * (ns - low) / max(1, high - low)


def _axis(of: Distribution, bottom: float) -> Iterator[str]:
    yield line("0", bottom, "100%", bottom, "base")
    for at, ns in enumerate(value_ticks(*_ends(of), of.log)):
        place = _x(of, ns)
        anchor = "start" if place < 0.04 else "end" if place > 0.96 else "middle"
        yield line(share(place, 1), bottom, share(place, 1), bottom + 3)
        yield text(share(place, 1), bottom + 14, milliseconds(ns), "odd" if at % 2 else "", anchor)


def _bars(of: Distribution, bottom: float) -> Iterator[str]:
    most = max(1, int(of.counts.max()))
    whole = int(of.counts.sum())
    for at, number in enumerate(of.counts.tolist()):
        low, high = int(of.edges[at]), int(of.edges[at + 1])
        left, right = _x(of, low), 1.0 if of.open and at == len(of.counts) - 1 else _x(of, high)
        height = PLOT * number / most
        what = f"{milliseconds(low)} to {milliseconds(high)}: {number:,}, {percent(number / whole)}"
        if number:
            yield rect(share(left, 1), bottom - height, share(right - left, 1), height, tip(what))


def _lines(of: Distribution, quantiles: list[tuple[str, int]], bottom: float) -> Iterator[str]:
    for level, (name, ns) in enumerate(quantiles):
        place = _x(of, ns)
        y = 10 + 11 * level
        edge = share(min(place, 0.9985), 1)  # at the very end half of it were outside
        yield line(edge, y + 2, edge, bottom)
        anchor = "end" if place > 0.7 else "start"
        yield text(share(place, 1), y, f"{name} {milliseconds(ns)}", "", anchor)


def _row(of: Distribution, name: str, values: IntArray, top: float) -> str:
    """Return one rank: a line from its shortest to its longest, thick from the median to 95 %."""
    quantiles = dict(_quantiles(values))
    low, high = int(values[0]), int(values[-1])
    said = " · ".join(f"{key} {milliseconds(ns)}" for key, ns in quantiles.items())
    what = f"{name}: {milliseconds(low)} to {milliseconds(high)}, {said}, {count(len(values), 'step')}"
    left, right, p50, p95 = (_x(of, ns) for ns in (low, high, quantiles["p50"], quantiles["p95"]))
    y = top + 18
    return group("labels", [text("0", top + 11, f"{name} · {said}")]) + group(
        "rank",
        [
            line(share(left, 1), y, share(right, 1), y),
            rect(share(p50, 1), y - 3, share(max(p95 - p50, 0.002), 1), 6, tip(what)),
        ],
    )


def _table(of: Distribution) -> DataTable:
    whole = int(of.counts.sum())
    return DataTable(
        id="distribution-data",
        caption=f"How often a {of.noun} took how long",
        headings=(
            Heading("from_ns", "From", numeric=True),
            Heading("to_ns", "To", numeric=True),
            Heading("count", "How many", numeric=True),
            Heading("share", "Share", numeric=True),
        ),
        rows=[
            (
                Cell(milliseconds(low), low),
                Cell(milliseconds(high), high),
                Cell(f"{number:,}", number),
                Cell(percent(number / whole), number / whole, number / whole),
            )
            for low, high, number in zip(
                of.edges[:-1].tolist(), of.edges[1:].tolist(), of.counts.tolist(), strict=True
            )
        ],
    )
