# SPDX-License-Identifier: Apache-2.0
"""Best fits of metrics, kept by the content of what they are made of: whatever is another input is made anew.

GradeML keeps its rules by paths, so that changed inputs silently get the rules of the old ones.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.demand import Timeline, estimate
from grademl_otel.analyzers.attribution.fit import Fit, best_fit
from grademl_otel.analyzers.attribution.observations import Observations, Users

_KEPT: Final = 256


@dataclass(frozen=True, eq=False)
class Overridden:
    """Periods of phases that have a rule of their own for the metric: exact, or variable."""

    users: Users

    def averages(self, observed: Observations) -> tuple[FloatArray | None, FloatArray | None]:
        """Return (units that exact rules want, weights of variable ones) of each interval, None for none."""
        users = self.users
        if not len(users):
            return None, None
        timeline = Timeline.of(observed, users.start, users.end)
        demand = estimate(timeline, users)
        some = timeline.observation >= 0
        owner, length = timeline.observation[some], timeline.length[some]
        of_whole = observed.end - observed.start
        found = [
            np.bincount(owner, each[some] * length, len(observed)) / of_whole if each.any() else None
            for each in (demand.exact, demand.variable)
        ]
        return found[0], found[1]


_fits: OrderedDict[bytes, Fit] = OrderedDict()
_lock: Final = Lock()


def fit_of(
    observed: Observations,
    start: IntArray,
    end: IntArray,
    column: IntArray,
    types: int,
    overridden: Overridden,
) -> Fit:
    """Return the `best_fit` of periods of phases, with one weight for types that cannot be told apart.

    Types that were active all the time cannot be told from the background, which is 0 then.
    """
    users = overridden.users
    key = _digest(
        observed.start, observed.end, observed.value, start, end, column, np.array([types]),
        users.start, users.end, users.rule, users.amount,
    )  # fmt: skip
    with _lock:
        if key in _fits:
            _fits.move_to_end(key)
            return _fits[key]
    taken, beside = overridden.averages(observed)
    found = _evened(
        best_fit(observed, start, end, column, types, taken, beside), observed, start, end, column
    )
    with _lock:
        _fits[key] = found
        while len(_fits) > _KEPT:
            _fits.popitem(last=False)
    return found


def _digest(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    state = blake2b(digest_size=16)
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.digest()


def _evened(fit: Fit, observed: Observations, start: IntArray, end: IntArray, column: IntArray) -> Fit:
    """Return ``fit`` with one weight for all types of a group that were active in the same proportion.

    How they divide what they used is not known: by their time while it was observed is as good as any other
    way, and no solver's whim. What is always there cannot be told from the background: it is theirs, as in
    GradeML, which knows none.
    """
    types = len(fit.weight)
    if not fit.ambiguous:
        return fit
    active = _observed_until(observed, end) - _observed_until(observed, start)
    part = np.bincount(column, np.maximum(active, 0.0), types) / (observed.end - observed.start).sum()
    weight, background = fit.weight.copy(), fit.background
    for each in fit.ambiguous:
        group = [ix for ix in each if ix < types]
        used = weight[group] @ part[group]
        if len(group) < len(each):
            used, background = used + background, 0.0
        if part[group].sum() > 0:
            weight[group] = used / part[group].sum()
    return replace(fit, weight=weight, background=background)


def _observed_until(observed: Observations, moment: IntArray) -> FloatArray:
    """Return for how many ns there were observations before each moment (Unix ns)."""
    length = observed.end - observed.start
    until = np.concatenate(([0], np.cumsum(length)))
    within = np.maximum(np.searchsorted(observed.start, moment, "right") - 1, 0)
    reached = until[within] + np.clip(moment - observed.start[within], 0, length[within])
    return np.asarray(reached, np.float64)
