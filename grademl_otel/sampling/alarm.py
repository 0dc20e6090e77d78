# SPDX-License-Identifier: Apache-2.0
"""Waiting in a thread that somebody may wake: one lock, where an `Event` makes one for each wait."""

from __future__ import annotations

import threading
from typing import Final

_LONGEST_S: Final = 3600.0
"""Longer ones would only come near what locks can wait for."""


class Alarm:
    """Wakes the one thread that waits for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Return True when woken, at once where that was before, and False after ``seconds``."""
        return self._lock.acquire(timeout=min(max(seconds, 0.0), _LONGEST_S))

    def ring(self) -> None:
        """Wake the thread, or have its next wait end at once; never blocks."""
        try:
            self._lock.release()
        except RuntimeError:  # it rings already
            pass
