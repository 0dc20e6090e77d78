# SPDX-License-Identifier: Apache-2.0
"""Ranks side by side: in which steps which of them kept the others waiting, and what each did meanwhile.

Ranks that train together leave every collective together, so their steps are equally long and so is a phase
that holds one: who is slow waits least. Three things tell how late a rank was in a step, the best first:

* ``collectives``: what each rank's main lane waited in them for the others, in steps whose collectives are
  all here, with all members. Who waited least was last.
* ``first collective``: when each rank came to the first collective of the step, which the step table says of
  every step. What made a rank late after it cannot be seen there. It tells nothing where that is another one
  for some ranks, as for the stages of a pipeline: then some come first by design.
* ``backward``: where none was recorded in backward, but that ends on all ranks at the same time, it holds one
  (see `barrier`). Who began it last was late before; who was late within cannot be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.budget import steady_rows
from grademl_otel.analyzers.graph.inferences.barrier import barriers_of
from grademl_otel.analyzers.graph.inferences.common_steps import TOGETHER, same_steps, training_rows
from grademl_otel.analyzers.graph.path import INFERRED, OBSERVED
from grademl_otel.analyzers.graph.runs.activities import Activities, activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.model.collectives import Collectives
from grademl_otel.analyzers.model.facts import Run

COLLECTIVES: Final = "collectives"
FIRST_COLLECTIVE: Final = "first collective"
BACKWARD: Final = "backward"

_COMMUNICATION: Final = (
    RANKS_WAIT,
    COLLECTIVE_TRANSFER,
    semconv.COLLECTIVE,
    semconv.COLLECTIVE_WAIT,
)
"""What makes no rank late: it is the same for all, or waiting."""
_WAIT, _TRANSFER = NAMES.index(RANKS_WAIT), NAMES.index(COLLECTIVE_TRANSFER)


@dataclass(frozen=True)
class Comparison:
    """Steps of all ranks side by side. Matrices have a row a step and a column a rank; times in ns."""

    source: str
    """What tells who was late; see the module."""
    ranks: list[int]
    step: IntArray
    """Numbers of the steps."""
    late: IntArray
    """How much later than the first of the ranks that it meets in the step; 0 for that one."""
    length: IntArray
    """Of the step."""
    own: dict[str, IntArray]
    """Phase -> time in the main lane since the step before, without that in collectives."""
    wait: IntArray | None
    """Time that the main lane waited for other ranks; None where that is not known."""
    transfer: IntArray | None
    """Time that it stood still for transfers; likewise."""
    overlapped: IntArray | None
    """Of each rank the time, over all steps, that collectives took beside its main lane; likewise."""
    evidence: str = OBSERVED
    """`INFERRED` where nothing but times tells that the ranks met."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def by_one_clock(self) -> bool:
        """Whether it says nothing where clocks of hosts do not tell; the others go by each rank's own."""
        return self.source == FIRST_COLLECTIVE

    def of_steps_in(self, other: Comparison) -> Comparison:
        """Return those of its steps that ``other`` has, too; without what lies beside the main lanes."""
        at = np.isin(self.step, other.step)
        return replace(
            self,
            step=self.step[at],
            late=self.late[at],
            length=self.length[at],
            own={phase: times[at] for phase, times in self.own.items()},
            wait=None if self.wait is None else self.wait[at],
            transfer=None if self.transfer is None else self.transfer[at],
            overlapped=None,
        )


def compare_ranks(run: Run, inferred: bool = True) -> list[Comparison]:
    """Return the comparisons that the recording of ``run`` allows, the best first; none for a single rank.

    Without ``inferred`` none that rests on what nobody observed.
    """
    if len(run.ranks) < 2:
        return []
    found = activities(run)
    step, rows = common_steps(run)
    if not len(step):
        return []
    shift = found.collectives.clocks.shift(np.array(run.ranks, np.int64))
    told = found.main.told[rows].all(axis=1)
    none: IntArray = np.zeros(len(run.steps), np.int64)
    counts = run.steps.count.get(semconv.COLLECTIVE, none)[rows]
    comparisons = []
    if told.any() and counts[told].any():
        comparisons.append(_by_waits(run, found, step[told], rows[told]))
    met = (counts > 0).all(axis=1)
    same = _first_is_the_same(found.collectives, rows)
    if met.any() and same is not False:
        first = run.steps.first[semconv.COLLECTIVE][rows[met]]
        came = first - shift
        late = came - came.min(axis=1, keepdims=True)
        of_first = _by_arrivals(run, found, FIRST_COLLECTIVE, step[met], rows[met], first, late)
        # Which it was the table does not tell.
        comparisons.append(replace(of_first, evidence=OBSERVED if same else INFERRED))
    barriers = barriers_of(run, step, rows)
    if barriers is not None:
        of_backward = _by_arrivals(
            run, found, BACKWARD, barriers.step, barriers.rows, barriers.came, barriers.late
        )
        comparisons.append(replace(of_backward, evidence=INFERRED))
    return [found for found in comparisons if inferred or found.evidence != INFERRED]


def common_steps(run: Run) -> tuple[IntArray, IntArray]:
    """Return the steady steps that all ranks have, and a matrix of their rows: [step, rank]."""
    return same_steps(run, [steady_rows(run, rank) for rank in run.ranks])


def _by_waits(run: Run, found: Activities, step: IntArray, rows: IntArray) -> Comparison:
    own, wait, transfer = _spent(run, found, rows, _met(run, found, COLLECTIVES), None)
    return Comparison(
        COLLECTIVES, run.ranks, step, _longest(wait, _meeting(found.collectives, rows)) - wait,
        run.steps.end[rows] - run.steps.start[rows], own, wait, transfer, _overlapped(run, found, rows),
    )  # fmt: skip


def _places(found: Collectives, rows: IntArray) -> IntArray:
    """Return for each collective the place in ``rows``, counted row by row, that it is part of; else -1."""
    place = np.full(max(int(found.row.max(initial=-1)), int(rows.max(initial=-1))) + 2, -1, np.int64)
    place[rows] = np.arange(rows.size).reshape(rows.shape)
    at: IntArray = place[found.row]  # the last element serves those outside rows
    return at


def _meeting(found: Collectives, rows: IntArray) -> IntArray:
    """Return a matrix like ``rows``: ranks with one number in a step meet in its collectives, if by way of
    others. Those that do not, keep nobody of the others waiting.
    """
    at = _places(found, rows)
    key, at = found.key[at >= 0], at[at >= 0]
    steps, ranks = rows.shape
    # Of a key, members in another step are not met in this one.
    _, key = np.unique(key * max(1, steps) + at // ranks, return_inverse=True)
    number = np.arange(rows.size)
    while True:
        least = np.full(len(at), rows.size, np.int64)
        np.minimum.at(least, key, number[at])
        before = number.copy()
        np.minimum.at(number, at, least[key])
        if np.array_equal(number, before):
            return number.reshape(rows.shape)


def _longest(wait: IntArray, meeting: IntArray) -> IntArray:
    """Return for each rank and step the longest ``wait`` of those that it meets."""
    longest = np.zeros(wait.size, np.int64)
    np.maximum.at(longest, meeting.ravel(), wait.ravel())
    return longest[meeting]


def _first_is_the_same(found: Collectives, rows: IntArray) -> bool | None:
    """Whether the first collective of a step is one of all ranks; None where no step in detail tells."""
    at = _places(found, rows)
    inside = np.flatnonzero(at >= 0)
    inside = inside[np.lexsort((found.issue[inside], at[inside]))]
    cell, first = np.unique(at[inside], return_index=True)
    first = inside[first]
    keys = np.full(rows.size, -1, np.int64)
    # A sender and its receiver come when it is their turn.
    between = np.array([op in ("send", "recv") for op in found.ops] or [False], np.bool_)[found.op[first]]
    keys[cell] = np.where(between, found.rank[first] + (1 << 62), found.key[first])
    firsts = keys.reshape(rows.shape)
    detailed = firsts[(firsts >= 0).all(axis=1)]
    return bool((detailed == detailed[:, :1]).all(axis=1).mean() >= TOGETHER) if len(detailed) else None


def _by_arrivals(
    run: Run,
    found: Activities,
    source: str,
    step: IntArray,
    rows: IntArray,
    arrived: IntArray,
    late: IntArray,
) -> Comparison:
    own, _, _ = _spent(run, found, rows, _met(run, found, source), arrived)
    length = run.steps.end[rows] - run.steps.start[rows]
    return Comparison(source, run.ranks, step, late, length, own, None, None, None)


def _spent(
    run: Run, found: Activities, rows: IntArray, met: IntArray, arrived: IntArray | None
) -> tuple[dict[str, IntArray], IntArray, IntArray]:
    """Return (phase -> ns, ns of waiting for others, ns of transfers), matrices like ``rows``, of main lanes.

    A step's time begins when the ranks had ``met`` in the training step before it, so that what follows their
    last collective makes the next one late, be it in that step or between the two. With ``arrived``, a phase
    that goes on after that time may hold waiting: only what it took before counts.
    """
    main, steps = found.main, len(rows)
    apart = np.isin(main.name, (_WAIT, _TRANSFER))
    kinds, kind = np.unique(np.where(apart, main.name, main.top), return_inverse=True)
    sums = np.zeros((len(kinds), *rows.shape), np.int64)
    for column, rank in enumerate(run.ranks):
        pieces = main.of(rank)
        start, end = main.start[pieces], main.end[pieces]
        cell = _cells(run, rank, met, end, rows[:, column])
        length = end - start
        if arrived is not None:
            at = np.maximum(np.searchsorted(start, arrived[:, column], "right") - 1, 0)
            same = main.top[pieces] == main.top[pieces][at][cell]
            cut = arrived[:, column][cell]
            length = np.where(same, np.clip(np.minimum(end, cut) - start, 0, None), length)
        inside = cell >= 0
        flat = np.zeros(len(kinds) * steps, np.int64)
        np.add.at(flat, kind[pieces][inside] * steps + cell[inside], length[inside])
        sums[:, :, column] = flat.reshape(len(kinds), steps)
    own = {NAMES[kinds[ix]]: sums[ix] for ix in np.flatnonzero(sums.any(axis=(1, 2))).tolist()}
    none = np.zeros(rows.shape, np.int64)
    wait, transfer = own.get(RANKS_WAIT, none), own.get(COLLECTIVE_TRANSFER, none)
    return {phase: ns for phase, ns in own.items() if phase not in _COMMUNICATION}, wait, transfer


def _overlapped(run: Run, found: Activities, rows: IntArray) -> IntArray:
    """Return for each rank how long collectives ran beside its main lane in ``rows`` while it went on."""
    of_run, main = found.collectives, found.main
    blocking = of_run.span_ix[~of_run.beside]
    times = np.zeros(rows.shape[1], np.int64)
    for column, rank in enumerate(run.ranks):
        mine = of_run.of_rank(rank)
        chosen = of_run.beside[mine] & np.isin(of_run.row[mine], rows[:, column])
        issue, end = of_run.issue[mine][chosen], of_run.end[mine][chosen]
        reached = np.maximum.accumulate(np.append(issue[:1], end[:-1])) if len(end) else end
        under_way = int(np.maximum(end - np.maximum(issue, reached), 0).sum())
        pieces = main.of(rank)
        still = np.isin(main.name[pieces], (_WAIT, _TRANSFER)) & np.isin(main.row[pieces], rows[:, column])
        still &= ~np.isin(main.span_ix[pieces], blocking)
        times[column] = max(0, under_way - int((main.end - main.start)[pieces][still].sum()))
    return times


def _cells(run: Run, rank: int, met: IntArray, end: IntArray, chosen: IntArray) -> IntArray:
    """Return for each piece of ``rank``, by its ``end``, the place among ``chosen`` of the step that it
    delays; else -1.
    """
    training = training_rows(run, rank)
    place = np.full(len(run.steps) + 1, -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    ends = np.maximum.accumulate(met[training])
    owner = np.append(training, len(run.steps))[np.searchsorted(ends, end)]
    found: IntArray = place[owner]
    return found


def _met(run: Run, found: Activities, source: str) -> IntArray:
    """Return for each row when its rank left the others for the last time, or where it met none its end.

    That is the end of its last collective, and of the backward that holds one.
    """
    main, of_run, steps = found.main, found.collectives, run.steps
    never = np.iinfo(np.int64).min

    def last(pieces: BoolArray) -> IntArray:
        ends = np.full(len(steps), never, np.int64)
        pieces = pieces & (main.row >= 0)
        np.maximum.at(ends, main.row[pieces], main.end[pieces])
        return ends

    ended = last(np.ones(len(main), np.bool_))
    met = last(np.isin(main.name, [NAMES.index(name) for name in _COMMUNICATION]))
    beside = of_run.beside & (of_run.row >= 0)
    np.maximum.at(met, of_run.row[beside], np.minimum(of_run.end[beside], ended[of_run.row[beside]]))
    backward = last(main.top == NAMES.index(semconv.BACKWARD))
    holds = np.full(len(steps), source == BACKWARD)
    if {semconv.COLLECTIVE, semconv.BACKWARD} <= steps.count.keys():
        first, begun = steps.first[semconv.COLLECTIVE], steps.first[semconv.BACKWARD]
        holds |= (steps.count[semconv.COLLECTIVE] > 0) & (first >= begun) & (first < backward)
    met = np.maximum(met, np.where(holds, backward, never))
    return np.where(met > never, met, ended)
