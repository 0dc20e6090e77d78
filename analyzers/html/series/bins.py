# SPDX-License-Identifier: Apache-2.0
"""Bins of equal length over ``[0, total)``: their edges are whole ns, and what is between two is in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.arrays import changes


def edges_of(total: int, count: int) -> IntArray:
    """Return the ``count`` + 1 edges: bin i is ``[total * i // count, total * (i + 1) // count)``.

    A script computes the same; in Python's integers nothing overflows.
    """
    return np.array([total * i // count for i in range(count + 1)], np.int64)


@dataclass(frozen=True)
class Spread:
    """What the values of each bin that has any are like, as parallel arrays; two of them are interpolated.

    ``first`` and ``last`` are places in the values that were given.
    """

    bin: IntArray
    count: IntArray
    least: IntArray
    p50: IntArray
    p95: IntArray
    most: IntArray
    first: IntArray
    last: IntArray


def spread(which: IntArray, values: IntArray) -> Spread:
    """Return what the ``values`` of each bin are like; ``which`` are the bins of the values."""
    order = np.lexsort((values, which))
    bins, ranked = which[order], values[order]
    begin = np.flatnonzero(changes(bins)) if len(bins) else np.zeros(0, np.int64)
    count = np.diff(np.append(begin, len(bins)))
    in_order = np.argsort(which, kind="stable")
    return Spread(
        bin=bins[begin],
        count=count,
        least=ranked[begin],
        p50=_quantile(ranked, begin, count, 0.5),
        p95=_quantile(ranked, begin, count, 0.95),
        most=ranked[begin + count - 1],
        first=in_order[begin],
        last=in_order[begin + count - 1],
    )


def _quantile(ranked: IntArray, begin: IntArray, count: IntArray, q: float) -> IntArray:
    """Return the interpolated quantile of each group of ``ranked``, rounded, as `numpy.quantile` does."""
    place = (count - 1) * q
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = ranked[begin + low], ranked[begin + high]
    found: IntArray = below + np.rint((above - below) * (place - low)).astype(np.int64)
    return found
