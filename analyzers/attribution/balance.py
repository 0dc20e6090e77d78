# SPDX-License-Identifier: Apache-2.0
"""Phases that could exchange work: sets of one type, side by side, of which some take longer than others.

Work can go from one phase to another of its type where both lie in parts that run side by side and are
interchangeable (`repeatability`: concurrent). Of parts that follow each other, as steps, each has sets of
its own; steps with the same tags in two ranks are the same step. (Grade10 knows no such tags: there the sets
of two parts never meet once something in them repeats.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.execution.model import DERIVED, Phases, Types
from grademl_otel.analyzers.execution.repeatability import CONCURRENT, DAG, SEQUENTIAL
from grademl_otel.analyzers.execution.whole import ExecutionModel


@dataclass(frozen=True, eq=False)
class Exchange:
    """Phases of one type that could exchange work within each phase of another."""

    target: int
    """Type of those that exchange work."""
    scope: int
    """Type of the phases within which they do."""
    members: IntArray
    """Phases, those of one set together."""
    first: IntArray
    """Where in these each set begins; none has one member only."""

    def balanced(self, duration: IntArray) -> IntArray:
        """Return for each member the mean of its set, of ``duration`` (n) of all phases."""
        of = duration[self.members]
        number = self._number
        mean = np.rint(np.add.reduceat(of.astype(np.float64), self.first) / number).astype(np.int64)
        return np.repeat(mean, number)

    def uneven(self, duration: IntArray) -> int:
        """Return by how much the longest of each set is longer than the mean, all sets together."""
        of = duration[self.members]
        longest = np.repeat(np.maximum.reduceat(of, self.first), self._number)
        begins = self.first
        return int((longest - self.balanced(duration))[begins].sum())

    @property
    def _number(self) -> IntArray:
        return np.diff(np.append(self.first, len(self.members)))


def exchanges(model: ExecutionModel, excluded: BoolArray) -> Iterator[Exchange]:
    """Yield what could exchange work in ``model``: nothing that is derived, none of the ``excluded``."""
    phases, types = model.phases, model.types
    usable = ~excluded & ~phases.has(DERIVED)
    order = np.argsort(phases.type, kind="stable")
    bounds = np.searchsorted(phases.type[order], np.arange(len(types) + 1))
    side_by_side = [repeats == CONCURRENT for repeats in model.repeats]
    for target in range(1, len(types)):
        if not any(side_by_side[one] for one in (target, *types.ancestors(target))):
            continue
        members = order[bounds[target] : bounds[target + 1]]
        members = members[usable[members]]
        if len(members) > 1:
            yield from _of_type(model, phases, types, target, members)


def _of_type(
    model: ExecutionModel, phases: Phases, types: Types, target: int, members: IntArray
) -> Iterator[Exchange]:
    """Yield the exchanges of the phases ``members`` of one type, from the innermost scope on."""
    key = np.zeros(len(members), np.int64)
    above = members.copy()
    level = target
    while level > 0:
        if model.repeats[level] in (SEQUENTIAL, DAG):
            key = _joined(key, _identity(phases, above))
        parent = phases.parent[above].astype(np.int64)
        if model.repeats[level] == CONCURRENT:
            sets = _joined(parent, key)
            order = np.argsort(sets, kind="stable")
            number = np.unique(sets[order], return_counts=True)[1]
            several = number > 1
            kept = np.repeat(several, number)
            sizes = number[several]
            if len(sizes):
                scope = int(types.parent[level])
                yield Exchange(target, scope, members[order[kept]], np.cumsum(sizes) - sizes)
        above, level = parent, int(types.parent[level])


def _identity(phases: Phases, nodes: IntArray) -> IntArray:
    """Return numbers, equal where phases have the same tags."""
    found = phases.kind[nodes].astype(np.int64)
    for column in (phases.number, phases.label, phases.nth):
        found = _joined(found, column[nodes].astype(np.int64))
    return found


def _joined(one: IntArray, other: IntArray) -> IntArray:
    """Return numbers, equal where both are."""
    _, first = np.unique(one, return_inverse=True)
    distinct, second = np.unique(other, return_inverse=True)
    return first.reshape(-1).astype(np.int64) * len(distinct) + second.reshape(-1)
