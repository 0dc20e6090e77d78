# SPDX-License-Identifier: Apache-2.0
"""Edges that nobody recorded, learned from steps that repeat.

A program that hands work from one thread to another through a queue of its own leaves no trace of that but
times. Where the same happens in every step, times are enough: p -> s is an edge when, over the steps,

* both occur in 20 of them or more, s in the step of p or in the next one;
* s never comes before p has ended (by more than the clocks may be off);
* p decides: of all that could be waited for, and of what s' own lane did before, p ends last in 20 steps or
  more, and in 95 % of these s follows within 1 % of a step, or 100 us;
* it *varies*: where p takes longer, s comes later by as much (slope 0.8 to 1.2, known to 0.1). What only
  runs in a fixed order keeps its distance without any dependency, and what starts both of them moves both:
  so times are counted from the start of p, and what never varies proves nothing.

What is looked for is the end of a wait, or the start of something after a hole in its lane, that no recorded
edge explains. A wait ends when something else allows it: it is no cause itself. The slope is that of Tukey's
resistant line (Exploratory Data Analysis, 1977), so that a few pauses of the whole host are no proof either.
The confidence of an edge is the lower bound of Wilson's 95 % interval for how often s followed.

What this cannot tell: two that wait for the same third, of which nothing was recorded, look as if one of them
waited for the other. So edges that are learned are never evidence for a critical finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import LEARNED, Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.estimates import resistant_slope, wilson
from grademl_otel.analyzers.graph.inferences.recurring import Recurring
from grademl_otel.analyzers.graph.path import INFERRED, KINDS, TRANSFER, UNEXPLAINED, WORK

FEWEST: Final = 20
"""Occurrences, and steps in which the source ends last, without which nothing is learned."""
_FOLLOWS: Final = 0.95
_SOON_SHARE: Final = 0.01
_SOON_NS: Final = 100_000
"""How soon the target must follow: within this part of a step, or this time, whichever is longer."""
_SLOPES: Final = (0.8, 1.2)
_SURE: Final = 0.1
"""Standard error of the slope, at most."""
_MOST_STEPS: Final = 1_024
"""Steps that are learned from, evenly spread; what is learned is held against all of them."""
_MOST_SOURCES: Final = 256
"""Types of sources that are looked at for one target: those of its rank first, then the commonest."""
_MOST_TARGETS: Final = 64
"""Types of targets, the commonest."""
_NEVER: Final = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class Learned:
    """What repeated steps tell of their dependencies."""

    edges: Edges
    left_out: int
    """Types of targets that were not looked at as there are too many, or of sources for one of them."""


def learned_edges(graph: EventGraph, error_ns: int = 0, clock: IntArray | None = None) -> Edges:
    """Return the edges that the steps of ``graph`` show; clocks of its lanes may be ``error_ns`` apart.

    ``clock`` has a number for each lane, equal for those whose times can be compared; by default all can.
    """
    return learn(graph, error_ns, clock).edges


def learn(graph: EventGraph, error_ns: int = 0, clock: IntArray | None = None) -> Learned:
    """Return the same, with how much was left out. Sources and targets lie in different lanes."""
    unexplained = _Unexplained.of(graph)
    found = Recurring.of(graph) if unexplained.enough else None
    if found is None:
        return Learned(Edges.join([]), 0)
    sources = _sources(graph, found)
    events = list(unexplained.targets(graph, found))
    events.sort(key=lambda one: -len(one.at))  # stable: of equally many, those that come first by name
    soon = max(_SOON_NS, round(_SOON_SHARE * found.length_ns))
    clock = np.zeros(len(graph.lanes), np.int64) if clock is None else clock
    rank = np.array([-1 if one is None else one for one, _ in graph.lanes] or [-1], np.int64)
    edges: list[Edges] = []
    left_out = max(0, len(events) - _MOST_TARGETS)
    for target in events[:_MOST_TARGETS]:
        lane = found.lane_of[sources]
        others = sources[(lane != target.lane) & (clock[lane] == clock[target.lane])]
        near = np.argsort(rank[found.lane_of[others]] != rank[target.lane], kind="stable")
        left_out = max(left_out, len(others) - _MOST_SOURCES)
        edges += _edges_to(found, np.sort(others[near[:_MOST_SOURCES]]), target, error_ns, soon)
    return Learned(Edges.join(edges), left_out)


def _sources(graph: EventGraph, found: Recurring) -> IntArray:
    """Return the types that end by themselves in `FEWEST` steps, the commonest first.

    Waits do not, and where something was whose place is not known says nothing.
    """
    works = np.isin(graph.kind, [KINDS.index(WORK), KINDS.index(TRANSFER)])
    own = (works & ~graph.waits & ~graph.inferred)[found.last]
    count = np.bincount(found.type[own], minlength=len(found.lane_of))
    known = np.flatnonzero(count >= FEWEST)
    return known[np.argsort(-count[known], kind="stable")]


# --- What nothing explains --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """The events of one type that are to be explained, one per step."""

    type: int
    lane: int
    to_end: bool
    activity: IntArray
    step: IntArray
    at: IntArray
    """When it happened."""
    ready: IntArray
    """Since when nothing in its own lane stood against it."""

    def take(self, chosen: IntArray | BoolArray) -> _Target:
        return _Target(
            self.type, self.lane, self.to_end,
            self.activity[chosen], self.step[chosen], self.at[chosen], self.ready[chosen],
        )  # fmt: skip


@dataclass(frozen=True)
class _Unexplained:
    """The events of steps that no edge explains and that something must."""

    starts: BoolArray
    """Of each activity: whether it begins after a hole in its lane."""
    ends: BoolArray
    """Whether it is a wait."""
    before: IntArray
    """End of the activity before it in its lane."""

    @classmethod
    def of(cls, graph: EventGraph) -> _Unexplained:
        explained = np.zeros((2, len(graph)), np.bool_)
        explained[graph.edges.to_end.astype(np.int64), graph.edges.target] = True
        named = np.array(["wait" in name.replace("_", ".").split(".") for name in graph.phases] or [False])
        waiting = graph.waits & (graph.kind != KINDS.index(TRANSFER))
        waiting |= (graph.kind == KINDS.index(UNEXPLAINED)) | named[graph.phase]
        before = np.full(len(graph), _NEVER, np.int64)
        same = graph.lane[1:] == graph.lane[:-1]
        before[1:][same] = graph.end[:-1][same]
        inside = graph.step >= 0
        after_hole = inside & (graph.start > before) & ~explained[0]
        return cls(after_hole, inside & waiting & ~explained[1], before)

    @property
    def enough(self) -> bool:
        """Whether there are so many that anything could be learned."""
        return bool(max(np.count_nonzero(self.starts), np.count_nonzero(self.ends)) >= FEWEST)

    def targets(self, graph: EventGraph, found: Recurring) -> Iterator[_Target]:
        """Yield those that recur."""
        ends, starts = self.ends[found.last], self.starts[found.first]
        bounds = np.searchsorted(found.type, np.arange(len(found.lane_of) + 1))
        for kind, lane in enumerate(found.lane_of.tolist()):
            mine = np.arange(bounds[kind], bounds[kind + 1])
            for to_end, wanted in ((False, starts), (True, ends)):
                at = mine[wanted[mine]]
                if len(at) < FEWEST:
                    continue
                activity = found.last[at] if to_end else found.first[at]
                time = graph.end[activity] if to_end else graph.start[activity]
                ready = found.start[at] if to_end else self.before[activity]
                yield _Target(kind, lane, to_end, activity, found.step[at], time, ready)


# --- What explains it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidates:
    """What may explain a target: types of this step or of the one before, as matrices [candidate, step]."""

    type: IntArray
    before: BoolArray
    start: IntArray
    end: IntArray
    """`_NEVER` where there is none."""

    @classmethod
    def of(cls, found: Recurring, types: IntArray, target: _Target) -> _Candidates:
        previous = np.where(found.follows[target.step], target.step - 1, -1)
        at = np.concatenate([found.find(types, target.step), found.find(types, previous)])
        return cls(
            np.concatenate([types, types]),
            np.repeat([False, True], len(types)),
            np.where(at >= 0, found.start[at], _NEVER),
            np.where(at >= 0, found.end[at], _NEVER),
        )

    def where(self, mask: BoolArray) -> _Candidates:
        return _Candidates(self.type[mask], self.before[mask], self.start[mask], self.end[mask])


def _edges_to(
    found: Recurring, types: IntArray, target: _Target, error_ns: int, soon: int
) -> Iterator[Edges]:
    """Yield the edges to ``target``, those from each type of source together."""
    spread = np.linspace(0, len(target.at) - 1, min(len(target.at), _MOST_STEPS)).astype(np.int64)
    sample = target.take(np.unique(spread))
    left = _Candidates.of(found, types, sample)
    left = left.where(_never_late(left, sample, error_ns))
    while len(left.type):
        binding = _binding(left, sample)
        decide = np.unique(binding[binding >= 0])
        fits = np.zeros(len(left.type))
        fits[decide] = [_confidence(left, sample, row, binding == row, soon) for row in decide.tolist()]
        # One that decides and does not fit hides those that end before it.
        hides = np.isin(np.arange(len(fits)), decide) & (fits == 0)
        if not hides.any():
            break
        left = left.where(~hides)
    else:
        return
    for row in np.flatnonzero(fits > 0).tolist():
        every = _Candidates.of(found, left.type[row : row + 1], target)
        every = every.where(every.before == left.before[row])
        if not _never_late(every, target, error_ns).all():
            continue
        previous = np.where(found.follows[target.step], target.step - 1, -1)
        at = found.find(every.type, previous if left.before[row] else target.step)[0]
        # Where more time went by, something else was waited for as well.
        stands = (at >= 0) & (target.at - np.maximum(every.end[0], target.ready) <= soon)
        stands &= found.start[at] <= target.at
        yield Edges.of(
            LEARNED,
            found.last[at[stands]],
            np.minimum(every.end[0], target.at)[stands],
            target.activity[stands],
            to_end=target.to_end,
            evidence=INFERRED,
            confidence=float(fits[row]),
        )


def _never_late(of: _Candidates, target: _Target, error_ns: int) -> BoolArray:
    """Return which candidates occur in enough steps and always end before the target."""
    known = of.end > _NEVER
    enough: BoolArray = known.sum(axis=1) >= FEWEST
    return enough & ((target.at >= of.end - error_ns) | ~known).all(axis=1)


def _binding(of: _Candidates, target: _Target) -> IntArray:
    """Return for each step the candidate that ends last; -1 where the target's own lane was busy longer."""
    latest: IntArray = of.end.argmax(axis=0)
    return np.where(of.end.max(axis=0) > target.ready, latest, -1)


def _confidence(of: _Candidates, target: _Target, row: int, binds: BoolArray, soon: int) -> float:
    """Return how sure it is that ``target`` waits for candidate ``row``, which ``binds``; 0 if not at all."""
    count = int(np.count_nonzero(binds))
    follows = binds & (target.at - of.end[row] <= soon)
    close = int(np.count_nonzero(follows))
    if count < FEWEST or close < _FOLLOWS * count:
        return 0.0
    length = (of.end[row] - of.start[row])[follows].astype(np.float64)
    later = (target.at - of.start[row])[follows].astype(np.float64)
    slope, error = resistant_slope(length, later)
    return wilson(close, count) if _SLOPES[0] <= slope <= _SLOPES[1] and error <= _SURE else 0.0
