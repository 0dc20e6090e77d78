# SPDX-License-Identifier: Apache-2.0
"""Estimates that a few odd values do not move: of a slope, and of how often something holds."""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray

_Z: Final = 1.96


def resistant_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return (slope of ``y`` over ``x``, its standard error) from the medians of the outer thirds by ``x``.

    The error goes by the median deviations of ``y - x`` there. (0, inf) where ``x`` does not vary.
    """
    third = max(1, len(x) // 3)
    order = np.argsort(x, kind="stable")
    low, high = order[:third], order[-third:]
    apart = float(np.median(x[high]) - np.median(x[low]))
    if apart <= 0:
        return 0.0, float("inf")
    slope = float(np.median(y[high]) - np.median(y[low])) / apart
    variance = sum(_deviation((y - x)[side]) ** 2 / len(side) for side in (low, high))
    # 1.2533: the standard error of a median against that of a mean.
    return slope, 1.2533 * sqrt(variance) / apart


def _deviation(values: FloatArray) -> float:
    """Return the standard deviation as the median deviation tells it (1.4826: that of a normal one)."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def wilson(hits: int, of: int) -> float:
    """Return the lower bound of Wilson's 95 % interval of a proportion (J. Am. Stat. Assoc. 22, 1927)."""
    if not of:
        return 0.0
    share, z = hits / of, _Z * _Z / of
    return max(0.0, (share + z / 2 - sqrt(z * (share * (1 - share) + z / 4))) / (1 + z))
