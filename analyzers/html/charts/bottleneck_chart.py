# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks over time: a strip for each type of phases, in the colour of what was full while they ran."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.html.charts.drawing import (
    group,
    legend,
    rect,
    share,
    shown,
    svg,
    text,
    time_axis,
    tip,
)
from grademl_otel.analyzers.html.parts import Cell, Chart, DataTable, Heading
from grademl_otel.analyzers.html.series.bins import edges_of
from grademl_otel.analyzers.html.series.bottlenecks import Strips
from grademl_otel.analyzers.reporting.short_paths import shortened
from grademl_otel.analyzers.units import count, milliseconds, percent

KEY: Final = "bottlenecks"
_LABEL: Final = 15
_BAR: Final = 16
_PITCH: Final = _LABEL + _BAR + 4
_LEVELS: Final = 8
"""Heights that are told apart."""
_COLOURS: Final = 12
_MOST: Final = 1_000
"""Rows of the table."""


def bottleneck_chart(strips: Strips, total_ns: int) -> Chart:
    """Return the chart of ``strips`` over ``total_ns``."""
    begin, titles = shortened(strips.keys)
    titles = [shown(title, 60) for title in titles]
    height = len(strips.keys) * _PITCH
    content = [time_axis(0, total_ns, 0, height)]
    for row, title in enumerate(titles):
        top = row * _PITCH + _LABEL
        content.append(group("labels", [text("0", top - 4, title)]))
        content.append(group("known", _known(strips, row, top)))
        content += list(_strip(strips, row, title, top))
    of = [float(strips.full[:, at].mean(where=strips.known)) for at in range(len(strips.resources))]
    entries = [
        (_class(at), shown(name, 40), percent(part))
        for at, (name, part) in enumerate(zip(strips.resources, of, strict=True))
    ]
    what = f"What was full while {count(len(titles), 'type')} of phases ran: " + (
        ", ".join(f"{name} {part}" for _, name, part in entries[:4]) or "nothing"
    )
    left = f" {strips.omitted:,} more are in the tables." if strips.omitted else ""
    within = f" All are within {shown(begin)}." if begin else ""
    return Chart(
        id=f"chart-{KEY}",
        title="What was full, while what ran",
        about=(
            "Where a strip is grey the phase ran and nothing of what it uses was full; a bar is as high as"
            f" the part of its time in which the fullest resource was.{within}{left}"
        ),
        figure=legend(entries) + svg(KEY, height + 18, what, content),
        table=_table(strips, total_ns),
    )


def _class(resource: int) -> str:
    return f"p-x{resource % _COLOURS}"


def _known(strips: Strips, row: int, top: float) -> Iterator[str]:
    """Yield the time in which anything is known."""
    bins = strips.known.shape[1]
    for first, after in _runs(strips.known[row].astype(np.int64)):
        if strips.known[row, first]:
            yield rect(share(first, bins), top, share(after - first, bins), _BAR, ' class="lane"')


def _strip(strips: Strips, row: int, title: str, top: float) -> Iterator[str]:
    bins = strips.known.shape[1]
    if not strips.resources:
        return
    full = strips.full[row]
    most = full.argmax(axis=0)
    level = np.ceil(full.max(axis=0) * _LEVELS - 1e-9).astype(np.int64)
    code = np.where(level > 0, most * (_LEVELS + 1) + level, -1)
    for first, after in _runs(code):
        if code[first] < 0:
            continue
        at, high = divmod(int(code[first]), _LEVELS + 1)
        bar = _BAR * high / _LEVELS
        part = percent(float(full[at, first:after].mean()))
        what = f"{title}: {shown(strips.resources[at])} full {part} of its time"
        yield rect(
            share(first, bins),
            top + _BAR - bar,
            share(after - first, bins),
            bar,
            f' class="{_class(at)}"{tip(what)}',
        )


def _runs(values: IntArray) -> Iterator[tuple[int, int]]:
    """Yield (first, after) of the stretches of equal values."""
    cuts = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *cuts.tolist(), len(values)]
    yield from pairwise(bounds)


def _table(strips: Strips, total_ns: int) -> DataTable:
    edges = edges_of(total_ns, strips.known.shape[1])
    rows = []
    for row, key in enumerate(strips.keys):
        for at, resource in enumerate(strips.resources):
            levels = np.rint(strips.full[row, at] * 1000).astype(np.int64)
            for first, after in _runs(levels):
                if not levels[first]:
                    continue
                part = float(strips.full[row, at, first:after].mean())
                start, end = int(edges[first]), int(edges[after])
                rows.append(
                    [
                        Cell(shown(key), shown(key)),
                        Cell(shown(resource), shown(resource)),
                        Cell(milliseconds(start) if start else "0", start),
                        Cell(milliseconds(end), end),
                        Cell(percent(part), part, part),
                    ]
                )
    return DataTable(
        id=f"{KEY}-data",
        caption="When what was full",
        headings=[
            Heading("key", "Phase"),
            Heading("resource", "Full"),
            Heading("start_ns", "From", numeric=True),
            Heading("end_ns", "To", numeric=True),
            Heading("share", "Of the phase's time", numeric=True),
        ],
        rows=rows[:_MOST],
        omitted=f"{len(rows) - _MOST:,} more are not shown." if len(rows) > _MOST else "",
    )
