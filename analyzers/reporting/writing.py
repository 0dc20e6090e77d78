# SPDX-License-Identifier: Apache-2.0
"""What a screen says as text of a known width, with colours or without.

Widths are those that a terminal shows: a character of Chinese, Japanese or Korean, or an emoji, takes two
columns, a combining one none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import StringIO
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from grademl_otel.analyzers.reporting.canvas import (
    BAR,
    LEFT,
    RIGHT,
    Block,
    Line,
    Table,
    Tables,
    Verbatim,
)
from grademl_otel.analyzers.terminal import MIN_WIDTH, columns, wants_color

_BETWEEN: Final = 2
"""Columns between those of a table."""
_BETWEEN_TABLES: Final = 4
_NAME: Final = 16
"""Columns that a name has at least before others go."""
_PARAGRAPH: Final = 24
"""Columns that a paragraph has at least; else its label stands above it."""
_DEEPEST: Final = 4

_GLUE: Final = "\ue000"
"""Stands for a space that is no place to break; no text from outside has it, see `printable`."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ns|us|ms|s|min|h|B|[KMGT]i?B)\b|%)")


def written(blocks: Sequence[Block], color: bool | None = None, width: int | None = None) -> str:
    """Return ``blocks`` as text that ends with a newline, without spaces at the ends of lines.

    ``color`` and ``width`` default to what standard output is, see `analyzers.terminal`.
    """
    wide = max(MIN_WIDTH, columns(sys.stdout) if width is None else width)
    colored = wants_color(sys.stdout) if color is None else color
    file = StringIO()
    console = Console(
        file=file,
        width=wide,
        force_terminal=colored,
        color_system="standard" if colored else None,
        no_color=not colored,
        highlight=False,
        emoji=False,
        markup=False,
        force_jupyter=False,  # in a notebook it would show its text there and write nothing
        legacy_windows=False,
    )
    for block in blocks:
        if isinstance(block, Line):
            _line(console, block)
        elif isinstance(block, Verbatim):
            console.print(Text(block.text), soft_wrap=True)
        else:
            _tables(console, block)
    lines = file.getvalue().replace(_GLUE, " ").split("\n")
    return "\n".join(line.rstrip() for line in lines[:-1]) + "\n"


def _glued(text: str) -> str:
    """Return ``text`` with no place to break between a number and its unit."""
    return _UNIT.sub(_GLUE, text)


def _line(console: Console, line: Line) -> None:
    indent = max(line.indent, cell_len(line.label) + 2 if line.label else 0)
    if indent and console.width - indent < _PARAGRAPH:
        if line.label:
            console.print(Text(line.label, style=line.style))
        indent = min(indent, _DEEPEST)
        line = Line(line.text, indent=indent)
    text = Text(_glued(line.text))
    if not indent:
        console.print(text)
        return
    grid = Grid.grid(padding=0)
    grid.add_column(width=indent)
    grid.add_column(overflow="fold")
    grid.add_row(Text(line.label, style=line.style), text)
    console.print(grid)


def _tables(console: Console, block: Tables) -> None:
    fitted = [_Fitted(table, console.width) for table in block.tables]
    widths = [max(one.width, cell_len(one.table.title)) for one in fitted]
    beside = sum(widths) + _BETWEEN_TABLES * (len(widths) - 1) <= console.width
    if len(fitted) > 1 and beside and not any(one.without for one in fitted):
        row = Grid.grid(padding=(0, _BETWEEN_TABLES, 0, 0))
        for width in widths:
            row.add_column(width=width)
        row.add_row(*(one.drawn() for one in fitted))
        console.print(row)
        return
    for number, one in enumerate(fitted):
        if number:
            console.print()
        console.print(one.drawn())
        if one.without:
            console.print(Text(f"(no room for: {', '.join(one.without)})"))


class _Fitted:
    """The columns of a table that fit, and how wide they are."""

    def __init__(self, table: Table, room: int) -> None:
        self.table = table
        self._kept = list(range(len(table.columns)))
        self._natural = [
            max(
                (cell_len(row[at]) for row in table.rows),
                default=0,
            )
            for at in range(len(table.columns))
        ]
        if table.header:
            self._natural = [
                max(width, cell_len(heading))
                for width, (heading, _) in zip(self._natural, table.columns, strict=True)
            ]
        self.without: list[str] = []
        """Headings of the columns that have no room."""
        for at in self._expendable():
            if self._least() <= room:
                break
            self._kept.remove(at)
            if table.columns[at][0]:
                self.without.append(table.columns[at][0])
        self._widths = self._shrunk(room)

    @property
    def width(self) -> int:
        return sum(self._widths.values()) + _BETWEEN * (len(self._kept) - 1)

    def drawn(self) -> Group:
        columns, rows = self.table.columns, self.table.rows
        grid = Grid(
            show_header=self.table.header,
            header_style="bold",
            box=None,
            padding=(0, _BETWEEN, 0, 0),
            pad_edge=False,
        )
        for at in self._kept:
            heading, side = columns[at]
            grid.add_column(
                Text(heading),
                justify="right" if side == RIGHT else "left",
                width=self._widths[at],
                overflow="fold",
            )
        for row in rows:
            grid.add_row(*(Text(_glued(row[at])) for at in self._kept))
        # A title of the table itself would wrap at the table's width.
        title = Text(_glued(self.table.title), style="bold")
        return Group(title, grid) if self.table.title else Group(grid)

    def _expendable(self) -> list[int]:
        headings = [heading for heading, _ in self.table.columns]
        bars = [at for at, (_, side) in enumerate(self.table.columns) if side == BAR]
        return bars + [headings.index(name) for name in self.table.spare if name in headings]

    def _least(self) -> int:
        """Return the width below which more than names would be broken."""
        widths = (
            min(self._natural[at], _NAME) if self.table.columns[at][1] == LEFT else self._natural[at]
            for at in self._kept
        )
        return sum(widths) + _BETWEEN * (len(self._kept) - 1)

    def _shrunk(self, room: int) -> dict[int, int]:
        """Return the width of each column that is kept: the widest names give way first, then anything."""
        widths = {at: self._natural[at] for at in self._kept}
        over = sum(widths.values()) + _BETWEEN * (len(widths) - 1) - room
        names = [at for at in self._kept if self.table.columns[at][1] == LEFT]
        for group, least in ((names, _NAME), (self._kept, 1)):
            while over > 0 and (wide := [at for at in group if widths[at] > least]):
                widest = max(wide, key=lambda at: widths[at])
                widths[widest] -= 1
                over -= 1
        return widths
