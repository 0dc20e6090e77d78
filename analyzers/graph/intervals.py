# SPDX-License-Identifier: Apache-2.0
"""Intervals as arrays: which lie in which, where sums without a place go, who owns which piece of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.arrays import distinct


def nesting_depths(start: IntArray, end: IntArray, priority: IntArray) -> IntArray:
    """Return how many of the intervals each one lies in, taking those of one lane as nested or disjoint.

    None may be empty. At equal bounds a smaller ``priority`` is further out. An interval that only overlaps
    another counts as beside it; cut it with `cut_overlaps`.
    """
    depth = np.zeros(len(start), dtype=np.int64)
    left = np.lexsort((priority, -end, start))
    while len(left):
        reached = np.maximum.accumulate(end[left])
        inner = np.zeros(len(left), dtype=bool)
        inner[1:] = end[left][1:] <= reached[:-1]
        left = left[inner]
        depth[left] += 1
    return depth


def cut_overlaps(start: IntArray, end: IntArray) -> IntArray:
    """Return ``end`` with every interval ended at the start of the next at the latest; sorted by start."""
    cut: IntArray = end.copy()
    cut[:-1] = np.minimum(cut[:-1], start[1:])
    np.maximum(cut, start, out=cut)
    return cut


def lay_out(
    first: IntArray, busy: IntArray, valid: BoolArray, low: IntArray, high: IntArray
) -> tuple[IntArray, IntArray]:
    """Return starts and ends that place each row's phases one after another between ``low`` and ``high``.

    ``first``, ``busy`` and ``valid`` have shape (rows, phases). A phase starts where it first did and takes
    its busy time. For one that ran once that is exact. One that ran several times becomes one piece, moved as
    far as it must to leave the others their time: its sum is right, its place is not. In a row with more busy
    time than time, what does not fit is cut from the earliest.
    """
    phases = first.shape[1]
    order = np.argsort(np.where(valid, first, np.iinfo(np.int64).max), axis=1, kind="stable")
    begin = np.take_along_axis(np.where(valid, first, 0), order, 1)
    length = np.take_along_axis(np.where(valid, busy, 0), order, 1)
    used = np.take_along_axis(valid, order, 1)
    finish = np.zeros_like(begin)
    cursor = low.copy()
    for k in range(phases):
        begin[:, k] = np.where(used[:, k], np.maximum(begin[:, k], cursor), cursor)
        finish[:, k] = begin[:, k] + length[:, k]
        cursor = finish[:, k]
    limit = high.copy()
    for k in range(phases - 1, -1, -1):
        finish[:, k] = np.minimum(finish[:, k], limit)
        begin[:, k] = np.minimum(begin[:, k], finish[:, k] - length[:, k])
        limit = np.where(used[:, k], begin[:, k], limit)
    begin = np.maximum(begin, low[:, None])
    finish = np.maximum(finish, begin)
    starts, ends = np.zeros_like(first), np.zeros_like(first)
    np.put_along_axis(starts, order, begin, 1)
    np.put_along_axis(ends, order, finish, 1)
    return starts, ends


@dataclass(frozen=True)
class Canvas:
    """Elementary pieces of ``[bounds[0], bounds[-1])`` between all the times at which anything changes."""

    bounds: IntArray

    @classmethod
    def over(cls, low: int, high: int, *times: IntArray) -> Canvas:
        """Return the canvas of ``[low, high)``, cut at ``times`` within it."""
        every = np.concatenate([np.array([low, high], dtype=np.int64), *times])
        return cls(distinct(np.clip(every, low, high)))

    def __len__(self) -> int:
        return max(0, len(self.bounds) - 1)

    def blank(self) -> IntArray:
        """Return an owner of each piece: nobody (-1)."""
        return np.full(len(self), -1, dtype=np.int64)

    def paint(self, owner: IntArray, start: IntArray, end: IntArray, ids: IntArray) -> None:
        """Give ``ids[i]`` the pieces of ``[start[i], end[i])``; a later interval covers an earlier one."""
        low, high = self.bounds[0], self.bounds[-1]
        left = np.searchsorted(self.bounds, np.clip(start, low, high))
        count = np.maximum(np.searchsorted(self.bounds, np.clip(end, low, high)) - left, 0)
        before = np.cumsum(count) - count
        pieces = np.arange(int(count.sum())) - np.repeat(before - left, count)
        owner[pieces] = np.repeat(ids, count)
