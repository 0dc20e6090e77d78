# SPDX-License-Identifier: Apache-2.0
"""Use of a type of metrics over time: what used it stacked on each other, under the line of the capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray
from grademl_otel.analyzers.html.charts.drawing import (
    group,
    legend,
    line,
    shown,
    svg,
    text,
    time_axis,
    tip,
)
from grademl_otel.analyzers.html.charts.palette import phase_class
from grademl_otel.analyzers.html.parts import Cell, Chart, DataTable, Heading
from grademl_otel.analyzers.html.series.bins import edges_of
from grademl_otel.analyzers.html.series.resource_use import NOBODYS, OTHER_PHASES, Use
from grademl_otel.analyzers.reporting.quantities import value_in_words
from grademl_otel.analyzers.reporting.short_paths import phase_name, shortened
from grademl_otel.analyzers.units import count, milliseconds

TOP: Final = 16
PLOT: Final = 120
_FURTHER: Final = 12
_SCALE: Final = 10_000
"""Of the drawing within the axes, in which places are whole numbers."""
_CLASSES: Final = {OTHER_PHASES: "p-other", NOBODYS: "p-idle"}


def use_chart(use: Use, total_ns: int) -> Chart | None:
    """Return the chart of ``use`` over ``total_ns``; None where all of it is 0."""
    top = use.top
    if not top or not total_ns:
        return None
    bottom, key = TOP + PLOT, f"use-{use.metric}".replace(".", "-")
    named = [name for name in use.layers if name not in _CLASSES]
    short = dict(zip(named, shortened(named)[1], strict=True)) if named else {}
    titles = [shown(short.get(name, name), 40) for name in use.layers]
    classes = layer_classes(use.layers)
    known: BoolArray = ~np.all(np.isnan(use.values), axis=0)
    means = [float(np.mean(values[known])) if known.any() else 0.0 for values in use.values]
    heights = np.cumsum(np.nan_to_num(use.values), axis=0)
    content = [
        time_axis(0, total_ns, TOP, bottom),
        f'<svg x="0" y="{TOP}" width="100%" height="{PLOT}" viewBox="0 0 {use.values.shape[1]} {_SCALE}"'
        ' preserveAspectRatio="none">',
        group("marks", _layers(heights, top, classes, titles, means, use.unit)),
        "</svg>",
        group("axis", _axis(use, top)),
    ]
    if use.capacity is not None:
        y = bottom - PLOT * use.capacity / top
        content.append(group("capacity", [line("0", y, "100%", y)]))
    words = [f"{name} {value_in_words(mean, use.unit)}" for name, mean in zip(titles, means, strict=True)]
    what = f"{use.metric} over {milliseconds(total_ns)}: on average {', '.join(words[:4])}"
    figure = legend(
        [
            (kind, name, value_in_words(mean, use.unit))
            for kind, name, mean in zip(classes, titles, means, strict=True)
        ]
    ) + svg(key, bottom + 18, what, content)
    return Chart(
        id=f"chart-{key}",
        title=f"{use.metric} by phase",
        about=_about(use, known),
        figure=figure,
        table=_table(use, key, titles, total_ns),
    )


def layer_classes(names: Sequence[str]) -> list[str]:
    """Return a class for each of ``names``, that of its phase, and no two the same while there are enough."""
    taken: set[str] = set()
    found = []
    for name in names:
        kind = _CLASSES.get(name) or phase_class(phase_name(name))
        if kind in taken:
            free = (f"p-x{at}" for at in range(_FURTHER) if f"p-x{at}" not in taken)
            kind = next(free, kind)
        taken.add(kind)
        found.append(kind)
    return found


def _layers(
    heights: FloatArray,
    top: float,
    classes: Sequence[str],
    titles: Sequence[str],
    means: Sequence[float],
    unit: str,
) -> Iterator[str]:
    """Yield the outlines of the layers, the upmost first: each covers what is below those above it."""
    for at in range(len(heights) - 1, -1, -1):
        levels = (_SCALE - np.rint(heights[at] / top * _SCALE)).astype(int).tolist()
        steps = "".join(f"V{level}H{bin_ + 1}" for bin_, level in enumerate(levels))
        what = f"{titles[at]}: {value_in_words(means[at], unit)} on average"
        yield f'<path class="{classes[at]}" d="M0 {_SCALE}{steps}V{_SCALE}Z"{tip(what)}/>'


def _axis(use: Use, top: float) -> Iterator[str]:
    bottom = TOP + PLOT
    yield line("0", bottom, "100%", bottom, "base")
    if use.capacity is not None:
        y = bottom - PLOT * use.capacity / top
        yield text("0", y - 3, f"all there is: {value_in_words(use.capacity, use.unit)}", "height")
    else:
        yield text("0", TOP - 3, f"{value_in_words(top, use.unit)}; nobody told the capacity", "height")


def _about(use: Use, known: BoolArray) -> str:
    of = count(use.resources, "resource")
    together = f" of {of}, added up" if use.resources > 1 else ""
    gaps = 1 - float(np.mean(known)) if len(known) else 0.0
    unseen = f" In {gaps:.0%} of the time nothing was observed: nothing is drawn there." if gaps else ""
    length = use.values.shape[1]
    return f"What used {use.metric}{together}: means over {length} equal parts of time.{unseen}"


def _table(use: Use, key: str, titles: Sequence[str], total_ns: int) -> DataTable:
    edges = edges_of(total_ns, use.values.shape[1])
    return DataTable(
        id=f"{key}-data",
        caption=f"{use.metric} by phase, means in {use.unit}",
        headings=[
            Heading("start_ns", "From", numeric=True),
            *(Heading(name, title, numeric=True) for name, title in zip(use.layers, titles, strict=True)),
        ],
        rows=[
            [Cell(milliseconds(at) if at else "0", at), *(_cell(value, use.unit) for value in column)]
            for at, column in zip(edges[:-1].tolist(), use.values.T.tolist(), strict=True)
        ],
    )


def _cell(value: float, unit: str) -> Cell:
    return Cell("?", None) if value != value else Cell(value_in_words(value, unit), value)
