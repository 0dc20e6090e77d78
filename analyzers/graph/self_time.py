# SPDX-License-Identifier: Apache-2.0
"""Self time of spans: what they took without their children."""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns


def self_times(spans: SpanColumns, root: int) -> tuple[IntArray, IntArray]:
    """Return the spans under ``root``, itself among them, and the self time of each, in ns.

    That is its duration without the time in which at least one of its children ran, as far as it lies within
    the span. Spans with impossible times take none.
    """
    below = _below(spans, root)
    start, end = spans.start[below], np.maximum(spans.end[below], spans.start[below])
    place = np.full(len(spans) + 1, -1, np.int64)
    place[below] = np.arange(len(below))
    holder = place[np.maximum(spans.parent_ix[below], -1)]
    holder[below == root] = -1
    child = np.flatnonzero(holder >= 0)
    holder = holder[child]
    lo, hi = np.maximum(start[child], start[holder]), np.minimum(end[child], end[holder])
    some = np.flatnonzero(lo < hi)
    order = some[np.lexsort((lo[some], holder[some]))]
    holder, lo, hi = holder[order], lo[order], hi[order]
    # How far the children before have come, in each parent anew: by ranks, as times may be of any size.
    known, rank = np.unique(hi, return_inverse=True)
    parent = np.cumsum(changes(holder)) if len(holder) else holder
    reached = np.maximum.accumulate(rank.reshape(-1) + parent * len(known))
    before = lo.copy()
    later = np.flatnonzero(~changes(holder)) if len(holder) else holder
    before[later] = known[reached[later - 1] - parent[later] * len(known)]
    covered = np.zeros(len(below), np.int64)
    np.add.at(covered, holder, np.maximum(hi - np.maximum(lo, before), 0))
    return below, end - start - covered


def _below(spans: SpanColumns, root: int) -> IntArray:
    """Return ``root`` and the spans of its trace that it is an ancestor of."""
    ix = np.flatnonzero(spans.trace_ix == spans.trace_ix[root])
    place = np.full(len(spans) + 1, -1, np.int64)
    place[ix] = np.arange(len(ix))
    up = place[np.maximum(spans.parent_ix[ix], -1)]
    up = np.where(up < 0, np.arange(len(ix)), up)
    up[place[root]] = place[root]
    for _ in range(len(ix).bit_length() + 1):
        further = up[up]
        if np.array_equal(further, up):
            break
        up = further
    found: IntArray = ix[up == place[root]]
    return found
