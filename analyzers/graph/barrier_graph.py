# SPDX-License-Identifier: Apache-2.0
"""Implicit barriers in the event graph of a run: who waited at the end of backward, and for whom.

Of the ranks in a barrier (see `barrier`) the one that came last did not wait: for the time that it took from
there all others had something to do, too, if backward is the same work for them. What they spent beyond that
is waiting, at the end of their backward, which ends with that of the last: there the walk goes on. The rank
that came second bounds what a faster last one would gain: the others wait for it as well, and the last does
not go on before it.

Between ranks that come about as late there is no edge: by the end of backward none of them held up the other
that one could tell.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from grademl_otel.analyzers.graph.activities import activities
from grademl_otel.analyzers.graph.barrier import Barriers, unseen_barriers
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, BoolArray, Edges, EventGraph
from grademl_otel.analyzers.graph.path import INFERRED, KINDS, WAIT
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run


def with_barriers(run: Run, graph: EventGraph) -> EventGraph:
    """Return ``graph`` with the implicit barriers of ``run``; as it is where clocks of hosts do not tell."""
    for found in unseen_barriers(run):
        clocks = activities(run).collectives.clocks
        if clocks.tell(run.ranks, int(np.median(found.length))):
            graph = _with(graph, found, found.ended - clocks.shift(np.array(run.ranks, np.int64)))
    return graph


def _with(graph: EventGraph, found: Barriers, ended: IntArray) -> EventGraph:
    """Return ``graph`` with the barriers ``found``, whose ends [step, rank] are ``ended`` by its clock."""
    lanes = {rank: lane for lane, (rank, name) in enumerate(graph.lanes) if name == "main"}
    if not lanes.keys() >= set(found.ranks):
        return graph
    of_rank = [graph.running(lanes[rank], ended[:, at]) for at, rank in enumerate(found.ranks)]
    activity = np.stack(of_rank, axis=1)
    usable = ((activity >= 0) & (graph.end[activity] == ended)).all(axis=1)
    late, noticed = found.late[usable], found.noticed[usable, None]
    activity, ended = activity[usable], ended[usable]
    waited = late.max(axis=1)[:, None] - late
    waited = np.where(waited > noticed, waited, 0)
    usable = waited.any(axis=1)
    arrived = _Arrivals(activity[usable], ended[usable], (ended - waited)[usable], late[usable])
    graph, place = _cut(graph, arrived.activity, arrived.cut)
    return replace(graph, edges=Edges.join([graph.edges, _edges(graph, arrived, place, found.confidence)]))


@dataclass(frozen=True)
class _Arrivals:
    """Matrices [step, rank]; times in ns by the clock of the graph."""

    activity: IntArray
    """The last piece of the backward."""
    ended: IntArray
    cut: IntArray
    """Since when the rank waited; its end where it did not."""
    late: IntArray


def _edges(graph: EventGraph, found: _Arrivals, place: IntArray, confidence: float) -> Edges:
    """Return the edges of barriers in ``graph``, in which the activities have moved to their ``place``."""
    steps = np.arange(len(found.late))
    order = np.argsort(-found.late, axis=1, kind="stable")
    last, second = order[:, 0], order[:, 1]
    # What ends with the barrier is the second piece of what was cut.
    first = place[found.activity]
    waits = found.cut < found.ended
    final = first + (graph.end[first] < found.ended)
    parts = []
    for rank in range(found.late.shape[1]):
        for who in (last, second):
            chosen = steps[waits[:, rank] & (who != rank)]
            source = first[chosen, who[chosen]]
            at = np.minimum(found.cut[chosen, who[chosen]], found.ended[chosen, rank])
            parts.append(_of(graph, source, at, final[chosen, rank], confidence, to_end=True))
    after = np.minimum(final[steps, last] + 1, len(graph) - 1)
    source, at = first[steps, second], found.cut[steps, second]
    follows = (graph.lane[after] == graph.lane[final[steps, last]]) & (at <= graph.start[after])
    parts.append(_of(graph, source[follows], at[follows], after[follows], confidence, to_end=False))
    return Edges.join(parts)


def _of(
    graph: EventGraph, source: IntArray, at: IntArray, target: IntArray, confidence: float, *, to_end: bool
) -> Edges:
    edges = Edges.of(COLLECTIVE, source, at, target, to_end=to_end, evidence=INFERRED, confidence=confidence)
    return edges.where((at > graph.start[source]) & (at <= graph.end[source]))


def _cut(graph: EventGraph, activity: IntArray, cut: IntArray) -> tuple[EventGraph, IntArray]:
    """Return ``graph`` with each ``activity`` ended at ``cut``, and the rest of it as a wait of its own.

    Beside it the new place of each activity, of one that was cut that of its beginning. One that would begin
    after its cut waits as a whole.
    """
    inside = (cut > graph.start[activity]) & (cut < graph.end[activity])
    whole = activity[(cut <= graph.start[activity])]
    cuts: IntArray = np.full(len(graph), -1, np.int64)
    cuts[activity[inside]] = cut[inside]
    pieces = 1 + (cuts >= 0)
    place = np.cumsum(pieces) - pieces
    old = np.repeat(np.arange(len(graph)), pieces)
    rest: BoolArray = np.zeros(len(old), np.bool_)
    rest[1:] = old[1:] == old[:-1]
    begin = np.flatnonzero(rest)
    columns = {f.name: getattr(graph, f.name)[old] for f in fields(graph) if f.name not in _WHOLE}
    columns["start"][begin] = columns["end"][begin - 1] = cuts[old[begin]]
    alone = begin[columns["holder"][begin] < 0]
    numbers = int(graph.holder.max(initial=-1)) + 1 + np.arange(len(alone))
    columns["holder"][alone] = columns["holder"][alone - 1] = numbers
    waiting = np.concatenate([begin, place[whole]])
    columns["kind"][waiting] = KINDS.index(WAIT)
    columns["waits"][waiting] = columns["inferred"][waiting] = True
    edges = graph.edges
    moved = replace(
        edges,
        source=place[edges.source] + ((cuts[edges.source] >= 0) & (edges.at > cuts[edges.source])),
        target=place[edges.target] + ((cuts[edges.target] >= 0) & edges.to_end),
    )
    return replace(graph, **columns, edges=moved), place


_WHOLE = ("phases", "lanes", "items", "edges")
"""Fields of a graph that have no element per activity."""
