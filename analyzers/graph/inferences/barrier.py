# SPDX-License-Identifier: Apache-2.0
"""The barrier that data-parallel training holds in each step without telling anybody.

`DistributedDataParallel` sends gradients from C++ while backward computes. Where nothing shows Python these
collectives, or only the step table counts them, backward still ends on all ranks at the same time: it holds a
barrier, inferred from that. All leave it together, so a rank's own clock tells when it came: who spends the
shortest time in backward came there last, by as much as the others spend longer in it. That needs no common
clock, nor do the stages before it, told by the time since a rank left the barrier of the step before:

    offset(r, k)  when rank r had done stage k      frontier(k) = max over r of offset(r, k)
    exposed(k)    = frontier(k) - frontier(k - 1)   what stage k costs the step

What a rank does within backward, until the last gradient is there, is not told from waiting: who is slow
there makes it equally long on all ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.inferences.common_steps import (
    TOGETHER,
    left_together,
    same_steps,
    training_rows,
)
from grademl_otel.analyzers.graph.inferences.estimates import wilson
from grademl_otel.analyzers.graph.runs.activities import Activities, activities
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.model.facts import Run

NOTICED: Final = 0.01
"""Part of a step by which a rank must have come later than another to have kept that one waiting."""
_NOTICED_NS: Final = 100_000
_ROUNDING_NS: Final = 2_000
"""Two floored microseconds."""
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_HOOKS: Final = (2, 15)
"""Version of PyTorch from which on process groups are known to have hooks."""


@dataclass(frozen=True)
class Barriers:
    """The implicit barriers of a run, one a step. Matrices are [step, rank], times in ns by the own clock."""

    ranks: list[int]
    step: IntArray
    """Numbers of the steps."""
    rows: IntArray
    """Rows of the step table."""
    came: IntArray
    """When each rank came to it: at the start of its last backward; of steps whose collectives the step table
    tells of, at the first of them."""
    ended: IntArray
    """When it left the barrier."""
    length: IntArray
    """Of each step: that of its longest row."""
    confidence: float
    """Lower bound of how often all leave together (Wilson, 95 %)."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def late(self) -> IntArray:
        """How much later each rank came than the one that came first: by how much less it was in there."""
        inside = self.ended - self.came
        late: IntArray = inside.max(axis=1, keepdims=True) - inside
        return late

    @property
    def noticed(self) -> IntArray:
        """For each step how much later a rank must come for others to be seen waiting."""
        return np.maximum((NOTICED * self.length).astype(np.int64), _NOTICED_NS)


def barriers_of(run: Run, step: IntArray, rows: IntArray) -> Barriers | None:
    """Return the implicit barriers in the steps ``rows`` [step, rank] of ``run``; None where there are none.

    There are none for a single rank, where collectives in backward were recorded or would have been, and
    where backward does not end on all ranks at the same time, in `TOGETHER` of the steps.
    """
    found = activities(run)
    if len(run.ranks) < 2 or not len(step) or _seen_in_backward(run, found, rows):
        return None
    begun, ended = _last_backward(run, found)
    return _barriers(run, found, step, rows, begun, ended)


def _in_tables(run: Run, step: IntArray, rows: IntArray) -> Barriers | None:
    """Return the barriers of steps whose collectives in backward only the step table tells of.

    It has when each rank came to the first of them. Steps in which all are told apart need no inference.
    """
    steps, found = run.steps, activities(run)
    if semconv.COLLECTIVE not in steps.count:
        return None
    begun, ended = _last_backward(run, found)
    first = steps.first[semconv.COLLECTIVE]
    inside = (steps.count[semconv.COLLECTIVE] > 0) & ~found.main.told
    inside &= (first > begun - _ROUNDING_NS) & (first < ended)
    return _barriers(run, found, step, rows, np.where(inside, np.maximum(first, begun), -1), ended)


def _barriers(
    run: Run, found: Activities, step: IntArray, rows: IntArray, came: IntArray, ended: IntArray
) -> Barriers | None:
    """Return the barriers of those ``rows`` to which all ranks ``came``; -1 stands for those that did not."""
    known = (came[rows] >= 0).all(axis=1)
    step, rows = step[known], rows[known]
    if not len(step):
        return None
    length = (run.steps.end[rows] - run.steps.start[rows]).max(axis=1)
    clocks = found.collectives.clocks
    together = int(np.count_nonzero(left_together(clocks, run.ranks, came[rows], ended[rows], length)))
    if together < TOGETHER * len(step):
        return None
    return Barriers(run.ranks, step, rows, came[rows], ended[rows], length, wilson(together, len(step)))


def unseen_barriers(run: Run) -> Barriers | None:
    """Return the barriers of all training steps of ``run`` that recorded collectives do not tell of.

    There are none where a rank is missing, which may have come later.
    """
    if len(run.ranks) < max(2, run.completeness.ranks_expected or 0):
        return None
    step, rows = same_steps(run, [training_rows(run, rank) for rank in run.ranks])
    found = barriers_of(run, step, rows)
    return _in_tables(run, step, rows) if found is None else found


# --- Stages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stages:
    """What ranks do from one barrier to the next, one stage after the other; times in ns."""

    names: list[str]
    """Phases in the order in which they are done; the last one holds the barrier."""
    step: IntArray
    offset: IntArray
    """[step, stage, rank]: since the rank left the barrier before, until it had done the stage."""

    @property
    def frontier(self) -> IntArray:
        """[step, stage]: when the last rank had done the stage."""
        frontier: IntArray = self.offset.max(axis=2)
        return frontier

    @property
    def exposed(self) -> IntArray:
        """[step, stage]: what the stage costs the step; they sum to the time from barrier to barrier."""
        return np.diff(self.frontier, axis=1, prepend=0)


def stages_of(run: Run, found: Barriers) -> Stages:
    """Return the stages before the barriers ``found``, of steps that follow one that has one, too."""
    main = activities(run).main
    at = 1 + np.flatnonzero(np.diff(found.step) == 1)
    tops, top = np.unique(main.top, return_inverse=True)
    done = np.full((len(at), len(tops), len(run.ranks)), -1, np.int64)
    for column, rank in enumerate(run.ranks):
        pieces = main.of(rank)
        left, begun = found.ended[at - 1, column], found.came[at, column]
        step = np.searchsorted(begun, main.start[pieces], "right")
        inside = np.flatnonzero(step < len(at))
        inside = inside[main.start[pieces][inside] >= left[step[inside]]]
        # Within the stage that holds the barrier nothing is told apart.
        inside = inside[main.start[pieces][inside] < begun[step[inside]]]
        ends = main.end[pieces][inside] - left[step[inside]]
        np.maximum.at(done[:, :, column], (step[inside], top[pieces][inside]), ends)
    order = _usual_order(done)
    offset = np.maximum.accumulate(done[:, order], axis=1)
    whole = (found.ended[at] - found.ended[at - 1])[:, None, :]
    offset = np.concatenate([np.maximum(offset, 0), whole], axis=1)
    return Stages([*(NAMES[int(tops[ix])] for ix in order), semconv.BACKWARD], found.step[at], offset)


def _usual_order(done: IntArray) -> IntArray:
    """Return the stages that are there at all, in the order of when they are done, at the median."""
    there = np.flatnonzero((done >= 0).any(axis=(0, 2)))
    usual = [float(np.median(done[:, ix][done[:, ix] >= 0])) for ix in there]
    return there[np.argsort(usual, kind="stable")]


# --- What was recorded ------------------------------------------------------------------------------------


def _last_backward(run: Run, found: Activities) -> tuple[IntArray, IntArray]:
    """Return for each row (start, end) of its last backward; (-1, -1) where its place is not known."""
    main = found.main
    inside = (main.top == NAMES.index(semconv.BACKWARD)) & (main.row >= 0)
    first = inside.copy()
    first[1:] &= ~(inside[:-1] & (main.row[1:] == main.row[:-1]))
    block = np.cumsum(first) - 1
    pieces = np.flatnonzero(inside)
    begin, end = (np.full(len(run.steps), -1, np.int64) for _ in range(2))
    unsure = np.zeros(int(first.sum()) + 1, np.bool_)
    np.logical_or.at(unsure, block[pieces], main.inferred[pieces])
    begin[main.row[first]] = main.start[first]  # of several in a row the last one stays
    end[main.row[pieces]] = main.end[pieces]
    begin[main.row[first]] = np.where(unsure[:-1], -1, begin[main.row[first]])
    return begin, np.where(begin >= 0, end, -1)


def _seen_in_backward(run: Run, found: Activities, rows: IntArray) -> bool:
    """Whether collectives that backward issues would have been recorded, or were."""
    steps = run.steps
    if semconv.COLLECTIVE in steps.count and steps.count[semconv.COLLECTIVE][rows].any():
        used = np.unique(run.spans.resource_ix[run.span_ixs]).tolist()
        if all(_has_hooks(run.spans.resources[ix]) for ix in used):
            return True
    inside = found.collectives.row >= 0
    row, issue = found.collectives.row[inside], found.collectives.issue[inside]
    if semconv.BACKWARD not in steps.first:
        return bool(len(row))
    begun = steps.first[semconv.BACKWARD][row]
    within: BoolArray = (steps.count[semconv.BACKWARD][row] > 0) & (issue >= begun)
    return bool((within & (issue < begun + steps.busy[semconv.BACKWARD][row])).any())


def _has_hooks(resource: dict[str, Any]) -> bool:
    """Whether process groups of this version of PyTorch are known to have hooks."""
    version = _VERSION.match(str(resource.get(semconv.FRAMEWORK_VERSION, "")))
    return version is not None and (int(version[1]), int(version[2])) >= _HOOKS
