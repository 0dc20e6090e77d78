# SPDX-License-Identifier: Apache-2.0
"""The event graph on arrays: what happened in each lane, and what the start and end of it had to wait for.

Events are the starts and ends of activities. An activity follows the one before it in its lane (*program
order*, not stored: it is the order of the arrays). Everything else that an event had to wait for is an edge:

program     as program order, between what one thread does in two lanes
child       a parent starts a child, or waits for it
queue       the end of an item to the end of the wait that it ends; the end of a wait to the start of the item
            whose index was put then, for the queue is bounded; the start of a pass to its first items
collective  the last arrival to the end of every other member's waiting
device      a launch to its kernel; a kernel to the end of the synchronization that waits for it
link        a span that another names in a link of kind ``blocking``
learned     what repeated steps show to depend on each other, see `learned`

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.graph.path import EVIDENCE, INFERRED, OBSERVED, Lane

PROGRAM: Final = "program"
CHILD: Final = "child"
QUEUE: Final = "queue"
COLLECTIVE: Final = "collective"
DEVICE: Final = "device"
LINK: Final = "link"
LEARNED: Final = "learned"
EDGE_KINDS: Final = (PROGRAM, CHILD, QUEUE, COLLECTIVE, DEVICE, LINK, LEARNED)


@dataclass(frozen=True)
class Edges:
    """Edges as parallel arrays. The source's event is a moment of it: its start, its end, or one between."""

    source: IntArray
    """Index of an activity."""
    at: IntArray
    """Unix ns, within the source's ``[start, end]``: what the target had to wait for."""
    target: IntArray
    to_end: BoolArray
    """Whether the end of the target had to wait for it, else its start."""
    kind: IntArray
    """Index into `EDGE_KINDS`."""
    evidence: IntArray
    """Index into `EVIDENCE`."""
    confidence: FloatArray
    """1 for what is no guess."""

    @classmethod
    def of(
        cls,
        kind: str,
        source: IntArray,
        at: IntArray,
        target: IntArray,
        *,
        to_end: bool = False,
        evidence: str = OBSERVED,
        confidence: float | FloatArray = 1.0,
    ) -> Edges:
        """Return edges of one kind and one evidence."""
        count = len(source)
        return cls(
            source,
            at,
            target,
            np.full(count, to_end),
            np.full(count, EDGE_KINDS.index(kind), np.int64),
            np.full(count, EVIDENCE.index(evidence), np.int64),
            np.broadcast_to(np.asarray(confidence, np.float64), (count,)).copy(),
        )

    @classmethod
    def join(cls, parts: Sequence[Edges]) -> Edges:
        """Return all edges of ``parts``."""
        none = np.zeros(0, np.int64)
        every = [cls.of(PROGRAM, none, none, none), *parts]
        return cls(*(np.concatenate([getattr(part, f.name) for part in every]) for f in fields(cls)))

    def where(self, mask: BoolArray | IntArray) -> Edges:
        """Return the edges for which ``mask`` is true, or at these places."""
        return Edges(*(getattr(self, f.name)[mask] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class EventGraph:
    """Activities as parallel arrays, sorted by (lane, start); those of one lane are disjoint, none is empty.

    All times are Unix ns by one clock. Main lanes are tiled; in other lanes there is time without activity.
    """

    lane: IntArray
    """Index into ``lanes``."""
    start: IntArray
    end: IntArray
    phase: IntArray
    """Index into ``phases``."""
    kind: IntArray
    """Index into `path.KINDS`: what its part of a path is when no edge says more."""
    waits: BoolArray
    """Whether its end is decided by what it waits for, and not by itself: its length is an outcome."""
    step: IntArray
    """Number of the training step that it belongs to; -1 for none."""
    item: IntArray
    """Index into ``items``; -1 for none."""
    span_ix: IntArray
    """Index into the columns; -1 for one that comes from a table."""
    holder: IntArray
    """Equal for neighbours in a lane that are pieces of one outermost activity; -1 for what is alone."""
    inferred: BoolArray
    """Whether only its length is known, not its place, or nothing but times tells of it."""
    phases: Sequence[str]
    lanes: Sequence[Lane]
    items: Sequence[str]
    edges: Edges

    def __len__(self) -> int:
        return len(self.start)

    def of_lane(self, lane: int) -> slice:
        """Return the slice of the activities of ``lane``, which stand together."""
        first, end = np.searchsorted(self.lane, (lane, lane + 1))
        return slice(int(first), int(end))

    def running(self, lane: int, moment: IntArray) -> IntArray:
        """Return the activities of ``lane`` in which moments lie, or at whose end; -1 where there is none."""
        mine = self.of_lane(lane)
        at = mine.start + np.searchsorted(self.start[mine], moment) - 1
        inside = at >= mine.start
        inside[inside] = self.end[at[inside]] >= moment[inside]
        found: IntArray = np.where(inside, at, -1)
        return found

    @property
    def rank(self) -> IntArray:
        """Rank of each activity; -1 where its lane has none."""
        of_lane = np.array([-1 if rank is None else rank for rank, _ in self.lanes] or [-1], np.int64)
        ranks: IntArray = of_lane[self.lane]
        return ranks

    def observed(self) -> EventGraph:
        """Return the graph without its inferred edges (`--no-inferred`)."""
        kept = self.edges.evidence != EVIDENCE.index(INFERRED)
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return EventGraph(**{**columns, "edges": self.edges.where(kept)})
