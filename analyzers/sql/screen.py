# SPDX-License-Identifier: Apache-2.0
"""The rows of an answer on a screen: as many as somebody reads, of the others how many there are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from grademl_otel.analyzers.reporting.canvas import LEFT, RIGHT, Canvas, table
from grademl_otel.analyzers.sql.database import Rows
from grademl_otel.analyzers.sql.values import as_seen
from grademl_otel.analyzers.units import count

MOST_ROWS: Final = 200
"""Of more the first and the last half of these are shown."""
_LONGEST: Final = 200
"""Characters of a cell that are shown."""
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class Excerpt:
    """What a screen shows of an answer."""

    names: list[str]
    types: list[str]
    first: list[tuple[Any, ...]]
    last: list[tuple[Any, ...]]
    """The last ones, where some are left out; else none."""
    total: int


def excerpt_of(rows: Rows, most: int = MOST_ROWS) -> Excerpt:
    """Read all ``rows``, and keep the first and the last of them."""
    values = rows.values()
    first = list(islice(values, most // 2))
    total, last = len(first), deque[tuple[Any, ...]](maxlen=most - most // 2)
    for row in values:
        last.append(row)
        total += 1
    if total <= most:
        first, last = [*first, *last], deque()
    return Excerpt(rows.names, [column.type for column in rows.columns], first, [*last], total)


def draw(canvas: Canvas, shown: Excerpt) -> None:
    sides = [RIGHT if _is_number(of) else LEFT for of in shown.types]
    columns = list(zip(shown.names, sides, strict=True))
    cells = [[_cell(value) for value in row] for row in shown.first]
    if shown.last:
        cells.append(["..."] * len(columns))
        cells += [[_cell(value) for value in row] for row in shown.last]
    # On a narrow screen the last columns give way: those that matter stand first in a SELECT.
    canvas.tables([table("", columns, cells, header=True, spare=shown.names[:0:-1])])
    left_out = shown.total - len(shown.first) - len(shown.last)
    more = f"; {left_out:,} between are not shown, -f csv has all" if left_out else ""
    canvas.line(f"({count(shown.total, 'row')}{more})")


def _is_number(of: str) -> bool:
    return of.removeprefix("U").startswith(_NUMBERS) and not of.endswith("]")


def _cell(value: Any) -> str:
    text = as_seen(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
