# SPDX-License-Identifier: Apache-2.0
"""Values of metrics for people: as a part of 1, as cores, bytes, watts, with their unit."""

from __future__ import annotations

import re
from typing import Final

from grademl_otel.analyzers.units import percent, size

_COUNTED: Final = re.compile(r"\{([^{}]*)\}")


def value_in_words(value: float | None, unit: str) -> str:
    """Return a value of a metric: 93 %, 3.2 cpu, 217 MiB/s, 312 W; ``?`` where it is not known."""
    if value is None:
        return "?"
    if unit == "1":
        return percent(value)
    if unit in ("By", "By/s"):
        return size(round(value)) + unit.removeprefix("By")
    return f"{_digits(value)} {_COUNTED.sub(lambda found: found[1], unit)}"


def used_in_words(used: float, unit: str) -> str:
    """Return what was used over time: of a fraction seconds, of a rate what it adds up to."""
    if unit == "1":
        return f"{_digits(used)} s"
    if unit.endswith("/s"):
        return value_in_words(used, unit.removesuffix("/s"))
    if unit == "W":
        return f"{_digits(used)} J"
    return f"{value_in_words(used, unit)} s"


def _digits(value: float) -> str:
    """Return about three digits."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"
    )
