# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the children of an operation that is called again and again, of foreign traces.

A request that fans out to several services shows what it called, not which answer it needed for the next
call. Where one operation is repeated, its calls are steps like those of a training, and `learned` tells which
of its children begin when others have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.graph.event_graph import Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.learned import FEWEST, learned_edges
from grademl_otel.analyzers.graph.path import KINDS, WORK, Lane
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns

_MOST_CHILDREN: Final = 256
"""Children of one call with which it is looked at."""


@dataclass(frozen=True)
class Siblings:
    """Dependencies between siblings as parallel arrays, sorted by (target, source). All are inferred."""

    source: IntArray
    """Index of the span that had to end."""
    target: IntArray
    """Index of the span that began after it."""
    confidence: FloatArray


def learned_siblings(spans: SpanColumns, some: IntArray | None = None, error_ns: int = 0) -> Siblings:
    """Return the dependencies that repeated operations show between their children; of ``some`` spans only.

    An operation is a name and a service. ``error_ns`` is how far clocks of hosts may be apart.
    """
    children = np.arange(len(spans)) if some is None else some
    children = children[spans.possible[children] & (spans.parent_ix[children] >= 0)]
    children = children[spans.possible[spans.parent_ix[children]]]
    operation = _operations(spans)
    order = np.lexsort((children, spans.parent_ix[children], operation[spans.parent_ix[children]]))
    children = children[order]
    begins = np.flatnonzero(changes(operation[spans.parent_ix[children]]))
    parts = [
        _of_one_operation(spans, part, operation, error_ns)
        for part in np.split(children, begins[1:])
        if len(part) >= 2 * FEWEST
    ]
    source = np.concatenate([np.zeros(0, np.int64), *(part.source for part in parts)])
    target = np.concatenate([np.zeros(0, np.int64), *(part.target for part in parts)])
    confidence = np.concatenate([np.zeros(0), *(part.confidence for part in parts)])
    order = np.lexsort((source, target))
    return Siblings(source[order], target[order], confidence[order])


def _operations(spans: SpanColumns) -> IntArray:
    """Return for each span the number of its operation."""
    names = sorted({str(resource.get("service.name", "")) for resource in spans.resources})
    number = {name: ix for ix, name in enumerate(names)}
    of_resource = [number[str(resource.get("service.name", ""))] for resource in spans.resources]
    service = np.array(of_resource or [0], np.int64)[spans.resource_ix]
    operation: IntArray = service * len(spans.names) + spans.name_ix
    return operation


def _of_one_operation(spans: SpanColumns, children: IntArray, operation: IntArray, error_ns: int) -> Siblings:
    """Return the dependencies between ``children`` of calls of one operation, those of a call together."""
    begins = np.flatnonzero(changes(spans.parent_ix[children]))
    count = np.diff(np.append(begins, len(children)))
    several = (count >= 2) & (count <= _MOST_CHILDREN)
    calls = int(np.count_nonzero(several))
    if calls < FEWEST:
        return Siblings(children[:0], children[:0], np.zeros(0))
    span, call = children[np.repeat(several, count)], np.repeat(np.arange(calls), count[several])
    graph = _graph(spans, span, call, operation[span])
    edges = learned_edges(graph, error_ns)
    return Siblings(graph.span_ix[edges.source], graph.span_ix[edges.target], edges.confidence)


def _graph(spans: SpanColumns, span: IntArray, call: IntArray, operation: IntArray) -> EventGraph:
    """Return the calls as steps, one after the other.

    Each operation, and each further child of the same, has a lane of its own: children may overlap. No step
    comes right after another: calls are not ordered.
    """
    order = np.lexsort((span, spans.start[span], operation, call))
    span, call, operation = span[order], call[order], operation[order]
    number = np.arange(len(span))
    nth = number - np.maximum.accumulate(np.where(changes(call, operation), number, 0))
    root = spans.parent_ix[span]
    start, end = spans.start[span] - spans.start[root], spans.end[span] - spans.start[root]
    room = int(max(end.max(), (spans.end[root] - spans.start[root]).max()) - min(start.min(), 0)) + 1
    order = np.lexsort((call, nth, operation))
    kind = np.cumsum(changes(operation[order], nth[order])) - 1
    span, call = span[order], call[order]
    start, end = start[order] + call * room, end[order] + call * room
    there = np.flatnonzero(end > start)
    kind, span, call = kind[there], span[there], call[there]
    none, no = np.full(len(there), -1, np.int64), np.zeros(len(there), np.bool_)
    used, phase = np.unique(spans.name_ix[span], return_inverse=True)
    lanes: list[Lane] = [(None, f"{lane:06}") for lane in range(int(kind.max(initial=-1)) + 1)]
    return EventGraph(
        lane=kind,
        start=start[there],
        end=end[there],
        phase=phase,
        kind=np.full(len(there), KINDS.index(WORK), np.int64),
        waits=no,
        step=2 * call,
        item=none,
        span_ix=span,
        holder=none,
        inferred=no,
        phases=[spans.names[int(name)] for name in used],
        lanes=lanes,
        items=(),
        edges=Edges.join([]),
    )
