# SPDX-License-Identifier: Apache-2.0
"""The few shapes that charts are made of, as text of SVG.

An SVG here is as wide as the page lets it be: what is horizontal is in percent, what is vertical in px, so
that neither text nor circles are ever stretched. Labels stand above what they name, not beside it: a phone
has no room there. There are classes and no styles: the page's policy forbids those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape

from grademl_otel.analyzers.html.charts.scales import time_ticks
from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.secrecy import hidden

MOST_TEXT: Final = 80
"""Characters of a name of theirs that are shown."""
STRIPES: Final = Markup(
    '<defs><pattern id="{id}-stripes" width="4" height="4" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect class="stripe" width="1.6" height="4"/></pattern></defs>'
)


def shown(name: str, most: int = MOST_TEXT) -> str:
    """Return a name out of a trace as it can be shown: printable, without secrets, not too long."""
    text = hidden(clean(name[: 4 * most]))
    return text if len(text) <= most else text[: most - 1] + "…"


def share(value: float, whole: float) -> str:
    """Return a horizontal place or length in percent."""
    return f"{100 * value / whole:.3f}".rstrip("0").rstrip(".") + "%" if whole else "0"


def px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(x: str, y: float, width: str, height: float, more: str = "") -> str:
    """Return a rectangle; ``more`` are further attributes, escaped."""
    return f'<rect x="{x}" y="{px(y)}" width="{width}" height="{px(height)}"{more}/>'


def line(x1: str, y1: float, x2: str, y2: float, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<line x1="{x1}" y1="{px(y1)}" x2="{x2}" y2="{px(y2)}"{of}/>'


def text(x: str, y: float, what: str, kind: str = "", anchor: str = "start") -> str:
    of = f' class="{kind}"' if kind else ""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{px(y)}"{of}{at}>{escape(what)}</text>'


def group(kind: str, shapes: Iterable[str]) -> str:
    """Return shapes of one class; nothing for none."""
    inner = "".join(shapes)
    return f'<g class="{kind}">{inner}</g>' if inner else ""


def tip(what: str) -> str:
    """Return the attribute with what the script shows of a shape."""
    return f' data-tip="{escape(what)}"'


def time_axis(start: int, end: int, top: float, bottom: float) -> str:
    """Return the ticks of a time axis below ``bottom``, with lines up to ``top``; it takes 18 px."""
    whole, found = end - start, []
    for number, (at, label) in enumerate(time_ticks(start, end)):
        x = share(at - start, whole)
        anchor = "start" if at - start < whole / 20 else "end" if end - at < whole / 20 else "middle"
        found.append(line(x, top, x, bottom + 3))
        found.append(text(x, bottom + 14, label, "odd" if number % 2 else "", anchor))
    return group("axis time", found)


def svg(key: str, height: float, what: str, content: Iterable[str], live: bool = False) -> Markup:
    """Return the SVG of a chart. ``what`` is read out in its place; the script draws a ``live`` one anew."""
    kind = "area live" if live else "area"
    opened = Markup('<svg class="{}" id="{}-svg" role="img" aria-label="{}" width="100%" height="{}">')
    return opened.format(kind, key, what, px(height)) + Markup("".join(content) + "</svg>")


def legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Return a legend of (class, name, number)."""
    if not entries:
        return Markup("")
    items = Markup("").join(
        Markup('<li data-class="{kind}"><span class="chip {kind}"></span>{name}{number}</li>').format(
            kind=kind, name=name, number=Markup(" <b>{}</b>").format(number) if number else ""
        )
        for kind, name, number in entries
    )
    return Markup('<ul class="legend">{}</ul>').format(items)


def tools() -> Markup:
    """Return the buttons of a time axis; `report.js` shows them."""
    buttons = (
        ("in", "Zoom in", "+"),
        ("out", "Zoom out", "\u2212"),
        ("left", "Earlier", "\u2190"),
        ("right", "Later", "\u2192"),
        ("whole", "Show all", "All"),
    )
    made = Markup("").join(
        Markup('<button type="button" data-zoom="{}" aria-label="{}" title="{}">{}</button>').format(
            kind, title, title, sign
        )
        for kind, title, sign in buttons
    )
    return Markup(
        '<div class="zoom" hidden>{}<output class="range"></output>'
        '<span class="keys">keys: + − 0 zoom, ← → look at one, Page ↑ ↓ move</span></div>'
    ).format(made)
