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

from grademl_otel.analyzers.graph.event_graph import FloatArray

_INSIGNIFICANT: Final = 2.0
"""Autocorrelations below so many times sqrt(log10(n) / n) are taken for noise (their constant c)."""


def block_length(series: FloatArray) -> int:
    """Return the length of a block for the mean of ``series``, from 1 to min(3 sqrt(n), n / 3)."""
    count = len(series)
    run = max(5, ceil(sqrt(log10(max(count, 2)))))
    lags = min(count - 1, ceil(sqrt(count)) + run)
    centred = series - series.mean() if count else series
    if lags <= run or not np.any(centred):
        return 1
    covariance = _autocovariance(centred, lags)
    noise = _INSIGNIFICANT * sqrt(log10(count) / count)
    small = np.abs(covariance[1:] / covariance[0]) < noise
    quiet = np.convolve(small, np.ones(run), "valid") == run
    if quiet.any():
        last = int(quiet.argmax())
    else:
        last = int(np.flatnonzero(~small).max(initial=0)) + 1
    window = min(2 * max(last, 1), lags)
    lag = np.arange(1, window + 1)
    weighted = np.minimum(1.0, 2.0 * (1.0 - lag / window)) * covariance[1 : window + 1]
    spread = 2.0 * float((lag * weighted).sum())
    at_zero = float(covariance[0]) + 2.0 * float(weighted.sum())
    most = max(1, ceil(min(3 * sqrt(count), count / 3)))
    if at_zero <= 0.0:
        return most
    length = (2.0 * spread**2 / (4.0 / 3.0 * at_zero**2)) ** (1 / 3) * count ** (1 / 3)
    return int(min(max(1, ceil(length)), most))


def _autocovariance(centred: FloatArray, lags: int) -> FloatArray:
    """Return the autocovariances of lag 0 to ``lags``."""
    size = 1 << (len(centred) + lags).bit_length()
    transformed = np.fft.rfft(centred, size)
    found: FloatArray = np.fft.irfft(transformed * transformed.conj(), size)[: lags + 1] / len(centred)
    return found
