# SPDX-License-Identifier: Apache-2.0
"""Implicit barriers in the event graph of a run: who waited at the end of backward, and for whom.

Of the ranks in a barrier (see `barrier`) the one that came last did not wait: for the time that it took from
there all others had something to do, too, if backward is the same work for them. What they spent beyond that
is waiting, at the end of their backward, which ends with that of the last: there the walk goes on. Those that
came before the last bound what would be gained if that one were faster: all wait for them as well, and the
last does not go on before them.

Where all ranks come about together there is no edge: nothing tells that one of them held up the others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.barrier import Barriers, unseen_barriers
from grademl_otel.analyzers.graph.inferences.meeting import Meetings
from grademl_otel.analyzers.graph.path import KINDS, WAIT
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.model.facts import Run


def with_barriers(run: Run, graph: EventGraph) -> EventGraph:
    """Return ``graph`` with the implicit barriers of ``run``; as it is where clocks of hosts do not tell."""
    found, clocks = unseen_barriers(run), activities(run).collectives.clocks
    if found is None or not clocks.tell(run.ranks, int(np.median(found.length))):
        return graph
    return _with(graph, found, found.ended - clocks.shift(np.array(run.ranks, np.int64)))


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
    if not usable.any():
        return graph
    arrived = _Arrivals(activity[usable], ended[usable], (ended - waited)[usable])
    graph, place = _cut(graph, arrived.activity, arrived.cut)
    edges = _meetings(graph, arrived, place).edges(graph, found.confidence)
    return replace(graph, edges=Edges.join([graph.edges, edges]))


_WHOLE: Final = ("phases", "lanes", "items", "edges")
"""Fields of a graph that have no element per activity."""


@dataclass(frozen=True)
class _Arrivals:
    """Matrices [step, rank]; times in ns by the clock of the graph."""

    activity: IntArray
    """The last piece of the backward."""
    ended: IntArray
    cut: IntArray
    """Since when the rank waited; its end where it did not."""


def _meetings(graph: EventGraph, found: _Arrivals, place: IntArray) -> Meetings:
    """Return the barriers in ``graph``, in which the activities have moved to their ``place``."""
    # What ends with the barrier is the second piece of what was cut.
    source = place[found.activity]
    waited = found.cut < found.ended
    final = source + (graph.end[source] < found.ended)
    after = np.minimum(final + 1, len(graph) - 1)
    goes_on = (graph.lane[after] == graph.lane[final]) & (graph.start[after] == found.ended)
    return Meetings(source, found.cut, np.where(waited, final, np.where(goes_on, after, -1)), waited)


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
