# SPDX-License-Identifier: Apache-2.0
"""One way of finding paths, or of doing something comparable, in a process of its own: CPU time, peak memory.

    python -m benchmarks.walking WAY SIZE|PATH

prints one line of JSON. What is needed first (columns, tables, graphs of others) is made before the clock
starts; the memory of all of it counts.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

Work = Callable[[], int]
"""What is measured; returns how many sections, elements or nodes came out."""


def trees(size: str) -> Work:
    """Return the paths of ``size`` spans in traces of a thousand, and their summary."""
    from benchmarks.shapes import SPANS_PER_TRACE, traces
    from grademl_otel.analyzers.graph import trace_paths
    from grademl_otel.analyzers.reporting.population import population

    spans = traces(int(size) // SPANS_PER_TRACE)

    def work() -> int:
        paths = trace_paths(spans)
        population(spans, paths)
        return len(paths.sections)

    return work


def one_by_one(size: str) -> Work:
    """Return the paths of the same by the walk that goes from span to span."""
    from benchmarks.shapes import SPANS_PER_TRACE, traces
    from grademl_otel.analyzers.graph import SpanTree, trace_roots
    from grademl_otel.analyzers.graph.trees.tree import walk

    spans = traces(int(size) // SPANS_PER_TRACE)

    def work() -> int:
        tree = SpanTree(spans)
        return sum(len(walk(tree, root).pieces) for root in trace_roots(spans))

    return work


def sorting(size: str) -> Work:
    """Sort the same spans by (parent, end): no path can do without some order."""
    from benchmarks.shapes import SPANS_PER_TRACE, traces

    spans = traces(int(size) // SPANS_PER_TRACE)
    return lambda: len(np.lexsort((spans.end, spans.parent_ix)))


def networkx_path(size: str) -> Work:
    """Return the longest path of the same spans as networkx finds it: starts and ends as a weighted DAG."""
    import networkx as nx

    from benchmarks.shapes import SPANS_PER_TRACE, traces

    spans = traces(int(size) // SPANS_PER_TRACE)
    start, end, parent = spans.start.tolist(), spans.end.tolist(), spans.parent_ix.tolist()

    def work() -> int:
        graph = nx.DiGraph()
        holds = set(parent)
        for ix, above in enumerate(parent):
            if ix not in holds:
                graph.add_edge((ix, 0), (ix, 1), weight=end[ix] - start[ix])
            if above >= 0:
                graph.add_edge((above, 0), (ix, 0), weight=start[ix] - start[above])
                graph.add_edge((ix, 1), (above, 1), weight=end[above] - end[ix])
        return len(nx.dag_longest_path(graph))

    return work


def _shape(name: str, arrays: bool) -> Callable[[str], Work]:
    def way(size: str) -> Work:
        from benchmarks import shapes
        from grademl_otel.analyzers.graph import SpanTree, tree_path
        from grademl_otel.analyzers.graph.trees.tree import walk

        apart = {"siblings": 0, "apart": 3_000}
        count = int(size)
        spans = shapes.nested(count) if name == "nested" else shapes.siblings(count, apart[name])
        if arrays:
            return lambda: len(tree_path(spans, 0).sections)
        return lambda: len(walk(SpanTree(spans), 0).pieces)

    return way


def _run(ranks: int) -> Callable[[str], Work]:
    def way(size: str) -> Work:
        from benchmarks.shapes import training
        from grademl_otel.analyzers.graph import run_path

        run = training(int(size), ranks)
        return lambda: len(run_path(run).sections)

    return way


def reading(path: str) -> Work:
    """Read the profile at ``path`` into columns."""
    from grademl_otel.analyzers.sources.base import Selection, SourceOptions
    from grademl_otel.analyzers.sources.registry import open_source

    options = SourceOptions(max_spans=100_000_000, max_bytes=1 << 40)
    return lambda: len(open_source(path, options).read(Selection()).spans)


def profile(path: str) -> Work:
    """Read the profile at ``path``; make its event graph and its path."""
    from grademl_otel.analyzers.graph import trace_roots
    from grademl_otel.analyzers.graph.profiles.profile_path import profile_path
    from grademl_otel.analyzers.sources.base import Selection, SourceOptions
    from grademl_otel.analyzers.sources.registry import open_source

    options = SourceOptions(max_spans=100_000_000, max_bytes=1 << 40)

    def work() -> int:
        spans = open_source(path, options).read(Selection()).spans
        (root,) = trace_roots(spans)
        return len(profile_path(spans, root).sections)

    return work


WAYS: Final[dict[str, Callable[[str], Work]]] = {
    "trees": trees,
    "one by one": one_by_one,
    "sorting": sorting,
    "networkx": networkx_path,
    "siblings": _shape("siblings", True),
    "siblings, one by one": _shape("siblings", False),
    "apart": _shape("apart", True),
    "apart, one by one": _shape("apart", False),
    "nested": _shape("nested", True),
    "nested, one by one": _shape("nested", False),
    "run": _run(1),
    "ranks": _run(8),
    "reading": reading,
    "profile": profile,
}


def main() -> None:
    work = WAYS[sys.argv[1]](sys.argv[2])
    gc.collect()
    start, wall = time.process_time(), time.monotonic()
    number = work()
    taken = {"cpu_s": time.process_time() - start, "wall_s": time.monotonic() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({**taken, "peak": peak, "number": number}))


if __name__ == "__main__":
    main()
