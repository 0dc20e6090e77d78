# SPDX-License-Identifier: Apache-2.0
"""What is done with arrays in many places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray

_MOST: Final = 1 << 62


def changes(*keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a row of ``keys``, arrays of one length, differs from the one before; the first does."""
    found = np.ones(len(keys[0]), np.bool_)
    found[1:] = False
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found


def added(key: IntArray, ns: IntArray, count: int) -> list[int]:
    """Return the sum of ``ns``, none below 0, of each ``key``, 0 to ``count`` - 1, exactly.

    Spans that contradict each other can add up to more than 64 bits hold.
    """
    if float(ns.astype(np.float64).sum()) < _MOST:
        in_array = np.zeros(count, np.int64)
        np.add.at(in_array, key, ns)
        exact: list[int] = in_array.tolist()
        return exact
    sums = [0] * count
    for number, more in zip(key.tolist(), ns.tolist(), strict=True):
        sums[number] += more
    return sums


def distinct(values: IntArray) -> IntArray:
    """Return the distinct ones of ``values``, sorted, by sorting.

    From numpy 2.3 on `np.unique` uses a hash table, which takes a hundred times as long for millions of
    values of which hardly any are equal, as times are.
    """
    found: IntArray = np.sort(values)
    return found[changes(found)] if len(found) else found


def places(keys: Sequence[IntArray], among: Sequence[IntArray]) -> IntArray:
    """Return for each row of ``keys`` the place of the last equal row of ``among``; -1 for none.

    Both are arrays side by side, as many in the one as in the other; their values are below 2**62.
    """
    count, whole = len(keys[0]), np.zeros(len(keys[0]) + len(among[0]), np.int64)
    for key, other in zip(keys, among, strict=True):
        column = np.concatenate([key, other])
        low = int(column.min(initial=0))
        size = int(column.max(initial=0)) - low + 1
        if size * (int(whole.max(initial=0)) + 1) < _MOST:
            whole = whole * size + (column - low)
        else:  # numbered anew, so that their products stay small
            whole = np.unique(whole, return_inverse=True)[1]
            values, number = np.unique(column, return_inverse=True)
            whole = whole * len(values) + number
    sought, there = whole[:count], whole[count:]
    order = np.argsort(there, kind="stable")
    at = np.searchsorted(there[order], sought, side="right") - 1
    found: IntArray = np.full(count, -1, np.int64)
    known = np.flatnonzero(at >= 0)
    known = known[there[order[at[known]]] == sought[known]]
    found[known] = order[at[known]]
    return found
