# SPDX-License-Identifier: Apache-2.0
"""Several monitors of one metric as one series: nothing is counted twice, gaps of one are filled by others.

Where two know, the one with the shorter intervals is taken. An interval of a coarser one that is known in
part tells of its rest what is left of it: so the sum over the interval stays what the coarser one saw.
Samples of moments saw no sum: they hold for the rest as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.resource_model.series import NOTHING, Averages

_S: Final = 1e9
_SLIVER: Final = 0.1
"""Of an interval of which less than this part is left nothing is taken: it would be all error."""
_CHANCE: Final = 3
"""Standard errors by which two must differ."""
TIE_NS: Final = 2_000_000
"""Two processes tie the same second to Unix time each for itself: that differs by less."""


def merged(monitors: Sequence[Averages], sampled: Sequence[bool] = ()) -> Averages:
    """Return what all of them know; ``sampled``: which of them are of moments (none)."""
    told = zip(monitors, sampled or [False] * len(monitors), strict=True)
    found = NOTHING
    for one, of_moments in sorted(told, key=lambda pair: _grain(pair[0])):
        if not len(one):
            continue
        found = one if not len(found) else _filled(found, one, of_moments)
    return found


def _grain(one: Averages) -> tuple[float, float]:
    """Sorts the finest first; of equal ones that which knows most."""
    if not len(one):
        return (0.0, 0.0)
    return (float(np.median(one.length)), -float(one.length.sum()))


def _filled(fine: Averages, coarse: Averages, of_moments: bool) -> Averages:
    """Return ``fine``, and in its gaps what ``coarse`` knows beyond it."""
    # Gaps of the fine one, the times before and after it among them.
    since = np.concatenate((np.array([min(int(coarse.start[0]), int(fine.start[0]))]), fine.end))
    until = np.concatenate((fine.start, np.array([max(int(coarse.end[-1]), int(fine.end[-1]))])))
    wide = until - since > TIE_NS
    since, until = since[wide], until[wide]
    first = np.searchsorted(until, coarse.start, side="right")
    after = np.searchsorted(since, coarse.end, side="left")
    count = np.maximum(after - first, 0)
    of = np.repeat(np.arange(len(coarse)), count)
    begun = np.cumsum(count) - count
    gap = first[of] + np.arange(len(of)) - begun[of]
    start = np.maximum(since[gap], coarse.start[of])
    end = np.minimum(until[gap], coarse.end[of])
    long = end > start
    of, start, end = of[long], start[long], end[long]

    left = np.bincount(of, weights=(end - start).astype(np.float64), minlength=len(coarse))
    length = coarse.length.astype(np.float64)
    known = integral(fine, coarse.start, coarse.end)
    rest = np.maximum(coarse.value * length / _S - known, 0.0)
    as_told = left >= length - 1 if not of_moments else np.ones(len(coarse), np.bool_)
    value = np.where(as_told, coarse.value, rest * _S / np.maximum(left, 1.0))
    take = left[of] >= _SLIVER * length[of]
    starts = np.concatenate((fine.start, start[take]))
    ends = np.concatenate((fine.end, end[take]))
    values = np.concatenate((fine.value, value[of[take]]))
    order = np.argsort(starts, kind="stable")
    return Averages(starts[order], ends[order], values[order])


def integral(of: Averages, start: IntArray, end: IntArray) -> FloatArray:
    """Return the sum of values times seconds within each of the intervals; what is not known adds nothing."""
    if not len(of):
        return np.zeros(len(start))
    edges = np.empty(2 * len(of), np.int64)
    edges[0::2], edges[1::2] = of.start, of.end
    origin = int(edges[0])
    sums = np.zeros(2 * len(of))
    sums[1::2] = of.value * (of.length / _S)
    np.cumsum(sums, out=sums)
    at = (edges - origin).astype(np.float64)
    result: FloatArray = np.interp((end - origin).astype(np.float64), at, sums) - np.interp(
        (start - origin).astype(np.float64), at, sums
    )
    return result


def known_time(of: Averages, start: IntArray, end: IntArray) -> FloatArray:
    """Return the seconds of each interval of which something is known."""
    return integral(Averages(of.start, of.end, np.ones(len(of))), start, end)


@dataclass(frozen=True)
class Disagreement:
    """Two monitors that tell different things of the same time."""

    fine: float
    coarse: float
    """Averages over all the time that both know of."""
    seconds: float

    @property
    def fraction(self) -> float:
        return abs(self.fine - self.coarse) / max(self.fine, self.coarse)


def disagreement(one: Averages, other: Averages, least: int, noise: float) -> Disagreement | None:
    """Return by how much two monitors differ over intervals of the coarser that the finer knows whole.

    None where there are fewer than ``least`` of these, or where the averages differ by less than ``noise``,
    or by what chance does: moments that one of them saw may not be those of the other.
    """
    if not len(one) or not len(other):
        return None
    fine, coarse = (one, other) if _grain(one) <= _grain(other) else (other, one)
    whole = known_time(fine, coarse.start, coarse.end) >= (coarse.length - TIE_NS) / _S * 0.999
    if int(whole.sum()) < least:
        return None
    seconds = float(coarse.length[whole].sum()) / _S
    sums = integral(fine, coarse.start[whole], coarse.end[whole])
    of_fine = float(sums.sum()) / seconds
    of_coarse = float(coarse.value[whole] @ coarse.length[whole]) / _S / seconds
    apart = sums / (coarse.length[whole] / _S) - coarse.value[whole]
    by_chance = _CHANCE * float(apart.std()) / len(apart) ** 0.5
    if abs(of_fine - of_coarse) <= max(noise, by_chance) or max(of_fine, of_coarse) <= 0:
        return None
    return Disagreement(of_fine, of_coarse, seconds)
