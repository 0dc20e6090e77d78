# SPDX-License-Identifier: Apache-2.0
"""Quantiles of Student's t: how much wider an interval is that rests on few independent parts."""

from __future__ import annotations

from functools import lru_cache
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist
from typing import Final

_NORMAL_FROM: Final = 500
"""Degrees of freedom from which on the normal distribution stands for it."""
_WIDEST: Final = 1e6


@lru_cache(maxsize=256)
def two_sided(alpha: float, freedom: int) -> float:
    """Return t that T exceeds, on either side, with probability ``alpha``; for 1 or more degrees."""
    if freedom >= _NORMAL_FROM:
        return NormalDist().inv_cdf(1 - alpha / 2)
    low, high = 0.0, _WIDEST
    for _ in range(100):
        middle = (low + high) / 2
        if _inside(middle, freedom) < 1 - alpha:
            low = middle
        else:
            high = middle
    return high


def _inside(t: float, freedom: int) -> float:
    """Return the probability that T is within ``t``: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    theta = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(theta) if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cos(theta) ** 2
    inside = sin(theta) * total
    return 2 / pi * (theta + inside) if odd else inside
