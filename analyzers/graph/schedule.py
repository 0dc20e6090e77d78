# SPDX-License-Identifier: Apache-2.0
"""The event graph as a schedule: when everything would happen if some activities took longer or shorter.

Every event, the start or the end of an activity or a moment of it that others waited for, comes as soon as
all that it waits for has come, each by its *lag* later:

* within an activity the lag is its length, or the part of it between two moments;
* of what a start waited for, the latest bound it: that keeps the time between the two as its lag, and so do
  all others of the same instant; the rest may come as late as the start itself (lag 0);
* the end of a wait is bound by the latest of its edges that came after it began; the wait's *own* length is
  what it took after that, its takeover, and it takes that again after whatever comes last, its start among
  it. A wait that no edge explains has nothing else to go by: all of its length is its own. What an edge tells
  of an end holds for the moments after it, too, whatever the activity is;
* an event that waited for nothing known stays where it was.

So waits are outcomes, never inputs, and with the lengths as observed every event comes exactly when it did.
Slack and drag are those of the critical path method (Kelley and Walker, 1959; Devaux, 1999), in integers and
in one pass over the events that waited for more than the one before them. Neither says what a change gains:
a shorter activity moves no bound of a queue, and no choice that was made by who came first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.moments import Events, possible, window

MOST_JOINS: Final = 300_000
"""Constraints up to which a summary asks for slack and drag, see `Schedule.joins`: about 0.1 s a pass."""

_FAR: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Plan:
    """The forward pass without its lags, as rows that each come after the later of two; row 0 is time 0.

    A head that waits for more than two things has several rows, the last of which is its own.
    """

    first: list[int]
    """Row that each is told from; so is ``second``."""
    second: list[int]
    row: IntArray
    """Of each head."""
    lag: IntArray
    """Places of the lags of ``first``, then of ``second``, among `Schedule._every`, then 0, then the times of
    heads that wait for nothing."""
    fixed: IntArray
    """That 0, and those times."""

    def times(self, lags: IntArray) -> IntArray:
        """Return when each head comes."""
        every = np.concatenate([lags, self.fixed])[self.lag]
        ones, others = every[: len(self.first)].tolist(), every[len(self.first) :].tolist()
        came = [0]
        comes = came.append
        for at, lag, other, beside in zip(self.first, ones, self.second, others, strict=True):
            one, two = came[at] + lag, came[other] + beside
            comes(one if one > two else two)
        times: IntArray = np.array(came, np.int64)[self.row]
        return times


@dataclass(frozen=True)
class Schedule:
    """Constraints between the events of a graph; see the module. All times in ns."""

    graph: EventGraph
    """Of the window: activities cut to it, without those outside; only edges that do not contradict times."""
    kept: IntArray
    """For each of its activities the place in the graph that it was made of."""
    lengths: IntArray
    """Of each activity what is its own: after the latest edge that its end waited for, else all of it."""
    unexplained: BoolArray
    """Waits that no edge explains: their length is kept, as nothing tells what it depends on."""
    _events: Events
    _since: IntArray
    """For each event the time since the latest edge to the end of its activity, else since its start."""
    _tail: BoolArray
    """Whether that is part of the activity's own length, and not of the time before a later edge."""
    _before: IntArray
    """For each start the lag after the end before it in the lane, -1 where there is none; else 0."""
    _lag: IntArray
    """Of each edge to a start."""
    _heads: IntArray
    """Events that wait for something in another lane, or for nothing, in an order in which they can come."""
    _base: IntArray
    """For each event the number in ``_heads`` of the last one at or before it in its lane."""

    @classmethod
    def of(cls, graph: EventGraph, low: int, high: int) -> Schedule:
        """Return the schedule of ``graph`` in ``[low, high)``; edges that contradict times do not count."""
        graph, kept = window(graph, low, high)
        graph, events, level = possible(graph, Events.of(graph))
        edges, time = graph.edges, events.time
        came = time[events.source]

        # Of an end, or a moment: the latest edge to it that came after the start.
        explains = edges.to_end & (came > graph.start[edges.target])
        latest = np.full(len(time), -_FAR, np.int64)
        latest[events.first] = graph.start
        np.maximum.at(latest, events.target[explains], came[explains])
        latest = _latest_within(latest, events)
        since = time - latest
        lengths = since[events.last]
        tail = latest == latest[events.last][events.activity]
        explained = np.zeros(len(graph), bool)
        explained[edges.target[explains]] = True

        # Of a start: the latest of its edges and the end before it binds.
        follows = np.zeros(len(graph), bool)
        follows[1:] = graph.lane[1:] == graph.lane[:-1]
        ended = np.where(follows, np.roll(graph.end, 1), -_FAR)
        bound = ended.copy()
        starts = ~edges.to_end
        np.maximum.at(bound, edges.target[starts], came[starts])
        lag = np.where(starts & (came == bound[edges.target]), time[events.target] - came, 0)
        before = np.zeros(len(time), np.int64)
        before[events.first] = np.where(follows, np.where(ended == bound, graph.start - ended, 0), -1)

        is_head = before < 0
        is_head[events.target] = True
        number = np.cumsum(is_head) - 1
        heads = np.flatnonzero(is_head)
        order = np.lexsort((level[heads], time[heads]))
        place = np.empty(len(heads), np.int64)
        place[order] = np.arange(len(heads))
        return cls(
            graph, kept, lengths, graph.waits & ~explained, events, since, tail, before, lag,
            heads[order], place[number],
        )  # fmt: skip

    @property
    def end(self) -> int:
        """When the last activity ended; 0 without any."""
        return int(self.graph.end.max()) if len(self.graph) else 0

    @property
    def joins(self) -> int:
        """How many constraints are more than the order within a lane: what a pass costs."""
        return len(self._heads) + len(self.graph.edges)

    def forward(self, lengths: IntArray | None = None) -> IntArray:
        """Return when each activity ends, with these ``lengths``; by default exactly when it did."""
        entry, since = self._entries(lengths)
        offset = self._offsets(entry)
        source, _, lag = self._every(entry, since)
        ends: IntArray = (self._plan.times(offset[source] + lag)[self._base] + offset)[self._events.last]
        return ends

    def slack(self) -> IntArray:
        """Return how much later each activity may end without moving the end of the whole, in ns.

        So may the moments of it that others wait for. 0 on the critical path. All else stays as it was: the
        slack of two activities is not theirs together.
        """
        events, heads, time = self._events, self._heads, self._events.time
        if not len(self.graph):
            return self.lengths
        source, target, lag = self._every(*self._entries(None))
        spare = time[target] - time[source] - lag
        number = self._number()[target]
        closes = events.last[np.append(self.graph.lane[1:] != self.graph.lane[:-1], True)]
        final = np.full(len(heads), _FAR, np.int64)
        np.minimum.at(final, self._base[closes], self.end - time[closes])
        order = np.argsort(self._base[source], kind="stable")
        limits = np.searchsorted(self._base[source][order], np.arange(len(heads) + 1)).tolist()
        after, spares, slack = number[order].tolist(), spare[order].tolist(), final.tolist()
        for head in range(len(heads) - 1, -1, -1):
            least = slack[head]
            for at in range(limits[head], limits[head + 1]):
                here = slack[after[at]] + spares[at]
                if here < least:
                    least = here
            slack[head] = least
        # Of one event: the least of what leaves there, or later before the next head of the lane.
        leaves = np.full(len(time), _FAR, np.int64)
        leaves[closes] = self.end - time[closes]
        np.minimum.at(leaves, source, np.array(slack, np.int64)[number] + spare)
        every = _least_ahead(leaves, self._base)
        every[events.first] = _FAR  # a start does not depend on how long its activity takes
        least_of: IntArray = np.minimum.reduceat(every, events.first)
        return least_of

    def drag(self, mask: BoolArray) -> int:
        """Return how much earlier the whole would end if the activities of ``mask`` took no time, in ns."""
        return self.sooner(np.where(mask, 0, self.lengths))

    def sooner(self, lengths: IntArray) -> int:
        """Return how much earlier the whole would end with these ``lengths``; below 0: later."""
        return self.end - int(self.forward(lengths).max()) if len(self.graph) else 0

    def _entries(self, lengths: IntArray | None) -> tuple[IntArray, IntArray]:
        """Return for each event, with ``lengths``, the lag after the one before it, and `_since`."""
        events, since = self._events, self._since
        if lengths is not None and (changed := lengths != self.lengths).any():
            scaled = np.flatnonzero(changed[events.activity] & self._tail & (since > 0))
            of = events.activity[scaled]
            passed, long, full = since[scaled], lengths[of], self.lengths[of]
            if int(passed.max(initial=0)) * int(long.max(initial=0)) > _FAR:
                passed, long, full = (part.astype(object) for part in (passed, long, full))
            since = since.copy()
            since[scaled] = passed * long // full
        entry = np.zeros(len(events.time), np.int64)
        entry[1:] = since[1:] - since[:-1]
        edges = self.graph.edges
        ended = events.target[edges.to_end & (edges.at > self.graph.start[edges.target])]
        entry[ended] = since[ended]
        entry[events.first] = np.maximum(self._before[events.first], 0)
        return entry, since

    def _offsets(self, entry: IntArray) -> IntArray:
        """Return for each event the time since the last head at or before it in its lane."""
        summed = np.cumsum(entry)
        offset: IntArray = summed - summed[self._heads[self._base]]
        return offset

    def _every(self, entry: IntArray, since: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return all that heads wait for: (event, the head, lag), from what `_entries` returns."""
        events = self._events
        follow = self._heads[self._before[self._heads] >= 0]
        lag = np.where(self.graph.edges.to_end, since[events.target], self._lag)
        return (
            np.concatenate([events.source, follow - 1]),
            np.concatenate([events.target, follow]),
            np.concatenate([lag, entry[follow]]),
        )

    @cached_property
    def _plan(self) -> _Plan:
        source, target, _ = self._every(*self._entries(None))
        number, heads = self._number()[target], len(self._heads)
        order = np.argsort(number, kind="stable")
        waits = np.bincount(number, minlength=heads)
        begins = np.cumsum(waits) - waits
        rows = np.maximum(waits - 1, 1)
        row = np.cumsum(rows)
        head = np.repeat(np.arange(heads), rows)
        within = np.arange(len(head)) - (row - rows)[head]
        some = waits[head] > 0
        # Of what a head waits for: the first two, then one by one beside what came of those before.
        later = within > 0
        one = np.minimum(begins[head], max(0, len(order) - 1))
        two = np.minimum(one + within + (waits[head] > 1), max(0, len(order) - 1))
        told_from = np.append(row[self._base[source[order]]], 0)
        places, zero = np.append(order, 0), len(order)
        still = zero + 1 + head
        lag = (
            np.where(some, np.where(later, zero, places[one]), still),
            np.where(some, places[two], still),
        )
        return _Plan(
            first=np.where(some, np.where(later, np.arange(len(head)), told_from[one]), 0).tolist(),
            second=np.where(some, told_from[two], 0).tolist(),
            row=row,
            lag=np.concatenate(lag),
            fixed=np.append(0, self._events.time[self._heads]),
        )

    def _number(self) -> IntArray:
        """Return for each event its place in ``_heads``; -1 where it is none."""
        number = np.full(len(self._events.time), -1, np.int64)
        number[self._heads] = np.arange(len(self._heads))
        return number


def _latest_within(latest: IntArray, events: Events) -> IntArray:
    """Return the running maximum of ``latest`` within each activity; at its start stands its start."""
    known, rank = np.unique(latest, return_inverse=True)
    shifted = rank.reshape(-1) + events.activity * len(known)
    running: IntArray = known[np.maximum.accumulate(shifted) - events.activity * len(known)]
    return running


def _least_ahead(values: IntArray, block: IntArray) -> IntArray:
    """Return for each place the least of ``values`` from there to the end of its run of equal ``block``."""
    known, rank = np.unique(values, return_inverse=True)
    rank = rank.reshape(-1)[::-1]
    runs = np.zeros(len(block), np.int64)
    runs[1:] = block[::-1][1:] != block[::-1][:-1]
    shifted = rank - np.cumsum(runs) * (len(known) + 1)
    least: IntArray = known[(np.minimum.accumulate(shifted) + np.cumsum(runs) * (len(known) + 1))[::-1]]
    return least
