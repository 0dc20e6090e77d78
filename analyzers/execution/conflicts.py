# SPDX-License-Identifier: Apache-2.0
"""What was told twice, or cannot be: lines for people, as many as people read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from grademl_otel.analyzers.units import count

MOST: Final = 1000
"""So many are told in full."""


class Conflicts:
    """Lines, the first `MOST` of them; of the others only how many they are."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0

    def add(self, line: str | Callable[[], str]) -> None:
        """Add a line, or what makes it: a path is not written only to be counted."""
        if len(self._lines) < MOST:
            self._lines.append(line if isinstance(line, str) else line())
        else:
            self._more += 1

    @property
    def lines(self) -> list[str]:
        return [*self._lines, *([f"and {count(self._more, 'conflict')} more"] if self._more else [])]
