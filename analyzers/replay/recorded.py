# SPDX-License-Identifier: Apache-2.0
"""What was recorded, as phases that can run again; with the durations that they had they run as they did.

What waited for what is what the execution model tells of siblings. What it does not tell must not make a
replay faster than the run could have been, so all that is between keeps its length: the lag of a phase after
the last of what it waited for (after its parent's start, where it waited for nothing), and the tail of a
parent after its last child. Times in which none of a parent's children ran are pieces of its self time: what
came later waited for them, and they for what came before. They grow and shrink with the self time.

What runs beside (in another lane) keeps its place after the start of its parent, which does not wait for it.
Waits for other ranks in a collective end when the last has arrived there, as far as times agree with that;
who ended other waits is not known (`waits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.execution.dependencies import Dependencies
from grademl_otel.analyzers.execution.meetings import Meetings, called
from grademl_otel.analyzers.execution.model import BESIDE, SELF, Phases
from grademl_otel.analyzers.execution.model import DERIVED as FROM_CHILDREN
from grademl_otel.analyzers.execution.model import INFERRED as NO_PLACE
from grademl_otel.analyzers.execution.self_time import Gaps, gaps
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.graph.path import EVIDENCE, INFERRED
from grademl_otel.analyzers.graph.runs.collective_parts import RANKS_WAIT
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.replay.network import Replayed
from grademl_otel.analyzers.replay.phases import DERIVE, NO_MEETING, Limit, PhaseGraph

_WAITS: Final = semconv.WAIT_PHASES | {RANKS_WAIT, semconv.COLLECTIVE}
"""Leaves that are, or hold, waits: a collective without its parts is told apart from nothing."""
_SLACK_NS: Final = 1_000_000
"""By how much a wait may seem to have ended after the last arrival."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """The phases of an execution model that can run again. Times of replays are ns from ``origin``."""

    phases: Phases
    graph: PhaseGraph
    """Of the phases, and behind them the pieces of self time; phases of self time are empty in it."""
    piece_of: IntArray
    """Of each piece, the phase of self time that it is of."""
    piece_ns: IntArray
    origin: int
    """Unix ns."""
    inferred: int
    """How many of the dependencies only times tell, times without any child among them."""
    known: int
    """How many are told."""
    contradicted: int
    """How many phases began before their parent, or what they depend on, allows: they replay later."""

    @cached_property
    def busy(self) -> IntArray:
        """Of each leaf how long it ran, in meetings how long after the last arrival; `DERIVE` for others."""
        took = np.where(self.phases.has(SELF), self.phases.busy, self.phases.duration)
        waits = np.flatnonzero(self.meets)
        took[waits] = self.phases.end[waits] - self._last[self.graph.waits_in[waits]]
        return np.where(self.phases.inner, DERIVE, took)

    @cached_property
    def meets(self) -> BoolArray:
        """Mask of the leaves that are held until the last has arrived at a meeting."""
        mask: BoolArray = self.graph.waits_in[: len(self.phases)] >= 0
        return mask

    @cached_property
    def waits(self) -> BoolArray:
        """Mask of the leaves that wait for nobody knows whom: their length is what others made it."""
        kinds = [kind.name in _WAITS for kind in self.phases.all_kinds]
        named = np.array(kinds or [False], np.bool_)[self.phases.kind]
        mask: BoolArray = named & self.phases.leaves & ~self.meets
        return mask

    @cached_property
    def _last(self) -> IntArray:
        """Of each meeting the last arrival."""
        return _last_arrivals(self.phases, self.graph.arrives_in[: len(self.phases)])

    def replay(
        self, duration: IntArray | None = None, limits: Sequence[Limit] = (), earliest: IntArray | None = None
    ) -> Replayed:
        """Return when each phase runs, with durations (n) or sets of them (n, k), in ns; None: as recorded.

        `DERIVE` is the duration of inner phases that end with their children. Times below a phase with a
        duration are -1. ``earliest`` (n): ns from the origin before which no leaf begins.
        """
        busy = self.busy if duration is None else duration
        count = len(self.phases)
        columns = busy.reshape(count, -1)
        own = self.phases.has(SELF)
        full = np.concatenate([np.where(own[:, None], 0, columns), self._pieces(columns)])
        floor = None
        if earliest is not None:
            floor = np.concatenate([earliest, np.zeros(len(self.piece_of), np.int64)])
        ran = self.graph.replay(full, limits, floor)
        start, end = ran.start[:count], ran.end[:count]
        if len(self.piece_of):
            _cover(start, end, self.piece_of, ran.start[count:], ran.end[count:])
        return Replayed(start.reshape(busy.shape), end.reshape(busy.shape))

    def _pieces(self, columns: IntArray) -> IntArray:
        """Return how long each piece takes: as much of its phase of self time as it had."""
        asked, had = columns[self.piece_of], self.busy[self.piece_of][:, None]
        share = self.piece_ns[:, None] / np.maximum(had, 1)
        return np.where(asked == had, self.piece_ns[:, None], np.rint(asked * share).astype(np.int64))


def _cover(start: IntArray, end: IntArray, of: IntArray, first: IntArray, last: IntArray) -> None:
    """Let each phase that pieces are ``of`` begin with the first of them and end with the last."""
    begins = np.flatnonzero(changes(of))
    which = of[begins]
    start[which] = np.minimum.reduceat(first, begins, axis=0)
    end[which] = np.maximum.reduceat(last, begins, axis=0)


def recorded(model: ExecutionModel, inferred: bool = True) -> Recorded:
    """Return the phases of ``model`` as what can run again.

    Without what is ``inferred`` nothing comes after anything of which nobody told that it did.
    """
    dependencies = model.dependencies if inferred else model.dependencies.observed()
    return _Builder(model.phases, dependencies, model.meetings, inferred).built()


class _Builder:
    def __init__(self, phases: Phases, told: Dependencies, meetings: Meetings, inferred: bool) -> None:
        self.phases, self.told, self.meetings, self.inferred = phases, told, meetings, inferred
        self.parent = phases.parent.astype(np.int64)
        self.start, self.end = phases.start, np.maximum(phases.end, phases.start)
        self.own, self.beside = phases.has(SELF), phases.has(BESIDE)

    def built(self) -> Recorded:
        phases, count = self.phases, len(self.phases)
        pieces, piece_of = self._pieces()
        before, after, evidence = self._dependencies()
        if self.inferred:
            before, after, evidence = self._around_pieces(pieces, before, after, evidence)
        parent = np.concatenate([self.parent, pieces.phase])
        start = np.concatenate([self.start, pieces.start])
        end = np.concatenate([self.end, pieces.end])
        gates = self._gates(parent, end)
        lag, contradicted = _lags(parent, start, end, before, after)
        tail = self._tails(parent, end, gates)
        graph_with = partial(PhaseGraph, parent, before, after, lag=lag, tail=tail, gates=gates)
        none = np.full(len(pieces), NO_MEETING, np.int64)
        waits_in, arrives_in = (np.append(each, none) for each in _meetings(phases, self.meetings))
        graph = graph_with(waits_in=waits_in, arrives_in=arrives_in)
        if (waits_in >= 0).any() and graph.is_circular:
            graph = graph_with()
        guessed = int(np.count_nonzero(evidence == EVIDENCE.index(INFERRED)))
        return Recorded(
            phases=phases,
            graph=graph,
            piece_of=piece_of,
            piece_ns=pieces.end - pieces.start,
            origin=int(phases.start[0]) if count else 0,
            inferred=guessed,
            known=len(evidence) - guessed,
            contradicted=contradicted,
        )

    def _family(self) -> IntArray:
        """Return the children that take time of their parents, those of one together, by start."""
        at = np.flatnonzero((self.parent >= 0) & ~self.own & ~self.beside)
        return at[np.argsort(self.parent[at], kind="stable")]

    def _pieces(self) -> tuple[Gaps, IntArray]:
        """Return the pieces of all self time, and of each its phase."""
        at = np.flatnonzero((self.parent >= 0) & ~self.own)
        of, beside = self.parent[at], self.beside[at]
        # What runs beside takes nothing of its parent: it stands empty at its start.
        start = np.where(beside, self.start[of], self.start[at])
        end = np.where(beside, self.start[of], self.end[at])
        order = np.lexsort((start, of))
        found = gaps(of[order], start[order], end[order], self.start, self.end)
        of_parent = np.full(len(self.phases), -1, np.int64)
        own = np.flatnonzero(self.own)
        of_parent[self.parent[own]] = own
        kept = of_parent[found.phase] >= 0
        found = Gaps(found.phase[kept], found.start[kept], found.end[kept])
        return found, of_parent[found.phase]

    def _dependencies(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return (before, after, evidence) of siblings.

        Sums that have no place are in none that is inferred. In a family of which nothing is told, and in
        which nothing overlaps, they stand in a row with the others: else the others' lag would be as long.
        """
        told, phases = self.told, self.phases
        before, after, evidence = told.source.copy(), told.target.copy(), told.evidence.copy()
        if not self.inferred:
            return before, after, evidence
        guess = EVIDENCE.index(INFERRED)
        at = self._family()
        begins = changes(self.parent[at]) if len(at) else np.zeros(0, np.bool_)
        mixed, sums = np.zeros((2, len(phases)), np.bool_)
        overlaps = np.flatnonzero(~begins[1:] & (self.start[at][1:] < self.end[at][:-1])) + 1
        mixed[self.parent[at[overlaps]]] = True
        sums[self.parent[at[phases.has(NO_PLACE)[at]]]] = True
        mixed[self.parent[after[evidence != guess]]] = True
        rows = sums & ~mixed
        rows[0] = False
        kept = ~rows[self.parent[after]]
        chained = np.flatnonzero(~begins & rows[self.parent[at]])
        return (
            np.concatenate([before[kept], at[chained - 1]]),
            np.concatenate([after[kept], at[chained]]),
            np.concatenate([evidence[kept], np.full(len(chained), guess)]),
        )

    def _around_pieces(
        self, pieces: Gaps, before: IntArray, after: IntArray, evidence: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Let what began after a piece wait for it, and it for what had ended before."""
        count, number = len(self.phases), len(pieces)
        if not number:
            return before, after, evidence
        at = self._family()
        of = self.parent[at]
        begin = np.clip(self.start[at], self.start[of], self.end[of])
        # The last piece of the parent that had ended when a child began; -1 for none.
        who = np.concatenate([pieces.phase, of])
        order = np.lexsort((np.repeat([0, 1], [number, len(at)]), np.concatenate([pieces.end, begin]), who))
        last = np.cumsum(order < number) - 1
        previous = np.full(count, -1, np.int64)
        children = order >= number
        previous[at[order[children] - number]] = last[children]
        wrong = (previous[at] >= 0) & (pieces.phase[np.maximum(previous[at], 0)] != of)
        previous[at[wrong]] = -1
        first_piece = np.searchsorted(pieces.phase, of)
        following = np.where(previous[at] >= 0, previous[at] + 1, first_piece)
        following[following >= number] = -1
        following[(following >= 0) & (pieces.phase[following] != of)] = -1
        next_of = np.full(count, -1, np.int64)
        next_of[at] = following
        # Of siblings in one burst the first wait for the piece, the last are waited for.
        sided = self.beside[before] | self.beside[after]
        within = ~sided & (previous[before] == previous[after])
        implied = ~sided & (previous[before] < previous[after])
        before, after, evidence = before[~implied], after[~implied], evidence[~implied]
        within = within[~implied]
        waits, waited = np.zeros((2, count), np.bool_)
        waits[after[within]] = True
        waited[before[within]] = True
        enter = at[~waits[at] & (previous[at] >= 0)]
        leave = at[~waited[at] & (next_of[at] >= 0)]
        guess = EVIDENCE.index(INFERRED)
        return (
            np.concatenate([before, count + previous[enter], leave]),
            np.concatenate([after, enter, count + next_of[leave]]),
            np.concatenate([evidence, np.full(len(enter) + len(leave), guess)]),
        )

    def _gates(self, parent: IntArray, end: IntArray) -> BoolArray:
        """Return the mask of phases and pieces that their parents wait for."""
        count = len(self.phases)
        above = np.maximum(parent, 0)
        gates = (parent >= 0) & (end <= self.end[above])
        gates[:count] &= ~self.own & ~self.beside
        some = np.zeros(count, np.bool_)
        some[above[gates]] = True
        derived = self.phases.has(FROM_CHILDREN)
        derived[:1] = True
        only_beside = (parent >= 0) & derived[above] & ~some[above]
        only_beside[:count] &= ~self.own
        return gates | only_beside

    def _tails(self, parent: IntArray, end: IntArray, gates: BoolArray) -> IntArray:
        count = len(self.phases)
        last = self.start.copy()
        at = np.flatnonzero(gates)
        np.maximum.at(last, parent[at], end[at])
        return np.concatenate([np.maximum(self.end - last, 0), np.zeros(len(parent) - count, np.int64)])


def _lags(
    parent: IntArray, start: IntArray, end: IntArray, before: IntArray, after: IntArray
) -> tuple[IntArray, int]:
    """Return how long after what it waited for each began, and how many began before that."""
    free = start.copy()
    inner = np.flatnonzero(parent >= 0)
    free[inner] = start[parent[inner]]
    latest = np.full(len(parent), np.iinfo(np.int64).min)
    np.maximum.at(latest, after, end[before])
    free = np.where(latest > np.iinfo(np.int64).min, latest, free)
    return np.maximum(start - free, 0), int(np.count_nonzero(start < free))


def _meetings(phases: Phases, told: Meetings) -> tuple[IntArray, IntArray]:
    """Return the meeting that each phase waits in, and the one that it arrives at; `NO_MEETING`.

    Those are left out in which times say that a rank went on before the last had come, or long after that:
    clocks of hosts may not be known well enough.
    """
    waits_in, arrives_in = np.full((2, len(phases)), NO_MEETING, np.int64)
    arrives_in[told.arrival] = told.number
    last = _last_arrivals(phases, arrives_in)[told.number]
    since = phases.end[told.held] - last
    waited = called(phases, RANKS_WAIT)[told.held]
    wrong = (since < 0) | (waited & (since > _SLACK_NS))
    right = ~np.isin(told.number, told.number[wrong])
    waits_in[told.held[right]] = told.number[right]
    arrives_in[told.arrival[~right]] = NO_MEETING
    return waits_in, arrives_in


def _last_arrivals(phases: Phases, arrives_in: IntArray) -> IntArray:
    """Return when the last phase arrived at each meeting."""
    last = np.full(int(arrives_in.max(initial=NO_MEETING)) + 1, np.iinfo(np.int64).min)
    arrivals = np.flatnonzero(arrives_in >= 0)
    np.maximum.at(last, arrives_in[arrivals], phases.start[arrivals])
    return last


def limits(model: ExecutionModel, within: int, of: int, places: int) -> list[Limit]:
    """Return a limit for each phase of type ``within``: so many of type ``of`` below it run at one time."""
    phases = model.phases
    found = []
    for node in np.flatnonzero(phases.type == within).tolist():
        below = phases.subtree(node)
        members = below.start + np.flatnonzero(phases.type[below] == of)
        if len(members):
            found.append(Limit(members, places))
    return found
