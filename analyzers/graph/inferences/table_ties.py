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
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.event_graph import Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.common_steps import (
    TOGETHER,
    TOGETHER_NS,
    left_together,
    same_steps,
    training_rows,
)
from grademl_otel.analyzers.graph.inferences.estimates import wilson
from grademl_otel.analyzers.graph.inferences.meeting import Meetings
from grademl_otel.analyzers.graph.path import KINDS, WAIT
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.facts import Run


@dataclass(frozen=True)
class TableTies:
    """The collectives of steps in which every rank has one. Matrices are [step, rank], times by one clock."""

    ranks: list[int]
    rows: IntArray
    """Rows of the step table."""
    came: IntArray
    """When each rank came."""
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
    own = begun + clocks.shift(ranks)
    together = left_together(clocks, run.ranks, own, own + busy, length)
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
    return TableTies(run.ranks, rows[together], begun[together], last[together], arriver[together], sure)


def tie_edges(run: Run, clocks: Clocks, graph: EventGraph) -> Edges:
    """Return the edges of such collectives: from who came last to the ends of the waits of the others."""
    ties = table_ties(run, clocks)
    lanes = {rank: lane for lane, (rank, name) in enumerate(graph.lanes) if name == "main"}
    if ties is None or (ties.arriver < 0).all() or not lanes.keys() >= set(ties.ranks):
        return Edges.join([])

    def running(moments: IntArray) -> IntArray:
        of_ranks = [graph.running(lanes[rank], moments[:, at]) for at, rank in enumerate(ties.ranks)]
        return np.stack(of_ranks, axis=1)

    # What a rank did when the last one came: it waited, or what follows is the transfer.
    until = running(ties.last)
    waited = (until >= 0) & (graph.end[until] == ties.last) & (graph.kind[until] == KINDS.index(WAIT))
    waited &= (graph.span_ix[until] < 0) & (ties.came < ties.last)
    after = np.minimum(until + 1, len(graph) - 1)
    follows = (until >= 0) & (graph.start[after] == ties.last) & (graph.lane[after] == graph.lane[until])
    target = np.where(waited, until, np.where(follows & (graph.span_ix[after] < 0), after, -1))
    return Meetings(running(ties.came), ties.came, target, waited).edges(graph, ties.confidence)
