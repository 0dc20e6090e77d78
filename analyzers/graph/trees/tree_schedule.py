# SPDX-License-Identifier: Apache-2.0
"""A span tree as a schedule: what the start and the end of each span waited for, by the rule of the walk.

Every span is a lane. It waits for its children one after the other, in the order in which they end; what it
takes after the last is its own. A child starts some time after the last of its siblings that ended before,
or after the start of its parent: that time is the parent's own, too, and an activity beside its lane. So each
section of the path is one activity, and the path is what the walk finds.

Only for trees that times alone decide: no lanes, no links that block, no siblings that were cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import CHILD, Edges, EventGraph
from grademl_otel.analyzers.graph.path import KINDS, WORK, Path
from grademl_otel.analyzers.graph.schedule import Schedule
from grademl_otel.analyzers.graph.trees.doubling import narrowed
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER, SpanColumns


@dataclass(frozen=True)
class Members:
    """The spans of a tree that may be on its path, the root first, and the window of each."""

    ix: IntArray
    """Index into the columns."""
    up: IntArray
    """Place of the parent; of the root itself."""
    lo: IntArray
    hi: IntArray

    @classmethod
    def of(cls, spans: SpanColumns, root: int) -> Members:
        """Return those under span ``root``, clipped to all that is above them; none is empty."""
        ix = np.flatnonzero(spans.trace_ix == spans.trace_ix[root])
        place = np.full(len(spans) + 1, -1, np.int64)
        place[ix] = np.arange(len(ix))
        up = place[np.maximum(spans.parent_ix[ix], -1)]
        up = np.where(up < 0, np.arange(len(ix)), up)
        up[place[root]] = place[root]
        start, end, kind = spans.start[ix], spans.end[ix], spans.kind[ix]
        absent = (end < start) | ((kind == KIND_CONSUMER) & (kind[up] == KIND_PRODUCER))
        absent[place[root]] = False
        far = np.iinfo(np.int64)
        top, lo, hi = narrowed(up, np.where(absent, far.max, start), np.where(absent, far.min, end))
        kept = np.flatnonzero((top == place[root]) & (lo < hi))
        kept = np.concatenate([kept[ix[kept] == root], kept[ix[kept] != root]])
        number = np.full(len(ix), -1, np.int64)
        number[kept] = np.arange(len(kept))
        return cls(ix[kept], number[up[kept]], lo[kept], hi[kept])

    def __len__(self) -> int:
        return len(self.ix)


@dataclass(frozen=True)
class TreeSchedule:
    """The schedule of one tree, and what in it belongs to which span."""

    schedule: Schedule
    members: Members
    owner: IntArray
    """For each activity the place of its span among the members."""
    of_section: IntArray
    """For each section of the path its activity."""
    last: IntArray
    """For each member the activity with which it ends."""

    @classmethod
    def of(cls, spans: SpanColumns, root: int, path: Path) -> TreeSchedule | None:
        """Return the schedule of the tree of ``path``; None where more than times decided that."""
        members = Members.of(spans, root)
        if not len(members) or path.overlap_ns:
            return None
        graph, owner, own, last = _graph(members)
        place = np.full(len(spans), -1, np.int64)
        place[members.ix] = np.arange(len(members))
        sections = path.sections
        span = np.where(sections.span_ix >= 0, place[sections.span_ix], -1)
        of_section = _lookup(owner[own], graph.end[own], span, sections.end)
        found = own[of_section]
        if (of_section < 0).any() or (graph.start[found] != sections.start).any():
            return None
        schedule = Schedule.of(graph, path.start, path.end)
        return cls(schedule, members, owner, found, last)

    def slack(self) -> IntArray:
        """Return how much later each member may end without moving the end of the root, in ns."""
        slack: IntArray = self.schedule.slack()[self.last]
        return slack

    def drag(self, members: BoolArray, sections: IntArray, ns: IntArray) -> int:
        """Return how much earlier the root would end if some things took less time.

        These are ``sections`` of the path, each so many ``ns`` less, and what is off it, all of ``members``.
        """
        off = members[self.owner]
        off[self.of_section] = False
        lengths = np.where(off, 0, self.schedule.lengths)
        np.subtract.at(lengths, self.of_section[sections], ns)
        return self.schedule.sooner(lengths)


def _graph(members: Members) -> tuple[EventGraph, IntArray, IntArray, IntArray]:
    """Return the event graph, the span of each activity, the activities that are a span's own, the last ones.

    Activities come by lane: first the pieces of each span between the ends of its children, then the times
    between a span's doing and its children's starts, a lane each.
    """
    lo, hi, count = members.lo, members.hi, len(members)
    child = np.arange(1, count)
    parent = members.up[child]
    # Pieces: a span waits for its children to end, and ends itself.
    owner, end = np.unique(np.stack([np.append(parent, np.arange(count)), np.append(hi[child], hi)]), axis=1)
    start = np.append(np.zeros(1, np.int64), end[:-1])
    begins = np.append(True, owner[1:] != owner[:-1])
    start[begins] = lo
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(owner)) - 1
    ended = _lookup(owner, end, parent, hi[child])  # the piece that the end of each child ends
    waits = np.zeros(len(owner), bool)
    waits[ended] = True
    # Before a child: since the last piece of its parent that ended by then.
    keys, ranks = _ranked(owner, end, parent, lo[child])
    before = np.searchsorted(keys, ranks, side="right") - 1
    none = (before < 0) | (owner[before] != parent)
    moment = np.where(none, lo[parent], end[before])
    source = np.where(none, first[parent], before)
    waited = np.flatnonzero(moment < lo[child])
    gaps, which = np.unique(np.stack([parent[waited], lo[child[waited]]]), axis=1, return_inverse=True)
    gap = len(owner) + which.reshape(-1)
    opened = np.full(gaps.shape[1], 0, np.int64)
    opened[gap - len(owner)] = waited
    begun = source.copy()
    begun[waited] = gap
    edges = Edges.join(
        [
            Edges.of(CHILD, last[child], hi[child], ended, to_end=True),
            Edges.of(CHILD, begun, np.where(moment < lo[child], lo[child], moment), first[child]),
            Edges.of(CHILD, source[opened], moment[opened], len(owner) + np.arange(len(opened))),
        ]
    )
    owners = np.concatenate([owner, gaps[0]])
    total = len(owners)
    graph = EventGraph(
        lane=np.concatenate([owner, count + np.arange(len(opened))]),
        start=np.concatenate([start, moment[opened]]),
        end=np.concatenate([end, gaps[1]]),
        phase=np.zeros(total, np.int64),
        kind=np.full(total, KINDS.index(WORK)),
        waits=np.append(waits, np.zeros(len(opened), bool)),
        step=np.full(total, -1),
        item=np.full(total, -1),
        span_ix=members.ix[owners],
        holder=np.full(total, -1),
        inferred=np.zeros(total, bool),
        phases=[""],
        lanes=[],
        items=[],
        edges=edges,
    )
    return graph, owners, np.flatnonzero(~graph.waits), last


def _ranked(owner: IntArray, end: IntArray, some: IntArray, moment: IntArray) -> tuple[IntArray, IntArray]:
    """Return (owner, end) and (some, moment) as numbers that sort alike."""
    times = np.unique(np.concatenate([end, moment]))
    keys: IntArray = owner * len(times) + np.searchsorted(times, end)
    others: IntArray = some * len(times) + np.searchsorted(times, moment)
    return keys, others


def _lookup(owner: IntArray, end: IntArray, some: IntArray, moment: IntArray) -> IntArray:
    """Return where each (some, moment) stands among the distinct (owner, end); -1 where nowhere."""
    keys, wanted = _ranked(owner, end, some, moment)
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found: IntArray = np.where(keys[order[at]] == wanted, order[at], -1)
    return found
