# SPDX-License-Identifier: Apache-2.0
"""Updates of a thread that are counted while nothing else of it is recorded."""

from __future__ import annotations

from typing import Final

_OTHERS: Final = 64
"""Steps of other optimizers in a row after which the one that ended the updates is taken to be gone."""


class Tally:
    """Tells where an update ends: with the step of the optimizer that ended the steps before."""

    __slots__ = ("_closing", "_others", "last", "start", "updates")

    def __init__(self, start: int, closing: int) -> None:
        self.start = start
        """Where the row begins that is being counted; ns."""
        self.last = start
        """End of the last update."""
        self.updates = 0
        """In that row, so far."""
        self._closing = closing
        self._others = 0

    def stepped(self, optimizer: int, at: int) -> bool:
        """Take the end of an optimizer's step; return whether it ended an update."""
        if optimizer != self._closing:
            self._others += 1
            if self._others <= _OTHERS:
                return False
            self._closing = optimizer
        self._others = 0
        self.last = at
        self.updates += 1
        return True

    def next_row(self) -> None:
        """Begin the next row where this one ends."""
        self.start, self.updates = self.last, 0
