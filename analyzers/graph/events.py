# SPDX-License-Identifier: Apache-2.0
"""The event graph of a run: the starts and ends of its activities, and what each of them had to wait for.

An activity is a piece of a main lane, or the fetch or the collate of an item in a worker's lane. Edges join
events; each has its kind and its evidence:

program     the end of an activity to the start of the next in its lane
child       the same where one of the two lies within the other: a parent starts a child, and waits for it
queue       the end of an item to the end of the wait that it ends; the end of a wait to the start of the item
            whose index was put then, for the queue is bounded; the start of a pass to its first items
collective  the arrivals of all ranks to its end (no source gives them yet)
device      a launch to its kernel, a kernel to the synchronization that waits for it (likewise)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import networkx as nx
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.activities import Activities, activities
from grademl_otel.analyzers.graph.intervals import BoolArray
from grademl_otel.analyzers.graph.main_lane import GAPS, NAMES, phase_named
from grademl_otel.analyzers.graph.path import GAP, INFERRED, OBSERVED, Path, Section, kind_of
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run

PROGRAM: Final = "program"
CHILD: Final = "child"
QUEUE: Final = "queue"
COLLECTIVE: Final = "collective"
DEVICE: Final = "device"
LINK: Final = "link"
EDGE_KINDS: Final = (PROGRAM, CHILD, QUEUE, COLLECTIVE, DEVICE, LINK)

MOST_NODES: Final = 200_000
"""A networkx graph takes about a kilobyte a node: above this the user chooses steps."""


@dataclass(frozen=True)
class Edges:
    """Edges between events. An event is (activity, whether it is the end of it)."""

    source: IntArray
    source_is_end: BoolArray
    target: IntArray
    target_is_end: BoolArray
    kind: IntArray
    """Index into `EDGE_KINDS`."""
    inferred: BoolArray

    @classmethod
    def of(
        cls,
        kind: str,
        source: IntArray,
        target: IntArray,
        *,
        to_end: bool = False,
        inferred: BoolArray | None = None,
    ) -> Edges:
        """Return edges from the ends of ``source`` to the starts (or ends) of ``target``."""
        count = len(source)
        return cls(
            source,
            np.ones(count, bool),
            target,
            np.full(count, to_end),
            np.full(count, EDGE_KINDS.index(kind), np.int64),
            np.zeros(count, bool) if inferred is None else inferred,
        )

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class EventGraph:
    """Activities of all lanes as arrays: first the pieces of the main lanes, then fetches, then collates."""

    rank: IntArray
    start: IntArray
    end: IntArray
    name: IntArray
    """Index into `main_lane.NAMES`."""
    row: IntArray
    """Index into the step table; -1 when not known or outside rows."""
    item: IntArray
    """Index into the items of the workers; -1 in a main lane."""
    span_ix: IntArray
    edges: Edges

    def __len__(self) -> int:
        return len(self.start)

    def time(self, activity: IntArray, is_end: BoolArray) -> IntArray:
        """Return the times of events, in Unix ns."""
        return np.where(is_end, self.end[activity], self.start[activity])


def event_graph(run: Run) -> EventGraph:
    """Return the event graph of all of ``run``."""
    found = activities(run)
    main, items = found.main, found.items
    row_of_item = _rows_of_items(found)
    collated = np.flatnonzero(items.end > items.collating)
    every, none = np.arange(len(items)), np.full(len(main), -1, np.int64)
    fetch, collate = NAMES.index(semconv.DATA_FETCH), NAMES.index(semconv.DATA_COLLATE)
    last = np.full(len(items), -1, np.int64)  # the activity that ends each item
    last[every] = len(main) + every
    last[collated] = len(main) + len(items) + np.arange(len(collated))
    parts = (_lane_order(found), _worker_order(found, last), _queue(found, last))
    edges = Edges(
        *(
            np.concatenate([getattr(part, column) for part in parts])
            for column in ("source", "source_is_end", "target", "target_is_end", "kind", "inferred")
        )
    )
    return EventGraph(
        rank=np.concatenate([main.rank, items.rank, items.rank[collated]]),
        start=np.concatenate([main.start, items.start, items.collating[collated]]),
        end=np.concatenate([main.end, items.fetched, items.end[collated]]),
        name=np.concatenate([main.name, np.full(len(items), fetch), np.full(len(collated), collate)]),
        row=np.concatenate([main.row, row_of_item, row_of_item[collated]]),
        item=np.concatenate([none, every, collated]),
        span_ix=np.concatenate([main.span_ix, items.fetch_span, items.collate_span[collated]]),
        edges=edges,
    )


def _rows_of_items(found: Activities) -> IntArray:
    """Return the row that consumed each item; -1 when not known."""
    items = found.items
    waits = [found.wait_of_item(item) for item in range(len(items))]
    return np.array([-1 if wait is None else found.waits.row[wait] for wait in waits], np.int64)


def _lane_order(found: Activities) -> Edges:
    """Return the edges along the main lanes."""
    main = found.main
    before = np.flatnonzero(main.rank[1:] == main.rank[:-1])
    after = before + 1
    # Pieces of one outermost phase: one of the two is that phase itself, and holds the other.
    nested = (main.top[before] == main.top[after]) & (main.row[before] == main.row[after])
    nested &= (main.name[before] == main.top[before]) != (main.name[after] == main.top[after])
    inferred = main.inferred[before] | main.inferred[after]
    edges = Edges.of(PROGRAM, before, after, inferred=inferred)
    edges.kind[nested] = EDGE_KINDS.index(CHILD)
    return edges


def _worker_order(found: Activities, last: IntArray) -> Edges:
    """Return the edges along the workers' lanes: fetch to collate, and item to item of one pass."""
    items, first = found.items, len(found.main)
    every = np.arange(len(items))
    collated = last != first + every
    succeeds = np.zeros(len(items), bool)
    if len(items):
        succeeds[1:] = True
        for column in (items.rank, items.loader, items.worker, items.pass_serial):
            succeeds[1:] &= column[1:] == column[:-1]
    after = np.flatnonzero(succeeds)
    return Edges.of(
        PROGRAM,
        np.concatenate([first + every[collated], last[after - 1]]),
        np.concatenate([last[collated], first + after]),
    )


def _queue(found: Activities, last: IntArray) -> Edges:
    """Return the edges through the queues between the main lanes and the workers."""
    main, waits, items = found.main, found.waits, found.items
    final = np.full(len(waits), -1, np.int64)  # the last piece of each wait
    pieces = np.flatnonzero(main.wait >= 0)
    final[main.wait[pieces]] = pieces
    ends: list[tuple[int, int]] = []
    lets: list[tuple[int, int]] = []
    begins: list[tuple[int, int]] = []
    for wait in range(len(waits)):
        item = found.item_of_wait(wait)
        if item is not None and final[wait] >= 0:
            ends.append((int(last[item]), int(final[wait])))
    for item in range(len(items)):
        let = found.wait_that_let(item)
        if let is not None and final[let] >= 0:
            lets.append((int(final[let]), len(main) + item))
        elif found.among_first(item):
            opening = found.first_wait(item)
            piece = None if opening is None else _piece_before(found, opening)
            if piece is not None and main.end[piece] <= items.start[item]:
                begins.append((piece, len(main) + item))
    ending, letting, beginning = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (ends, lets, begins))
    parts = (
        Edges.of(QUEUE, ending[:, 0], ending[:, 1], to_end=True),
        Edges.of(QUEUE, letting[:, 0], letting[:, 1]),
        Edges.of(QUEUE, beginning[:, 0], beginning[:, 1], inferred=np.ones(len(beginning), bool)),
    )
    return Edges(
        *(
            np.concatenate([getattr(part, column) for part in parts])
            for column in ("source", "source_is_end", "target", "target_is_end", "kind", "inferred")
        )
    )


def _piece_before(found: Activities, wait: int) -> int | None:
    """Return the piece of the main lane that ends where ``wait`` starts."""
    main = found.main
    pieces = main.of(int(found.waits.rank[wait]))
    at = pieces.start + int(np.searchsorted(main.end[pieces], found.waits.start[wait], side="right")) - 1
    return at if at >= pieces.start else None


# --- networkx ---------------------------------------------------------------------------------------------


def to_networkx(run: Run) -> nx.DiGraph:
    """Return the activities of ``run`` as nodes and what they waited for as edges.

    Nodes are integers with the attributes ``rank``, ``lane``, ``phase``, ``kind``, ``start``, ``end`` (Unix
    ns) and, where they are known, ``step``, ``item`` and ``span`` (index into the columns). Edges have
    ``kind``, ``evidence`` and ``joins`` (``end-start`` or ``end-end``: which events). Raises ValueError above
    `MOST_NODES` nodes.
    """
    graph = event_graph(run)
    found = activities(run)
    if len(graph) > MOST_NODES:
        raise ValueError(
            f"{len(graph):,} activities are too many for one networkx graph (at most {MOST_NODES:,});"
            " select some of the steps"
        )
    drawn = nx.DiGraph(run=run.run_id, attempt=run.attempt, start=run.start, end=run.end)
    for node in range(len(graph)):
        drawn.add_node(node, **_node(run, found, graph, node))
    edges = graph.edges
    for i in range(len(edges)):
        drawn.add_edge(
            int(edges.source[i]),
            int(edges.target[i]),
            kind=EDGE_KINDS[int(edges.kind[i])],
            evidence=INFERRED if edges.inferred[i] else OBSERVED,
            joins="end-end" if edges.target_is_end[i] else "end-start",
        )
    return drawn


def _node(run: Run, found: Activities, graph: EventGraph, node: int) -> dict[str, Any]:
    name, item = NAMES[int(graph.name[node])], int(graph.item[node])
    known: dict[str, Any] = {
        "rank": int(graph.rank[node]),
        "lane": found.items.lane(item) if item >= 0 else "main",
        "phase": phase_named(name),
        "kind": GAP if name in GAPS else kind_of(name),
        "start": int(graph.start[node]),
        "end": int(graph.end[node]),
    }
    if graph.row[node] >= 0:
        known["step"] = int(run.steps.step[graph.row[node]])
    if item >= 0:
        known["item"] = found.items.text(item)
    elif found.main.wait[node] >= 0:
        text = found.text_of_wait(int(found.main.wait[node]))
        if text is not None:
            known["item"] = text
    if graph.span_ix[node] >= 0:
        known["span"] = int(graph.span_ix[node])
    return known


def path_graph(path: Path) -> nx.DiGraph:
    """Return ``path`` as a chain: sections as nodes in order of time, numbered from 0.

    Nodes have the fields of `Section` that are known, edges how the walk came from the later to the earlier.
    """
    drawn = nx.DiGraph(start=path.start, end=path.end)
    for number, section in enumerate(path.sections):
        drawn.add_node(number, **_section(section))
        if number:
            entered = path.sections[number - 1].entered_by
            drawn.add_edge(
                number - 1,
                number,
                kind=entered.edge,
                evidence=entered.evidence,
                confidence=entered.confidence,
            )
    return drawn


def _section(section: Section) -> dict[str, Any]:
    fields = {
        "phase": section.phase,
        "kind": section.kind,
        "lane": section.lane,
        "start": section.start,
        "end": section.end,
        "rank": section.rank,
        "step": section.step,
        "item": section.item,
        "span": section.span_ix,
    }
    return {name: value for name, value in fields.items() if value is not None}
