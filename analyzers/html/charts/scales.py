# SPDX-License-Identifier: Apache-2.0
"""Where a value lies on an axis, and at which values an axis has ticks; `report.js` does the same."""

from __future__ import annotations

import math
from typing import Final

from grademl_otel.analyzers.units import milliseconds

_S: Final = 1_000_000_000
_MS: Final = 1_000_000
_COARSE: Final = tuple(
    seconds * _S
    for seconds in (
        10,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
        3600,
        7200,
        3 * 3600,
        6 * 3600,
        12 * 3600,
        86_400,
    )
)
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_PER_DECADE: Final = (1, 2, 5)


def step_between(length: int, most: int) -> int:
    """Return the nicest distance of ticks, in ns, of which at most ``most`` fit into ``length``."""
    least = max(1, length / most)
    power = 1
    while power < 10 * _S:
        for factor in _PER_DECADE:
            if factor * power >= least:
                return factor * power
        power *= 10
    for step in _COARSE:
        if step >= least:
            return step
    day, power = _COARSE[-1], 1
    while True:
        for factor in _PER_DECADE:
            if day * factor * power >= least:
                return day * factor * power
        power *= 10


def time_ticks(start: int, end: int, most: int = 8) -> list[tuple[int, str]]:
    """Return (ns, label) of the ticks of a time axis over ``[start, end]``."""
    step = step_between(end - start, most)
    first = -(-start // step) * step
    return [(at, time_label(at, step)) for at in range(first, end + 1, step)]


def time_label(ns: int, step: int) -> str:
    """Return a time of an axis whose ticks are ``step`` apart: 250 ms, 2.5 s, 40 s, 1 h 30 min."""
    if step < _S:
        unit, name = (_S, "s") if ns >= _S else (_MS, "ms")
        digits = 0
        while step * 10**digits % unit:
            digits += 1
        return f"{ns / unit:.{digits}f} {name}"
    left, words = ns // _S, []
    for unit, name in _UNITS:
        if left >= unit:
            words.append(f"{left // unit} {name}")
            left %= unit
    return " ".join(words) or "0 s"


def value_ticks(low: int, high: int, log: bool) -> list[int]:
    """Return up to about eight round durations in ``[low, high]``, evenly apart on their scale."""
    if not log:
        step = step_between(max(1, high - low), 6)
        return list(range(-(-low // step) * step, high + 1, step))
    power, found = _power_below(max(1, low)), []
    while power <= high:
        found += [power * factor for factor in _PER_DECADE if low <= power * factor <= high]
        power *= 10
    return found if len(found) <= 8 else [at for at in found if str(at)[0] == "1"]


class Heights:
    """A vertical axis of times from ``top`` (the largest) to ``bottom``, in px.

    It is logarithmic where the largest is more than `_WIDE` times a usual one, which else were a flat line.
    """

    _WIDE: Final = 10

    def __init__(self, least: int, usual: int, largest: int, top: float, bottom: float) -> None:
        self.log = largest > self._WIDE * max(1, usual)
        self.low = _power_below(max(1, least)) if self.log else 0
        self.high = max(largest, self.low + 1)
        self.top, self.bottom = top, bottom

    def of(self, ns: float) -> float:
        """Return the y of a time."""
        share = (
            math.log(max(ns, self.low) / self.low) / math.log(self.high / self.low)
            if self.log
            else ns / self.high
        )
        return self.bottom - share * (self.bottom - self.top)

    def ticks(self) -> list[tuple[int, str]]:
        """Return (ns, label) of up to about six ticks, without the end of the axis."""
        if not self.log:
            step = step_between(self.high, 5)
            return [(at, milliseconds(at)) for at in range(step, self.high + 1, step)]
        found, at = [], self.low
        while at <= self.high:
            found.append(at)
            at *= 10
        if len(found) < 3:
            found = sorted(at * by for at in found for by in _PER_DECADE if at * by <= self.high)
        return [(at, milliseconds(at)) for at in found if at > self.low or self.low > 1]


def _power_below(value: int) -> int:
    return int(10 ** (len(str(value)) - 1))
