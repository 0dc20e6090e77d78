# SPDX-License-Identifier: Apache-2.0
"""What all screens draw with: a console of a known width, labelled paragraphs, tables, bars.

Names come from telemetry and are not trusted: never read as markup, they also lose their control characters.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from grademl_otel.analyzers.printable import clean

PLAIN_WIDTH: Final = 110
"""Columns when the output is not a terminal."""
MIN_WIDTH: Final = 40
BAR_WIDTH: Final = 22


class Canvas:
    """Collects the lines of one screen. ``color`` None: if standard output is a terminal that likes it."""

    def __init__(self, color: bool | None = None, width: int | None = None) -> None:
        terminal = sys.stdout.isatty()
        wanted = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        if width is None:
            width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if terminal else PLAIN_WIDTH
        self.width = max(MIN_WIDTH, width)
        colored = wanted if color is None else color
        self._file = StringIO()
        self._console = Console(
            file=self._file,
            width=self.width,
            force_terminal=colored,
            color_system="standard" if colored else None,
            no_color=not colored,
            highlight=False,
            emoji=False,
            markup=False,
            force_jupyter=False,  # in a notebook it would show its text there and write nothing
            legacy_windows=False,
        )

    def line(self, text: str, label: str = "", style: str = "", indent: int = 0) -> None:
        """Write a paragraph, its lines in one column beside the label, ``indent`` wide where that is more."""
        indent = max(indent, len(label) + 2 if label else 0)
        if not indent:
            self._console.print(Text(clean(text)))
            return
        grid = Table.grid(padding=0)
        grid.add_column(width=indent)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style=style), Text(clean(text)))
        self._console.print(grid)

    def verbatim(self, text: str) -> None:
        """Write one line as it is, never wrapped: a command to copy."""
        self._console.print(Text(clean(text)), soft_wrap=True)

    def blank(self) -> None:
        self._console.print()

    def tables(self, tables: Sequence[Group]) -> None:
        """Write tables side by side where they fit, else one below the other."""
        widths = [self._console.measure(table).maximum for table in tables]
        if len(tables) > 1 and sum(widths) + 4 * (len(tables) - 1) <= self.width:
            row = Table.grid(padding=(0, 4, 0, 0))
            for width in widths:
                row.add_column(width=width)
            row.add_row(*tables)
            self._console.print(row)
            return
        for number, table in enumerate(tables):
            if number:
                self.blank()
            self._console.print(table)

    def text(self) -> str:
        """Return all that was written, without spaces at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._file.getvalue().splitlines()) + "\n"


def table(
    title: str, columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], header: bool = False
) -> Group:
    """Return a table without lines under a title.

    Each column is a heading and ``left`` (long cells fold), ``fixed`` (left, never folded) or ``right``. What
    a narrow terminal has no room for is cut with a mark.
    """
    grid = Table(show_header=header, header_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading, side in columns:
        justify: JustifyMethod = "right" if side == "right" else "left"
        grid.add_column(
            Text(heading),
            justify=justify,
            no_wrap=side != "left",
            overflow="fold" if side == "left" else "ellipsis",
        )
    for row in rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    # A title of the table itself would wrap at the table's width.
    return Group(Text(clean(title), style="bold"), grid) if title else Group(grid)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar of ``#`` whose full width is a share of 1; nothing below half a character."""
    return "#" * min(width, max(0, round(share * width)))
