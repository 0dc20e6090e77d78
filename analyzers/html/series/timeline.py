# SPDX-License-Identifier: Apache-2.0
"""A critical path for drawing: in which lane it was at which time, and in which phase.

A short path has all its sections. Of a long one there are bins, see `Level`: how long the path was in which
lane and phase within each. Both are of the same rows and parts, and both sum to the path exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import KINDS, Lane, Path, Sections
from grademl_otel.analyzers.html.series.bins import edges_of
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns

MOST_SECTIONS: Final = 6_000
"""Of a path that is shown one by one."""
LEVELS: Final = (256, 2_048)
"""Bins of the coarsest and the finest level, where cells are few enough."""
MOST_CELLS: Final = (4_000, 32_000)
"""Of each level; one with more gets fewer bins."""
FEWEST_BINS: Final = 32
MOST_ROWS: Final = 16
MOST_PARTS: Final = 32
_WORKERS: Final = "loader-worker"


@dataclass(frozen=True)
class Level:
    """The path in ``bins`` bins of equal length. Each cell is the time in one bin, row and part, in ns.

    Cells are sorted by (bin, row, part); their times sum to the path's total.
    """

    bins: int
    bin: IntArray
    row: IntArray
    part: IntArray
    ns: IntArray


@dataclass(frozen=True)
class Shown:
    """All sections of a path, which tile it."""

    start: IntArray
    """ns from the start of the path; a section ends where the next one starts, the last at its end."""
    row: IntArray
    part: IntArray
    step: IntArray
    """-1 for none."""


@dataclass(frozen=True)
class Timeline:
    """A path for drawing. Cells and sections are in rows and have parts, by index."""

    start: int
    """Unix ns."""
    total_ns: int
    rows: list[str]
    """Lanes, those of a rank together, main lanes first."""
    parts: list[tuple[str, str]]
    """(phase, kind), the longest first."""
    levels: list[Level]
    """The coarsest first; at least one."""
    sections: Shown | None
    """None where there are more than `MOST_SECTIONS`."""
    count: int
    """Sections of the path."""
    by_row_and_part: IntArray
    """Matrix of ns; sums to ``total_ns``."""


def timeline(path: Path, spans: SpanColumns) -> Timeline | None:
    """Return ``path`` for drawing; None when it takes no time."""
    every, lasting = path.sections, path.sections.duration > 0
    if not lasting.all():
        every = every.take(np.flatnonzero(lasting))
    if not len(every):
        return None
    row, rows = _rows(every, spans)
    part, parts = _parts(every)
    start, total = every.start - path.start, path.total_ns
    finest = _cells(start, total, row, part, (len(rows), len(parts)))
    levels: list[Level] = []
    for bins, most in zip(LEVELS, MOST_CELLS, strict=True):
        level = _level(finest, bins)
        while len(level.ns) > most and level.bins > FEWEST_BINS:
            level = _level(finest, level.bins // 2)
        if not levels or level.bins > levels[-1].bins:
            levels.append(level)
    shown = Shown(start, row, part, every.step) if len(every) <= MOST_SECTIONS else None
    matrix = np.zeros((len(rows), len(parts)), np.int64)
    np.add.at(matrix, (row, part), every.duration)
    return Timeline(path.start, total, rows, parts, levels, shown, len(every), matrix)


def _cells(start: IntArray, total: int, row: IntArray, part: IntArray, size: tuple[int, int]) -> IntArray:
    """Return the ns of sections that start at ``start`` and tile ``[0, total)``, by (bin, row, part).

    Nearly all lie in one of the many bins; only those with an edge inside are cut.
    """
    bins = LEVELS[-1]
    edges = edges_of(total, bins)
    begins = np.searchsorted(start, edges)
    which = np.repeat(np.arange(bins), np.diff(begins))
    ns = np.diff(np.append(start, total))
    over = np.searchsorted(start, edges[1:-1], side="right") - 1
    over = over[start[over] < edges[1:-1]]
    over = over[changes(over)] if len(over) else over
    whole = np.ones(len(start), np.bool_)
    whole[over] = False
    cells = np.zeros((bins, *size), np.int64)
    np.add.at(cells, (which[whole], row[whole], part[whole]), ns[whole])
    for at in over.tolist():
        low, high, bin = int(start[at]), int(start[at] + ns[at]), int(which[at])
        while low < high:
            cut = min(high, int(edges[bin + 1]))
            cells[bin, row[at], part[at]] += cut - low
            low, bin = cut, bin + 1
    return cells


def _level(cells: IntArray, bins: int) -> Level:
    """Return cells of the finest bins put together in ``bins``, which divides their number."""
    summed = cells.reshape(bins, -1, *cells.shape[1:]).sum(axis=1)
    at = np.nonzero(summed)
    bin_, row, part = (np.asarray(one, np.int64) for one in at)
    return Level(bins, bin_, row, part, summed[at])


def _parts(sections: Sections) -> tuple[IntArray, list[tuple[str, str]]]:
    """Return the part of each section, and the parts, the longest first; the shortest are put together."""
    number, used = _used(sections.phase * len(KINDS) + sections.kind)
    names = [(sections.phases[pair // len(KINDS)], KINDS[pair % len(KINDS)]) for pair in used]
    rank, kept = _longest(sections.by(number, len(names)), names, MOST_PARTS)
    left = len(names) - len(kept)
    return rank[number], [names[at] for at in kept] + ([(f"{left} more phases", "")] if left else [])


def _used(values: IntArray) -> tuple[IntArray, list[int]]:
    """Return the number of each value among the distinct ones, and these, sorted; they are small."""
    there = np.bincount(values) > 0
    number: IntArray = np.cumsum(there) - 1
    return number[values], np.flatnonzero(there).tolist()


def _rows(sections: Sections, spans: SpanColumns) -> tuple[IntArray, list[str]]:
    """Return the row of each section, and their names; those with the least time are put together."""
    several = len({rank for rank, _ in sections.lanes}) > 1
    if all(rank is None for rank, _ in sections.lanes):
        return _services(sections, spans)
    names = {at: _lane(sections.lanes[at], several) for at in _used(sections.lane)[1]}
    if len(names) > MOST_ROWS:  # of the many what is alike
        names = {at: _together(name) for at, name in names.items()}
    keys = sorted(names, key=lambda at: _order(sections.lanes[at]))
    return _numbered(sections, sections.lane, names, list(dict.fromkeys(names[at] for at in keys)))


def _services(sections: Sections, spans: SpanColumns) -> tuple[IntArray, list[str]]:
    """Return rows by service and lane: those of others' traces."""
    services = [*(str(one.get("service.name", "")) for one in spans.resources), ""]
    ix = sections.span_ix
    of = np.full(len(ix), len(services) - 1, np.int64)
    of[ix >= 0] = spans.resource_ix[ix[ix >= 0]]
    lanes = len(sections.lanes)
    used, number = np.unique(of * lanes + sections.lane, return_inverse=True)
    names = {
        at: " · ".join(filter(None, (services[key // lanes], sections.lanes[key % lanes][1]))) or "trace"
        for at, key in enumerate(used.tolist())
    }
    begins = np.unique(number, return_index=True)[1]  # rows in the order in which the path comes to them
    order = list(dict.fromkeys(names[at] for at in np.argsort(begins, kind="stable").tolist()))
    return _numbered(sections, number, names, order)


def _numbered(
    sections: Sections, key: IntArray, names: dict[int, str], order: Sequence[str]
) -> tuple[IntArray, list[str]]:
    """Return the row of each section by the name of its ``key``, rows in ``order``, the longest kept."""
    place = {name: at for at, name in enumerate(order)}
    lookup = np.zeros(max(names) + 1, np.int64)
    for at, name in names.items():
        lookup[at] = place[name]
    number = lookup[key]
    _, kept = _longest(sections.by(number, len(order)), order, MOST_ROWS)
    left = len(order) - len(kept)
    if not left:
        return number, list(order)
    chosen = sorted(kept)
    rows = np.full(len(order), len(chosen), np.int64)
    rows[chosen] = np.arange(len(chosen))
    return rows[number], [order[at] for at in chosen] + [f"{left} more lanes"]


def _longest(ns: IntArray, names: Sequence[object], most: int) -> tuple[IntArray, list[int]]:
    """Return a number for each name by its time, the longest 0, and the places of those that are kept.

    When there are more than ``most``, all beyond ``most`` - 1 have one number.
    """
    order = sorted(range(len(names)), key=lambda at: (-int(ns[at]), str(names[at])))
    kept = order if len(order) <= most else order[: most - 1]
    rank = np.full(len(order), len(kept), np.int64)
    rank[kept] = np.arange(len(kept))
    return rank, kept


def _lane(of: Lane, several: bool) -> str:
    rank, lane = of
    return lane if rank is None or not several else f"rank {rank} · {lane}"


def _together(name: str) -> str:
    head, found, _ = name.partition(_WORKERS)
    return f"{head}{_WORKERS}s" if found else name


def _order(of: Lane) -> tuple[int, bool, str]:
    rank, lane = of
    return -1 if rank is None else rank, lane != "main", lane
