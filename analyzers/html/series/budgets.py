# SPDX-License-Identifier: Apache-2.0
"""The lane budget as a matrix of ranks and phases; of many ranks those that differ most, and some between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.reporting.document import BudgetEntry

MOST_RANKS: Final = 64


@dataclass(frozen=True)
class Budget:
    """Time of main lanes in ns; each row sums to the wall time of the run."""

    ranks: list[int]
    phases: list[str]
    """By their time in all ranks, the longest first."""
    ns: IntArray
    """Matrix: a row a rank, a column a phase."""
    of: int
    """How many ranks there are, with those that are not among ``ranks``."""


def budget_of(entries: Sequence[BudgetEntry]) -> Budget | None:
    """Return the budget of up to `MOST_RANKS` ranks, those with most and least of each phase among them."""
    if not entries:
        return None
    ranks = sorted({entry.rank for entry in entries})
    whole: dict[str, int] = {}
    for entry in entries:
        whole[entry.phase] = whole.get(entry.phase, 0) + entry.ns
    phases = sorted(whole, key=lambda phase: (-whole[phase], phase))
    row, column = ({key: at for at, key in enumerate(keys)} for keys in (ranks, phases))
    ns = np.zeros((len(ranks), len(phases)), np.int64)
    for entry in entries:
        ns[row[entry.rank], column[entry.phase]] += entry.ns
    kept = _chosen(ns)
    return Budget([ranks[at] for at in kept], phases, ns[kept], len(ranks))


def _chosen(ns: IntArray) -> list[int]:
    """Return which rows of a matrix to show: the first, the extremes of each column, some evenly between."""
    if len(ns) <= MOST_RANKS:
        return list(range(len(ns)))
    kept: dict[int, None] = {0: None}
    for column in ns.T:
        kept.update({int(column.argmax()): None, int(column.argmin()): None})
    kept = dict.fromkeys(list(kept)[:MOST_RANKS])
    between = np.linspace(0, len(ns) - 1, MOST_RANKS).round().astype(int).tolist()
    rest = [at for at in between if at not in kept]
    wanted = MOST_RANKS - len(kept)
    kept.update(dict.fromkeys(rest[:: max(1, len(rest) // wanted)][:wanted] if wanted else []))
    return sorted(kept)
