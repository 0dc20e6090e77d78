# SPDX-License-Identifier: Apache-2.0
"""The events of a graph one by one: starts, ends, and the moments between that others waited for.

Sorted by (activity, time), so that a lane's events stand in order. Each edge leads from one to a later one,
or to one of the same instant; `level` then tells an order among those.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.runs.main_lane import IDLE
from grademl_otel.analyzers.model.arrays import distinct


@dataclass(frozen=True)
class Events:
    """Starts, moments and ends of activities, sorted by (activity, time)."""

    time: IntArray
    activity: IntArray
    first: IntArray
    """For each activity its start."""
    last: IntArray
    """For each activity its end."""
    source: IntArray
    """For each edge the event that it comes from."""
    target: IntArray
    """The event that waits: of an activity's end the first moment of it at or after the source."""

    @classmethod
    def of(cls, graph: EventGraph) -> Events:
        edges, count = graph.edges, len(graph)
        start, end, at = graph.start[edges.source], graph.end[edges.source], edges.at
        inside = (at > start) & (at < end)
        moments = np.unique(np.stack([edges.source[inside], at[inside]]), axis=1)
        own = np.bincount(moments[0], minlength=count)
        first: IntArray = np.arange(count) * 2 + np.cumsum(own) - own
        last: IntArray = first + own + 1
        activity = np.repeat(np.arange(count), own + 2)
        time = np.zeros(len(activity), np.int64)
        time[first], time[last] = graph.start, graph.end
        time[np.arange(moments.shape[1]) + 2 * moments[0] + 1] = moments[1]
        # (activity, time) as one number: times by their ranks, as products of times would be too large.
        moment_of = distinct(np.concatenate([time, at]))
        keys = activity * len(moment_of) + np.searchsorted(moment_of, time)
        ranks = np.searchsorted(moment_of, at)
        source = np.searchsorted(keys, edges.source * len(moment_of) + ranks)
        within = edges.to_end & (at > graph.start[edges.target])
        target = np.where(edges.to_end, last[edges.target], first[edges.target])
        target[within] = np.searchsorted(keys, edges.target[within] * len(moment_of) + ranks[within])
        return cls(time, activity, first, last, source, target)

    def where(self, edges: BoolArray) -> Events:
        """Return the same events, with some of the edges."""
        return replace(self, source=self.source[edges], target=self.target[edges])


def window(graph: EventGraph, low: int, high: int) -> tuple[EventGraph, IntArray]:
    """Return the part of ``graph`` within ``[low, high)``, and where its activities come from.

    Idle time at the end of a lane, after its process, ends because all else does: it is left out.
    """
    ends_lane = np.ones(len(graph), bool)
    ends_lane[:-1] = graph.lane[1:] != graph.lane[:-1]
    idle = np.isin(graph.phase, [at for at, phase in enumerate(graph.phases) if phase == IDLE])
    kept = np.flatnonzero((graph.start < high) & (graph.end > low) & ~(idle & ends_lane))
    number = np.full(len(graph), -1, np.int64)
    number[kept] = np.arange(len(kept))
    edges = graph.edges
    bound = np.where(edges.to_end, graph.end[edges.target], graph.start[edges.target])
    there = (edges.at >= graph.start[edges.source]) & (edges.at <= graph.end[edges.source])
    there &= (number[edges.source] >= 0) & (number[edges.target] >= 0)
    there &= (edges.at >= low) & (edges.at <= bound) & (bound >= low) & (bound <= high)
    edges = edges.where(there)
    edges = replace(edges, source=number[edges.source], target=number[edges.target])
    columns = {
        field.name: getattr(graph, field.name)[kept]
        for field in fields(graph)
        if field.name not in ("phases", "lanes", "items", "edges")
    }
    columns["start"] = np.maximum(columns["start"], low)
    columns["end"] = np.minimum(columns["end"], high)
    return replace(graph, **columns, edges=edges), kept


def possible(graph: EventGraph, events: Events) -> tuple[EventGraph, Events, IntArray]:
    """Return both without edges of one instant that form a circle, and each event's place in its instant."""
    time = events.time
    level = np.zeros(len(time), np.int64)
    cross = np.flatnonzero(time[events.source] == time[events.target])
    if not len(cross):
        return graph, events, level
    in_lane = np.zeros(len(time), bool)
    in_lane[events.first[1:]] = graph.lane[1:] == graph.lane[:-1]
    in_lane[1:] &= time[1:] == time[:-1]
    after = np.flatnonzero(in_lane & np.isin(time, time[events.target[cross]]))
    source = np.concatenate([events.source[cross], after - 1])
    target = np.concatenate([events.target[cross], after])
    circle = _in_circles(source, target, len(time))
    circle[len(cross) :] = False
    kept = np.ones(len(graph.edges), bool)
    kept[cross[circle[: len(cross)]]] = False
    level, _ = _peeled(source[~circle], target[~circle], len(time))
    return replace(graph, edges=graph.edges.where(kept)), events.where(kept), level


def _in_circles(source: IntArray, target: IntArray, count: int) -> BoolArray:
    """Return which constraints are part of a circle, or lie between two."""
    _, left = _peeled(source, target, count)
    some = np.flatnonzero(left)
    _, still = _peeled(target[some], source[some], count)
    left[some] = still
    return left


def _peeled(source: IntArray, target: IntArray, count: int) -> tuple[IntArray, BoolArray]:
    """Return how long the longest chain of constraints to each event is, and those that follow a circle.

    Kahn's (1962) way: events that wait for nothing more are done, all of them at a time.
    """
    level = np.zeros(count, np.int64)
    left = np.ones(len(source), bool)
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(count + 1))
    waits = np.bincount(target, minlength=count)
    free = np.flatnonzero((waits == 0) & (first[1:] > first[:-1]))
    depth = 0
    while len(free):
        depth += 1
        lengths = first[free + 1] - first[free]
        begins = np.cumsum(lengths) - lengths
        done = order[np.arange(int(lengths.sum())) + np.repeat(first[free] - begins, lengths)]
        left[done] = False
        reached, times = np.unique(target[done], return_counts=True)
        waits[reached] -= times
        free = reached[waits[reached] == 0]
        level[free] = depth
    return level, left
