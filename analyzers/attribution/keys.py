# SPDX-License-Identifier: Apache-2.0
"""By what use is added up: types of phases, phases or ranks; those that a pattern selects, to some depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution.model import Phases, Types
from grademl_otel.analyzers.execution.patterns import Pattern
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.tables.inherited import depths, inherited

TYPE, PHASE, RANK = BY = ("type", "phase", "rank")
MOST_KEYS: Final = 1_000
"""Phases that are told one by one: the longest. Types and ranks are all told."""
NO_RANK: Final = "no rank"


@dataclass(frozen=True, eq=False)
class Keys:
    """What leaves are added up to."""

    by: str
    names: Sequence[str]
    of_phase: IntArray
    """Of each leaf of the model the number of its key; -1: of none, and for what is no leaf."""
    phases: IntArray
    """By key, how many phases it is: of a rank those that are leaves."""
    busy: IntArray
    """By key, ns in which these ran, those side by side added up."""
    omitted: int
    """Keys that are not told."""


def keys_of(
    model: ExecutionModel,
    by: str = TYPE,
    pattern: str | None = None,
    depth: int | None = None,
    among: BoolArray | None = None,
) -> Keys:
    """Return the keys of ``model``, those that take most time first; of phases ``among`` these, else of all.

    ``pattern`` selects types, or phases where these are the keys; what lies below belongs to them, or to what
    is ``depth`` levels below them where that is given. Without a pattern depth counts from the root, and is
    that of the leaves unless told otherwise. Raises UsageError and NothingFound for a pattern of nothing.
    """
    if by not in BY:
        raise UsageError(f"by {by!r}: use is added up by one of {', '.join(BY)}")
    if depth is not None and depth < 0:
        raise UsageError(f"depth {depth}: give a number of levels, 0 or more")
    phases, types = model.phases, model.types
    if pattern is not None and depth is None:
        depth = 0
    if by == PHASE:
        top = _tops(phases, pattern, depth)
    else:
        of_type = _tops(types, pattern, depth)
        top = of_type[phases.type]
    leaves = phases.leaves & (top >= 0)
    if among is not None:
        leaves &= among
    if by == RANK:
        return _of_ranks(phases, leaves)
    chosen = np.unique(top[leaves])
    busy = _sums(np.searchsorted(chosen, top[leaves]), phases.busy[leaves], len(chosen))
    order = np.lexsort((chosen, -busy))
    omitted = max(0, len(order) - MOST_KEYS) if by == PHASE else 0
    order = order[:MOST_KEYS] if by == PHASE else order
    number = np.full(len(phases if by == PHASE else types), -1, np.int64)
    number[chosen[order]] = np.arange(len(order))
    tree: Phases | Types = phases if by == PHASE else types
    if by == PHASE:
        instances = np.ones(len(order), np.int64)
    else:
        counted = phases.type if among is None else phases.type[phases.holding(leaves)]
        instances = np.bincount(counted, minlength=len(types))[chosen[order]].astype(np.int64)
    return Keys(
        by,
        [tree.path(node) for node in chosen[order].tolist()],
        np.where(leaves, number[np.maximum(top, 0)], -1),
        instances,
        busy[order],
        omitted,
    )


def ranks_of_phases(phases: Phases) -> IntArray:
    """Return the rank of each phase; -1 where it is part of none."""
    return _counted(phases, "rank")


def _of_ranks(phases: Phases, leaves: BoolArray) -> Keys:
    nodes = np.flatnonzero(leaves)
    rank = ranks_of_phases(phases)[nodes]
    ranks = np.unique(rank)  # those of no rank, -1, go last
    ranks = np.append(ranks[ranks >= 0], ranks[ranks < 0])
    place = np.argsort(ranks)
    key = place[np.searchsorted(ranks, rank, sorter=place)]
    of_phase = np.full(len(phases), -1, np.int64)
    of_phase[nodes] = key
    names = [NO_RANK if one < 0 else f"rank {one}" for one in ranks.tolist()]
    count = np.bincount(key, minlength=len(ranks)).astype(np.int64)
    return Keys(RANK, names, of_phase, count, _sums(key, phases.busy[nodes], len(ranks)), 0)


def _sums(of: IntArray, values: IntArray, count: int) -> IntArray:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, of, values)
    return sums


def _tops(tree: Phases | Types, pattern: str | None, depth: int | None) -> IntArray:
    """Return for each node that which it is added up to; -1 where nothing selects it."""
    count = len(tree)
    if pattern is None:
        top = np.zeros(count, np.int64)
    else:
        mask = np.zeros(count, np.bool_)
        mask[Pattern(pattern).select(tree)] = True
        outermost = np.flatnonzero(mask & ~tree.below(mask))
        top = inherited(tree.size, outermost, outermost)
    nodes = np.arange(count)
    if depth is None:
        return np.where(top >= 0, nodes, -1)
    level = depths(tree.size)
    up = np.where(top >= 0, np.maximum(level - level[np.maximum(top, 0)] - depth, 0), 0)
    while up.any():
        nodes = np.where(up > 0, tree.parent[nodes], nodes)
        up = np.maximum(up - 1, 0)
    return np.where(top >= 0, nodes, -1)


def _counted(phases: Phases, key: str) -> IntArray:
    """Return the number by ``key`` of each phase, within its attempt."""
    kinds = np.array([kind.counted for kind in phases.all_kinds], object)
    own = np.flatnonzero((kinds == key)[phases.kind])
    numbers = phases.number[own]
    reset = np.flatnonzero((kinds == "attempt")[phases.kind])
    own, numbers = np.append(own, reset), np.append(numbers, np.full(len(reset), -1, np.int64))
    order = np.argsort(own, kind="stable")
    return inherited(phases.size, own[order], numbers[order])
