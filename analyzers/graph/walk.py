# SPDX-License-Identifier: Apache-2.0
"""The walk: from a moment in one lane of an event graph back to what that moment had to wait for.

At the end of an activity, or inside it, the walk asks for the latest of the events that this end waited for,
of those after the activity began: there it goes on, in the lane of that event, and what is left of the
activity is the *handoff*. Without such an event the activity is on the path as it is, from its start. Its
start waited for the end of the activity before in its lane and for the sources of the edges to its start: the
latest binds. Time between what bound and the start is a handoff where the walk changes lanes, else a gap.
With nothing before it in its lane and no edge, nothing tells what let it begin: the rest is untraced.

Of events at one moment the lane's own goes first, then what is observed before what is inferred, the higher
confidence, the kind as `EDGE_KINDS` lists them, the source that began first, the lane by rank and name. An
edge is used once, so that times that contradict each other cannot loop: the walk takes at most as many turns
as there are edges and sections. The sections tile ``[low, high)`` exactly, for each begins where the walk was
when it emitted the one before.

Most activities waited for nothing but the one before them. Runs of such are taken in one turn and laid out as
arrays afterwards, so that a turn is only paid for where an edge or a hole is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.event_graph import CHILD, EDGE_KINDS, PROGRAM, Edges, EventGraph
from grademl_otel.analyzers.graph.path import (
    EVIDENCE,
    GAP,
    HANDOFF,
    INFERRED,
    KINDS,
    EnteredBy,
    Lane,
    Path,
    Sections,
)

NOWHERE: Final = "untraced"
"""Phase of a path through a lane in which nothing was recorded, or nothing before."""

_GAP, _HANDOFF = KINDS.index(GAP), KINDS.index(HANDOFF)
_IN_ORDER: Final = (EDGE_KINDS.index(PROGRAM), EDGE_KINDS.index(CHILD))
"""Kinds of edges before which time passes without being handed over."""

_OWN: Final = -1
"""As a kind: that of the activity. As an entrance: from what follows it in its lane."""
_UNTRACED: Final = -2
"""As a kind: a gap in a lane in which nothing was before, and nothing tells what let it begin."""
_FIRST: Final = -2
"""As an entrance: the walk begins here."""
_IN_LANE: Final = (
    EnteredBy(PROGRAM),
    EnteredBy(PROGRAM, INFERRED),
    EnteredBy(CHILD),
    EnteredBy(CHILD, INFERRED),
)
_NUMBER: Final = np.int32
"""What activities and edges are numbered with here."""
_TURN: Final = 7
"""Numbers kept of a turn: first and last activity, start, end, kind, entrance, whether it is a hole."""


def walk(graph: EventGraph, lane: int, low: int, high: int) -> Path:
    """Return the critical path over ``[low, high)``, in Unix ns, that ends in ``lane`` of ``graph``.

    ``lane`` is an index into ``graph.lanes``. Sections before the start of an activity, as a handoff or a
    gap, carry its phase, step and item, and no span; what is untraced carries none of these.
    """
    return Walker(graph).path(lane, low, high)


class Walker:
    """A graph made ready for walks, of which it can serve many."""

    def __init__(self, graph: EventGraph) -> None:
        self._graph = graph
        edges = _in_order_of_use(graph)
        count = len(graph)
        # Memory views: to look at one element of an array costs more.
        self._lane, self._start, self._end = _view(graph.lane), _view(graph.start), _view(graph.end)
        self._waits = _view(graph.waits)
        self._source, self._at, self._edge_kind = _view(edges.source), _view(edges.at), _view(edges.kind)
        self._evidence, self._confidence = _view(edges.evidence), _view(edges.confidence)
        self._edges = edges
        to_end = _first_of_each(edges.target, edges.to_end, count)
        to_start = _first_of_each(edges.target, ~edges.to_end, count)
        self._to_end, self._to_start = _view(to_end), _view(to_start)
        self._key = _view(_keys(edges))
        turns = np.ones(count, np.bool_)  # where a run of activities begins that are taken in one turn
        turns[1:] = (graph.lane[1:] != graph.lane[:-1]) | (graph.start[1:] > graph.end[:-1])
        turns |= to_start >= 0
        turns[1:] |= to_end[:-1] >= 0
        self._run = _view(np.maximum.accumulate(np.where(turns, np.arange(count, dtype=_NUMBER), 0)))

    def path(self, lane: int, low: int, high: int) -> Path:
        """Return the critical path over ``[low, high)`` that ends in ``lane``, see `walk`."""
        high = max(low, high)
        activities = self._graph.of_lane(lane)
        last = bisect_left(self._start, high, activities.start, activities.stop) - 1
        if last < activities.start or low == high:
            return Path(low, high, self._nothing(lane, low, high))
        turns, entrances = self._go_back(last, low, high)
        return Path(low, high, self._laid_out(turns, entrances))

    def _go_back(self, here: int, low: int, high: int) -> tuple[array[int], list[EnteredBy]]:
        """Return the turns of the walk from ``high`` in or after activity ``here``, latest first."""
        start, end, lane, at, source = self._start, self._end, self._lane, self._at, self._source
        to_end, to_start, run = self._to_end, self._to_start, self._run
        used: set[int] = set()
        entrances: dict[EnteredBy, int] = {entrance: i for i, entrance in enumerate(_IN_LANE)}
        turns: array[int] = array("q")
        keep = turns.extend
        cursor, entered = high, _FIRST
        if end[here] < cursor:
            cursor = max(end[here], low)
            keep((here, here, cursor, high, _GAP, 0, 1))
        while cursor > low:
            began = start[here]
            if cursor > began:
                kind = _OWN
                if to_end[here] >= 0:
                    edge, kind = self._that_ended(here, cursor, used)
                    if edge >= 0:
                        moment = at[edge]
                        if moment < cursor:
                            keep((here, here, max(moment, low), cursor, _HANDOFF, entered, 0))
                        used.add(edge)
                        here, cursor, entered = source[edge], moment, self._entrance(edge, entrances)
                        continue
                first = run[here] if kind == _OWN else here
                began = start[first]
                if began < low:
                    first = bisect_right(start, low, first, here + 1) - 1
                    began = low
                keep((first, here, began, cursor, kind, entered, 0))
                here, cursor, entered = first, began, _OWN
                if cursor <= low:
                    break
            before = here - 1 if here > 0 and lane[here - 1] == lane[here] else -1
            edge = to_start[here]
            if edge >= 0:
                edge = self._that_let(edge, used)
            if edge >= 0 and (before < 0 or at[edge] > end[before]):
                moment, entered = at[edge], self._entrance(edge, entrances)
                if moment < cursor:
                    kind = _GAP if self._edge_kind[edge] in _IN_ORDER else _HANDOFF
                    keep((here, here, max(moment, low), cursor, kind, entered, 1))
                used.add(edge)
                here, cursor = source[edge], moment
                continue
            if before < 0:
                keep((here, here, low, cursor, _UNTRACED, max(entered, 0), 1))
                break
            if end[before] < cursor:
                keep((here, here, max(end[before], low), cursor, _GAP, max(entered, 0), 1))
                cursor, entered = end[before], _OWN
            here = before
        return turns, list(entrances)

    def _that_ended(self, here: int, cursor: int, used: set[int]) -> tuple[int, int]:
        """Return the edge by which ``here`` ended or -1, and then what kind of section ``here`` is."""
        edge, began = self._to_end[here], self._start[here]
        key = self._key[edge]
        while edge < len(self._key) and self._key[edge] == key:
            moment = self._at[edge]
            if moment <= began:
                # What it waited for was there before: all of it was taking that over.
                return -1, _HANDOFF if self._waits[here] else _OWN
            if moment <= cursor and edge not in used:
                return edge, _HANDOFF
            edge += 1
        return -1, _OWN

    def _that_let(self, edge: int, used: set[int]) -> int:
        """Return the first edge from ``edge`` on, of those to the same start, that is not used yet, or -1."""
        key = self._key[edge]
        while edge in used:
            edge += 1
            if edge == len(self._key) or self._key[edge] != key:
                return -1
        return edge

    def _entrance(self, edge: int, entrances: dict[EnteredBy, int]) -> int:
        entered = EnteredBy(
            EDGE_KINDS[self._edge_kind[edge]], EVIDENCE[self._evidence[edge]], self._confidence[edge]
        )
        return entrances.setdefault(entered, len(entrances))

    def _laid_out(self, turns: array[int], entrances: list[EnteredBy]) -> Sections:
        """Return the sections of ``turns``: one for each activity of each."""
        graph = self._graph
        table = np.frombuffer(turns, np.int64).reshape(-1, _TURN)[::-1]
        first, last, start, end, kind, entered, hole = table.T
        count = last - first + 1
        ends = np.cumsum(count)
        begins = ends - count
        activity = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - begins, count)
        starts, stops = graph.start[activity], graph.end[activity]
        starts[begins], stops[ends - 1] = start, end
        kinds = graph.kind[activity]
        single = np.flatnonzero(kind != _OWN)
        kinds[begins[single]] = kind[single]
        phase, step, item, phases = (
            graph.phase[activity],
            graph.step[activity],
            graph.item[activity],
            graph.phases,
        )
        if len(kind) and kind[0] == _UNTRACED:  # the earliest
            phases = [*phases, NOWHERE]
            kinds[0], phase[0], step[0], item[0] = _GAP, len(phases) - 1, -1, -1
        after = np.minimum(activity + 1, len(graph) - 1)
        held = (graph.holder[activity] >= 0) & (graph.holder[activity] == graph.holder[after])
        by = 2 * held + graph.inferred[activity]
        begun = ends[entered == _FIRST] - 1
        by[begun] = graph.inferred[activity[begun]]
        jumped = np.flatnonzero(entered >= 0)
        by[ends[jumped] - 1] = entered[jumped]
        span_ix = graph.span_ix[activity]
        span_ix[begins[hole > 0]] = -1
        return Sections(
            start=starts,
            end=stops,
            phase=phase,
            kind=kinds,
            lane=graph.lane[activity],
            step=step,
            item=item,
            span_ix=span_ix,
            entered=by,
            phases=phases,
            lanes=graph.lanes,
            items=graph.items,
            entrances=entrances,
        )

    def _nothing(self, lane: int, low: int, high: int) -> Sections:
        """Return one gap, for a lane in which there is nothing before ``high``."""
        one = np.full(int(high > low), 1, np.int64)
        return Sections(
            start=low * one, end=high * one, phase=0 * one, kind=_GAP * one, lane=lane * one,
            step=-one, item=-one, span_ix=-one, entered=0 * one,
            phases=(NOWHERE,), lanes=self._graph.lanes, items=(), entrances=(EnteredBy(PROGRAM),),
        )  # fmt: skip


def _view(values: Any) -> Any:
    return np.ascontiguousarray(values).data


def _keys(edges: Edges) -> IntArray:
    """Return a number for each edge that is equal for those that lead to the same event."""
    keys: IntArray = 2 * edges.target + edges.to_end
    return keys


def _in_order_of_use(graph: EventGraph) -> Edges:
    """Return the edges that can bind, those to one event together, in the order in which a walk asks."""
    edges = graph.edges
    bound = np.where(edges.to_end, graph.end[edges.target], graph.start[edges.target])
    there = (edges.at >= graph.start[edges.source]) & (edges.at <= graph.end[edges.source])
    edges = edges.where(there & (edges.at <= bound))
    keys = _keys(edges)
    order = np.lexsort((-edges.at, keys))
    alike = np.zeros(len(order), np.bool_)
    alike[1:] = (np.diff(keys[order]) == 0) & (np.diff(edges.at[order]) == 0)
    alike[:-1] |= alike[1:]
    if alike.any():  # few: only these need all of the rule
        places = np.flatnonzero(alike)
        tied = order[places]
        named = sorted(range(len(graph.lanes)), key=lambda lane: _sortable(graph.lanes[lane]))
        number = np.empty(len(named), np.int64)
        number[named] = np.arange(len(named))
        order[places] = tied[
            np.lexsort(
                (
                    number[graph.lane[edges.source[tied]]],
                    graph.start[edges.source[tied]],
                    edges.kind[tied],
                    -edges.confidence[tied],
                    edges.evidence[tied],
                    -edges.at[tied],
                    keys[tied],
                )
            )
        ]
    return edges.where(order)


def _sortable(lane: Lane) -> tuple[int, str]:
    rank, name = lane
    return -1 if rank is None else rank, name


def _first_of_each(target: IntArray, chosen: Any, count: int) -> IntArray:
    """Return for each activity its first edge of those ``chosen``, -1 for none; sorted by target."""
    first: IntArray = np.full(count, -1, _NUMBER)
    places = np.flatnonzero(chosen)[::-1]
    first[target[places]] = places  # of equal targets the last written stays: the first
    return first
