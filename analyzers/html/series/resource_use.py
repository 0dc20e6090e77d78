# SPDX-License-Identifier: Apache-2.0
"""Use of the metrics of one type over time, stacked by what used it, in bins of equal length.

Those of several resources are added up: of eight GPUs of which two are busy two are used. What a bin shows is
the mean over the time of it in which a resource was observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.usage import Attribution
from grademl_otel.analyzers.html.series.bins import edges_of

BINS: Final = 120
LAYERS: Final = 10
"""Keys that have a layer of their own."""
OTHER_PHASES: Final = "other phases"
NOBODYS: Final = "no phase's"


@dataclass(frozen=True, eq=False)
class Use:
    """Use of the metrics of one type."""

    metric: str
    unit: str
    resources: int
    layers: list[str]
    """Those that used most first, then `OTHER_PHASES` and `NOBODYS` where there are any."""
    values: FloatArray
    """(layers, bins) In the unit; NaN where nothing was observed."""
    capacity: float | None
    """Of all together; None where one is not known."""

    @property
    def top(self) -> float:
        """The most that is to be drawn."""
        stacked = np.nansum(self.values, axis=0)
        return max(float(stacked.max(initial=0.0)), self.capacity or 0.0)


def use_over_time(
    metric: str,
    unit: str,
    parts: Sequence[tuple[Attribution, IntArray]],
    names: Sequence[str],
    window: tuple[int, int],
    bins: int = BINS,
) -> Use | None:
    """Return the use of the metrics of one type in a ``window`` of Unix ns; None where none was observed.

    ``parts``: of each of them its attribution, and by user the number of its key among ``names``, or -1.
    """
    used = np.zeros(len(names))
    for attribution, key in parts:
        usage = attribution.usage()
        chosen = (key >= 0) & ~np.isnan(usage)
        np.add.at(used, key[chosen], usage[chosen])
    order = [at for at in np.argsort(-used, kind="stable").tolist() if used[at] > 0]
    own = order[:LAYERS]
    layers = np.zeros((len(own) + 2, bins))
    known = np.zeros(bins, np.bool_)
    for attribution, key in parts:
        bin_of = _Bins(attribution, window, bins)
        whole = bin_of(attribution.upsampled.value)
        known |= ~np.isnan(whole)
        each = [bin_of(attribution.together(key == at)) for at in own]
        rest = bin_of(attribution.unattributed())
        layers[: len(own)] += np.nan_to_num(each) if each else 0.0
        layers[-1] += np.nan_to_num(rest)
        layers[-2] += np.nan_to_num(whole - rest - np.sum(each, axis=0))
    if not known.any():
        return None
    # What is left of a difference of sums is no use.
    layers[np.abs(layers) < 1e-9 * max(float(layers.max()), 1e-300)] = 0.0
    layers = np.maximum(layers, 0.0)
    titles = [*(names[at] for at in own), OTHER_PHASES, NOBODYS]
    kept = [at for at in range(len(layers)) if layers[at].any()]
    values = np.where(known, layers[kept], np.nan)
    capacity = sum(attribution.upsampled.capacity for attribution, _ in parts)
    return Use(
        metric,
        unit,
        len(parts),
        [titles[at] for at in kept],
        values,
        capacity if np.isfinite(capacity) else None,
    )


class _Bins:
    """Means, over bins of a window, of what is constant on the segments of an attribution."""

    def __init__(self, attribution: Attribution, window: tuple[int, int], bins: int) -> None:
        start, end = window
        # Floats hold times of a run exactly from its start, not from 1970.
        self._at = (attribution.upsampled.demand.timeline.edges - start).astype(float)
        self._edges = edges_of(end - start, bins).astype(float)

    def __call__(self, values: FloatArray) -> FloatArray:
        there: BoolArray = ~np.isnan(values)
        length = np.diff(self._at)
        known = self._sum(np.where(there, length, 0.0))
        total = self._sum(np.where(there, values, 0.0) * length)
        found: FloatArray = np.divide(total, known, out=np.full(len(known), np.nan), where=known > 0)
        return found

    def _sum(self, of_segments: FloatArray) -> FloatArray:
        if not len(of_segments):
            return np.zeros(len(self._edges) - 1)
        sums = np.concatenate((np.zeros(1), np.cumsum(of_segments)))
        found: FloatArray = np.diff(np.interp(self._edges, self._at, sums))
        return found
