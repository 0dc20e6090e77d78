# SPDX-License-Identifier: Apache-2.0
"""One metric of one resource as one monitor saw it: averages over intervals, on their way into the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray

MOST: Final = 1e30
"""What is more is none of what a monitor sees; sums and squares of it would be more than a float can hold."""
_S: Final = 1e9
_REACH: Final = 2.5
"""A sample of a gauge holds for the time since the one before, but for so many usual distances at most."""


@dataclass(frozen=True)
class Place:
    """Which resource, whoever tells of it."""

    host: str | None
    """As its monitor calls it; None: not told."""
    type: str
    id: str = ""
    """Among those of its type and host; empty where a host has one only."""
    tags: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """What else is told of it."""


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over intervals: sorted, longer than nothing, apart; values are finite and not below 0."""

    start: IntArray
    end: IntArray
    value: FloatArray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> IntArray:
        return self.end - self.start

    def scaled(self, factor: float) -> Averages:
        """Return the same in another unit."""
        return self if factor == 1 else Averages(self.start, self.end, self.value * factor)

    def total(self) -> float:
        """Return the sum of values times seconds."""
        return float(self.value @ (self.length / _S))


NOTHING: Final = Averages(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Series:
    """What one monitor told of a metric."""

    place: Place
    name: str
    """Within its resource, as ``busy``."""
    unit: str
    seen: Averages
    source: str
    """Who told it, for people."""
    capacity: float = math.inf
    sampled: bool = False
    """Whether values are those of moments, taken for the time before each."""
    stands_in: bool = False
    """Whether it is only to be taken where nothing else tells of the metric: what it counts is wider."""

    @property
    def type(self) -> str:
        return f"{self.place.type}.{self.name}"


def is_told(value: FloatArray) -> BoolArray:
    """Return where ``value`` is one that a metric can have: a number, not below 0, no more than `MOST`."""
    with np.errstate(invalid="ignore"):
        found: BoolArray = (value >= 0) & (value <= MOST)
    return found


def averages(start: IntArray, end: IntArray, value: FloatArray) -> tuple[Averages, int]:
    """Return the averages of these intervals in any order, and how many are left out.

    Left out is what `is_told` says is no value, what has no length, and what overlaps one that began before.
    """
    fit = is_told(value) & (end > start)
    order = np.flatnonzero(fit)
    order = order[np.lexsort((end[order], start[order]))]
    begin, until = start[order], end[order]
    if len(order) and (begin[1:] < until[:-1]).any():
        last, keep = -(1 << 62), []
        for place, (one, other) in enumerate(zip(begin.tolist(), until.tolist(), strict=True)):
            if one >= last:
                keep.append(place)
                last = other
        order = order[keep]
    return Averages(start[order], end[order], value[order].astype(np.float64)), len(start) - len(order)


def of_samples(time: IntArray, value: FloatArray) -> Averages:
    """Return samples of moments as averages: each holds since the one before.

    After a gap, and for the first, that is the usual distance (the median). One sample alone says nothing of
    any time. Of several at one time the last stays; what is no number, or below 0, ends nothing and holds
    for no time.
    """
    order = np.lexsort((np.arange(len(time)), time))
    time, value = time[order], value[order]
    time, value = _last_of_each(time, value)
    if len(time) < 2:
        return NOTHING
    distance = np.diff(time)
    usual = int(np.median(distance))
    since = np.concatenate(([time[0] - usual], time[:-1]))
    far = time - since > _REACH * usual
    since = np.where(far, time - usual, since)
    return averages(since, time, value)[0]


def of_counter(time: IntArray, total: FloatArray) -> Averages:
    """Return the rates of a counter, per second, between its readings. One that fell began anew from 0.

    What is no number is passed over: the rate then is that of the longer time.
    """
    fit = np.abs(total) <= MOST
    time, total = time[fit], total[fit]
    order = np.lexsort((total, time))
    time, total = time[order], total[order]
    time, total = _last_of_each(time, total)
    if len(time) < 2:
        return NOTHING
    added = np.diff(total)
    added = np.where(added < 0, total[1:], added)
    return averages(time[:-1], time[1:], added / (np.diff(time) / _S))[0]


def _last_of_each(time: IntArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return of several at one of the sorted times the last."""
    last = np.append(time[1:] != time[:-1], True)[: len(time)]
    return time[last], value[last]
