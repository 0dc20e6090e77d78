# SPDX-License-Identifier: Apache-2.0
"""How long each step, or trace, took over time, and what happened beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.html.charts.drawing import (
    STRIPES,
    group,
    legend,
    line,
    px,
    rect,
    share,
    shown,
    svg,
    text,
    time_axis,
    tools,
)
from grademl_otel.analyzers.html.charts.scales import Heights
from grademl_otel.analyzers.html.charts.steps_table import steps_table
from grademl_otel.analyzers.html.parts import Chart
from grademl_otel.analyzers.html.series.durations import Binned, Durations, Points
from grademl_otel.analyzers.html.series.events import Band, Bands
from grademl_otel.analyzers.units import count, milliseconds

KEY: Final = "steps"
TOP: Final = 16
PLOT: Final = 190
"""px of the area in which steps are; `report.js` has the same three."""
STRIP: Final = 28
"""px of one kind of events: its label and its bar."""
STRIP_BAR: Final = 9
MARKER: Final = 0.004
"""Part of the width by which something that took no time is drawn before it."""
MEDIAN: Final = 1.4
_ACROSS: Final = ("evaluation", "checkpoint", "missing")
"""Kinds that are drawn behind the steps, too."""
_CLASSES: Final = {
    "epoch": "p-x0",
    "trial": "p-x9",
    "own phase": "p-x8",
    "evaluation": "p-evaluate",
    "checkpoint": "p-save",
    "restore": "p-load",
    "compile": "p-compile",
    "gc": "p-gc",
    "reduced": "p-log",
    "missing": "b-missing",
    "window": "p-log",
    "end": "b-end",
}
_TITLES: Final = {"gc": "garbage collection", "reduced": "not all phases recorded", "end": "how it ended"}


def steps_chart(durations: Durations, bands: Sequence[Bands], total_ns: int) -> Chart:
    """Return the chart of ``durations`` with the ``bands`` below, over ``total_ns``."""
    heights = heights_of(durations)
    bottom = TOP + PLOT
    height = bottom + len(bands) * STRIP + 20
    content = [
        STRIPES.format(id=KEY),
        time_axis(0, total_ns, TOP, height - 18),
        group("axis", _heights_axis(heights)),
        '<g class="behind">',
        *_across(bands, total_ns),
        "</g>",
        group("labels", _labels(bands)),
        '<g class="strips">',
        *_strips(bands, total_ns),
        "</g>",
        '<g class="marks">',
        *(_bins(durations.levels[0], heights, total_ns) if durations.levels else ()),
        *_points(durations.points, heights, total_ns),
        "</g>",
    ]
    noun = durations.noun
    what = f"Duration of {count(durations.count, noun)} over time, up to {milliseconds(heights.high)}"
    figure = tools() + legend(_legend(durations)) + svg(KEY, height, what, content, live=True)
    return Chart(
        id=f"chart-{KEY}",
        title="Step durations" if noun == "step" else "Durations of the traces",
        about=_about(durations, heights),
        figure=figure,
        table=steps_table(durations, total_ns),
    )


def steps_data(durations: Durations, bands: Sequence[Bands], total_ns: int) -> dict[str, Any]:
    """Return what the script draws from."""
    heights, points = heights_of(durations), durations.points
    return {
        "noun": durations.noun,
        "total": total_ns,
        "count": durations.count,
        "ranks": durations.ranks,
        "axis": {"log": heights.log, "low": heights.low, "high": heights.high},
        "points": {
            name: getattr(points, name).tolist() for name in ("start", "ns", "number", "rank", "steady")
        },
        "levels": [
            {
                "bins": level.bins,
                "first": level.first.tolist(),
                "last": level.last.tolist(),
                **{
                    name: getattr(level.spread, name).tolist()
                    for name in ("bin", "count", "least", "p50", "p95", "most")
                },
            }
            for level in durations.levels
        ],
        "bands": [
            {
                "kind": kind.kind,
                "class": _CLASSES[kind.kind],
                "count": kind.count,
                "bands": [[band.start, band.end, shown(band.what)] for band in kind.bands],
            }
            for kind in bands
        ],
    }


def heights_of(durations: Durations) -> Heights:
    """Return the vertical axis."""
    ns = durations.points.ns
    if durations.levels:
        spread = durations.levels[0].spread
        return Heights(
            int(spread.least.min()), int(np.median(spread.p50)), int(spread.most.max()), TOP, TOP + PLOT
        )
    return Heights(int(ns.min()), int(np.median(ns)), int(ns.max()), TOP, TOP + PLOT)


def _about(durations: Durations, heights: Heights) -> str:
    noun = durations.noun
    scale = " The scale is logarithmic." if heights.log else ""
    if not durations.levels:
        one = f"Each {noun} where it began, {count(durations.count, noun)} in all."
        return one + scale
    finest = durations.levels[-1].bins
    return (
        f"{count(durations.count, noun)}, in up to {finest:,} equal parts of time: a bar from the shortest to"
        " the longest that began in each, dark up to the slowest 5 %, with a line at the median. The"
        f" {len(durations.points)} longest are dots of their own.{scale}"
    )


def _legend(durations: Durations) -> list[tuple[str, str, str]]:
    if durations.levels:
        return [("s-spread", "shortest to longest", ""), ("s-usual", "up to the slowest 5 %", "")]
    if durations.noun != "step":
        return []
    steady = int(durations.points.steady.sum())
    others = len(durations.points) - steady
    found = [("s-steady", "steady step", f"{steady:,}")] if steady else []
    return found + ([("s-other", "not counted as steady", f"{others:,}")] if others else [])


def _heights_axis(heights: Heights) -> Iterator[str]:
    yield line("0", heights.bottom, "100%", heights.bottom, "base")
    for ns, label in heights.ticks():
        y = heights.of(ns)
        yield line("0", y, "100%", y)
        yield text("0", y - 3, label, "height")


def _points(points: Points, heights: Heights, total_ns: int) -> Iterator[str]:
    kinds: dict[str, list[str]] = {"s-other": [], "s-steady": []}
    for start, ns, steady in zip(
        points.start.tolist(), points.ns.tolist(), points.steady.tolist(), strict=True
    ):
        kinds["s-steady" if steady else "s-other"].append(
            f'<circle cx="{share(start, total_ns)}" cy="{px(heights.of(ns))}" r="2.4"/>'
        )
    for kind, circles in kinds.items():
        yield group(kind, circles)


def _bins(level: Binned, heights: Heights, total_ns: int) -> Iterator[str]:
    of, width = level.spread, share(1, level.bins)
    spreads, usual, medians = [], [], []
    rows = zip(
        of.bin.tolist(), of.least.tolist(), of.p50.tolist(), of.p95.tolist(), of.most.tolist(), strict=True
    )
    for at, *values in rows:
        x = share(at, level.bins)
        least, p50, p95, most = (heights.of(ns) for ns in values)
        spreads.append(rect(x, most, width, max(1, least - most)))
        usual.append(rect(x, p95, width, max(1, least - p95)))
        medians.append(rect(x, p50 - MEDIAN / 2, width, MEDIAN))
    yield group("s-spread", spreads)
    yield group("s-usual", usual)
    yield group("s-median", medians)


def _across(bands: Sequence[Bands], total_ns: int) -> Iterator[str]:
    for kind in bands:
        if kind.kind in _ACROSS:
            yield group(
                f"across {_CLASSES[kind.kind]}",
                (
                    rect(share(band.start, total_ns), TOP, share(band.end - band.start, total_ns), PLOT)
                    for band in kind.bands
                ),
            )


def _labels(bands: Sequence[Bands]) -> Iterator[str]:
    for at, kind in enumerate(bands):
        label = _TITLES.get(kind.kind, kind.kind)
        number = f" · {kind.count:,}" if kind.count > 1 else ""
        more = f", the {len(kind.bands)} longest" if kind.count > len(kind.bands) else ""
        said = f": {kind.bands[0].what}" if kind.kind == "end" and kind.count == 1 else ""
        yield text("0", _strip(at), f"{label}{number}{more}{shown(said)}")


def _strips(bands: Sequence[Bands], total_ns: int) -> Iterator[str]:
    for at, kind in enumerate(bands):
        yield group(
            f"band {kind.kind.replace(' ', '-')} {_CLASSES[kind.kind]}",
            (_band(band, _strip(at) + 3, total_ns) for band in kind.bands),
        )


def _band(band: Band, y: float, total_ns: int) -> str:
    start, end = band.start, band.end
    if end == start:
        start, end = max(0, end - round(total_ns * MARKER)), max(end, round(total_ns * MARKER))
    return rect(share(start, total_ns), y, share(end - start, total_ns), STRIP_BAR)


def _strip(at: int) -> int:
    """Return the y of the label of a kind of events."""
    return TOP + PLOT + at * STRIP + 16
