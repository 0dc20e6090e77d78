# SPDX-License-Identifier: Apache-2.0
"""Parts of metrics, and sums over several: of the CPUs of a host, of all GPUs of a type, of a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.resource_model.series import NOTHING, Averages


def summed(parts: Sequence[Averages]) -> Averages:
    """Return the sum of all at each time, on their merged edges, where every one is known.

    Elsewhere nothing is: a sum over some of them would look as if the others had been idle.
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    if not parts or not all(len(part) for part in parts):
        return NOTHING
    edges = _edges(parts)
    total = np.zeros(len(edges) - 1)
    for part in parts:
        total += _at(part, edges)
    known = ~np.isnan(total)
    return Averages(edges[:-1][known], edges[1:][known], total[known])


def sliced(of: Averages, start: int, end: int) -> Averages:
    """Return what is known from ``start`` to ``end``; an interval that lies on an edge is cut there."""
    starts, ends = np.maximum(of.start, start), np.minimum(of.end, end)
    inside = ends > starts
    return Averages(starts[inside], ends[inside], of.value[inside])


def total(metrics: Sequence[Observations]) -> Observations:
    """Return the sum of several metrics of one unit, and of their capacities."""
    found = summed([Averages(one.start, one.end, one.value) for one in metrics])
    capacity = float(sum(one.capacity for one in metrics)) if metrics else np.inf
    return Observations(found.start, found.end, found.value, capacity)


def _edges(parts: Sequence[Averages]) -> IntArray:
    """Return all times at which one of them changes, each once."""
    same = all(
        len(part) == len(parts[0])
        and (part.start == parts[0].start).all()
        and (part.end == parts[0].end).all()
        for part in parts[1:]
    )
    some = parts[:1] if same else parts
    found: IntArray = np.unique(np.concatenate([array for part in some for array in (part.start, part.end)]))
    return found


def _at(part: Averages, edges: IntArray) -> FloatArray:
    """Return the value between each two edges; NaN where nothing is known."""
    at = np.searchsorted(part.start, edges[:-1], side="right") - 1
    known = (at >= 0) & (edges[:-1] < part.end[np.maximum(at, 0)])
    return np.where(known, part.value[np.maximum(at, 0)], np.nan)


def difference(one: Averages, other: Averages) -> Averages:
    """Return ``one`` less ``other`` where both are known; never below 0."""
    negative = Averages(other.start, other.end, -other.value)
    found = summed([one, negative])
    return Averages(found.start, found.end, np.maximum(found.value, 0.0))
