# SPDX-License-Identifier: Apache-2.0
"""Use added up over phases, within a window of time: exactly what of them lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.composites import together
from grademl_otel.analyzers.attribution.observations import NONE
from grademl_otel.analyzers.attribution.usage import Attribution

_SECOND: Final = 1e9


@dataclass(frozen=True, eq=False)
class ByKey:
    """What phases used of one metric, or of several; arrays over keys."""

    used: FloatArray
    """In the metric's unit times seconds."""
    available: FloatArray
    """What could have been used; infinite where nobody knows the capacity."""
    observed: FloatArray
    """Seconds of the phases in which the metric was observed, those side by side added up."""
    has_rule: BoolArray
    """Whether anything is said of the key's use."""

    @classmethod
    def of(cls, attribution: Attribution, key: IntArray, keys: int, window: tuple[int, int]) -> ByKey:
        """Return the totals of users by their ``key``, -1 for none, in a ``window`` of Unix ns."""
        users = attribution.users
        start, end = window
        mine = (key >= 0) & (users.rule != NONE) & (users.end > start) & (users.start < end)
        whole = mine & (users.start >= start) & (users.end <= end)
        used, available, observed = np.zeros((3, keys))
        for sums, values in (
            (used, attribution.usage()),
            (available, attribution.capacity()),
            (observed, attribution.observed()),
        ):
            np.add.at(sums, key[whole], values[whole])
        for user in np.flatnonzero(mine & ~whole).tolist():
            use = attribution.of_phase(user)
            if use is not None:
                length = clipped(use.edges, window)
                used[key[user]] += integral(use.usage, length)
                available[key[user]] += integral(np.where(np.isnan(use.usage), np.nan, use.capacity), length)
                observed[key[user]] += float(length[~np.isnan(use.usage)].sum())
        # What wants nothing could have had all there is, several such together no more than that once.
        idle = mine & (users.amount == 0)
        if idle.any():
            _count_once(attribution, key, np.unique(key[idle]), mine, window, available)
        return cls(used, available, observed, np.bincount(key[mine], minlength=keys) > 0)


def added(parts: Sequence[ByKey]) -> ByKey:
    """Return the totals of several metrics together; there is at least one."""
    used, available, observed = (
        np.sum([getattr(part, name) for part in parts], axis=0) for name in ("used", "available", "observed")
    )
    return ByKey(used, available, observed, np.any([part.has_rule for part in parts], axis=0))


def _count_once(
    attribution: Attribution,
    key: IntArray,
    keys: IntArray,
    mine: BoolArray,
    window: tuple[int, int],
    available: FloatArray,
) -> None:
    users = attribution.users
    chosen = np.flatnonzero(mine & np.isin(key, keys))
    chosen = chosen[np.argsort(key[chosen], kind="stable")]
    bounds = np.searchsorted(key[chosen], keys), np.searchsorted(key[chosen], keys, "right")
    for one, low, high in zip(keys.tolist(), *(bound.tolist() for bound in bounds), strict=True):
        some = chosen[low:high]
        if len(some) < 2:
            continue
        start = max(window[0], int(users.start[some].min()))
        end = min(window[1], int(users.end[some].max()))
        use = together(attribution, some, start, end)
        if use is not None:
            available[one] = integral(use.capacity, np.diff(use.edges) / _SECOND)


def clipped(edges: IntArray, window: tuple[int, int]) -> FloatArray:
    """Return the seconds of each segment between ``edges`` that lie in ``window``."""
    inside: IntArray = np.clip(edges, *window)
    length: FloatArray = (inside[1:] - inside[:-1]) / _SECOND
    return length


def integral(values: FloatArray, length: FloatArray) -> float:
    """Return the integral of ``values``, of which NaN is not known and counts nothing."""
    there = ~np.isnan(values) & (length > 0)
    return float(np.sum(values[there] * length[there]))
