# SPDX-License-Identifier: Apache-2.0
"""Numbers of a comparison as people read them."""

from __future__ import annotations

from grademl_otel.analyzers.comparison.document import ONLY_A, ONLY_B, Difference, Number
from grademl_otel.analyzers.comparison.measures import COUNT, FRACTION, NS, RATE
from grademl_otel.analyzers.units import percent

Value = Number | str | bool | None


def quantity(value: Value, unit: str) -> str:
    """Return a value in its unit; a dash where it is not known."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == NS:
        return f"-{_time(-value)}" if value < 0 else _time(value)
    if unit == FRACTION:
        return f"-{percent(-value)}" if value < 0 else percent(value)
    if unit == COUNT:
        return f"{value:,.0f}"
    return f"{value:,.4g}" + (" /s" if unit == RATE else "")


def _time(ns: float) -> str:
    """Return a time in three digits, so that small differences show: 13.4 ms, 217 ms, 4.52 s."""
    for unit, size in (("us", 1e3), ("ms", 1e6)):
        if ns < 999.5 * size:
            digits = 0 if unit == "us" or ns >= 99.95 * size else 1 if ns >= 9.995 * size else 2
            return f"{ns / size:.{digits}f} {unit}"
    return f"{ns / 1e9:.2f} s" if ns < 9.995e9 else f"{ns / 1e9:,.1f} s"


def signed(value: Value, unit: str) -> str:
    """Return a difference with its sign; of shares in points of percent."""
    if value is None or isinstance(value, (str, bool)):
        return quantity(value, unit)
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
    name = f"{told.measure[len('own(') : -1]} itself" if told.kind == "own" else told.measure
    if told.verdict in (ONLY_A, ONLY_B):
        return f"{name} {told.verdict} ({a if told.verdict == ONLY_A else b})"
    number, _, unit = a.rpartition(" ")
    if number and b.endswith(f" {unit}"):
        a = number
    return f"{name} {a} -> {b}"
