# SPDX-License-Identifier: Apache-2.0
"""The critical path of a profile: what its end waited for, through threads and streams, back to its start.

A profile is a trace in a profiler's format, or one of others whose spans all name lanes, streams of devices
among them. The walk begins in the main thread; in a stream where that ended last. Profiles of several ranks
that have collectives in common, by clocks that agree, have one path together: see `profile_collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, EDGE_KINDS, EventGraph
from grademl_otel.analyzers.graph.path import Path, Sections
from grademl_otel.analyzers.graph.profiles.profile_facts import MAIN, STREAM
from grademl_otel.analyzers.graph.profiles.span_graph import span_graph
from grademl_otel.analyzers.graph.trees.forest import trace_paths
from grademl_otel.analyzers.graph.trees.span_tree import trace_roots
from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance
from grademl_otel.analyzers.graph.trees.trace_paths import TracePaths
from grademl_otel.analyzers.graph.walk import Walker
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_values import KINETO

_LANE: Final = semconv.LANE.encode()


def profiles(spans: SpanColumns, roots: Sequence[int]) -> list[int]:
    """Return those of ``roots`` whose traces are profiles."""
    found = [root for root in roots if spans.raw_attributes.form(root) == KINETO]
    if len(found) < len(roots):
        found += _of_others(spans, [root for root in roots if spans.raw_attributes.form(root) != KINETO])
    place = {root: at for at, root in enumerate(roots)}
    return sorted(found, key=place.__getitem__)


def profile_path(spans: SpanColumns, root: int, inferred: bool = True) -> Path:
    """Return the critical path of the profile under ``root``, over that span's ``[start, end)``.

    Without ``inferred`` edges only what the profile says ties its lanes. A root that ends before it starts,
    or at once, has an empty path.
    """
    if not _lasts(spans, root):
        return Path(int(spans.start[root]), int(spans.start[root]), Sections.of([]))
    graph = span_graph(spans, [root])
    return graph_path(graph if inferred else graph.observed(), int(spans.start[root]), int(spans.end[root]))


def _lasts(spans: SpanColumns, root: int) -> bool:
    return bool(spans.possible[root] and spans.end[root] > spans.start[root])


def graph_of_path(spans: SpanColumns, root: int, path: Path, inferred: bool = True) -> EventGraph | None:
    """Return the graph through which the path of ``root`` leads; None where it is that of a tree."""
    if not profiles(spans, [root]):
        return None
    graph = span_graph(spans, roots_on_path(spans, root, path))
    return graph if inferred else graph.observed()


def roots_on_path(spans: SpanColumns, root: int, path: Path) -> list[int]:
    """Return ``root``, and the roots of the other profiles through which its ``path`` leads."""
    on_path = spans.trace_ix[path.sections.span_ix[path.sections.span_ix >= 0]]
    several = np.unique(np.append(on_path, spans.trace_ix[root]))
    if len(several) == 1:
        return [root]
    return [one for one in trace_roots(spans) if spans.trace_ix[one] in several]


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
        if not unnamed[traces[root]]
        and some[traces[root]]
        and semconv.RUN_ID not in spans.resource(root)
        and _in_streams(spans, np.flatnonzero(traces == traces[root]))
    ]


def _in_streams(spans: SpanColumns, members: IntArray) -> bool:
    """Return whether all ``members`` do name a lane, some of them a stream: their bytes tell what may be."""
    lanes = [spans.attributes(ix).get(semconv.LANE) for ix in members.tolist()]
    named = [lane for lane in lanes if isinstance(lane, str)]
    return len(named) == len(lanes) and any(lane.startswith(STREAM) for lane in named)


def paths_of_traces(
    spans: SpanColumns, roots: Sequence[int], tolerance: OverlapTolerance, inferred: bool = True
) -> TracePaths:
    """Return the critical path of each trace under ``roots``, in their order: profiles by their graphs."""
    mine = profiles(spans, roots)
    if not mine:
        return trace_paths(spans, tolerance, roots)
    together = _together(spans, mine, inferred)
    parts = [] if together is None else [_of_one(together.root, together.path)]
    told = () if together is None else together.roots
    parts += [_of_one(root, profile_path(spans, root, inferred)) for root in mine if root not in told]
    others = [root for root in roots if root not in set(mine)]
    if others:
        parts.append(trace_paths(spans, tolerance, others))
    found = _joined(parts)
    place = {root: at for at, root in enumerate(found.roots.tolist())}
    return found.take(np.array([place[root] for root in roots if root in place], np.int64))


@dataclass(frozen=True)
class _Together:
    """The one path of the profiles of several ranks."""

    roots: tuple[int, ...]
    root: int
    """That of the rank in which the path ends."""
    path: Path


def _together(spans: SpanColumns, roots: Sequence[int], inferred: bool) -> _Together | None:
    """Return the path of those of the profiles under ``roots`` that have collectives in common, if any."""
    of_rank = {
        rank: root for root in roots if isinstance(rank := spans.resource(root).get(semconv.RANK), int)
    }
    if len(of_rank) < 2 or len(of_rank) < len(roots) or not all(_lasts(spans, root) for root in roots):
        return None  # one rank, or profiles of several occasions
    graph = span_graph(spans, roots)
    graph = graph if inferred else graph.observed()
    tied = graph.edges.kind == EDGE_KINDS.index(COLLECTIVE)
    ranks = np.unique(graph.rank[np.concatenate([graph.edges.source[tied], graph.edges.target[tied]])])
    members = tuple(of_rank[rank] for rank in ranks.tolist())
    if len(members) < len(roots):
        return None
    low = min(int(spans.start[root]) for root in members)
    high = max(int(spans.end[root]) for root in members)
    lane = _last_lane(graph)
    rank = graph.lanes[lane][0]
    assert rank is not None
    return _Together(members, of_rank[rank], Walker(graph).path(lane, low, high))


def _of_one(root: int, path: Path) -> TracePaths:
    numbers = [
        np.array([number]) for number in (root, path.start, path.end, path.clipped_ns, path.overlap_ns)
    ]
    start_to_overlap = dict(zip(("roots", "start", "end", "clipped_ns", "overlap_ns"), numbers, strict=True))
    return TracePaths(sections=path.sections, first=np.array([0, len(path.sections)]), **start_to_overlap)


def _joined(parts: Sequence[TracePaths]) -> TracePaths:
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(part.first) for part in parts])
    return TracePaths(
        sections=Sections.join([part.sections for part in parts]),
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("roots", "start", "end", "clipped_ns", "overlap_ns")
        },
    )
