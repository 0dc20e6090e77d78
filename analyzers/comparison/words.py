# SPDX-License-Identifier: Apache-2.0
"""Numbers of a comparison as people read them."""

from __future__ import annotations

from grademl_otel.analyzers.comparison.document import ONLY_A, ONLY_B, Difference, Number
from grademl_otel.analyzers.comparison.measures import COUNT, FRACTION, NS, RATE
from grademl_otel.analyzers.units import milliseconds, percent


def quantity(value: Number | str | bool | None, unit: str) -> str:
    """Return a value in its unit; a dash where it is not known."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == NS:
        return f"-{milliseconds(-value)}" if value < 0 else milliseconds(value)
    if unit == FRACTION:
        return f"-{percent(-value)}" if value < 0 else percent(value)
    if unit == COUNT:
        return f"{value:,.0f}"
    return f"{value:,.4g}" + (" /s" if unit == RATE else "")


def signed(value: Number | None, unit: str) -> str:
    """Return a difference with its sign; of shares in points of percent."""
    if value is None:
        return "-"
    if unit == FRACTION:
        return f"{value * 100:+.1f} pp"
    text = quantity(value, unit)
    return f"+{text}" if value > 0 else text


def in_percent(value: float | None) -> str:
    """Return a part of A with its sign, as +12 %, -0.4 %."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 0.0995 else 1
    return f"{value * 100:+,.{digits}f} %"


def spread_in_words(told: Difference) -> str:
    """Return the interval of a difference, in percent of A where that is defined."""
    ends = told.relative_interval
    if ends is not None and told.unit != FRACTION:
        digits = 0 if min(map(abs, ends)) >= 0.0995 else 1
        return f"{ends[0] * 100:+,.{digits}f} .. {ends[1] * 100:+,.{digits}f} %"
    if told.interval is None:
        return "-"
    if told.unit == FRACTION:
        return f"{told.interval[0] * 100:+.1f} .. {told.interval[1] * 100:+.1f} pp"
    return f"{signed(told.interval[0], told.unit)} .. {signed(told.interval[1], told.unit)}"


def change(told: Difference) -> str:
    """Return what changed, as "data.wait 117 -> 20 ms"."""
    a, b = quantity(told.a, told.unit), quantity(told.b, told.unit)
    if told.verdict in (ONLY_A, ONLY_B):
        return f"{told.measure} {told.verdict} ({a if told.verdict == ONLY_A else b})"
    number, _, unit = a.rpartition(" ")
    if number and b.endswith(f" {unit}"):
        a = number
    return f"{told.measure} {a} -> {b}"
