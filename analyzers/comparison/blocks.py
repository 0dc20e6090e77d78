# SPDX-License-Identifier: Apache-2.0
"""How long the stretches of steps must be that are drawn together, for steps that depend on each other.

The length is that of Politis and White, "Automatic Block-Length Selection for the Dependent Bootstrap"
(Econometric Reviews 23, 2004), for blocks of a circle, as corrected by Patton, Politis and White (28, 2009):
from the autocovariances up to where they are noise, weighted by a flat-top window.
"""

from __future__ import annotations

from math import ceil, log10, sqrt
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray

_INSIGNIFICANT: Final = 2.0
"""Autocorrelations below so many times sqrt(log10(n) / n) are taken for noise (their constant c)."""
_ALIKE: Final = 0.5
"""Autocorrelation from which on steps repeat,"""
_TURNS: Final = 0.2
"""if that is so much more than that of neighbours."""
_FEWEST_TURNS: Final = 16
"""Turns below which nobody knows that there are any."""
_NOTHING: Final = 1e-12
"""Variance of what is left when all repeats exactly."""


def block_length(series: FloatArray) -> int:
    """Return the length of a block for the mean of ``series``, from 1 to min(3 sqrt(n), n / 3).

    Steps that take turns, as when every fourth batch is late, are no noise: what repeats is taken out first,
    and a block holds whole turns.
    """
    count = len(series)
    run = max(5, ceil(sqrt(log10(max(count, 2)))))
    lags = min(count - 1, ceil(sqrt(count)) + run)
    if lags <= run or not np.any(series != series[0]):
        return 1
    most = max(1, ceil(min(3 * sqrt(count), count / 3)))
    period = _period(_autocovariance(series - series.mean(), lags), count)
    if period > 1:
        turn = np.arange(count) % period
        series = series - (np.bincount(turn, series) / np.bincount(turn))[turn]
    length = _of_noise(series - series.mean(), run, lags)
    return int(min(ceil(length / period) * period, most))


def _period(covariance: FloatArray, count: int) -> int:
    """Return after how many steps they are alike again; 1 where they do not take turns."""
    correlation = covariance / covariance[0]
    most = min(len(correlation), count // _FEWEST_TURNS + 1)
    if most <= 2:
        return 1
    at = int(correlation[2:most].argmax()) + 2
    alike = correlation[at] >= _ALIKE and correlation[at] - correlation[1] >= _TURNS
    return at if alike else 1


def _of_noise(centred: FloatArray, run: int, lags: int) -> int:
    """Return the length that Politis and White choose, not bounded."""
    count = len(centred)
    covariance = _autocovariance(centred, lags)
    if covariance[0] <= _NOTHING:
        return 1
    correlation = covariance[1:] / covariance[0]
    limit = _INSIGNIFICANT * sqrt(log10(count) / count)
    small = np.abs(correlation) < limit
    quiet = np.convolve(small, np.ones(run), "valid") == run
    if not quiet.any() and correlation[-run:].mean() > limit:
        return count  # steps are alike for longer than can be seen here
    last = int(quiet.argmax() if quiet.any() else np.flatnonzero(~small).max(initial=0) + 1)
    window = min(2 * max(last, 1), lags)
    lag = np.arange(1, window + 1)
    weighted = np.minimum(1.0, 2.0 * (1.0 - lag / window)) * covariance[1 : window + 1]
    spread = 2.0 * float((lag * weighted).sum())
    at_zero = float(covariance[0]) + 2.0 * float(weighted.sum())
    if at_zero < float(covariance[0]):
        return 1  # a slow step is followed by a fast one: single draws spread more than these do
    return ceil((2.0 * spread**2 / (4.0 / 3.0 * at_zero**2)) ** (1 / 3) * count ** (1 / 3)) or 1


def _autocovariance(centred: FloatArray, lags: int) -> FloatArray:
    """Return the autocovariances of lag 0 to ``lags``."""
    size = 1 << (len(centred) + lags).bit_length()
    transformed = np.fft.rfft(centred, size)
    found: FloatArray = np.fft.irfft(transformed * transformed.conj(), size)[: lags + 1] / len(centred)
    return found
