# SPDX-License-Identifier: Apache-2.0
"""The event graph of a profile: threads and streams as lanes, and what ties the host to its devices.

An activity is a piece of a lane: the innermost call of a thread at that time, a kernel, copy or collective of
a stream. What ties lanes:

launch      the call that launched a kernel to its start; while the stream was busy its own order binds later
device      the last work of a stream, given to it before, to the end of a call that waits for it; work that
            another stream waits for to the start of what that was given next
program     what one thread hands to another: forward to its backward, the main thread to those of autograd
collective  the last of all ranks to begin one to the end of the others' waiting, see `profile_collectives`

The span over all of a profile, which nobody measured, fills the main lane where nothing else is.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.event_graph import PROGRAM, Edges, EventGraph
from grademl_otel.analyzers.graph.path import GAP, KINDS, TRANSFER, UNEXPLAINED, WAIT, kind_of
from grademl_otel.analyzers.graph.profiles.device_edges import DeviceEdges
from grademl_otel.analyzers.graph.profiles.device_work import (
    COMMUNICATION,
    COPY,
    DeviceWork,
    host_collectives,
    profile_work,
)
from grademl_otel.analyzers.graph.profiles.flatten import LanePieces, innermost
from grademl_otel.analyzers.graph.profiles.profile_collectives import collective_edges, cut_in_two, joined
from grademl_otel.analyzers.graph.profiles.profile_facts import WORKERS, ProfileFacts
from grademl_otel.analyzers.graph.profiles.thread_calls import with_thread_calls
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_spans import NOTES

_NONE: Final = np.zeros(0, np.int64)

_latest: tuple[weakref.ref[SpanColumns], tuple[int, ...], EventGraph] | None = None


def span_graph(spans: SpanColumns, roots: Sequence[int]) -> EventGraph:
    """Return the event graph of the traces under ``roots``, in all lanes that their spans name.

    The latest is kept, as several analyses ask in a row.
    """
    global _latest
    latest, asked = _latest, tuple(roots)  # one read: another thread may replace it
    if latest is not None and latest[0]() is spans and latest[1] == asked:
        return latest[2]
    graph = _span_graph(spans, asked)
    _latest = (weakref.ref(spans), asked, graph)
    return graph


def _span_graph(spans: SpanColumns, roots: Sequence[int]) -> EventGraph:
    told = profile_work(spans, roots)
    facts, follows, work = told.facts, told.follows, told.work
    pieces = _pieces(spans, facts, work, roots)
    talks = host_collectives(spans, facts)
    together = []
    for some in (work, talks) if len(roots) > 1 else ():
        found = joined(spans, facts, some)
        if found is not None:
            pieces = cut_in_two(pieces, some, found)
            together.append((some, found))
    calls = with_thread_calls(spans, facts, pieces)
    pieces = calls.pieces
    device = DeviceEdges(spans, facts, pieces, work).all()
    owner = pieces.owner
    kinds = np.array([KINDS.index(kind_of(name)) for name in spans.names] or [0], np.int64)
    kind = kinds[spans.name_ix[facts.ixs[owner]]]
    of_work = np.full(len(facts.ixs), -1, np.int64)
    of_work[work.place] = work.sort
    of_work[talks.place] = talks.sort
    kind[of_work[owner] == COPY] = KINDS.index(TRANSFER)
    kind[of_work[owner] == COMMUNICATION] = KINDS.index(WAIT)  # and transfer: not told apart
    waiting = np.concatenate([_NONE, *device.waiting])
    waits = (
        calls.waits | np.isin(owner, waiting) | np.isin(spans.name_ix[facts.ixs[owner]], _wait_names(spans))
    )
    over_all = np.isin(facts.ixs[owner], [root for root in roots if _is_inferred(spans, root)])
    kind[over_all] = KINDS.index(GAP)
    kind[waits & ~np.isin(owner, device.copying)] = KINDS.index(UNEXPLAINED)
    edges = [*device.edges, calls.edges, _handed_over(spans, facts, pieces, follows)]
    for some, found in together:
        collective = collective_edges(pieces, some, found)
        waits[collective.waits] = True
        kind[collective.transfers] = KINDS.index(TRANSFER)
        edges.append(collective.edges)
    return EventGraph(
        lane=pieces.lane,
        start=pieces.start,
        end=pieces.end,
        phase=spans.name_ix[facts.ixs[owner]].astype(np.int64),
        kind=kind,
        waits=waits,
        step=_steps(spans, facts, work)[owner],
        item=np.full(len(pieces), -1, np.int64),
        span_ix=facts.ixs[owner],
        holder=pieces.holder,
        inferred=over_all & ~calls.waits,
        phases=spans.names,
        lanes=facts.lanes,
        items=[],
        edges=Edges.join(edges),
    )


def _is_inferred(spans: SpanColumns, root: int) -> bool:
    """Whether ``root`` is a span over all that nobody measured; one without an end is over nothing."""
    return bool(spans.possible[root] and spans.attributes(root).get(semconv.EVIDENCE) == "inferred")


def _wait_names(spans: SpanColumns) -> list[int]:
    """Return the names of waits: ours, and those for the workers of a `DataLoader`, whom no profile sees."""
    waits = [name in semconv.WAIT_PHASES or name.endswith(WORKERS) for name in spans.names]
    return np.flatnonzero(waits).tolist()


def _pieces(spans: SpanColumns, facts: ProfileFacts, work: DeviceWork, roots: Sequence[int]) -> LanePieces:
    """Return what each lane did; the spans over all fill their main lanes."""
    streams = np.zeros(len(facts.lanes) + 1, np.bool_)
    streams[facts.streams] = True
    some = (facts.lane >= 0) & ~streams[facts.lane]
    over_all = np.array([root for root in roots if _is_inferred(spans, root)], np.int64)
    some &= ~np.isin(facts.ixs, over_all)
    some[facts.of_categories(NOTES)] = False
    some[work.place] = True
    places = np.flatnonzero(some)
    ixs = facts.ixs[places]
    # Which of equal calls is outside: that further out in the tree, then by name. Never by order of arrays.
    named = np.argsort(np.argsort(np.array(spans.names, object), kind="stable"), kind="stable")
    depth = _depth(spans, facts, places)
    order = np.lexsort((named[spans.name_ix[ixs]], depth))
    places, ixs = places[order], ixs[order]
    found = innermost(facts.lane[places], spans.start[ixs], spans.end[ixs])
    pieces = LanePieces(found.lane, found.start, found.end, places[found.owner], places[found.holder])
    fills = [_filled(spans, facts, pieces, root) for root in over_all.tolist()]
    return _joined([pieces, *fills])


def _depth(spans: SpanColumns, facts: ProfileFacts, places: IntArray) -> IntArray:
    """Return how deep in its tree each span is whose times another of its lane has, too; 0 for others."""
    ixs = facts.ixs[places]
    depth: IntArray = np.zeros(len(places), np.int64)
    order = np.lexsort((spans.end[ixs], spans.start[ixs], facts.lane[places]))
    alone = changes(facts.lane[places][order], spans.start[ixs][order], spans.end[ixs][order])
    alone &= np.append(alone[1:], True)
    pending = order[~alone]
    above = spans.parent_ix[ixs[pending]]
    while len(pending):
        kept = above >= 0
        pending, above = pending[kept], above[kept]
        depth[pending] += 1
        above = spans.parent_ix[above]
    return depth


def _filled(spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces, root: int) -> LanePieces:
    """Return pieces of the span ``root`` where nothing else is in its lane, within its time."""
    place = int(np.searchsorted(facts.ixs, root))
    lane = int(facts.lane[place])
    low, high = int(spans.start[root]), int(spans.end[root])
    first, stop = np.searchsorted(pieces.lane, (lane, lane + 1)).tolist()
    start = np.append(low, np.clip(pieces.end[first:stop], low, high))
    end = np.append(np.clip(pieces.start[first:stop], low, high), high)
    real = np.flatnonzero(end > start)
    same = np.ones(len(real), np.int64)
    return LanePieces(lane * same, start[real], end[real], place * same, -same)


def _joined(parts: Sequence[LanePieces]) -> LanePieces:
    columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(LanePieces)]
    whole = LanePieces(*columns)
    order = np.lexsort((whole.start, whole.lane))
    return LanePieces(*(column[order] for column in columns))


def _steps(spans: SpanColumns, facts: ProfileFacts, work: DeviceWork) -> IntArray:
    """Return the step in which each span began, or was given to its stream; -1 outside of all."""
    found: IntArray = np.full(len(facts.ixs), -1, np.int64)
    time = spans.start[facts.ixs].copy()
    time[work.place] = work.launched
    ranks = np.array([-1 if rank is None else rank for rank, _ in facts.lanes] or [-1], np.int64)[facts.lane]
    streams = facts.streams
    annotated = np.array([at for at in facts.steps if facts.lane[at] not in streams], np.int64)
    for rank in np.unique(ranks[annotated]).tolist():
        steps = annotated[ranks[annotated] == rank]
        steps = steps[np.argsort(spans.start[facts.ixs[steps]], kind="stable")]
        mine = np.flatnonzero(ranks == rank)
        at = np.searchsorted(spans.start[facts.ixs[steps]], time[mine], "right") - 1
        inside = (at >= 0) & (time[mine] < spans.end[facts.ixs[steps[at]]])
        numbers = np.array([facts.steps[step] for step in steps.tolist()], np.int64)
        found[mine[inside]] = numbers[at[inside]]
    return found


def _handed_over(
    spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces, follows: tuple[IntArray, IntArray]
) -> Edges:
    """Return the edges between threads, as from forward to its backward, that arrows of the profile say."""
    later, earlier = follows
    host = ~np.isin(facts.lane, facts.streams)
    end, start = spans.end[facts.ixs[earlier]], spans.start[facts.ixs[later]]
    some = host[later] & host[earlier] & (facts.lane[later] != facts.lane[earlier]) & (end <= start)
    later, earlier, at, start = later[some], earlier[some], end[some], start[some]
    source, target = pieces.until(facts.lane[earlier], at), pieces.within(facts.lane[later], start)
    known = np.flatnonzero((source >= 0) & (target >= 0) & (pieces.start[target] == start))
    return Edges.of(PROGRAM, source[known], at[known], target[known])
