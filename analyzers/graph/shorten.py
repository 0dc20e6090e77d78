# SPDX-License-Identifier: Apache-2.0
"""What a tree's duration becomes when one of its spans gets shorter.

A span's length on the critical path does not say what shortening it would gain: what ran beside it takes
over. Here every child starts as long after the last of the siblings that ended before it as it did, and a
parent ends as long after its last child as it did.
"""

from __future__ import annotations

from itertools import pairwise

from grademl_otel.analyzers.graph.span_tree import SpanTree
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER, SpanColumns


def shortened_total(
    spans: SpanColumns, root_ix: int, span_ix: int, by_ns: int, tree: SpanTree | None = None
) -> int:
    """Return the duration, in ns, of the tree under ``root_ix`` if span ``span_ix`` took ``by_ns`` less.

    Without effect when the span does not block the root. Raises ValueError when it is not below the root.
    """
    tree = tree or SpanTree(spans)
    above = [span_ix]
    while above[-1] != root_ix:
        parent = int(spans.parent_ix[above[-1]])
        if parent < 0 or len(above) > len(spans):
            raise ValueError(f"span {span_ix} is not in the tree under span {root_ix}")
        above.append(parent)
    windows = _windows(spans, above)
    lo, hi = windows[span_ix]
    length = max(0, hi - lo - by_ns)
    for child, parent in pairwise(above):
        length = _length(tree, root_ix, parent, windows[parent], child, length)
    return length


def _windows(spans: SpanColumns, above: list[int]) -> dict[int, tuple[int, int]]:
    """Return the window of each span of a chain (the root last), clipped to that of its parent."""
    windows: dict[int, tuple[int, int]] = {}
    lo, hi = int(spans.start[above[-1]]), int(spans.end[above[-1]])
    for ix in reversed(above):
        lo = min(max(lo, int(spans.start[ix])), hi)
        hi = max(lo, min(hi, int(spans.end[ix])))
        windows[ix] = (lo, hi)
    return windows


def _length(
    tree: SpanTree, root: int, parent: int, window: tuple[int, int], changed: int, length: int
) -> int:
    """Return the duration of ``parent`` when its child ``changed`` takes ``length``."""
    spans = tree.spans
    lo, hi = window
    producer, lane = spans.kind[parent] == KIND_PRODUCER, tree.lane_around(parent)
    children: list[tuple[int, int, int]] = []
    for ix in tree.children(parent):
        start, end = max(lo, int(spans.start[ix])), min(hi, int(spans.end[ix]))
        own = tree.lane(ix)
        concurrent = lane is not None and own is not None and own != lane
        blocks = not concurrent and not (producer and spans.kind[ix] == KIND_CONSUMER)
        if start < end and ix != root and blocks:
            children.append((start, end, ix))
    by_start = sorted(children)
    by_end = sorted(children, key=lambda child: child[1])
    ended = 0
    before, new_before = lo, lo  # the last end among siblings that ended by now, as it was and as it becomes
    new_end: dict[int, int] = {}
    for start, end, ix in by_start:
        while ended < len(by_end) and by_end[ended][1] <= start:
            before = by_end[ended][1]
            new_before = max(new_before, new_end[by_end[ended][2]])
            ended += 1
        new_start = new_before + (start - before)
        new_end[ix] = new_start + (length if ix == changed else end - start)
    last = max((end for _, end, _ in children), default=lo)
    return max(new_end.values(), default=lo) + (hi - last) - lo
