# SPDX-License-Identifier: Apache-2.0
"""Rules that nobody wrote: weights of types of phases, by non-negative least squares (GradeML, section 4).

For each interval of observations: what was observed, less what exact rules took, is about the sum over types
of (weight · mean number of active instances), and a background that is always there. GradeML has no
background: what an idle machine uses is then given to whoever is active. Weights and background are at least
0; the squares of the differences are least.

Solved on the normal equations, which are as small as the number of types is, whatever the number of
intervals: 1,000 types over 200,000 intervals are a matrix of 1.6 GB that is never made. What there is of it
at a time is sparse where few types are active in an interval; else each instance is told by where it begins
and ends, and the sums over these are exact.
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
"""So many rows of the matrix exist at a time,"""
_NUMBERS: Final = 1 << 22
"""and where it is dense no more than so many numbers."""
_SPARSE_IS_SLOWER: Final = 16
"""A product of sparse matrices takes so many times longer for each number than one of dense ones."""
_NOTHING: Final = 1e-12
"""Directions in which the matrix has so little of its most tell nothing."""
_ROUNDING: Final = 1e-9
"""What explains so little of what the most explains is none: it comes of arithmetic."""


@dataclass(frozen=True, eq=False)
class Fit:
    """What explains the observations of a metric."""

    weight: FloatArray
    """(types) Units of the metric for each active instance; NaN for a type that was never active while the
    metric was observed.
    """
    background: float
    """Units that are used whoever is active."""
    beside: float
    """By how much of what may explain it beside the types; NaN where there is nothing such."""
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
    beside: FloatArray | None = None,
) -> Fit:
    """Return the weights of ``types`` types that explain ``observed`` best.

    ``start``, ``end``, ``column`` (instances): when each was active, in Unix ns, and of which type it is (0
    to ``types`` - 1). ``taken`` (intervals): what exact rules took of each, in the metric's unit. ``beside``
    (intervals): what else may explain it, in proportion, beside the types.
    """
    value = observed.value if taken is None else np.maximum(observed.value - taken, 0.0)
    others = np.ones((len(observed), 1)) if beside is None else np.stack((np.ones(len(observed)), beside), 1)
    gram, target = _normal_equations(observed, value, Instances(start, end, column), types, others)
    scale = np.sqrt(np.diag(gram))
    active = scale > 0
    found = np.full(len(gram), np.nan)
    if active.any():
        unit = scale[active]
        part = _solve(gram[np.ix_(active, active)] / np.outer(unit, unit), target[active] / unit)
        found[active] = np.where(part > _ROUNDING * part.max(), part, 0.0) / unit
    solution = np.nan_to_num(found)
    squares = float(value @ value)
    residual = max(0.0, squares - 2 * float(target @ solution) + float(solution @ gram @ solution))
    spread = squares - (value.sum() ** 2 / len(value) if len(value) else 0.0)
    varies = spread > _NOTHING * max(squares, 1e-300)
    return Fit(
        found[:types],
        float(solution[types]),
        float("nan") if beside is None else float(found[types + 1]),
        1.0 - residual / spread if varies else float("nan"),
        _alike(gram[: types + 1, : types + 1], scale[: types + 1]),
    )


@dataclass(frozen=True, eq=False)
class Instances:
    """When what was active."""

    start: IntArray
    end: IntArray
    column: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: IntArray | slice) -> Instances:
        return Instances(self.start[chosen], self.end[chosen], self.column[chosen])


def active_instances(
    observed: Observations, start: IntArray, end: IntArray, column: IntArray, columns: int
) -> sparse.csr_array:
    """Return the matrix (intervals, columns) of the mean number of active instances of each column."""
    first, number = _reached(observed, start, end)
    instance = np.repeat(np.arange(len(start)), number)
    row = np.arange(len(instance)) - np.repeat(np.cumsum(number) - number, number) + first[instance]
    overlap = np.minimum(end[instance], observed.end[row]) - np.maximum(start[instance], observed.start[row])
    part = overlap / (observed.end - observed.start)[row]
    return sparse.csr_array((part, (row, column[instance])), shape=(len(observed), columns))


def _reached(observed: Observations, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return (the first interval, in how many) each instance was active in."""
    first = np.searchsorted(observed.end, start, "right")
    after = np.searchsorted(observed.start, end, "left")
    return first, np.maximum(np.where(end > start, after - first, 0), 0)


def _dense_instances(observed: Observations, some: Instances, columns: int) -> FloatArray:
    """Return `active_instances` as a dense matrix, made from where instances begin and end."""
    first, number = _reached(observed, some.start, some.end)
    chosen = np.flatnonzero(number)
    first, last, column = first[chosen], (first + number - 1)[chosen], some.column[chosen]
    length = observed.end - observed.start
    # In between they are active all the time. Whole numbers: nothing is left of what has ended.
    counted = np.zeros((len(observed) + 1) * columns)
    np.add.at(counted, first * columns + column, 1.0)
    np.add.at(counted, (last + 1) * columns + column, -1.0)
    matrix = np.cumsum(counted.reshape(-1, columns)[:-1], axis=0)
    # Of the first and the last interval a part is missing.
    flat = matrix.reshape(-1)
    before = np.maximum(some.start[chosen] - observed.start[first], 0) / length[first]
    behind = np.maximum(observed.end[last] - some.end[chosen], 0) / length[last]
    np.subtract.at(flat, first * columns + column, before)
    np.subtract.at(flat, last * columns + column, behind)
    return np.asarray(matrix)


def _normal_equations(
    observed: Observations, value: FloatArray, instances: Instances, types: int, others: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (AᵀA, Aᵀb); the last columns of A are ``others`` (intervals, columns)."""
    columns = types + others.shape[1]
    gram, target = np.zeros((columns, columns)), np.zeros(columns)
    instances = instances.take(np.argsort(instances.start, kind="stable"))
    ends = np.maximum.accumulate(instances.end) if len(instances) else instances.end
    low = 0
    while low < len(observed):
        some, here = _rows(observed, low, _INTERVALS, instances, ends)
        per_row = int(_reached(some, here.start, here.end)[1].sum()) / len(some) + others.shape[1]
        is_dense = _SPARSE_IS_SLOWER * per_row**2 >= columns**2
        if is_dense and len(some) * columns > _NUMBERS:
            some, here = _rows(observed, low, max(1, _NUMBERS // columns), instances, ends)
        rows = slice(low, low + len(some))
        if is_dense:
            dense = _dense_instances(some, here, columns)
            dense[:, types:] = others[rows]
            gram += dense.T @ dense
            target += dense.T @ value[rows]
        else:
            matrix = active_instances(some, here.start, here.end, here.column, types)
            full = sparse.hstack((matrix, sparse.csr_array(others[rows])), format="csr")
            gram += (full.T @ full).toarray()
            target += full.T @ value[rows]
        low += len(some)
    return gram, target


def _rows(
    observed: Observations, low: int, number: int, instances: Instances, ends: IntArray
) -> tuple[Observations, Instances]:
    """Return up to ``number`` intervals from ``low`` on, and the instances that may be active in them."""
    rows = slice(low, low + number)
    some = Observations(observed.start[rows], observed.end[rows], observed.value[rows])
    # Those that begin before these intervals end; before the first of them nothing reaches in.
    until = int(np.searchsorted(instances.start, some.end[-1]))
    since = int(np.searchsorted(ends, some.start[0], "right"))
    return some, instances.take(slice(since, until))


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
