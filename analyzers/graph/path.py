# SPDX-License-Identifier: Apache-2.0
"""The critical path as data: sections that are disjoint, sorted, and sum to the whole exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from grademl_otel import semconv
from grademl_otel.analyzers.graph.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT

OBSERVED = "observed"
INFERRED = "inferred"

WORK = "work"
WAIT = "wait"
TRANSFER = "transfer"
HANDOFF = "handoff"
"""From the end of what was waited for to the end of the wait; from a put to the start of what it allowed."""
GAP = "gap"
UNEXPLAINED = "unexplained"
"""A wait of which nothing that was recorded tells the cause."""


class EnteredBy(msgspec.Struct, frozen=True, gc=False):
    """How the walk came to a section: the edge and what proves it."""

    edge: str
    """program, child, queue, collective, device or link."""
    evidence: str = OBSERVED
    confidence: float = 1.0


class Section(msgspec.Struct, frozen=True, gc=False):
    """One piece of the critical path, ``[start, end)`` in Unix ns; a struct, as long runs have a million."""

    start: int
    end: int
    phase: str
    """Phase name, or the operation name for foreign spans."""
    kind: str
    """work, wait, transfer, handoff, gap or unexplained."""
    rank: int | None
    lane: str
    step: int | None
    item: str | None
    span_ix: int | None
    """Index into the columns; None for an activity that comes from a table."""
    entered_by: EnteredBy

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Path:
    """A critical path over ``[start, end)``: its sections tile the interval without gap or overlap."""

    start: int
    end: int
    sections: tuple[Section, ...]
    clipped_ns: int = 0
    """Time of children outside their parents that was clipped."""
    overlap_ns: int = 0
    """Time of siblings of one lane that overlapped within the tolerance and was cut."""

    @property
    def total_ns(self) -> int:
        return self.end - self.start


def kind_of(phase: str) -> str:
    """Return the kind of a section in ``phase`` when no edge says more."""
    if phase in _KINDS:
        return _KINDS[phase]
    if phase in semconv.WAIT_PHASES:
        return UNEXPLAINED
    return TRANSFER if phase == semconv.DATA_TRANSFER else WORK


_KINDS: Final = {
    semconv.COLLECTIVE: WAIT,  # for the last rank, then for the transfer: not told apart without its partners
    semconv.COLLECTIVE_WAIT: WAIT,
    RANKS_WAIT: WAIT,
    COLLECTIVE_TRANSFER: TRANSFER,
}
