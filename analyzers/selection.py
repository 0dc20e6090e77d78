# SPDX-License-Identifier: Apache-2.0
"""A part of a run: some of its ranks, some of its steps; a run again, so that every analysis works on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.coverage import Rows
from grademl_otel.analyzers.model.run import Run, StepTable
from grademl_otel.analyzers.units import count

_NO_END: Final = 1 << 62


@dataclass(frozen=True)
class StepRange:
    """Training steps ``first`` to ``end`` (excluded; None for the last), or the ``last`` so many."""

    first: int = 0
    end: int | None = None
    last: int | None = None


def select_ranks(run: Run, ranks: Sequence[int]) -> Run:
    """Return ``run`` as if only ``ranks`` had taken part; NothingFound when none of them did."""
    kept = [rank for rank in run.ranks if rank in set(ranks)]
    if not kept:
        raise NothingFound(f"run {run.run_id}: no such ranks; it has {_listed(run.ranks)}")
    bounds = {rank: run.rank_bounds[rank] for rank in kept}
    return replace(
        run,
        ranks=kept,
        start=min(start for start, _ in bounds.values()),
        end=max(end for _, end in bounds.values()),
        rank_bounds=bounds,
        scopes=[scope for scope in run.scopes if scope.rank in bounds],
        run_spans={rank: ix for rank, ix in run.run_spans.items() if rank in bounds},
        steps=run.steps.where(np.isin(run.steps.rank, kept)),
        step_spans={key: ix for key, ix in run.step_spans.items() if key[0] in bounds},
    )


def select_fit(run: Run, number: int | None) -> Run:
    """Return ``run`` cut to its fit ``number``, counted from 1; the latest by default, if there are several.

    A fit in another is part of that one. NothingFound when there is no such fit.
    """
    of_rank = {rank: _fits(run, rank) for rank in run.ranks}
    fits = max(len(fits) for fits in of_rank.values())
    if number is None and fits < 2:
        return replace(run, fit=(1, 1)) if fits else run
    number = fits if number is None else number
    if number > fits:
        there = f"it has {count(fits, 'fit')}" if fits else "its fits were not recorded"
        raise NothingFound(f"run {run.run_id}: no fit {number}; {there}")
    bounds = {rank: fits[number - 1] for rank, fits in of_rank.items() if len(fits) >= number}
    return replace(_cut(run, bounds), fit=(number, fits))


def _fits(run: Run, rank: int) -> list[tuple[int, int]]:
    """Return start and end of each outermost fit of ``rank``."""
    found: list[tuple[int, int]] = []
    for scope in run.scopes:
        if scope.rank == rank and scope.name == sc.FIT and (not found or scope.start >= found[-1][1]):
            found.append((scope.start, scope.end))
    return found


def select_steps(run: Run, chosen: StepRange) -> Run:
    """Return ``run`` cut, rank by rank, to the time from the first to the last chosen training step.

    Evaluation steps and scopes inside that time stay, cut to it. NothingFound when no step was chosen.
    """
    table = run.steps
    training = (table.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
    if not training.any():
        raise NothingFound(f"run {run.run_id}: --steps needs training steps, and it has none")
    least, most = int(table.step[training].min()), int(table.step[training].max())
    first = most + 1 - chosen.last if chosen.last is not None else chosen.first
    end = most + 1 if chosen.end is None else chosen.end
    mask = training & (table.step >= first) & (table.step < end)
    if not mask.any():
        raise NothingFound(f"run {run.run_id}: no such steps; it has {least} to {most}")
    bounds: dict[int, tuple[int, int]] = {}
    for rank in run.ranks:
        mine = mask & (table.rank == rank)
        if mine.any():
            bounds[rank] = int(table.start[mine].min()), int(table.end[mine].max())
    return _cut(run, bounds, range(first, end if chosen.end is not None else _NO_END))


def _cut(run: Run, bounds: dict[int, tuple[int, int]], chosen: range | None = None) -> Run:
    """Return ``run`` with the ranks in ``bounds``, cut to its start and end; ``chosen`` are its steps."""
    table, mine = run.steps, run.span_ixs
    inside = np.zeros(len(table), dtype=bool)
    for rank, (start, stop) in bounds.items():
        inside |= (table.rank == rank) & (table.start >= start) & (table.end <= stop)
    scopes = [
        replace(
            scope, start=max(scope.start, bounds[scope.rank][0]), end=min(scope.end, bounds[scope.rank][1])
        )
        for scope in run.scopes
        if scope.rank in bounds and scope.start < bounds[scope.rank][1] and scope.end > bounds[scope.rank][0]
    ]
    start, stop = min(start for start, _ in bounds.values()), max(stop for _, stop in bounds.values())
    covered = {
        rank: covered.within(*bounds[rank], _training(table.where(inside & (table.rank == rank))), chosen)
        for rank, covered in run.completeness.coverage.items()
        if rank in bounds
    }
    return replace(
        run,
        completeness=replace(run.completeness, coverage=covered),
        ranks=sorted(bounds),
        start=start,
        end=stop,
        rank_bounds=bounds,
        span_ixs=mine[(run.spans.end[mine] > start) & (run.spans.start[mine] < stop)],
        scopes=scopes,
        run_spans={rank: ix for rank, ix in run.run_spans.items() if rank in bounds},
        steps=table.where(inside),
        step_spans={
            key: ix
            for key, ix in run.step_spans.items()
            if key[0] in bounds and bounds[key[0]][0] <= key[2] < bounds[key[0]][1]
        },
    )


def _training(steps: StepTable) -> Rows:
    """Return the training steps among ``steps``."""
    training = (steps.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
    return Rows(steps.step[training], steps.start[training], steps.end[training], steps.flags[training])


def _listed(ranks: Sequence[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"only {ranks[0]}"
