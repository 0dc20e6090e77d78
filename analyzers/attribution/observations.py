# SPDX-License-Identifier: Apache-2.0
"""What a monitor saw of one metric of one resource, and who may have used it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray

NONE: Final = 0
"""A phase does not use the metric."""
EXACT: Final = 1
"""A phase uses a known number of units while it is active."""
VARIABLE: Final = 2
"""A phase uses a share in proportion to its weight of what others leave."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Averages over intervals: ``value[i]`` is that from ``start[i]`` to ``end[i]``.

    Intervals are sorted and do not overlap; between them nothing was observed. Times in Unix ns; values in
    the metric's unit (of counters that unit per second), none of them NaN or below 0. ``capacity`` is the
    most that a value can be; infinite where nobody knows.
    """

    start: IntArray
    end: IntArray
    value: FloatArray
    capacity: float = math.inf

    def __post_init__(self) -> None:
        if not len(self.start) == len(self.end) == len(self.value):
            raise ValueError("an interval has a start, an end and a value")
        if (self.end <= self.start).any() or (self.start[1:] < self.end[:-1]).any():
            raise ValueError("intervals are sorted, longer than nothing, and do not overlap")
        if not (self.value >= 0).all():
            raise ValueError("values are numbers that are not below 0")
        if not self.capacity > 0:
            raise ValueError(f"a capacity of {self.capacity} holds nothing")

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, eq=False)
class Users:
    """Leaf phases, each with its rule for one metric. Times in Unix ns; one that ends before it starts has no
    length.
    """

    start: IntArray
    end: IntArray
    rule: npt.NDArray[np.int8]
    """`NONE`, `EXACT`, `VARIABLE`."""
    amount: FloatArray
    """Units of the metric of an exact rule, the weight of a variable one; both at least 0."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.amount).all() and (self.amount >= 0).all()):
            raise ValueError("amounts of rules are finite and not below 0")

    def __len__(self) -> int:
        return len(self.start)

    def demanding(self, rule: int) -> BoolArray:
        """Return the mask of those with ``rule`` that want something."""
        mask: BoolArray = (self.rule == rule) & (self.amount > 0) & (self.end > self.start)
        return mask
