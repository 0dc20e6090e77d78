# SPDX-License-Identifier: Apache-2.0
"""Cells of tables: numbers as people read them, and the exact ones behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.analyzers.html.charts.palette import phase_class
from grademl_otel.analyzers.html.parts import Cell, Heading
from grademl_otel.analyzers.units import milliseconds, percent, seconds

UNKNOWN: Final = Cell("?", None)
NOTHING: Final = Cell("", None)
_LONG_NS: Final = 10e9

Clock = Callable[[float], str]


def text(name: str, title: str) -> Heading:
    """Return the heading of a column of words."""
    return Heading(name, title)


def prose(name: str, title: str) -> Heading:
    """Return the heading of a column of sentences."""
    return Heading(name, title, prose=True)


def number(name: str, title: str) -> Heading:
    """Return the heading of a column of numbers."""
    return Heading(name, title, numeric=True)


def words(value: str | None) -> Cell:
    """Return a cell of text; an empty one for None."""
    return NOTHING if value is None else Cell(value, value)


def phase(name: str, within: bool = False) -> Cell:
    """Return a cell that names a phase, with its colour."""
    return Cell(name, name, phase=phase_class(name), within=within)


def count(value: int | None) -> Cell:
    return UNKNOWN if value is None else Cell(f"{value:,}", value)


def time(ns: int | None, clock: Clock = milliseconds) -> Cell:
    """Return a cell of a time or a duration in ns; ``?`` where it is not known."""
    if ns is None:
        return UNKNOWN
    return Cell(f"-{clock(-ns)}" if ns < 0 else clock(ns) if ns else "0", ns)


def share(value: float, name: str | None = None) -> Cell:
    """Return a cell of a share with a bar, in the colour of phase ``name`` if that is given."""
    return Cell(percent(value), value, min(1.0, max(0.0, value)), None if name is None else phase_class(name))


def part(value: float) -> Cell:
    """Return a cell of a share without a bar."""
    return Cell(percent(value), value)


def clock_for(whole_ns: float) -> Clock:
    """Return how times within ``whole_ns`` are written: of a request tenths of a second say nothing."""
    return seconds if whole_ns >= _LONG_NS else milliseconds


def moments_within(whole_ns: float) -> Clock:
    """Return how the times at which parts of ``whole_ns`` begin and end are written: finer than lengths."""
    return _moment if whole_ns >= _LONG_NS else milliseconds


def _moment(ns: float) -> str:
    return f"{ns / 1e9:,.3f} s"


def any_known(rows: Sequence[object], name: str) -> bool:
    """Return whether column ``name`` is worth showing: of one of ``rows`` it is neither unknown nor 0."""
    return any(getattr(row, name) for row in rows)
