# SPDX-License-Identifier: Apache-2.0
"""What a screen says as a fragment of HTML, for the output of a notebook's cell: no script, no link.

Every text is escaped. Colours are those of the page, which may be light or dark, but for few that read on
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from grademl_otel.analyzers.reporting.canvas import BAR, RIGHT, Block, Line, Table, Verbatim

_COLORS: Final = {"red": "#e5484d", "yellow": "#b7791f"}
_CELL: Final = "padding:1px 12px 1px 0;border:none;vertical-align:top;"
_FIGURES: Final = "font-variant-numeric:tabular-nums;white-space:nowrap;"


def fragment(blocks: Sequence[Block]) -> str:
    """Return ``blocks`` as one ``div``."""
    return "".join(
        ('<div class="grademl" style="line-height:1.4;overflow-x:auto">', *map(_block, blocks), "</div>")
    )


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return _line(block)
    if isinstance(block, Verbatim):
        return f'<pre style="margin:0;white-space:pre-wrap"><code>{escape(block.text)}</code></pre>'
    return "".join(
        (
            '<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:8px 40px">',
            *("".join(_table(table)) for table in block.tables),
            "</div>",
        )
    )


def _line(line: Line) -> str:
    if not line.text and not line.label:
        return '<div style="height:0.7em"></div>'
    if not line.label:
        indent = f' style="padding-left:{line.indent}ch"' if line.indent else ""
        return f"<div{indent}>{escape(line.text)}</div>"
    return (
        '<div style="display:flex;gap:1ch">'
        f'<b style="flex:none;min-width:{max(line.indent - 1, 0)}ch;{_color(line.style)}">'
        f"{escape(line.label)}</b><span>{escape(line.text)}</span></div>"
    )


def _color(style: str) -> str:
    return "".join(f"color:{code};" for name, code in _COLORS.items() if name in style.split())


def _table(table: Table) -> Iterator[str]:
    yield "<div>"
    if table.title:
        yield f"<b>{escape(table.title)}</b>"  # a caption would stretch the table, or wrap at its width
    yield '<table style="border-collapse:collapse;margin:0;border:none;text-align:left">'
    if table.header:
        heads = (
            f'<th scope="col" style="{_CELL}{_side(side)}">{escape(heading)}</th>'
            for heading, side in table.columns
        )
        yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    edge = min((_depth(row[0]) for row in table.rows if row), default=0)
    for row in table.rows:
        cells = (_cell(cell, side, edge) for cell, (_, side) in zip(row, table.columns, strict=True))
        yield f'<tr style="background:none">{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _cell(cell: str, side: str, edge: int) -> str:
    """Return a cell; a name that is indented is so from ``edge`` on, where the others of its column begin."""
    if side == BAR:
        drawn = f'<div style="background:currentColor;opacity:.45;height:.7em;width:{len(cell)}ch"></div>'
        return f'<td aria-hidden="true" style="{_CELL}vertical-align:middle">{drawn if cell else ""}</td>'
    depth = _depth(cell) - edge
    indent = f"padding-left:{depth}ch;" if depth > 0 and side != RIGHT else ""
    return f'<td style="{_CELL}{_side(side)}{indent}">{escape(cell)}</td>'


def _depth(cell: str) -> int:
    return len(cell) - len(cell.lstrip(" "))


def _side(side: str) -> str:
    return f"text-align:right;{_FIGURES}" if side == RIGHT else "text-align:left;"
