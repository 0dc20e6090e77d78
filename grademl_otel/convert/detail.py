# SPDX-License-Identifier: Apache-2.0
"""The emission governor: which steps get a trace of their own, so that spans per second stay bounded.

Pure functions of the times in the marks, so that a relay that takes over chooses the same levels; only its
budget for outliers is full again. How much of such a trace each rank sends is told by `bounds`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Final

TARGET_SPANS_PER_S: Final = 100.0
"""Spans of step detail that a process sends at most, in the long run."""
_LOWER_BELOW: Final = 0.4
"""Level goes down only when the doubled rate stays clearly below the target, so that it does not swing."""
MAX_LEVEL: Final = 40

OUTLIER_FACTOR: Final = 2
OUTLIER_HISTORY: Final = 64
OUTLIER_MIN_HISTORY: Final = 8
_OUTLIER_SPANS_PER_S: Final = 25.0
_OUTLIER_BURST: Final = 500.0


@dataclass(slots=True)
class LevelGovernor:
    """Chooses the detail level L of each window: a step is kept when its hash has L trailing zero bits."""

    level: int = 0
    spans: int = 0
    since: int = -1

    def count(self, spans: int, start: int) -> None:
        """Note ``spans`` that were sent because of the level, for a step that began at ``start`` ns."""
        self.spans += spans
        if self.since < 0:
            self.since = start

    def next(self, now: int, lower: bool = True) -> None:
        """Go on to the next window at ``now`` ns, or part of one: move the level by one at most.

        ``lower`` is False for a part: within a window the level of training steps is not taken back.
        """
        if self.since >= 0:
            seconds = max(now - self.since, 1) / 1e9
            rate = self.spans / seconds
            if rate > TARGET_SPANS_PER_S and self.level < MAX_LEVEL:
                self.level += 1
            elif lower and rate < TARGET_SPANS_PER_S * _LOWER_BELOW and self.level > 0:
                self.level -= 1
        self.spans = 0
        self.since = now


class OutlierDetector:
    """Finds training steps of more than twice the running median, within a budget for their detail."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=OUTLIER_HISTORY)
        self._tokens = _OUTLIER_BURST
        self._refilled_at = -1

    def is_outlier(self, duration: int) -> bool:
        """Compare ``duration`` (ns) with the steps before it, then add it to them."""
        recent = self._recent
        found = len(recent) >= OUTLIER_MIN_HISTORY and duration > OUTLIER_FACTOR * median_low(recent)
        recent.append(duration)
        return found

    def afford(self, spans: int, now: int) -> bool:
        """Take ``spans`` from the budget at ``now`` ns; half of all steps may be outliers of the others."""
        if self._refilled_at >= 0:
            earned = (now - self._refilled_at) / 1e9 * _OUTLIER_SPANS_PER_S
            self._tokens = min(_OUTLIER_BURST, self._tokens + max(earned, 0.0))
        self._refilled_at = now
        if self._tokens < spans:
            return False
        self._tokens -= spans
        return True
