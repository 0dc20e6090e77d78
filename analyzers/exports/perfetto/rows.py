# SPDX-License-Identifier: Apache-2.0
"""Which of the tracks of a lane each slice goes to, so that in each of them slices nest or are apart.

A track of Perfetto is a stack: what begins last ends first, and an end is that of what began last. In one
track, slices that overlap otherwise would end each other. They get further tracks of the same name, which
are shown as one.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.slices import BY_PARENT, BY_TIME, Slices, rows_of

_MOST_STACKS: Final = 16
"""Tracks that are looked at for what goes by time; beyond, nothing is put into anything else."""


def tracks_of(slices: Slices, chosen: IntArray, nesting: str) -> IntArray:
    """Return the number of the track, from 0, of each of the ``chosen`` slices of one lane.

    These are sorted by (start, longest first, depth).
    """
    start, end = slices.start[chosen], slices.end[chosen]
    if nesting == BY_TIME:
        return _by_time(start, end)
    above = np.full(len(chosen), -1, np.int64)
    if nesting == BY_PARENT:
        place = np.full(len(slices) + 1, -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        above = place[slices.above[chosen]]
    return _by_parent(start.tolist(), end.tolist(), above.tolist())


def _by_time(start: IntArray, end: IntArray) -> IntArray:
    """Return the first track in which each is apart from the others, or lies in them."""
    track = np.full(len(start), -1, np.int64)
    stacks: list[list[int]] = []
    left: list[int] = []
    for at, (begin, finish) in enumerate(rows_of(start, end)):
        for number, stack in enumerate(stacks):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or finish <= stack[-1]:
                stack.append(finish)
                track[at] = number
                break
        else:
            if len(stacks) < _MOST_STACKS:
                track[at] = len(stacks)
                stacks.append([finish])
            else:
                left.append(at)
    if left:
        flat = _by_parent(start[left].tolist(), end[left].tolist(), [-1] * len(left))
        track[left] = _MOST_STACKS + flat
    return track


def _by_parent(start: list[int], end: list[int], above: list[int]) -> IntArray:
    """Return a track for each: that of the slice ``above``, where no other is open in it; else a free one."""
    track = [0] * len(start)
    stacks: list[list[int]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    """(when it is free again, track)"""
    for at, (begin, finish, parent) in enumerate(zip(start, end, above, strict=True)):
        if 0 <= parent < at and finish <= end[parent]:
            stack = stacks[track[parent]]
            while stack and end[stack[-1]] <= begin:
                stack.pop()
            if stack and stack[-1] == parent:
                stack.append(at)
                track[at] = track[parent]
                continue
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            number = heappop(free)
            stacks[number] = [at]
        else:
            number = len(stacks)
            stacks.append([at])
        track[at] = number
        heappush(busy, (finish, number))
    return np.array(track, np.int64)


def side_by_side(start: IntArray, end: IntArray) -> IntArray:
    """Return for each interval the first number that no other has at that time."""
    order = np.lexsort((-end, start))
    track = np.zeros(len(start), np.int64)
    track[order] = _by_parent(start[order].tolist(), end[order].tolist(), [-1] * len(order))
    return track
