# SPDX-License-Identifier: Apache-2.0
"""Where the time of each main lane went, and what a steady step is made of.

Both count the same pieces (`main_lane`), so they agree with each other and, per rank, sum to the wall time of
the run exactly. What each name means is told there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import NAMES, WORK_SCOPES, MainLanes
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, Run

FEW_STEPS: Final = 20
"""Below this many steady steps nothing is concluded from them."""

_WARMUP_STEPS: Final = 3
_WARMUP_SHARE: Final = 0.05
_WARMUP_MOST: Final = 100


@dataclass(frozen=True)
class Quantiles:
    """Of a time per step, in ns, interpolated and rounded."""

    p50: int
    p95: int

    @classmethod
    def of(cls, values: IntArray) -> Quantiles | None:
        """Return the quantiles of ``values``; None when there are none."""
        if not len(values):
            return None
        p50, p95 = np.quantile(values, (0.5, 0.95))
        return cls(round(float(p50)), round(float(p95)))


@dataclass(frozen=True)
class LaneBudgetRow:
    """Time of one rank's main lane under one name.

    Rows with ``within`` None are the budget: per rank their ``ns`` sum to ``run.end - run.start`` exactly.
    A row with ``within`` tells what a part of that other row was (an inline fetch in `data.wait`, the forward
    in `evaluate`) and adds nothing to the sum.
    """

    rank: int
    phase: str
    ns: int
    share: float
    """Of the wall time of the run."""
    per_step: Quantiles | None
    """Over the steady steps; None for what is not part of training steps."""
    within: str | None = None


@dataclass(frozen=True)
class PhaseOfStep:
    """One phase of the steady steps of one rank, or of all."""

    phase: str
    per_step: Quantiles
    total_ns: int
    share: float
    """Of the time of the steady steps."""
    within: str | None = None
    """The phase that it is a part of; such a row adds nothing to the step. Where steps without detail do not
    tell of a part (waiting in a collective), it has of its phase what it has in the others."""


@dataclass(frozen=True)
class StepBreakdown:
    """The steady steps: training steps that completed, without the first ones.

    Left out as warm-up are each rank's first max(3, 5 %) steps, at most 100 and at most half of them. A
    checkpoint or a compilation in the middle of a step is no part of it. The phases with ``within`` None,
    `other` among them, sum to the steps exactly.
    """

    steps: int
    """Steady steps, over all ranks that were asked for."""
    warmup_excluded: int
    first: int | None
    last: int | None
    """Numbers of the first and the last steady step."""
    too_few: bool
    """Fewer than `FEW_STEPS` steady steps."""
    step: Quantiles | None
    total_ns: int
    phases: list[PhaseOfStep]
    """Longest first; parts follow what they are within."""


_TOLD: Final = frozenset(NAMES.index(name) for name in COLLECTIVE_PARTS)
"""Parts that only rows with detail on all ranks tell of."""


def lane_budget(run: Run) -> list[LaneBudgetRow]:
    """Return the budget of every rank: its rows longest first, parts after what they are within."""
    main = activities(run).main
    wall = run.end - run.start
    rows = []
    for rank in run.ranks:
        pieces = main.of(rank)
        length = main.end[pieces] - main.start[pieces]
        steady = _steady_rows(run, rank)[0]
        per_step = _Cells(main, steady, pieces)
        for top, part, ns in _ranked(main.top[pieces], main.name[pieces], length):
            values = per_step.of(top, part)
            rows.append(
                LaneBudgetRow(
                    rank=rank,
                    phase=NAMES[top if part is None else part],
                    ns=ns,
                    share=ns / wall if wall else 0.0,
                    per_step=Quantiles.of(values) if values is not None and values.any() else None,
                    within=None if part is None else NAMES[top],
                )
            )
    return rows


def step_breakdown(run: Run, rank: int | None = None) -> StepBreakdown:
    """Return what the steady steps of ``rank`` are made of; those of all ranks together by default."""
    main = activities(run).main
    steady, excluded = _chosen(run, rank)
    cells = _Cells(main, steady)
    mine = np.flatnonzero(cells.column >= 0)
    length = main.end[mine] - main.start[mine]
    total = int(length.sum())
    whole = cells.whole()
    phases = []
    for top, part, ns in _ranked(main.top[mine], main.name[mine], length):
        values = cells.of(top, part)
        quantiles = None if values is None else Quantiles.of(values)
        if quantiles is not None:
            if part in _TOLD:
                ns = cells.calibrated(top, part, run.steps.rank[steady])
            phases.append(
                PhaseOfStep(
                    phase=NAMES[top if part is None else part],
                    per_step=quantiles,
                    total_ns=ns,
                    share=ns / total if total else 0.0,
                    within=None if part is None else NAMES[top],
                )
            )
    numbers = run.steps.step[steady]
    return StepBreakdown(
        steps=len(steady),
        warmup_excluded=excluded,
        first=int(numbers.min()) if len(steady) else None,
        last=int(numbers.max()) if len(steady) else None,
        too_few=len(steady) < FEW_STEPS,
        step=Quantiles.of(whole),
        total_ns=total,
        phases=phases,
    )


def steady_durations(run: Run) -> tuple[IntArray, IntArray]:
    """Return the rows of the step table that `step_breakdown` is about, and how long it takes each, in ns."""
    steady = _chosen(run, None)[0]
    return steady, _Cells(activities(run).main, steady).whole()


def _chosen(run: Run, rank: int | None) -> tuple[IntArray, int]:
    """Return the steady rows of ``rank``, None for all, and how many were left out before them as warm-up."""
    ranks = run.ranks if rank is None else [rank]
    found = [(rows, excluded) for r in ranks for rows, excluded in (_steady_rows(run, r),) if len(rows)]
    # Rows that were measured less would make the phases of the others look short.
    finest = min((_level(run, rows) for rows, _ in found), default=0)
    found = [(rows, excluded) for rows, excluded in found if _level(run, rows) == finest]
    steady = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
    return steady, sum(excluded for _, excluded in found)


def steady_rows(run: Run, rank: int) -> IntArray:
    """Return the rows of the step table that are steady steps of ``rank``, in order; see `StepBreakdown`."""
    return _steady_rows(run, rank)[0]


def steady_level(run: Run, rank: int) -> int:
    """Return the recording level of the steady steps of ``rank``; 0 where all phases were measured."""
    return _level(run, _steady_rows(run, rank)[0])


def _level(run: Run, steady: IntArray) -> int:
    """Return the recording level that the ``steady`` rows of a rank have in common; 0 without rows."""
    return int(_measured(run, steady[:1]).max(initial=0))


def _measured(run: Run, rows: IntArray) -> IntArray:
    """Return the recording levels of ``rows``, those at which all phases are measured as 0."""
    levels = run.steps.level[rows]
    return np.where(levels <= COMPLETE_LEVEL, 0, levels)


def _steady_rows(run: Run, rank: int) -> tuple[IntArray, int]:
    """Return the steady rows of ``rank`` and how many before them were left out as warm-up.

    What is warm-up goes by the number of the step: of a later part of a run (`--steps`) nothing is. Where
    the recording level changed, they are those of the level that most were recorded at.
    """
    not_training = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
    mine = run.steps.of_rank(rank)
    rows = mine.start + np.flatnonzero((run.steps.flags[mine] & not_training) == 0)
    numbers = run.steps.step[rows]
    count = int(numbers.max(initial=-1)) + 1
    warmup = min(max(_WARMUP_STEPS, int(count * _WARMUP_SHARE)), _WARMUP_MOST)
    excluded = min(int(np.count_nonzero(numbers < warmup)), len(rows) // 2)
    rows = rows[excluded:]
    if not len(rows):
        return rows, excluded
    measured = _measured(run, rows)
    levels, counts = np.unique(measured, return_counts=True)
    return rows[measured == levels[counts.argmax()]], excluded


class _Cells:
    """Sums of pieces by (name, steady row)."""

    def __init__(self, main: MainLanes, rows: IntArray, pieces: slice = slice(None)) -> None:
        """``rows`` are the steady ones; only ``pieces`` are looked at."""
        self._count = len(rows)
        self._told = main.told[rows]
        self._top, self._name = main.top[pieces], main.name[pieces]
        self._length = main.end[pieces] - main.start[pieces]
        row = main.row[pieces]
        self.column: IntArray = np.full(len(row), -1, np.int64)
        """For each piece the position of its row among the steady ones; -1 when it is part of none."""
        if len(rows):
            low, high = int(rows.min()), int(rows.max())
            place = np.full(high - low + 1, -1, np.int64)
            place[rows - low] = np.arange(len(rows))
            within = (row >= low) & (row <= high)
            within &= ~np.isin(self._top, [NAMES.index(name) for name in WORK_SCOPES])
            self.column[within] = place[row[within] - low]

    def whole(self) -> IntArray:
        """Return the ns of each steady row: all of it but checkpoints and compilations in its middle."""
        sums = np.zeros(self._count, np.int64)
        mine = self.column >= 0
        np.add.at(sums, self.column[mine], self._length[mine])
        return sums

    def sums(self, top: int, part: int | None) -> IntArray:
        """Return the ns of each steady row under ``top``, or under its ``part``."""
        chosen = (self.column >= 0) & (self._top == top)
        if part is not None:
            chosen &= self._name == part
        sums = np.zeros(self._count, np.int64)
        np.add.at(sums, self.column[chosen], self._length[chosen])
        return sums

    def of(self, top: int, part: int | None) -> IntArray | None:
        """Return `sums` of the steady rows that tell of ``part``; None without such rows."""
        if part in _TOLD:
            return self.sums(top, part)[self._told] if self._told.any() else None
        return self.sums(top, part) if self._count else None

    def calibrated(self, top: int, part: int, rank: IntArray) -> int:
        """Return the ns of ``part`` in all rows, from its share of ``top`` in those of the rank that tell of
        it; for a rank without such rows from that in those of all. ``rank`` is that of each row.
        """
        whole, parts = self.sums(top, None), self.sums(top, part)
        known, pooled = int(whole[self._told].sum()), int(parts[self._told].sum())
        total = 0
        for one in np.unique(rank).tolist():
            mine = rank == one
            of_rank = int(whole[mine & self._told].sum())
            share = (int(parts[mine & self._told].sum()), of_rank) if of_rank else (pooled, known)
            total += share[0] * int(whole[mine].sum()) // share[1] if share[1] else 0
        return total


def _ranked(top: IntArray, name: IntArray, length: IntArray) -> list[tuple[int, int | None, int]]:
    """Return (name, None, ns) longest first, each followed by its parts (name, part, ns)."""
    names = len(NAMES)
    by_pair = np.zeros(names * names, np.int64)
    np.add.at(by_pair, top * names + name, length)
    pairs: npt.NDArray[np.int64] = by_pair.reshape(names, names)
    wholes = pairs.sum(axis=1)
    ranked: list[tuple[int, int | None, int]] = []
    for whole in _longest_first(wholes):
        ranked.append((whole, None, int(wholes[whole])))
        ranked += [
            (whole, part, int(pairs[whole, part])) for part in _longest_first(pairs[whole]) if part != whole
        ]
    return ranked


def _longest_first(ns: IntArray) -> list[int]:
    return sorted(np.flatnonzero(ns).tolist(), key=lambda ix: (-int(ns[ix]), NAMES[ix]))
