# SPDX-License-Identifier: Apache-2.0
"""The critical path as data: sections that are disjoint, sorted, and sum to the whole exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, overload

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT

OBSERVED = "observed"
ATTRIBUTE = "attribute"
INFERRED = "inferred"
EVIDENCE: Final = (OBSERVED, ATTRIBUTE, INFERRED)

WORK = "work"
WAIT = "wait"
TRANSFER = "transfer"
HANDOFF = "handoff"
"""From the end of what was waited for to the end of the wait; from a put to the start of what it allowed."""
GAP = "gap"
UNEXPLAINED = "unexplained"
"""A wait of which nothing that was recorded tells the cause."""
KINDS: Final = (WORK, WAIT, TRANSFER, HANDOFF, GAP, UNEXPLAINED)

Lane = tuple[int | None, str]
"""(rank, name): equal names of two ranks are two lanes."""


class EnteredBy(msgspec.Struct, frozen=True, gc=False):
    """How the walk came to a section: the edge and what proves it."""

    edge: str
    """program, child, queue, collective, device or link."""
    evidence: str = OBSERVED
    confidence: float = 1.0


class Section(msgspec.Struct, frozen=True, gc=False):
    """One piece of the critical path, ``[start, end)`` in Unix ns."""

    start: int
    end: int
    phase: str
    """Phase name, or the operation name for foreign spans."""
    kind: str
    """One of `KINDS`."""
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


@dataclass(frozen=True, eq=False)
class Sections(Sequence[Section]):
    """Sections as parallel arrays, in order of time; a `Section` is made when one is looked at.

    A long run has a million of them, and what adds them up reads the arrays.
    """

    start: IntArray
    end: IntArray
    phase: IntArray
    """Index into ``phases``."""
    kind: IntArray
    """Index into `KINDS`."""
    lane: IntArray
    """Index into ``lanes``."""
    step: IntArray
    """-1 where it belongs to none."""
    item: IntArray
    """Index into ``items``; -1 for none."""
    span_ix: IntArray
    """-1 for an activity that comes from a table."""
    entered: IntArray
    """Index into ``entrances``."""
    phases: Sequence[str]
    lanes: Sequence[Lane]
    items: Sequence[str]
    entrances: Sequence[EnteredBy]

    @classmethod
    def of(cls, sections: Iterable[Section]) -> Sections:
        """Return ``sections`` as arrays."""
        phases: dict[str, int] = {}
        lanes: dict[Lane, int] = {}
        items: dict[str, int] = {}
        entrances: dict[EnteredBy, int] = {}
        rows = [
            (
                one.start,
                one.end,
                phases.setdefault(one.phase, len(phases)),
                KINDS.index(one.kind),
                lanes.setdefault((one.rank, one.lane), len(lanes)),
                -1 if one.step is None else one.step,
                -1 if one.item is None else items.setdefault(one.item, len(items)),
                -1 if one.span_ix is None else one.span_ix,
                entrances.setdefault(one.entered_by, len(entrances)),
            )
            for one in sections
        ]
        table = np.array(rows, np.int64).reshape(-1, len(_ARRAYS))
        columns: dict[str, Any] = {name: table[:, at].copy() for at, name in enumerate(_ARRAYS)}
        return cls(
            **columns,
            phases=list(phases),
            lanes=list(lanes),
            items=list(items),
            entrances=list(entrances),
        )

    @classmethod
    def join(cls, parts: Sequence[Sections]) -> Sections:
        """Return all sections of ``parts``, one after the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in ("start", "end", "kind", "step", "span_ix")
        }
        for name, words in _NAMED.items():
            known: dict[Any, int] = {}
            numbers = [np.zeros(0, np.int64)]
            for part in parts:
                number = [known.setdefault(word, len(known)) for word in getattr(part, words)]
                numbers.append(np.array([*number, -1], np.int64)[getattr(part, name)])  # -1: none
            columns[name], columns[words] = np.concatenate(numbers), list(known)
        return cls(**columns)

    @property
    def duration(self) -> IntArray:
        """Length of each, in ns."""
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, at: int) -> Section: ...
    @overload
    def __getitem__(self, at: slice) -> Sections: ...
    def __getitem__(self, at: int | slice) -> Section | Sections:
        if isinstance(at, slice):
            return self.take(at)
        rank, lane = self.lanes[int(self.lane[at])]
        step, item, span_ix = int(self.step[at]), int(self.item[at]), int(self.span_ix[at])
        return Section(
            start=int(self.start[at]),
            end=int(self.end[at]),
            phase=self.phases[int(self.phase[at])],
            kind=KINDS[int(self.kind[at])],
            rank=rank,
            lane=lane,
            step=step if step >= 0 else None,
            item=self.items[item] if item >= 0 else None,
            span_ix=span_ix if span_ix >= 0 else None,
            entered_by=self.entrances[int(self.entered[at])],
        )

    def __iter__(self) -> Iterator[Section]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, at: IntArray | slice) -> Sections:
        """Return the sections ``at`` these places, in that order."""
        chosen: dict[str, Any] = {name: getattr(self, name)[at] for name in _ARRAYS}
        return Sections(
            **chosen, phases=self.phases, lanes=self.lanes, items=self.items, entrances=self.entrances
        )

    def by(self, key: IntArray, count: int) -> IntArray:
        """Return the time of the sections of each ``key``, 0 to ``count`` - 1, in ns."""
        sums: IntArray = np.zeros(count, np.int64)
        np.add.at(sums, key, self.duration)
        return sums


_NAMED: Final = {"phase": "phases", "lane": "lanes", "item": "items", "entered": "entrances"}
"""Arrays of numbers, and what these are indices into."""
_ARRAYS: Final = tuple(field.name for field in fields(Sections) if field.name not in _NAMED.values())


@dataclass(frozen=True)
class Path:
    """A critical path over ``[start, end)``: its sections tile the interval without gap or overlap."""

    start: int
    end: int
    sections: Sections
    clipped_ns: int = 0
    """Time of children outside their parents that was clipped."""
    overlap_ns: int = 0
    """Time of siblings of one lane that overlapped within the tolerance and was cut."""

    @property
    def total_ns(self) -> int:
        return self.end - self.start


def kind_of(phase: str) -> str:
    """Return the kind of a section in ``phase`` when no edge says more."""
    if phase in _KIND_OF:
        return _KIND_OF[phase]
    if phase in semconv.WAIT_PHASES:
        return UNEXPLAINED
    return TRANSFER if phase == semconv.DATA_TRANSFER else WORK


_KIND_OF: Final = {
    semconv.COLLECTIVE: WAIT,  # for the last rank, then for the transfer: not told apart without its partners
    semconv.COLLECTIVE_WAIT: WAIT,
    RANKS_WAIT: WAIT,
    COLLECTIVE_TRANSFER: TRANSFER,
}
