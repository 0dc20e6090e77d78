# SPDX-License-Identifier: Apache-2.0
"""What a GPU can say: now and then drivers answer 4294967295 mW or 4 billion per cent, without an error.

What is beyond these bounds is no value; it is counted as a failure and left out.
"""

from __future__ import annotations

from typing import Final

PERCENT: Final = 100
FAN_PERCENT: Final = 200
"""Of the speed at full duty; some run faster."""
MEMORY_BYTES: Final = 1 << 46
MILLIWATT: Final = 20_000_000
CELSIUS: Final = 200
MEGAHERTZ: Final = 20_000
PCIE_GENERATION: Final = 10
PCIE_LANES: Final = 64
PCIE_KILOBYTES: Final = 1_000_000_000
"""Per second."""
LINKS: Final = 1024

MILLIJOULE_RATE: Final = 20_000_000
BYTE_RATE: Final = 20_000_000_000_000
PCIE_RATE: Final = 128_000_000_000
"""Of 16 lanes of the sixth generation."""
ERROR_RATE: Final = 1_000_000_000
NANOSECOND_RATE: Final = 60_000_000_000
"""Of a counter of time; far more than a second, since drivers update some of these seldom."""

_JITTER: Final = 0.01


class Implausible(ValueError):
    """No GPU can say this."""


def within(value: int | float, most: int | float, what: str, least: int | float = 0) -> int | float:
    """Return ``value`` if it lies in [least, most]; raises `Implausible`."""
    if least <= value <= most:
        return value
    raise Implausible(f"{what} of {value}")


class Total:
    """What a raw counter has counted since it was first read, in its own unit; never falls.

    ``rate`` is the most that it can count in a second: what is beyond is garbage, unless the counter stays
    there.
    """

    __slots__ = ("_at", "_last", "_rate", "_suspect", "_suspect_at", "total")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._last: int | None = None
        self._at = 0.0
        self._suspect: int | None = None
        self._suspect_at = 0.0
        self.total = 0

    def restart(self) -> None:
        """What it says next has nothing to do with what it said last."""
        self._last = None

    def add(self, raw: int, at: float) -> int:
        """Take what the counter says at ``at``, in seconds; return the total. Raises `Implausible`."""
        if not 0 <= raw < 1 << 64:
            raise Implausible(f"a counter of {raw}")
        if self._last is None:
            self._take(raw, at, 0)
            return self.total
        grown = raw - self._last
        if grown < 0:
            if -grown <= max(1, self._last * _JITTER):
                return self.total  # dipped: nothing is added until it is above its highest again
            else:
                grown = raw  # was reset, and has counted from 0 to here
        if grown <= self._most(at - self._at):
            self._take(raw, at, grown)
            return self.total
        suspect = self._suspect
        if suspect is not None and 0 <= raw - suspect <= self._most(at - self._suspect_at):
            self._take(raw, at, raw - suspect)  # it did not come back: this is where it is now
            return self.total
        self._suspect, self._suspect_at = raw, at
        raise Implausible(f"a counter that was {self._last} and is {raw}")

    def _most(self, seconds: float) -> float:
        return self._rate * max(1.0, seconds + 1.0)

    def _take(self, raw: int, at: float, grown: int) -> None:
        self._last, self._at, self._suspect = raw, at, None
        self.total += grown
