# SPDX-License-Identifier: Apache-2.0
"""Which steps get a trace of their own, and how much of it each rank sends.

Pure functions of a run's identity and of the times in the marks, so that a restarted relay decides the same
again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal

from grademl_otel import semconv

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

Share = Literal["full", "reduced", "none"]


@dataclass(slots=True)
class LevelGovernor:
    """Chooses the detail level L of each window: a step is kept when its hash has L trailing zero bits."""

    level: int = 0
    _spans: int = 0
    _since: int = -1

    def count(self, spans: int, start: int) -> None:
        """Note ``spans`` that were sent because of the level, for a step that began at ``start`` ns."""
        self._spans += spans
        if self._since < 0:
            self._since = start

    def next_window(self, now: int) -> None:
        """Go on to the next window at ``now`` ns: move the level by one at most."""
        if self._since >= 0:
            seconds = max(now - self._since, 1) / 1e9
            rate = self._spans / seconds
            if rate > TARGET_SPANS_PER_S and self.level < MAX_LEVEL:
                self.level += 1
            elif rate < TARGET_SPANS_PER_S * _LOWER_BELOW and self.level > 0:
                self.level -= 1
        self._spans = 0
        self._since = now


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


def share_of_rank(rank: int, world_size: int, full: int, reduced: int) -> Share:
    """Return what ``rank`` sends of a step of ``full`` spans, ``reduced`` of them being step, waits,
    collectives.

    A trace in which all ranks meet must stay below `semconv.MAX_SPANS_PER_TRACE`: low ranks send everything,
    the next ones the reduced set, the others nothing (their steps are still in the table).
    """
    limit = semconv.MAX_SPANS_PER_TRACE
    if world_size <= 1:
        return "full" if full <= limit else "reduced"
    # Ranks see slightly different numbers of spans; rounding up makes them agree on the subsets.
    full, reduced = _round_up(full), _round_up(reduced)
    if world_size * full <= limit:
        return "full"
    number_full = limit // 2 // full
    if rank < number_full:
        return "full"
    if rank < number_full + limit // 2 // reduced:
        return "reduced"
    return "none"


def worker_spans_per_part(world_size: int) -> int:
    """Return how many spans of loader workers one window part may add to the trace that it shares."""
    sharers = min(max(world_size, 1), semconv.RANKS_PER_SHARD) * semconv.PARTS_PER_SHARD
    return max(0, semconv.MAX_SPANS_PER_TRACE // sharers - 1)


def _round_up(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
