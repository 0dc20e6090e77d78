# SPDX-License-Identifier: Apache-2.0
"""Which span trees are plain: those whose paths times, names and kinds decide, see `plain`."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.model.columns import BLOCKING, SpanColumns

MOST_TIME: Final = float(1 << 61)
"""The lengths of the spans of a plain tree, in ns, add up to less: sums of them are exact in 64 bits."""
_OURS: Final = b"grademl."
"""In the key of every attribute that the rule looks at, but for threads."""


def plain_trees(spans: SpanColumns, roots: IntArray, tree: IntArray, time: FloatArray) -> BoolArray:
    """Return which of the trees under ``roots`` are plain, as far as can be told without their paths.

    ``tree`` is the number of the root of each span's trace, -1 for none, ``time`` as of `time_of_trees`. Of a
    trace with several roots, and of one with a parent in another trace, nothing is said: they are not plain.
    """
    plain: BoolArray = np.bincount(spans.trace_ix[roots])[spans.trace_ix[roots]] == 1
    some = np.flatnonzero(tree >= 0)
    odd = (spans.start[some] < 0) | spans.raw_attributes.that_may_have(_OURS, some)
    below = np.flatnonzero(spans.parent_ix >= 0)
    above = spans.parent_ix[below]
    across = tree[below] != tree[above]
    waiting = spans.links.span_ix[[at for at, kind in enumerate(spans.links.kind) if kind == BLOCKING]]
    found = tree[np.concatenate((some[odd], below[across], above[across], waiting))]
    plain[found[found >= 0]] = False
    return plain & (time < MOST_TIME)


def time_of_trees(spans: SpanColumns, tree: IntArray, count: int) -> FloatArray:
    """Return the lengths of the spans of each of ``count`` trees, added up, in ns, about."""
    length = np.maximum(spans.end.astype(np.float64) - spans.start, 0.0)
    time: FloatArray = np.bincount(tree + 1, length, count + 1)[1:].astype(np.float64)
    return time
