# SPDX-License-Identifier: Apache-2.0
"""A tree of phases that runs again with other durations (Grade10, its simulator).

A phase begins when the siblings that it depends on have ended, else with its parent. It ends its duration
later; one whose duration is `DERIVE` ends with the last of its children. Below one with a duration nothing is
looked at. What lies between (a lag before a phase, a tail after its last child) keeps its length.

Ranks of a job meet in collectives: a leaf that waits in a meeting ends its duration after its own start and
after the last arrival there, each of which is the start of a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IndexArray, IntArray
from grademl_otel.analyzers.replay.network import NO_POOL, Circular, Network, Pools, Replayed

NO_MEETING: Final = -1
DERIVE: Final = -1
"""Duration of a phase that ends with its children."""


@dataclass(frozen=True, eq=False)
class Limit:
    """No more than ``places`` of these phases run at one time; who could begin first is first."""

    phases: IntArray
    places: int


class PhaseGraph:
    """Phases, which of their siblings they wait for, and what lies between."""

    def __init__(
        self,
        parent: IntArray | IndexArray,
        before: IntArray,
        after: IntArray,
        *,
        lag: IntArray | None = None,
        tail: IntArray | None = None,
        gates: BoolArray | None = None,
        waits_in: IntArray | None = None,
        arrives_in: IntArray | None = None,
    ) -> None:
        """``after[i]`` waits for its sibling ``before[i]``. -1 is the parent of roots.

        ``lag``: ns from what a phase waits for to its start. ``tail``: ns from the last child to the end of
        one that is derived. ``gates``: whether its parent waits for a phase; all do. ``waits_in``: number of
        the meeting that a leaf waits in; ``arrives_in``: of that at which a phase arrives when it begins;
        `NO_MEETING`.
        """
        count = len(parent)
        self.parent = parent.astype(np.int64)
        self.before, self.after = before, after
        self.lag = np.zeros(count, np.int64) if lag is None else lag
        self.tail = np.zeros(count, np.int64) if tail is None else tail
        self.gates = np.ones(count, np.bool_) if gates is None else gates
        self.waits_in = np.full(count, NO_MEETING, np.int64) if waits_in is None else waits_in
        self.arrives_in = np.full(count, NO_MEETING, np.int64) if arrives_in is None else arrives_in
        self.inner = np.zeros(count, np.bool_)
        self.inner[self.parent[self.parent >= 0]] = True
        if (self.parent >= np.arange(count)).any():
            raise ValueError("a parent stands before its children")
        if (self.parent[before] != self.parent[after]).any():
            raise ValueError("dependencies are between siblings")
        if (self.inner & (self.waits_in >= 0)).any():
            raise ValueError("what waits in a meeting has no children")
        self._built: dict[bytes, _Built] = {}

    def __len__(self) -> int:
        return len(self.parent)

    def replay(
        self, duration: IntArray, limits: Sequence[Limit] = (), earliest: IntArray | None = None
    ) -> Replayed:
        """Return when each phase runs, with durations (n) or sets of them (n, k), in ns; leaves have one.

        Times of what lies below a phase with a duration are -1. In all sets the same phases are `DERIVE`.
        ``earliest`` (n): no leaf begins before.
        """
        columns = duration.reshape(len(self), -1)
        derived = columns[:, 0] == DERIVE
        if ((columns == DERIVE) != derived[:, None]).any():
            raise ValueError("in all sets of durations the same phases are derived")
        if (derived & ~self.inner).any():
            raise ValueError("a phase without children has a duration")
        built = self._network(derived, earliest)
        network = built.network
        if limits:
            network = Network(
                network.count,
                network.before,
                network.after,
                delay=network.delay,
                earliest=network.earliest,
                pools=self._pools(built, limits),
            )
        took = np.zeros((network.count, columns.shape[1]), np.int64)
        timed = built.kept & ~derived
        took[built.ends[timed]] = columns[timed]
        ran = network.run(took)
        start, end = np.full((2, *columns.shape), -1, np.int64)
        start[built.kept] = ran.start[built.begins[built.kept]]
        end[built.kept] = ran.end[built.ends[built.kept]]
        return Replayed(start.reshape(duration.shape), end.reshape(duration.shape))

    @property
    def is_circular(self) -> bool:
        """Whether phases wait for each other in a circle."""
        built = self._network(self.inner)
        try:
            built.network.run(np.zeros(built.network.count, np.int64))
        except Circular:
            return True
        return False

    def _network(self, derived: BoolArray, earliest: IntArray | None = None) -> _Built:
        floor = b"" if earliest is None else np.ascontiguousarray(earliest).tobytes()
        key = np.packbits(derived).tobytes() + floor
        if key not in self._built:
            if len(self._built) > 4:
                self._built.clear()
            self._built[key] = self._build(derived, earliest)
        return self._built[key]

    def _build(self, derived: BoolArray, earliest: IntArray | None) -> _Built:
        """Return the tasks: one of each phase that has a duration, two of each that is derived."""
        count, parent = len(self), self.parent
        kept = self._kept(derived)
        begins, ends = np.full((2, count), -1, np.int64)
        begins[kept] = np.arange(np.count_nonzero(kept))
        ends[kept] = begins[kept]
        two = kept & derived
        tasks = int(np.count_nonzero(kept))
        ends[two] = tasks + np.arange(np.count_nonzero(two))
        tasks += int(np.count_nonzero(two))
        # A meeting is a task after all arrivals, of which it needs the starts.
        arrives, waits = self._meeting(kept)
        apart = np.setdiff1d(np.union1d(arrives, waits), np.flatnonzero(two))
        ends[apart] = tasks + np.arange(len(apart))
        meeting = tasks + len(apart)
        tasks = meeting + int(self.arrives_in.max(initial=NO_MEETING)) + 1
        some = kept[self.after]
        before, after = self.before[some], self.after[some]
        depends = np.zeros(count, np.bool_)
        depends[after] = True
        awaited = np.zeros(count, np.bool_)
        awaited[before[self.gates[after]]] = True
        child = kept & (parent >= 0)
        first = np.flatnonzero(child & ~depends)
        last = np.flatnonzero(child & self.gates & ~awaited)
        has_gate = np.zeros(count, np.bool_)
        has_gate[parent[last]] = True
        ungated = np.flatnonzero(two & ~has_gate)
        edges = (
            (ends[before], begins[after]),
            (begins[parent[first]], begins[first]),
            (ends[last], ends[parent[last]]),
            (begins[ungated], ends[ungated]),
            (begins[apart], ends[apart]),
            (meeting + self.waits_in[waits], ends[waits]),
            (begins[arrives], meeting + self.arrives_in[arrives]),
        )
        delay = np.zeros(tasks, np.int64)
        delay[begins[kept]] = self.lag[kept]
        delay[ends[two]] = self.tail[two]
        floor = np.zeros(tasks, np.int64)
        if earliest is not None:
            floor[begins[kept]] = earliest[kept]
        joined = (np.concatenate(side) for side in zip(*edges, strict=True))
        return _Built(Network(tasks, *joined, delay=delay, earliest=floor), kept, begins, ends)

    def _meeting(self, kept: BoolArray) -> tuple[IntArray, IntArray]:
        """Return the phases that arrive at meetings, and those that wait there, of the ``kept`` ones."""
        arrives, waits = np.flatnonzero(self.arrives_in >= 0), np.flatnonzero(kept & (self.waits_in >= 0))
        hidden = arrives[~kept[arrives]]
        if np.isin(self.waits_in[waits], self.arrives_in[hidden]).any():
            raise ValueError(
                "a phase with a duration hides an arrival at a meeting: when others that wait there go on "
                "is not known"
            )
        return arrives[kept[arrives]], waits

    def _kept(self, derived: BoolArray) -> BoolArray:
        """Return the mask of phases that lie below none with a duration."""
        if derived[self.inner].all():
            return np.ones(len(self), np.bool_)
        kept, parents = [True] * len(self), self.parent.tolist()
        opens = derived.tolist()
        for ix, above in enumerate(parents):
            if above >= 0 and not (kept[above] and opens[above]):
                kept[ix] = False
        return np.array(kept, np.bool_)

    def _pools(self, built: _Built, limits: Sequence[Limit]) -> Pools:
        takes, gives = np.full((2, built.network.count), NO_POOL, np.int64)
        limited = np.zeros(len(self), np.bool_)
        for number, limit in enumerate(limits):
            if limit.places < 1:
                raise ValueError(f"a limit of {limit.places} lets nothing run")
            members = np.unique(limit.phases)
            if limited[members].any():
                raise ValueError("a phase is in one limit")
            limited[members] = True
            kept = built.kept[members]
            if kept.any() and not kept.all():
                raise ValueError(
                    "a phase with a duration hides some of the phases of a limit: those outside would have "
                    "places that they do not have"
                )
            self._refuse_nested(members)
            members = members[kept]
            takes[built.begins[members]] = number
            gives[built.ends[members]] = number
        return Pools([limit.places for limit in limits], takes, gives)

    def _refuse_nested(self, members: IntArray) -> None:
        chosen = np.zeros(len(self), np.bool_)
        chosen[members] = True
        above = self.parent[members]
        while len(above := above[above >= 0]):
            if chosen[above].any():
                raise ValueError("of two phases in one limit one lies in the other")
            above = np.unique(self.parent[above])


@dataclass(frozen=True, eq=False)
class _Built:
    network: Network
    kept: BoolArray
    begins: IntArray
    """Of each phase the task with which it begins; -1 where it is not kept."""
    ends: IntArray
