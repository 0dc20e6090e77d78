# SPDX-License-Identifier: Apache-2.0
"""Which number stands for the steps where none is asked for: their median, or their mean where that hides
time.

Where every fourth step waits for a slow worker, the median is of a step that does not, and stays the same
however long the others wait. What people pay for is the mean; it is also what adds up. Single long steps, as
a pause of the machine, are no reason: they would make the mean as uncertain as they are rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import Quantity
from grademl_otel.analyzers.comparison.resampling import (
    FEWEST_BLOCKS,
    MEAN,
    MEDIAN,
    Sample,
    Spread,
    Statistic,
    spread,
)
from grademl_otel.analyzers.graph.budget import FEW_STEPS

_HIDDEN: Final = 0.05
"""Part of the mean by which the median may be off it."""
_SINGLE: Final = 100
"""One of so many steps, the longest, is left out of that."""
_EDGE: Final = 3.0
"""Of noise around one length the median spreads 1.25 times as much as the mean; so many times: around two."""


def usual(make: Callable[[Statistic], Quantity]) -> Quantity:
    """Return the quantity as the median, or as the mean where the median hides time or is not known."""
    median = make(MEDIAN)
    if median.sample is None:
        mean = make(MEAN)
        return mean if mean.known else median
    if hides_time(median.sample):
        return make(MEAN)
    at_edge = _on_edge(spread(median.sample, MEDIAN), spread(median.sample, MEAN))
    return make(MEAN) if at_edge else median


def usual_pair(make: Callable[[Statistic], Pair], means: bool = False) -> Pair:
    """Return the pair of medians, or that of means where the median of either side hides time or tells
    nothing; with ``means`` in any case. One that is refused has no function in its name.
    """
    median = make(MEDIAN)
    if median.refused is not None:
        return median
    samples = [one.sample for one in (median.a, median.b) if one.sample is not None]
    hidden = means or any(hides_time(sample) for sample in samples)
    return make(MEAN) if hidden else steadier(make, median)


def steadier(make: Callable[[Statistic], Pair], median: Pair | None = None) -> Pair:
    """Return the pair of medians; that of means where only these tell something, or the median of either side
    spreads much more.
    """
    median = median or make(MEDIAN)
    if median.refused is not None:
        return median
    mean = make(MEAN)
    if mean.reason is not None:
        return median
    if median.reason is not None:
        return mean
    pairs = zip(median.spreads, mean.spreads, strict=True)
    return mean if any(_on_edge(one, other) for one, other in pairs) else median


def hides_time(sample: Sample) -> bool:
    """Return whether the median of ``sample`` is far from the mean, and not for single long steps."""
    count = len(sample.value)
    if count < FEW_STEPS:
        return False
    kept = count - count // _SINGLE
    mean = float(np.partition(sample.value, kept - 1)[:kept].mean())
    return abs(mean - float(np.median(sample.value))) > _HIDDEN * mean


def _on_edge(median: Spread, mean: Spread) -> bool:
    """Return whether a median depends on single steps much more than the mean does."""
    return min(median.blocks, mean.blocks) >= FEWEST_BLOCKS and median.width > _EDGE * mean.width
