# SPDX-License-Identifier: Apache-2.0
"""What a screen says, as data: labelled paragraphs, tables, bars; as text or as HTML it is written later.

Names come from telemetry and are not trusted: never read as markup, they also lose their control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from grademl_otel.analyzers.printable import clean

BAR_WIDTH: Final = 22

LEFT: Final = "left"
"""A column of names: what is too long goes on in the next line."""
FIXED: Final = "fixed"
"""A column of names that are not broken."""
RIGHT: Final = "right"
"""A column of numbers."""
BAR: Final = "bar"
"""A column of bars, of which the numbers beside it tell as much."""


@dataclass(frozen=True)
class Line:
    """A paragraph beside its label, ``indent`` columns from the edge."""

    text: str
    label: str = ""
    style: str = ""
    """Of the label: words of rich, as ``bold red``."""
    indent: int = 0


@dataclass(frozen=True)
class Verbatim:
    """One line that is never wrapped: a command to copy."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table without lines under a title."""

    title: str
    columns: tuple[tuple[str, str], ...]
    """(heading, `LEFT`, `FIXED`, `RIGHT` or `BAR`)"""
    rows: tuple[tuple[str, ...], ...]
    header: bool
    spare: tuple[str, ...]
    """Headings of what a narrow terminal does without, the first one first; bars go before them."""


@dataclass(frozen=True)
class Tables:
    """Tables side by side where they fit, else one below the other."""

    tables: tuple[Table, ...]


Block = Line | Verbatim | Tables


class Canvas:
    """Collects what one screen says. ``color`` None: if standard output is a terminal that likes it."""

    def __init__(self, color: bool | None = None, width: int | None = None) -> None:
        self._color, self._width = color, width
        self.blocks: list[Block] = []

    def line(self, text: str, label: str = "", style: str = "", indent: int = 0) -> None:
        """Write a paragraph, its lines in one column beside the label, ``indent`` wide where that is more."""
        self.blocks.append(Line(clean(text), clean(label), style, indent))

    def verbatim(self, text: str) -> None:
        """Write one line as it is, never wrapped: a command to copy."""
        self.blocks.append(Verbatim(clean(text)))

    def blank(self) -> None:
        self.blocks.append(Line(""))

    def tables(self, tables: Sequence[Table]) -> None:
        """Write tables side by side where they fit, else one below the other."""
        if tables:
            self.blocks.append(Tables(tuple(tables)))

    def text(self) -> str:
        """Return all that was written as text that ends with a newline."""
        from grademl_otel.analyzers.reporting.writing import written  # brings rich

        return written(self.blocks, self._color, self._width)

    def html(self) -> str:
        """Return all that was written as a fragment of HTML."""
        from grademl_otel.analyzers.reporting.fragment import fragment

        return fragment(self.blocks)


def table(
    title: str,
    columns: Iterable[tuple[str, str]],
    rows: Iterable[Sequence[str]],
    header: bool = False,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table; each column is a heading and how it is set, see `LEFT` and the others.

    Where there is no room for all columns, bars go first, then those whose headings are ``spare``, in its
    order; then names go on in the next line. Numbers are never broken.
    """
    cells = tuple(tuple(clean(cell) for cell in row) for row in rows)
    headings = tuple((clean(heading), side) for heading, side in columns)
    return Table(clean(title), headings, cells, header, tuple(spare))


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar of ``#`` whose full width is a share of 1; nothing below half a character."""
    return "#" * min(width, max(0, round(share * width)))
