# SPDX-License-Identifier: Apache-2.0
"""Collectives in the event graph: who waited for whom, and what communication itself took.

A member that waits does so until the last of the others has issued the collective: there the walk goes on, in
the main lane of that rank. What blocks its caller is in the main lane, in its two parts. What runs beside
gets a lane ``comm``: a group of ranks does one collective after the other, so each begins when it is issued
or when the one before is through, waits for the last to arrive, and then is transfer. The thread that waits
for it waits for its end. Collectives of other groups, and those that are through before an earlier one of
their own, run beside these: they have lanes ``comm-1``, ``comm-2``, ... of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.draft import Draft, numbers_of
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, PROGRAM, Edges
from grademl_otel.analyzers.graph.path import KINDS, TRANSFER, WAIT
from grademl_otel.analyzers.graph.runs.activities import Activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.collectives import Collectives
from grademl_otel.analyzers.model.facts import Run

_WAIT, _TRANSFER = KINDS.index(WAIT), KINDS.index(TRANSFER)
_MOST_ARRIVALS: Final = 8
"""Of the members of a collective, the last so many to come are what the others wait for."""
_MOST_SIDE_BY_SIDE: Final = 16
"""Lanes of one group and rank; what is beside so many others is left out."""


def add_collectives(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add lanes and edges of collectives; ``main`` are the numbers of the pieces of the main lanes."""
    ones, pieces = found.collectives, np.flatnonzero(found.main.one >= 0)
    if not len(ones):
        return
    one, name = found.main.one[pieces], found.main.name[pieces]
    begin, end, number = found.main.start[pieces], found.main.end[pieces], main[pieces]
    arrivals = _Arrivals.of(run, found, main)
    waits = name == NAMES.index(RANKS_WAIT)
    draft.connect(*arrivals.edges(one[waits], number[waits], end[waits], to_end=True))
    # Who comes last does not wait, but would for the one before it.
    rest = (name == NAMES.index(COLLECTIVE_TRANSFER)) & ~ones.beside[one]
    rest &= ones.last[one] <= ones.issue[one]
    draft.connect(*arrivals.edges(one[rest], number[rest], begin[rest], to_end=False))
    through = _add_beside(draft, run, found, main, arrivals)
    waits = (name == NAMES.index(COLLECTIVE_TRANSFER)) & (through[one] >= 0)
    done = one[waits]
    at = np.minimum(ones.end[done], end[waits])
    draft.connect(Edges.of(COLLECTIVE, through[done], at, number[waits], to_end=True))


@dataclass(frozen=True)
class _Arrivals:
    """Who came to each collective when, and in the middle of what."""

    ones: Collectives
    known: BoolArray
    """Of which collectives the last arrival is known, and all of it by one clock."""
    order: IntArray
    """Arrivals, those of one collective together, the latest last."""
    first: IntArray
    end: IntArray
    """For each collective where in ``order`` its arrivals begin and end."""
    source: IntArray
    """For each arrival the activity in which it was, or at whose end."""

    @classmethod
    def of(cls, run: Run, found: Activities, main: IntArray) -> _Arrivals:
        ones = found.collectives
        order = np.lexsort((-ones.rank, ones.issue, ones.key))
        by_rank = np.lexsort((ones.issue, ones.rank, ones.key))
        again = by_rank[~changes(ones.key[by_rank], ones.rank[by_rank])]
        order = order[~np.isin(order, again)]  # of a key that a rank tells twice, the first is its arrival
        keys = ones.key[order]
        # Ranks that are not looked at have no lanes: of what they came last to, nothing can be followed.
        known = ones.apart & np.isin(ones.arriver, run.ranks)
        known &= ones.clocks.shift(ones.rank) == ones.clocks.shift(np.maximum(ones.arriver, 0))
        source = numbers_of(found.main.at(ones.rank, ones.issue), main)
        first, end = np.searchsorted(keys, ones.key), np.searchsorted(keys, ones.key, "right")
        return cls(ones, known, order, first, end, source)

    def edges(self, one: IntArray, target: IntArray, bound: IntArray, *, to_end: bool) -> Iterator[Edges]:
        """Yield edges to the activities ``target``, each of which waited for the others to come to ``one``.

        That event was at ``bound``. What decides it is the latest; others may, if that one had been earlier.
        """
        ones, target, bound = self.ones, target[self.known[one]], bound[self.known[one]]
        one = one[self.known[one]]
        for back in range(1, _MOST_ARRIVALS + 1):
            place = self.end[one] - back
            there = place >= self.first[one]
            one, target, bound, place = one[there], target[there], bound[there], place[there]
            other = self.order[place]
            # Nobody waits for itself; and where members leave early, not for those that came after that.
            waited = (ones.rank[other] != ones.rank[one]) & (
                (ones.issue[other] <= ones.last[one]) | (ones.rank[other] == ones.arriver[one])
            )
            other, moment = other[waited], np.minimum(ones.issue[other[waited]], bound[waited])
            yield Edges.of(COLLECTIVE, self.source[other], moment, target[waited], to_end=to_end)


def _add_beside(draft: Draft, run: Run, found: Activities, main: IntArray, arrivals: _Arrivals) -> IntArray:
    """Add the lanes ``comm``; return for each collective the activity at whose end it was through, or -1."""
    ones = found.collectives
    queue = _in_turn(draft, ones)
    one, before = queue.one, queue.before
    step: IntArray = np.full(len(one), -1, np.int64)
    inside = np.flatnonzero(ones.row[one] >= 0)
    step[inside] = run.steps.step[ones.row[one[inside]]]
    begin = np.maximum(ones.issue[one], before)
    cut = np.where(ones.apart[one], np.maximum(ones.last[one], begin), begin)
    end = ones.end[one]
    wait = draft.add(
        queue.lane, begin, cut, semconv.COLLECTIVE, WAIT,
        waits=True, step=step, span_ix=ones.span_ix[one],
    )  # fmt: skip
    rest = np.where(ones.apart[one], _TRANSFER, _WAIT)  # what is not told apart counts as waiting
    transfer = draft.add(
        queue.lane, cut, end, semconv.COLLECTIVE, rest, step=step, span_ix=ones.span_ix[one]
    )  # fmt: skip
    source = numbers_of(found.main.at(ones.rank[one], ones.issue[one]), main)
    target = np.where(cut > begin, wait, transfer)
    draft.connect(Edges.of(PROGRAM, source, ones.issue[one], target))
    waited = cut > begin
    draft.connect(*arrivals.edges(one[waited], wait[waited], cut[waited], to_end=True))
    draft.connect(*arrivals.edges(one[~waited], transfer[~waited], cut[~waited], to_end=False))
    # Of several that were through at the same time the first holds all of it.
    own = np.maximum.accumulate(np.where(end > cut, np.arange(len(one)), -1))
    same = own >= 0
    same[same] = (queue.lane[own[same]] == queue.lane[same]) & (end[own[same]] == end[same])
    through: IntArray = np.full(len(ones), -1, np.int64)
    through[one[same]] = transfer[own[same]]
    return through


@dataclass(frozen=True)
class _Queue:
    """Collectives beside the main lanes, sorted by (lane, end), in which each lane does them."""

    one: IntArray
    lane: IntArray
    before: IntArray
    """End of the one before it in its lane; the least number there is for the first."""


def _in_turn(draft: Draft, ones: Collectives) -> _Queue:
    """Return what ran beside, and was seen to be through, lane by lane."""
    left = np.flatnonzero(ones.beside & ones.completed)
    left = left[np.lexsort((ones.end[left], ones.issue[left], ones.group[left], ones.rank[left]))]
    parts: list[tuple[IntArray, IntArray]] = []
    for level in range(_MOST_SIDE_BY_SIDE):
        if not len(left):
            break
        queue = _behind_the_last(ones, left)
        parts.append((left[queue], np.full(int(queue.sum()), level, np.int64)))
        left = left[~queue]
    none = np.zeros(0, np.int64)
    one = np.concatenate([none, *(part for part, _ in parts)])
    levels = np.concatenate([none, *(part for _, part in parts)])
    order = np.lexsort((ones.issue[one], ones.end[one], levels, ones.group[one], ones.rank[one]))
    one, levels = one[order], levels[order]
    begins = changes(ones.rank[one], ones.group[one], levels)
    lane = _named(draft, ones.rank[one], ones.issue[one], levels, np.flatnonzero(begins))[
        np.cumsum(begins) - 1
    ]
    before = np.full(len(one), np.iinfo(np.int64).min, np.int64)
    before[1:] = np.where(begins[1:], before[1:], ones.end[one[:-1]])
    return _Queue(one, lane, before)


def _behind_the_last(ones: Collectives, some: IntArray) -> BoolArray:
    """Return which of ``some``, by (rank, group, issue), are through no earlier than all before them."""
    begins = np.flatnonzero(changes(ones.rank[some], ones.group[some]))
    queue = np.zeros(len(some), np.bool_)
    for low, high in zip(begins.tolist(), [*begins[1:].tolist(), len(some)], strict=True):
        end = ones.end[some[low:high]]
        queue[low:high] = end >= np.maximum.accumulate(end)
    return queue


def _named(draft: Draft, rank: IntArray, issue: IntArray, level: IntArray, first: IntArray) -> IntArray:
    """Return the lanes of the groups and levels that begin at ``first``: by rank, numbered as they began."""
    order = np.lexsort((issue[first], level[first], rank[first]))
    lanes = np.empty(len(first), np.int64)
    number, last = 0, None
    for at in order.tolist():
        mine = int(rank[first[at]])
        number, last = (number + 1, last) if mine == last else (0, mine)
        lanes[at] = draft.lane(mine, f"comm-{number}" if number else "comm")
    return lanes
