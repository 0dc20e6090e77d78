# SPDX-License-Identifier: Apache-2.0
"""Collectives of which only the step table tells: those of one step are the same on all ranks, by inference.

The table has when a collective began and how long it took, not which it was. Where every rank has one in a
step, and all leave them together, it is one collective of all ranks; who began it last kept the others
waiting until then. Several in a step are a sum without a place: they tell nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.common_steps import (
    TOGETHER,
    TOGETHER_NS,
    left_together,
    same_steps,
    training_rows,
)
from grademl_otel.analyzers.graph.estimates import wilson
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, Edges, EventGraph
from grademl_otel.analyzers.graph.path import INFERRED, KINDS, WAIT
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run


@dataclass(frozen=True)
class TableTies:
    """The collectives of steps in which every rank has one. Matrices are [step, rank], times by one clock."""

    ranks: list[int]
    rows: IntArray
    """Rows of the step table."""
    last: IntArray
    """When the last rank came; where clocks do not tell, the end less the shortest time of any rank in it."""
    arriver: IntArray
    """[step]: the rank that came last, the lowest of several; -1 where clocks do not tell."""
    confidence: float
    """Lower bound of how often all leave together (Wilson, 95 %)."""


def table_ties(run: Run, clocks: Clocks) -> TableTies | None:
    """Return the collectives of ``run`` that its step table ties together; None where there are none.

    With a rank missing there are none: it may have come last.
    """
    steps, ranks = run.steps, np.array(run.ranks, np.int64)
    if len(ranks) < max(2, run.completeness.ranks_expected or 0) or semconv.COLLECTIVE not in steps.count:
        return None
    _, rows = same_steps(run, [training_rows(run, rank) for rank in run.ranks])
    rows = rows[(steps.count[semconv.COLLECTIVE][rows] == 1).all(axis=1)]
    if not len(rows):
        return None
    busy = steps.busy[semconv.COLLECTIVE][rows]
    begun = steps.first[semconv.COLLECTIVE][rows] - clocks.shift(ranks)
    length = (steps.end[rows] - steps.start[rows]).max(axis=1)
    together = left_together(clocks, run.ranks, begun + busy + clocks.shift(ranks), length)
    last, arriver = np.broadcast_to(begun.max(axis=1)[:, None], rows.shape), ranks[begun.argmax(axis=1)]
    if clocks.tell(run.ranks, int(np.median(length))):
        # None is through before the last has come.
        together &= begun.max(axis=1) <= (begun + busy).min(axis=1) + TOGETHER_NS
    else:
        last, arriver = begun + busy - busy.min(axis=1)[:, None], np.full(len(rows), -1, np.int64)
    hits = int(np.count_nonzero(together))
    if hits < TOGETHER * len(rows):
        return None
    sure = wilson(hits, len(rows))
    return TableTies(run.ranks, rows[together], last[together], arriver[together], sure)


def tie_edges(run: Run, clocks: Clocks, graph: EventGraph) -> Edges:
    """Return the edges of such collectives: from who came last to the ends of the waits of the others."""
    ties = table_ties(run, clocks)
    if ties is None:
        return Edges.join([])
    lanes = {rank: lane for lane, (rank, name) in enumerate(graph.lanes) if name == "main"}
    parts = []
    for one, source_rank in enumerate(ties.ranks):
        came = np.flatnonzero(ties.arriver == source_rank)
        for other, rank in enumerate(ties.ranks):
            if other == one or not {rank, source_rank} <= lanes.keys():
                continue
            moment = ties.last[came, other]
            source = graph.running(lanes[source_rank], moment)
            target = graph.running(lanes[rank], moment)
            waits = (source >= 0) & (target >= 0) & (graph.end[target] == moment)
            waits &= (graph.kind[target] == KINDS.index(WAIT)) & (graph.span_ix[target] < 0)
            parts.append(
                Edges.of(
                    COLLECTIVE,
                    source[waits],
                    moment[waits],
                    target[waits],
                    to_end=True,
                    evidence=INFERRED,
                    confidence=ties.confidence,
                )
            )
    return Edges.join(parts)
