# SPDX-License-Identifier: Apache-2.0
"""A chart of lines with logarithmic axes, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH: Final = 720
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 40, 50
_COLORS: Final = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4f9d", "#8a6d1d", "#444444")


def chart(
    title: str, across: str, up: str, lines: Mapping[str, Sequence[tuple[float, float]]], note: str = ""
) -> str:
    """Return the SVG of ``lines``, each a name and its points, all of whose numbers are above 0.

    Raises ValueError where there is no point at all.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError(f"{title}: nothing to draw")
    x_axis = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, title, "start", 'font-weight="bold"'),
    ]
    for value in x_axis.ticks:
        at = x_axis.place(value)
        parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM, "#dddddd"))
        parts.append(_text(at, _HEIGHT - _BOTTOM + 16, _short(value), "middle"))
    for value in y_axis.ticks:
        at = y_axis.place(value)
        parts.append(_line(_LEFT, at, _WIDTH - _RIGHT, at, "#dddddd"))
        parts.append(_text(_LEFT - 6, at + 4, _short(value), "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, across, "middle"))
    parts.append(_text(_LEFT, _TOP - 6, up, "end"))
    for number, (name, line) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        legend = _TOP + 14 + 20 * number
        parts.append(_line(_WIDTH - _RIGHT + 14, legend - 4, _WIDTH - _RIGHT + 34, legend - 4, color, 2))
        parts.append(_text(_WIDTH - _RIGHT + 40, legend, name, "start"))
    if note:
        parts.append(_text(_WIDTH - 6, _HEIGHT - 6, note, "end", 'font-size="9" fill="#777777"'))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """A logarithmic axis from the decade below the least value to that above the largest, in pixels."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._start, self._stop = start, stop

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._stop - self._start)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
        f' stroke-width="{width}"/>'
    )


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
