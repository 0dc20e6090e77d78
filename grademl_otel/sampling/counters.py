# SPDX-License-Identifier: Apache-2.0
"""Raw counters as running totals: they wrap, are reset, and sometimes go backwards."""

from __future__ import annotations

from typing import Final

_JITTER: Final = 0.01
"""What falls by less than this part has not been reset: some counters of kernels and drivers dip."""


def dips(last: int | float, now: int | float) -> bool:
    """Whether a counter that falls from ``last`` to ``now`` falls so little that it was not reset."""
    return last - now <= max(1, last * _JITTER)


class Running:
    """The total that a raw counter has counted since it was first read; never falls.

    ``bits`` is its width: 32 or 64. In this order:

    * What grows has counted the difference; but by more than three quarters of the range it has not grown: it
      stands just below 0, to which it had wrapped, or says all ones for "not known". That adds nothing.
    * What dips a little has added nothing until it is above its highest again.
    * What falls from the last quarter of the range to the first has wrapped.
    * What falls otherwise was reset, and has counted from 0 to what it says now. Yet what says exactly 0 once
      and then at least what it said before it, was not reset: drivers say 0 while they restart.
    """

    __slots__ = ("_before_zero", "_last", "_modulus", "total")

    def __init__(self, bits: int = 64) -> None:
        self._modulus = 1 << bits
        self._last: int | float | None = None
        self._before_zero: int | float = 0
        self.total: int | float = 0

    def widen(self, bits: int) -> None:
        """The counter has turned out to be wider than was thought."""
        self._modulus = 1 << bits

    def restart(self) -> None:
        """What it says next it has counted since 0."""
        self._last = 0
        self._before_zero = 0

    def add(self, raw: int | float) -> int | float:
        """Take what the counter says now; return the total. Raises ValueError for what no counter can say."""
        if not 0 <= raw < self._modulus:
            raise ValueError(f"a counter cannot say {raw}")
        last = self._last
        if last is None:
            self._last = raw
            return self.total
        before_zero, self._before_zero = self._before_zero, 0
        if raw >= last:
            if raw - last > self._modulus * 3 // 4:
                return self.total
            # Both are 0 nearly always; a counter that stood at 0 for one reading has gone on from before it.
            self.total += raw - (before_zero if before_zero and raw >= before_zero else last)
        elif dips(last, raw):
            return self.total
        elif last >= self._modulus * 3 // 4 and raw < self._modulus // 4:
            self.total += raw + self._modulus - last
        else:
            self.total += raw
            if not raw:
                self._before_zero = last
        self._last = raw
        return self.total
