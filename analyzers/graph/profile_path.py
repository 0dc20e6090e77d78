# SPDX-License-Identifier: Apache-2.0
"""The critical path of a profile: what its end waited for, through threads and streams, back to its start.

A profile is a trace in a profiler's format, or one of others whose spans all name lanes, streams of devices
among them. The walk begins in the main thread; in a stream where that ended last. Profiles of several ranks
that have collectives in common, by clocks that agree, have one path together: see `profile_collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.path import Path, Sections
from grademl_otel.analyzers.graph.profile_facts import MAIN, STREAM
from grademl_otel.analyzers.graph.span_graph import span_graph
from grademl_otel.analyzers.graph.trace_paths import TracePaths
from grademl_otel.analyzers.graph.walk import Walker
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_values import KINETO

_LANE: Final = semconv.LANE.encode()


def profiles(spans: SpanColumns, roots: Sequence[int]) -> list[int]:
    """Return those of ``roots`` whose traces are profiles."""
    found = [root for root in roots if spans.raw_attributes.form(root) == KINETO]
    if len(found) < len(roots):
        found += _of_others(spans, [root for root in roots if spans.raw_attributes.form(root) != KINETO])
    return sorted(found, key=list(roots).index)


def profile_path(spans: SpanColumns, root: int, inferred: bool = True) -> Path:
    """Return the critical path of the profile under ``root``, over that span's ``[start, end)``.

    Without ``inferred`` edges only what the profile says ties its lanes.
    """
    graph = span_graph(spans, [root])
    return graph_path(graph if inferred else graph.observed(), int(spans.start[root]), int(spans.end[root]))


def graph_path(graph: EventGraph, low: int, high: int) -> Path:
    """Return the critical path of ``graph`` over ``[low, high)``, from the lane that ended last."""
    return Walker(graph).path(_last_lane(graph), low, high)


def _last_lane(graph: EventGraph) -> int:
    """Return the main lane or stream in which something measured ended last; of several the first listed."""
    measured = np.flatnonzero(~graph.inferred)
    last = np.full(len(graph.lanes), np.iinfo(np.int64).min)
    np.maximum.at(last, graph.lane[measured], graph.end[measured])
    chosen = [n for n, (_, name) in enumerate(graph.lanes) if name == MAIN or name.startswith(STREAM)]
    return max(chosen or range(len(graph.lanes)), key=lambda lane: (int(last[lane]), -lane), default=0)


def _of_others(spans: SpanColumns, roots: Sequence[int]) -> list[int]:
    """Return those of ``roots`` in whose traces every span names a lane, and some a stream of a device."""
    store = spans.raw_attributes
    every = np.arange(len(spans))
    named = store.that_may_have(_LANE, every)
    streaming = store.that_may_have(STREAM.encode(), every[named]) if named.any() else named[:0]
    if not streaming.any():
        return []
    traces = spans.trace_ix
    counts = len(traces) and int(traces.max()) + 1
    unnamed = np.bincount(traces[~named], minlength=counts)
    some = np.bincount(traces[every[named][streaming]], minlength=counts)
    return [
        root
        for root in roots
        if not unnamed[traces[root]] and some[traces[root]] and semconv.RUN_ID not in spans.resource(root)
    ]


def profile_paths(spans: SpanColumns, roots: Sequence[int], inferred: bool = True) -> TracePaths:
    """Return the critical path of each of the profiles under ``roots``, in their order."""
    paths = [profile_path(spans, root, inferred) for root in roots]
    starts, ends, clipped, overlaps = (
        np.array([getattr(path, name) for path in paths], np.int64)
        for name in ("start", "end", "clipped_ns", "overlap_ns")
    )
    counts = [len(path.sections) for path in paths]
    return TracePaths(
        roots=np.array(roots, np.int64),
        start=starts,
        end=ends,
        sections=paths[0].sections if len(paths) == 1 else Sections.join([path.sections for path in paths]),
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        clipped_ns=clipped,
        overlap_ns=overlaps,
    )
