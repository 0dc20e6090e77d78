# SPDX-License-Identifier: Apache-2.0
"""From raw numbers to readings: what a series said before, and what that makes of what it says now."""

from __future__ import annotations

import os
from typing import Final

from grademl_otel.sampling.counters import Running
from grademl_otel.sampling.source import Reading, Series

TICKS: Final[int] = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Of the kernel's times in /proc, in a second."""


class Counted:
    """A series whose raw counter grows from the start of the host on; ``per`` raw ones are one unit."""

    __slots__ = ("_before", "_bits", "_per", "_running", "series")

    def __init__(self, series: Series, per: int = 1, bits: int = 64) -> None:
        self.series = series
        self._per = per
        self._bits = bits
        self._running = Running(bits)
        self._before: int | float = 0

    def elsewhere(self) -> None:
        """Go on with another raw counter, whose first number is where that begins to count."""
        self._before += self._running.total
        self._running = Running(self._bits)

    def add(self, raw: int | None, readings: list[Reading]) -> None:
        """Add a reading, unless it is None or no number that such a counter can say."""
        if raw is None:
            return
        try:
            total = self._before + self._running.add(raw)
        except ValueError:
            return
        readings.append((self.series, total / self._per if self._per != 1 else total))


class Forward:
    """Adds up how far a time of the kernel goes forward.

    Those of /proc/stat are never reset, but go back: iowait because it is an estimate, user because times of
    virtual machines are moved. That counts nothing until the time is where it was. Only what falls to less
    than half has begun anew (another host's, after a migration), and goes on from there.
    """

    __slots__ = ("_highest", "total")

    def __init__(self) -> None:
        self._highest: int | None = None
        self.total = 0

    def add(self, raw: int) -> int:
        """Take what it says now; return the total since it was first read."""
        highest = self._highest
        if highest is None or raw < highest // 2:
            self._highest = raw
        elif raw > highest:
            self.total += raw - highest
            self._highest = raw
        return self.total
