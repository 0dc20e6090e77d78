# SPDX-License-Identifier: Apache-2.0
"""The fuse of a hook: its errors are counted, not raised; when they do not stop it is switched off."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Final

from grademl_otel.messages import warn

WITHIN_NS: Final = 600_000_000_000
"""Errors further apart are none that do not stop: a run that ends while a thread trains on may make one."""


class Guard:
    """Counts the errors of one hook and switches it off when they do not stop."""

    LIMIT: Final = 3
    """Errors within `WITHIN_NS` after which a hook is off for good."""

    __slots__ = ("_at", "failures", "name", "on")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = True
        self.failures = 0
        self._at: deque[int] = deque(maxlen=self.LIMIT)

    def failed(self, error: BaseException) -> None:
        """Count ``error``; one line when the hook is switched off."""
        self.failures += 1
        now = perf_counter_ns()
        self._at.append(now)
        if self.on and len(self._at) == self.LIMIT and now - self._at[0] <= WITHIN_NS:
            self.off(f"{type(error).__name__}: {error}")

    def off(self, why: str) -> None:
        """Switch the hook off for the rest of the process, in one line."""
        self.on = False
        warn(f"{self.name} is not recorded: {why}")
