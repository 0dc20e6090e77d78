# SPDX-License-Identifier: Apache-2.0
"""All edges of a run that were not observed: what only times tell of who waited for whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.event_graph import Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.barrier_graph import with_barriers
from grademl_otel.analyzers.graph.inferences.learned import learned_edges
from grademl_otel.analyzers.graph.inferences.table_ties import tie_edges
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.facts import Run


def with_inferred(run: Run, graph: EventGraph) -> EventGraph:
    """Return the ``graph`` of ``run`` with the edges that collectives of step tables, implicit barriers and
    repeated steps allow to infer, in this order: what one explains the next need not.
    """
    clocks = activities(run).collectives.clocks
    graph = with_barriers(run, _with(graph, tie_edges(run, clocks, graph)))
    return _with(graph, learned_edges(graph, clocks.error_ns, _clock_of_lanes(run, clocks, graph)))


def _with(graph: EventGraph, edges: Edges) -> EventGraph:
    return replace(graph, edges=Edges.join([graph.edges, edges])) if len(edges) else graph


def _clock_of_lanes(run: Run, clocks: Clocks, graph: EventGraph) -> IntArray:
    """Return a number for each lane, equal for those whose times can be compared."""
    ranks = np.array([run.ranks[0] if rank is None else rank for rank, _ in graph.lanes], np.int64)
    steps = run.steps.end - run.steps.start
    if not len(steps) or clocks.tell(run.ranks, int(np.median(steps))):
        return np.zeros(len(ranks), np.int64)
    return clocks.number(ranks)
