# SPDX-License-Identifier: Apache-2.0
"""Steps of all ranks side by side, and whether the ranks leave something together in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.facts import Run

TOGETHER: Final = 0.95
"""Part of the steps in which ranks must leave together what is taken for one thing that they all do."""
TOGETHER_NS: Final = 1_000_000
_TOGETHER_SHARE: Final = 0.05
"""What "together" allows: this part of the step, and at least so much."""
_OF_APART: Final = 0.25
"""Or this part of how far apart they came: who does not wait for others leaves as far apart."""


def training_rows(run: Run, rank: int) -> IntArray:
    """Return the rows of the step table that are training steps of ``rank``, in order."""
    mine = run.steps.of_rank(rank)
    not_training = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
    rows: IntArray = mine.start + np.flatnonzero((run.steps.flags[mine] & not_training) == 0)
    return rows


def same_steps(run: Run, per_rank: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the steps that all ranks have among their rows ``per_rank``, and their rows: [step, rank]."""
    numbers = [run.steps.step[rows] for rows in per_rank]
    step: IntArray = reduce(np.intersect1d, numbers)
    columns = []
    for rows, own in zip(per_rank, numbers, strict=True):
        order = np.argsort(own, kind="stable")
        columns.append(rows[order[np.searchsorted(own[order], step)]] if len(step) else rows[:0])
    return step, np.stack(columns, axis=1)


def left_together(
    clocks: Clocks, ranks: Sequence[int], came: IntArray, left: IntArray, length: IntArray
) -> BoolArray:
    """Return for each step whether all ``ranks`` left something at the same time.

    When they ``came`` to it and ``left`` it [step, rank] is by the clock of each; ``length`` is how long the
    steps were. Where clocks of hosts do not tell, they are taken to leave at one time at the median: then
    they leave together if that stays so.
    """
    every = np.array(ranks, np.int64)
    inside = left - came  # by the clock of each: who came later is in there for a shorter time
    apart = inside.max(axis=1) - inside.min(axis=1)
    left = left - clocks.shift(every)
    if len(length) and not clocks.tell(ranks, int(np.median(length))):
        number, later = clocks.number(every), left - left[:, :1]
        for one in np.unique(number[number != number[0]]).tolist():
            left[:, number == one] -= round(float(np.median(later[:, number == one])))
    allowed = np.maximum(np.maximum(TOGETHER_NS, _TOGETHER_SHARE * length), _OF_APART * apart)
    together: BoolArray = left.max(axis=1) - left.min(axis=1) <= allowed
    return together
