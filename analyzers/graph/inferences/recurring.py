# SPDX-License-Identifier: Apache-2.0
"""What happens again in every step, lined up: the n-th activity of a phase in a lane, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.model.arrays import changes


@dataclass(frozen=True)
class Recurring:
    """What happens again and again, one element per type and step, sorted by these.

    A type is what comes in one lane, in one phase, as the n-th of a step; types are in the order of the
    names of lanes and phases, so that the order of arrays decides nothing. Pieces of one activity are one.
    """

    type: IntArray
    step: IntArray
    """Place of the step among all steps."""
    first: IntArray
    last: IntArray
    """The first and the last activity of it."""
    start: IntArray
    end: IntArray
    lane_of: IntArray
    """Of each type."""
    follows: BoolArray
    """Whether each step comes right after the one before it."""
    length_ns: int
    """Of a step: the median of how long main lanes are in it, or where there are none all lanes."""

    @classmethod
    def of(cls, graph: EventGraph) -> Recurring | None:
        """Return those of ``graph``; None where it has no steps."""
        inside = np.flatnonzero(graph.step >= 0)
        if not len(inside):
            return None
        numbers, step = np.unique(graph.step[inside], return_inverse=True)
        of_lane, of_phase = _by_name(graph)
        lane, phase = of_lane[graph.lane[inside]], of_phase[graph.phase[inside]]
        alone = np.where(graph.holder[inside] < 0, -1 - inside, graph.holder[inside])
        order = np.lexsort((graph.start[inside], alone, step, phase, lane))
        begins = np.flatnonzero(changes(*(column[order] for column in (lane, phase, step, alone))))
        first, last = order[begins], order[np.append(begins[1:], len(order)) - 1]
        order = np.lexsort((graph.start[inside[first]], step[first], phase[first], lane[first]))
        first, last = first[order], last[order]
        lane, phase, step = lane[first], phase[first], step[first]
        number = np.arange(len(first))
        nth = number - np.maximum.accumulate(np.where(changes(lane, phase, step), number, 0))
        order = np.lexsort((step, nth, phase, lane))
        kind = np.cumsum(changes(lane[order], phase[order], nth[order])) - 1
        first, last = inside[first[order]], inside[last[order]]
        main = np.array([name == "main" for _, name in graph.lanes] or [False])[graph.lane[inside]]
        return cls(
            type=kind,
            step=step[order],
            first=first,
            last=last,
            start=graph.start[first],
            end=graph.end[last],
            lane_of=graph.lane[first[changes(kind)]],
            follows=np.diff(numbers, prepend=numbers[0] - 2) == 1,
            length_ns=_length(graph, inside[main] if main.any() else inside),
        )

    def find(self, types: IntArray, steps: IntArray) -> IntArray:
        """Return a matrix [type, step] of the occurrences; -1 where there is none."""
        count = len(self.follows)
        key = types[:, None] * count + steps[None, :]
        mine = self.type * count + self.step
        at = np.minimum(np.searchsorted(mine, key), len(mine) - 1)
        return np.where((mine[at] == key) & (steps >= 0)[None, :], at, -1)


def _by_name(graph: EventGraph) -> tuple[IntArray, IntArray]:
    """Return for each lane and each phase its place in the order of names."""
    lanes = sorted(range(len(graph.lanes)), key=lambda ix: (_rank(graph.lanes[ix][0]), graph.lanes[ix][1]))
    phases = sorted(range(len(graph.phases)), key=lambda ix: graph.phases[ix])
    of_lane, of_phase = np.zeros(len(lanes), np.int64), np.zeros(len(phases), np.int64)
    of_lane[lanes], of_phase[phases] = np.arange(len(lanes)), np.arange(len(phases))
    return of_lane, of_phase


def _rank(rank: int | None) -> int:
    return -1 if rank is None else rank


def _length(graph: EventGraph, of: IntArray) -> int:
    numbers, step = np.unique(graph.step[of], return_inverse=True)
    least = np.full(len(numbers), np.iinfo(np.int64).max, np.int64)
    most = np.full(len(numbers), np.iinfo(np.int64).min, np.int64)
    np.minimum.at(least, step, graph.start[of])
    np.maximum.at(most, step, graph.end[of])
    return int(np.median(most - least))
