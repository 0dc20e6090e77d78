# SPDX-License-Identifier: Apache-2.0
"""Critical paths as tests compare them."""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.graph import DEFAULT_TOLERANCE, OverlapTolerance, Path, SpanTree
from grademl_otel.analyzers.graph.trees.labels import labelled
from grademl_otel.analyzers.graph.trees.trace_paths import MOST_NS
from grademl_otel.analyzers.graph.trees.tree import walk
from grademl_otel.analyzers.model.columns import SpanColumns


def walked_path(spans: SpanColumns, root_ix: int, tolerance: OverlapTolerance = DEFAULT_TOLERANCE) -> Path:
    """Return the path under span ``root_ix`` by the walk, whether the tree is plain or not."""
    tree = SpanTree(spans)
    found = walk(tree, root_ix, tolerance)
    sections = labelled(spans, found.pieces, tree, np.arange(len(found.pieces)))
    start = int(spans.start[root_ix])
    end = max(start, int(spans.end[root_ix]))
    return Path(start, end, sections, min(found.clipped_ns, MOST_NS), found.overlap_ns)


def told(spans: SpanColumns, path: Path, shift: int = 0) -> list[tuple[object, ...]]:
    """Return all that can be seen of ``path``, earlier by ``shift``, but for which of equal spans it took."""
    sections = [
        (
            s.start - shift, s.end - shift, s.phase, s.kind, s.rank, s.lane, s.step, s.item, s.entered_by,
            *((spans.service(s.span_ix), int(spans.kind[s.span_ix])) if s.span_ix is not None else ()),
        )
        for s in path.sections
    ]  # fmt: skip
    return [*sections, (path.start - shift, path.end - shift, path.clipped_ns, path.overlap_ns)]


def assert_tiles(path: Path) -> None:
    cursor = path.start
    for start, end in zip(path.sections.start.tolist(), path.sections.end.tolist(), strict=True):
        assert start == cursor < end
        cursor = end
    assert cursor == path.end
