# SPDX-License-Identifier: Apache-2.0
"""The critical path over time: a row for each lane that it goes through, and what it did there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.html.charts.drawing import (
    STRIPES,
    group,
    legend,
    line,
    rect,
    share,
    shown,
    svg,
    text,
    time_axis,
    tools,
)
from grademl_otel.analyzers.html.charts.palette import WAITS, phase_class
from grademl_otel.analyzers.html.parts import Cell, Chart, DataTable, Heading
from grademl_otel.analyzers.html.series.timeline import Level, Shown, Timeline
from grademl_otel.analyzers.units import count, duration, milliseconds, percent

KEY: Final = "path"
LABEL: Final = 15
"""px of a row's label, and between rows; `charts.js` has the same."""
GAP: Final = 7
_BARS: Final = ((2, 44), (5, 28))
"""(rows, px of the bar of each) up to so many rows."""
_BAR: Final = 20
MOST_JUMPS: Final = 300
ONE_BY_ONE: Final = 1_200
"""Sections in view up to which each is drawn; of more the bins are."""
_IN_LEGEND: Final = 14


def path_chart(path: Timeline) -> Chart:
    """Return the chart of a path."""
    height = _top(path, len(path.rows)) - LABEL + 18
    one_by_one = path.sections is not None and path.count <= ONE_BY_ONE
    shapes = _sections(path, path.sections) if one_by_one and path.sections else _cells(path, path.levels[0])
    content = [
        STRIPES.format(id=KEY),
        time_axis(0, path.total_ns, LABEL, height - 18),
        '<g class="behind">',
        group("jumps", _jumps(path, path.sections) if one_by_one and path.sections else ()),
        "</g>",
        group("labels", _labels(path)),
        '<g class="marks">',
        *shapes,
        "</g>",
    ]
    what = (
        f"Critical path of {duration(path.total_ns)} in {count(len(path.rows), 'lane')}:"
        f" {', '.join(_summary(path)[:4])}"
    )
    figure = tools() + legend(_legend(path)) + svg(KEY, height, what, content, live=True)
    return Chart(
        id=f"chart-{KEY}",
        title="Critical path over time",
        about=_about(path),
        figure=figure,
        table=_table(path),
    )


def path_data(path: Timeline) -> dict[str, Any]:
    """Return what the script draws from."""
    sections = path.sections
    return {
        "total": path.total_ns,
        "bar": bar_of(path),
        "rows": [shown(name) for name in path.rows],
        "shares": [percent(ns / path.total_ns) for ns in path.by_row_and_part.sum(axis=1).tolist()],
        "parts": [
            {"phase": shown(phase), "kind": kind, "class": phase_class(phase), "wait": kind in WAITS}
            for phase, kind in path.parts
        ],
        "levels": [
            {
                "bins": level.bins,
                "bin": level.bin.tolist(),
                "row": level.row.tolist(),
                "part": level.part.tolist(),
                "ns": level.ns.tolist(),
            }
            for level in path.levels
        ],
        "sections": None
        if sections is None
        else {
            "start": sections.start.tolist(),
            "row": sections.row.tolist(),
            "part": sections.part.tolist(),
            "step": sections.step.tolist(),
        },
    }


def _about(path: Timeline) -> str:
    if path.sections is not None:
        return (
            f"What the end waited for, at each moment: {count(path.count, 'section')} that take up"
            f" {duration(path.total_ns)} without gap or overlap. Waiting is striped."
        )
    finest = path.levels[-1].bins
    return (
        f"What the end waited for, at each moment: {count(path.count, 'section')}, added up in {finest:,}"
        f" equal parts of {milliseconds(path.total_ns / finest)}. How high a bar is filled is how much of its"
        " time the path was there. Waiting is striped."
    )


def bar_of(path: Timeline) -> int:
    """Return the height of a row's bar, in px."""
    return next((px for rows, px in _BARS if len(path.rows) <= rows), _BAR)


def _top(path: Timeline, row: int) -> int:
    return row * (LABEL + bar_of(path) + GAP) + LABEL


def _labels(path: Timeline) -> Iterator[str]:
    shares = path.by_row_and_part.sum(axis=1).tolist()
    for row, name in enumerate(path.rows):
        yield rect("0", _top(path, row), "100%", bar_of(path), ' class="lane"')
        yield text("0", _top(path, row) - 4, f"{shown(name)} · {percent(shares[row] / path.total_ns)}")


def _sections(path: Timeline, of: Shown) -> Iterator[str]:
    ns = np.diff(np.append(of.start, path.total_ns))
    boxes: list[list[str]] = [[] for _ in path.parts]
    for start, length, row, part in zip(
        of.start.tolist(), ns.tolist(), of.row.tolist(), of.part.tolist(), strict=True
    ):
        x, width = share(start, path.total_ns), share(length, path.total_ns)
        boxes[part].append(rect(x, _top(path, row), width, bar_of(path)))
    yield from _boxes(path, boxes)


def _jumps(path: Timeline, of: Shown) -> Iterator[str]:
    """Lines between rows, where the path goes from one to another; none where they were too many."""
    jumps = np.flatnonzero(np.diff(of.row)) + 1
    if len(jumps) > MOST_JUMPS:
        return
    for at in jumps.tolist():
        low, high = sorted(of.row[at - 1 : at + 1].tolist())
        x = share(int(of.start[at]), path.total_ns)
        yield line(x, _top(path, low) + bar_of(path), x, _top(path, high))


def _cells(path: Timeline, level: Level) -> Iterator[str]:
    edges = [path.total_ns * at // level.bins for at in range(level.bins + 1)]
    boxes: list[list[str]] = [[] for _ in path.parts]
    filled: tuple[int, int, float] = (-1, -1, 0.0)
    bar = bar_of(path)
    cells = zip(level.bin.tolist(), level.row.tolist(), level.part.tolist(), level.ns.tolist(), strict=True)
    for at, row, part, ns in cells:
        length = edges[at + 1] - edges[at]
        below = filled[2] if filled[:2] == (at, row) else 0.0
        height = bar * ns / length
        y = _top(path, row) + bar - below - height
        boxes[part].append(rect(share(edges[at], path.total_ns), y, share(length, path.total_ns), height))
        filled = (at, row, below + height)
    yield from _boxes(path, boxes)


def _boxes(path: Timeline, boxes: list[list[str]]) -> Iterator[str]:
    for (phase, kind), mine in zip(path.parts, boxes, strict=True):
        yield group(phase_class(phase), mine)
        if kind in WAITS:
            yield group(f"striped {phase_class(phase)}", mine)


def _summary(path: Timeline) -> list[str]:
    return [f"{name} {number}" for _, name, number in _legend(path)]


def _legend(path: Timeline) -> list[tuple[str, str, str]]:
    """Return the phases of the path, the longest first, whatever their kind."""
    ns: dict[str, int] = {}
    for (phase, _), more in zip(path.parts, path.by_row_and_part.sum(axis=0).tolist(), strict=True):
        ns[phase] = ns.get(phase, 0) + more
    order = sorted(ns, key=lambda phase: (-ns[phase], phase))
    return [
        (phase_class(phase), shown(phase, 40), percent(ns[phase] / path.total_ns))
        for phase in order[:_IN_LEGEND]
    ]


def _table(path: Timeline) -> DataTable:
    rows = []
    for row, part in np.argwhere(path.by_row_and_part).tolist():
        phase, kind = path.parts[part]
        ns = int(path.by_row_and_part[row, part])
        rows.append((ns, shown(path.rows[row]), shown(phase), kind))
    rows.sort(key=lambda row: (-row[0], *row[1:]))
    return DataTable(
        id="path-data",
        caption="Time on the critical path by lane, phase and kind",
        headings=(
            Heading("lane", "Lane"),
            Heading("phase", "Phase"),
            Heading("kind", "Kind"),
            Heading("path_ns", "On the path", numeric=True),
            Heading("path_share", "Share", numeric=True),
        ),
        rows=[
            (
                Cell(lane, lane),
                Cell(phase, phase),
                Cell(kind, kind),
                Cell(milliseconds(ns), ns),
                Cell(percent(ns / path.total_ns), ns / path.total_ns, ns / path.total_ns),
            )
            for ns, lane, phase, kind in rows
        ],
    )
