# SPDX-License-Identifier: Apache-2.0
"""Raw counters as running totals: they wrap, are reset, and sometimes go backwards."""

from __future__ import annotations

from typing import Final

_JITTER: Final = 0.01
"""What falls by less than this part has not been reset: some counters of kernels and drivers dip."""


class Running:
    """The total that a raw counter has counted since it was first read; never falls.

    ``bits`` is its width: 32 or 64. What falls from the last quarter of that range to the first has wrapped;
    what dips a little has added nothing until it is above its highest again; what falls otherwise was reset,
    and has counted from 0 to what it says now.
    """

    __slots__ = ("_last", "_modulus", "total")

    def __init__(self, bits: int = 64) -> None:
        self._modulus = 1 << bits
        self._last: int | float | None = None
        self.total: int | float = 0

    def add(self, raw: int | float) -> int | float:
        """Take what the counter says now; return the total. Raises ValueError for what no counter can say."""
        if not 0 <= raw < self._modulus:
            raise ValueError(f"a counter cannot say {raw}")
        last = self._last
        if last is None or raw >= last:
            self.total += 0 if last is None else raw - last
        elif last - raw <= max(1, last * _JITTER):
            return self.total
        elif last >= self._modulus * 3 // 4 and raw < self._modulus // 4:
            self.total += raw + self._modulus - last
        else:
            self.total += raw
        self._last = raw
        return self.total
