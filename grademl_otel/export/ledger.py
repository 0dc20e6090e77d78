# SPDX-License-Identifier: Apache-2.0
"""How many spans did not simply arrive, and what became of them instead."""

from __future__ import annotations

import threading
from typing import Final

from grademl_otel import semconv

REASONS: Final = (semconv.UNSENT_SPOOLED, semconv.UNSENT_DROPPED, semconv.UNSENT_REFUSED)
"""In the order of their counts in a ring's header. Append only."""

Counts = tuple[int, ...]
"""One number for each of `REASONS`."""


class Ledger:
    """Counts the spans of one run at one destination, or of all. For several threads; counts only grow.

    Every span that was handed on is, in the end, in exactly one of three places: at the destination, in the
    spool, or counted here as dropped or refused. ``spooled`` counts what was ever put into the spool, sent
    since or not.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(REASONS, 0)
        self._lock = threading.Lock()

    def add(self, reason: str, spans: int) -> None:
        """Count ``spans`` more for ``reason``, one of `REASONS`."""
        with self._lock:
            self._counts[reason] += spans

    @property
    def counts(self) -> Counts:
        with self._lock:
            return tuple(self._counts.values())

    @property
    def lost(self) -> int:
        """Spans that will never arrive."""
        return lost_of(self.counts)


def lost_of(counts: Counts) -> int:
    """Return how many of these spans will never arrive."""
    return sum(
        spans for reason, spans in zip(REASONS, counts, strict=True) if reason != semconv.UNSENT_SPOOLED
    )
