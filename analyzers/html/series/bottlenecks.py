# SPDX-License-Identifier: Apache-2.0
"""Which resources were full while phases ran, over time, in bins of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.bottlenecks import NOT_FULL
from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE, Bottlenecks
from grademl_otel.analyzers.html.series.bins import edges_of

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.keys import Keys

BINS: Final = 240
ROWS: Final = 12
"""Keys that are looked at: those that take most time."""


@dataclass(frozen=True, eq=False)
class Strips:
    """For each key, and each type of resources, how much of the key's time in a bin it was full."""

    keys: list[str]
    resources: list[str]
    full: FloatArray
    """(keys, resources, bins) 0 to 1."""
    known: BoolArray
    """(keys, bins) Whether the key ran then, and it is known how full anything was that it uses."""
    omitted: int
    """Keys that are not looked at."""


def bottlenecks_over_time(
    found: Bottlenecks, keys: Keys, window: tuple[int, int], bins: int = BINS
) -> Strips | None:
    """Return the strips of the keys that take most time, in a ``window`` of Unix ns; None: nothing known."""
    rows, names = min(ROWS, len(keys.names)), found.names(RESOURCE_TYPE)
    start, end = window
    if not rows or not names or end <= start:
        return None
    at_bins = edges_of(end - start, bins).astype(float)
    full = np.zeros((rows, len(names), bins))
    time = np.zeros((rows, bins))
    activity = found.source.activity
    key_of = keys.of_phase[activity.leaf]
    for alike in found.alike():
        groups, state = found.group_states(alike, RESOURCE_TYPE)
        own = ~np.isnan(alike.found.own).all(axis=0)
        edges = alike.found.edges
        key = key_of[alike.periods]
        for row in np.unique(key[(key >= 0) & (key < rows)]).tolist():
            mine = alike.periods[key == row]
            active = _active(edges, activity.start[mine], activity.end[mine])
            into = _Into(edges - start, at_bins)
            time[row] += into(active * own)
            for group, states in zip(groups.tolist(), state, strict=True):
                full[row, group] += into(active * (states > NOT_FULL))
    stopped = found.stopped()
    if stopped is not None:
        key = keys.of_phase[stopped.leaf]
        for row in np.unique(key[(key >= 0) & (key < rows)]).tolist():
            mine = key == row
            edges = np.unique(np.concatenate((stopped.start[mine], stopped.end[mine])))
            into = _Into(edges - start, at_bins)
            time[row] += into(_active(edges, stopped.start[mine], stopped.end[mine]))
            for number, some in enumerate((stopped.by & mine[:, None]).T):
                full[row, len(names) - len(found.stops) + number] += into(
                    _active(edges, stopped.start[some], stopped.end[some])
                )
    known = time > 0
    if not known.any():
        return None
    share = np.divide(full, time[:, None, :], out=np.zeros_like(full), where=time[:, None, :] > 0)
    used = [at for at in range(len(names)) if share[:, at].any()]
    there = np.flatnonzero(known.any(axis=1))
    return Strips(
        [keys.names[row] for row in there.tolist()],
        [names[at] for at in used],
        np.minimum(share[there][:, used], 1.0),
        known[there],
        len(keys.names) - rows + keys.omitted,
    )


def _active(edges: IntArray, start: IntArray, end: IntArray) -> FloatArray:
    """Return how many of the periods are active in each segment between ``edges``."""
    first, after = np.searchsorted(edges, start), np.searchsorted(edges, np.maximum(start, end))
    count = len(edges)
    change = np.bincount(first, minlength=count + 1) - np.bincount(after, minlength=count + 1)
    return np.cumsum(change)[: count - 1].astype(float)


class _Into:
    """Integrals over bins, in ns, of what is constant on segments."""

    def __init__(self, edges: IntArray, bins: FloatArray) -> None:
        self._at, self._bins = edges.astype(float), bins
        self._length = np.diff(self._at)

    def __call__(self, values: FloatArray | Sequence[float]) -> FloatArray:
        if not len(self._length):
            return np.zeros(len(self._bins) - 1)
        sums = np.concatenate((np.zeros(1), np.cumsum(values * self._length)))
        found: FloatArray = np.diff(np.interp(self._bins, self._at, sums))
        return found
