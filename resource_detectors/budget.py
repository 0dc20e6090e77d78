# SPDX-License-Identifier: Apache-2.0
"""What looking at this machine may cost: a time after which is told what is known by then."""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Final

_LONGEST_S: Final = 0.25
"""However busy the machine is, and however slow its files are: waiting costs the program time, too."""


class OverBudget(Exception):
    """The time is up: what was looked for stays untold."""


class Budget:
    """Seconds of this thread's own time, from now on. Who works in a loop asks now and then."""

    __slots__ = ("_end", "_own_end")

    def __init__(self, seconds: float) -> None:
        self._own_end = thread_time() + seconds
        self._end = perf_counter() + max(seconds, _LONGEST_S)

    def left(self) -> float:
        """Seconds that are left, negative when the time is up."""
        return min(self._own_end - thread_time(), self._end - perf_counter())

    def check(self) -> None:
        """Raise `OverBudget` when the time is up."""
        if self.left() < 0:
            raise OverBudget
