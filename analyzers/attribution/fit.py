# SPDX-License-Identifier: Apache-2.0
"""Rules that nobody wrote: weights of types of phases, by non-negative least squares (GradeML, section 4).

For each interval of observations: what was observed, less what exact rules took, is about the sum over types
of (weight · mean number of active instances), and a background that is always there. GradeML has no
background: what an idle machine uses is then given to whoever is active. Weights and background are at least
0; the squares of the differences are least.

Solved on the normal equations, which are as small as the number of types is, whatever the number of
intervals: 1,000 types over 200,000 intervals are a matrix of 1.6 GB that is never made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from scipy.optimize import nnls

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import Observations

_INTERVALS: Final = 8192
"""So many rows of the matrix exist at a time."""
_SPARSE_IS_SLOWER: Final = 16
"""A product of sparse matrices takes so many times longer for each number than one of dense ones."""
_NOTHING: Final = 1e-12
"""Directions in which the matrix has so little of its most tell nothing."""


@dataclass(frozen=True, eq=False)
class Fit:
    """What explains the observations of a metric."""

    weight: FloatArray
    """(types) Units of the metric for each active instance; NaN for a type that was never active while the
    metric was observed.
    """
    background: float
    """Units that are used whoever is active."""
    explained: float
    """R²: the part of the variance of the observations that is explained; NaN where they do not vary."""
    ambiguous: tuple[tuple[int, ...], ...]
    """Types that were active in the same proportion in all intervals: their weights together are right, how
    they are divided is not known.
    """


def best_fit(
    observed: Observations,
    start: IntArray,
    end: IntArray,
    column: IntArray,
    types: int,
    taken: FloatArray | None = None,
) -> Fit:
    """Return the weights of ``types`` types that explain ``observed`` best.

    ``start``, ``end``, ``column`` (instances): when each was active, in Unix ns, and of which type it is (0
    to ``types`` - 1). ``taken`` (intervals): what exact rules took of each, in the metric's unit.
    """
    value = observed.value if taken is None else np.maximum(observed.value - taken, 0.0)
    gram, target = _normal_equations(observed, value, start, end, column, types + 1)
    scale = np.sqrt(np.diag(gram))
    active = scale > 0
    weight = np.full(types + 1, np.nan)
    if active.any():
        unit = scale[active]
        weight[active] = (
            _solve(gram[np.ix_(active, active)] / np.outer(unit, unit), target[active] / unit) / unit
        )
    solution = np.nan_to_num(weight)
    squares = float(value @ value)
    residual = max(0.0, squares - 2 * float(target @ solution) + float(solution @ gram @ solution))
    spread = squares - (value.sum() ** 2 / len(value) if len(value) else 0.0)
    varies = spread > _NOTHING * max(squares, 1e-300)
    return Fit(
        weight[:types],
        float(solution[types]),
        1.0 - residual / spread if varies else float("nan"),
        _alike(gram, scale),
    )


def active_instances(
    observed: Observations, start: IntArray, end: IntArray, column: IntArray, columns: int
) -> sparse.csr_array:
    """Return the matrix (intervals, columns) of the mean number of active instances of each column."""
    length = observed.end - observed.start
    first = np.searchsorted(observed.end, start, "right")
    after = np.searchsorted(observed.start, end, "left")
    number = np.maximum(np.where(end > start, after - first, 0), 0)
    instance = np.repeat(np.arange(len(start)), number)
    row = np.arange(len(instance)) - np.repeat(np.cumsum(number) - number, number) + first[instance]
    overlap = np.minimum(end[instance], observed.end[row]) - np.maximum(start[instance], observed.start[row])
    shape = (len(observed), columns)
    return sparse.csr_array((overlap / length[row], (row, column[instance])), shape=shape)


def _normal_equations(
    observed: Observations,
    value: FloatArray,
    start: IntArray,
    end: IntArray,
    column: IntArray,
    columns: int,
) -> tuple[FloatArray, FloatArray]:
    """Return (AᵀA, Aᵀb); the last column of A is the background, 1 everywhere."""
    gram, target = np.zeros((columns, columns)), np.zeros(columns)
    order = np.argsort(start, kind="stable")
    start, end, column = start[order], end[order], column[order]
    ends = np.maximum.accumulate(end) if len(end) else end
    for low in range(0, len(observed), _INTERVALS):
        rows = slice(low, low + _INTERVALS)
        some = Observations(observed.start[rows], observed.end[rows], observed.value[rows])
        # Those that begin before these intervals end; before the first of them nothing reaches in.
        until = int(np.searchsorted(start, some.end[-1]))
        since = int(np.searchsorted(ends, some.start[0], "right"))
        here = slice(since, until)
        matrix = active_instances(some, start[here], end[here], column[here], columns - 1)
        full = sparse.hstack((matrix, sparse.csr_array(np.ones((len(some), 1)))), format="csr")
        per_row = full.nnz / len(some)
        if _SPARSE_IS_SLOWER * per_row**2 < columns**2:
            gram += (full.T @ full).toarray()
        else:
            dense = full.toarray()
            gram += dense.T @ dense
        target += full.T @ value[rows]
    return gram, target


def _solve(gram: FloatArray, target: FloatArray) -> FloatArray:
    """Return x ≥ 0 for which xᵀ·gram·x - 2·target·x is least."""
    size, direction = eigh(gram)
    kept = size > _NOTHING * size[-1]
    root = np.sqrt(size[kept])
    matrix = root[:, None] * direction[:, kept].T
    solution, _ = nnls(matrix, (direction[:, kept].T @ target) / root)
    return np.asarray(solution, np.float64)


def _alike(gram: FloatArray, scale: FloatArray) -> tuple[tuple[int, ...], ...]:
    """Return the groups of columns that are multiples of each other."""
    active = np.flatnonzero(scale > 0)
    if not len(active):
        return ()
    cosine = gram[np.ix_(active, active)] / np.outer(scale[active], scale[active])
    groups: dict[int, list[int]] = {}
    for place, first in enumerate((cosine > 1 - 1e-9).argmax(axis=1).tolist()):
        groups.setdefault(first, []).append(int(active[place]))
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
