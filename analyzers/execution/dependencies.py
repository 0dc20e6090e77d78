# SPDX-License-Identifier: Apache-2.0
"""Which sibling could not begin before another had ended.

In order of evidence: links of kind ``follows`` (observed); an attribute that names what a phase comes after
(attribute); and, among the children of a parent of which neither tells anything, their times (inferred). A
dependency from a to b is legal if a is not b, both have the same parent, and nothing leads from b to a.

**Inferred.** When a phase begins, those that have ended by then are what it may have waited for. Of these
only the frontier is taken (as the Spark parser of GradeML does for jobs): a set of ended phases, from which
those go that a phase depends on, as soon as it ends itself. That is near a transitive reduction. A family of
n siblings gets `MOST_EACH` n + `MOST_BESIDES` of them; where two crowds follow each other, whose n x m would
be more, a phase then waits for the latest of the frontier only, which says as much of the times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.execution.conflicts import Conflicts
from grademl_otel.analyzers.execution.model import BESIDE, SELF, Phases
from grademl_otel.analyzers.execution.model import INFERRED as NO_PLACE
from grademl_otel.analyzers.graph.drawn import networkx
from grademl_otel.analyzers.graph.path import ATTRIBUTE, EVIDENCE, INFERRED, OBSERVED

MOST_EACH: Final = 8
MOST_BESIDES: Final = 1024
"""Most dependencies that are inferred of the times of siblings: so many for each, and so many more."""


class IllegalDependency(ValueError):
    """A dependency that cannot be; the text says which and why."""


@dataclass(frozen=True)
class Dependencies:
    """Dependencies between siblings as parallel arrays, sorted by (target, source)."""

    source: IntArray
    """Index of the phase that had to end."""
    target: IntArray
    """Index of the one that waited for it."""
    evidence: IntArray
    """Index into `path.EVIDENCE`."""

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]] | IntArray, evidence: str) -> Dependencies:
        """Return the dependencies (source, target), each once, of one evidence."""
        table = np.asarray(pairs, np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1], np.full(len(table), EVIDENCE.index(evidence))).sorted()

    @classmethod
    def join(cls, parts: Sequence[Dependencies]) -> Dependencies:
        """Return all of ``parts``; of one that is told twice the better evidence."""
        columns = (np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls))
        return cls(*columns).sorted()

    def sorted(self) -> Dependencies:
        """Return them in order, without repeats."""
        order = np.lexsort((self.evidence, self.source, self.target))
        source, target = self.source[order], self.target[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        kept = order[first]
        return Dependencies(self.source[kept], self.target[kept], self.evidence[kept])

    def where(self, mask: IntArray) -> Dependencies:
        """Return those at these places, or for which the mask is true."""
        return Dependencies(self.source[mask], self.target[mask], self.evidence[mask])

    def observed(self) -> Dependencies:
        """Return them without those that are inferred."""
        return self.where(np.flatnonzero(self.evidence != EVIDENCE.index(INFERRED)))


def none() -> Dependencies:
    """Return no dependencies."""
    return Dependencies.of([], OBSERVED)


def legal(phases: Phases, told: Dependencies, conflicts: Conflicts) -> Dependencies:
    """Return those of ``told`` that are legal; ``conflicts`` get a line for each that is not.

    Of those that lead in a circle the ones stay that lead forward in the order of siblings, which is that of
    their starts.
    """
    siblings = phases.parent[told.source] == phases.parent[told.target]
    itself = told.source == told.target
    for ix in np.flatnonzero(itself | ~siblings).tolist():
        why = "itself" if itself[ix] else "no sibling of it"
        conflicts.add(partial(_refusal, phases, told, ix, why))
    told = told.where(np.flatnonzero(siblings & ~itself))
    circle = _circles(told, len(phases))
    wrong = (circle[told.source] == circle[told.target]) & (circle[told.source] >= 0)
    wrong &= told.source > told.target
    for ix in np.flatnonzero(wrong).tolist():
        conflicts.add(partial(_refusal, phases, told, ix, "what itself comes after it"))
    return told.where(np.flatnonzero(~wrong))


def check(phases: Phases, source: int, target: int, told: Dependencies) -> None:
    """Raise IllegalDependency unless a dependency may be added to ``told``, which are legal."""
    one, conflicts = Dependencies.of([(source, target)], ATTRIBUTE), Conflicts()
    legal(phases, one, conflicts)
    if not conflicts.lines and _leads(told, target, source):
        conflicts.add(_refusal(phases, one, 0, "what itself comes after it"))
    if conflicts.lines:
        raise IllegalDependency(conflicts.lines[0])


def inferred(phases: Phases, told: Dependencies) -> Dependencies:
    """Return what the times of phases tell, of parents that hold none of the ``told`` dependencies.

    Self time and sums have no place in time that others could have waited for; other lanes go their own way;
    and of traces that nothing ties to each other, below the root, the times tell nothing.
    """
    parent = phases.parent
    placed = (phases.flags & (SELF | NO_PLACE | BESIDE)) == 0
    placed &= (phases.end >= phases.start) & (parent > 0)
    placed &= ~np.isin(parent, parent[told.target])
    at = np.flatnonzero(placed)
    at = at[np.argsort(parent[at], kind="stable")]  # siblings stand in the order of their starts
    begins = np.ones(len(at), np.bool_)
    begins[1:] = parent[at][1:] != parent[at][:-1]
    family = np.cumsum(begins) - 1
    overlap = np.zeros(len(at), np.bool_)
    overlap[1:] = ~begins[1:] & (phases.start[at][1:] < phases.end[at][:-1])
    mixed = np.bincount(family, overlap, minlength=int(begins.sum())) > 0
    chained = np.flatnonzero(~begins & ~mixed[family])
    found = [Dependencies.of(np.stack([at[chained - 1], at[chained]], axis=1), INFERRED)]
    some = np.flatnonzero(mixed[family])
    sizes = np.bincount(family[some])
    times = zip(
        at[some].tolist(), phases.start[at[some]].tolist(), phases.end[at[some]].tolist(), strict=True
    )
    pairs: list[tuple[int, int]] = []
    for size in sizes[sizes > 0].tolist():
        pairs += _frontiers(list(islice(times, size)))
    return Dependencies.join([*found, Dependencies.of(pairs, INFERRED)])


def _frontiers(siblings: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return (source, target) of siblings, given as (phase, start, end), by the frontier rule."""
    # At one time: first the ends, then what takes no time, from start to end, then the starts.
    moments = [(end, 0, phase) for phase, start, end in siblings if end > start]
    moments += [(start, 1 if end == start else 2, phase) for phase, start, end in siblings]
    moments.sort()
    most = MOST_EACH * len(siblings) + MOST_BESIDES
    found: list[tuple[int, int]] = []
    ended: dict[int, None] = {}
    waited: dict[int, list[int]] = {}
    for _, what, phase in moments:
        if what > 0:
            all_of_them = len(found) + len(ended) <= most
            waited[phase] = list(ended) if all_of_them else list(islice(reversed(ended), 1))
            found += ((before, phase) for before in waited[phase])
        if what < 2:
            for before in waited.pop(phase):
                ended.pop(before, None)
            ended[phase] = None
    return found


def _circles(told: Dependencies, count: int) -> IntArray:
    """Return the number of the circle of dependencies that each of ``count`` phases is in; -1 for none."""
    circle: IntArray = np.full(count, -1, np.int64)
    if _in_order(told):
        return circle
    nx = networkx()
    graph = nx.DiGraph(zip(told.source.tolist(), told.target.tolist(), strict=True))
    for number, phases in enumerate(nx.strongly_connected_components(graph)):
        if len(phases) > 1:
            circle[list(phases)] = number
    return circle


def _in_order(told: Dependencies) -> bool:
    """Return whether there is an order of all phases in which each comes after what it depends on."""
    after: dict[int, list[int]] = {}
    waiting: dict[int, int] = {}
    for source, target in zip(told.source.tolist(), told.target.tolist(), strict=True):
        after.setdefault(source, []).append(target)
        waiting[target] = waiting.get(target, 0) + 1
        waiting.setdefault(source, 0)
    free = [phase for phase, count in waiting.items() if not count]
    done = 0
    while free:
        done += 1
        for later in after.get(free.pop(), ()):
            waiting[later] -= 1
            if not waiting[later]:
                free.append(later)
    return done == len(waiting)


def _leads(told: Dependencies, start: int, end: int) -> bool:
    """Return whether ``told`` lead from ``start`` to ``end`` (breadth first)."""
    after: dict[int, list[int]] = {}
    for before, later in zip(told.source.tolist(), told.target.tolist(), strict=True):
        after.setdefault(before, []).append(later)
    seen, wave = {start}, deque([start])
    while wave:
        at = wave.popleft()
        if at == end:
            return True
        for later in after.get(at, ()):
            if later not in seen:
                seen.add(later)
                wave.append(later)
    return False


def _refusal(phases: Phases, told: Dependencies, ix: int, why: str) -> str:
    source, target = int(told.source[ix]), int(told.target[ix])
    return f"{phases.path(target)} cannot come after {why}: {phases.path(source)}"
