# SPDX-License-Identifier: Apache-2.0
"""The event graph of a run: what all lanes of all ranks did, and what each start and end had to wait for.

=============== ==============================================================================================
lane            what is in it
=============== ==============================================================================================
main            the pieces of the main lane, see `main_lane`: of every rank, to the end of its process
loader-worker-n what loader workers did, see `worker_lanes`
comm            collectives beside the thread that issued them, see `comm_lanes`
stream-n, ...   phases of the step on an asynchronous device, see `device_lanes`
checkpoint      what is written while the training goes on, see `side_lanes`, where spans are too that others
                name in links of kind ``blocking``
=============== ==============================================================================================

All times are by one clock. Where clocks of hosts cannot be told apart well enough, or members of a collective
are missing, nothing leads from one rank to another there, and a wait for ranks stays a wait.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.draft import Draft
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.inferences.inferred import with_inferred
from grademl_otel.analyzers.graph.path import GAP, KINDS, UNEXPLAINED, WAIT, WORK, kind_of
from grademl_otel.analyzers.graph.runs.activities import Activities, activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.comm_lanes import add_collectives
from grademl_otel.analyzers.graph.runs.device_lanes import add_devices
from grademl_otel.analyzers.graph.runs.item_texts import ItemTexts
from grademl_otel.analyzers.graph.runs.main_lane import (
    GAPS,
    NAMES,
    MainLanes,
    bounds_of,
    last_rank,
    phase_named,
)
from grademl_otel.analyzers.graph.runs.side_lanes import add_sides
from grademl_otel.analyzers.graph.runs.worker_lanes import add_workers
from grademl_otel.analyzers.model.facts import Run

MAIN: Final = "main"

_latest: dict[bool, tuple[weakref.ref[Run], EventGraph]] = {}


def run_graph(run: Run, inferred: bool = True) -> EventGraph:
    """Return the event graph of all of ``run``, without edges that nobody observed if not ``inferred``.

    The latest is kept as long as its run is, as several analyses ask in a row.
    """
    latest = _latest.get(inferred)
    if latest is not None and latest[0]() is run:
        return latest[1]
    if inferred:
        graph = _waiting(with_inferred(run, _graph(run, activities(run))))
    else:
        graph = _graph(run, activities(run)).observed()
    _latest[inferred] = (weakref.ref(run, lambda _: _latest.pop(inferred, None)), graph)
    return graph


def _waiting(graph: EventGraph) -> EventGraph:
    """Return ``graph`` with those marked as waiting, too, of which an inferred edge tells for what."""
    ended = np.zeros(len(graph), np.bool_)
    ended[graph.edges.target[graph.edges.to_end]] = True
    unexplained = np.isin(graph.kind, [KINDS.index(WAIT), KINDS.index(UNEXPLAINED)])
    return replace(graph, waits=graph.waits | (ended & unexplained))


def _graph(run: Run, found: Activities) -> EventGraph:
    draft = Draft(ItemTexts(found.items, found.waits))
    main = _add_main(draft, run, found)
    add_workers(draft, run, found, main)
    add_collectives(draft, run, found, main)
    add_devices(draft, run, found, main)
    add_sides(draft, run, found, main)
    return draft.graph()


def _add_main(draft: Draft, run: Run, found: Activities) -> IntArray:
    """Add the pieces of the main lanes, and return their numbers."""
    main, waits, items = found.main, found.waits, found.items
    lanes = np.array([draft.lane(rank, MAIN) for rank in run.ranks], np.int64)
    phases = np.array([draft.phase(phase_named(name)) for name in NAMES], np.int64)
    kinds = np.array([KINDS.index(GAP if name in GAPS else kind_of(name)) for name in NAMES], np.int64)
    waiting = np.array([name in semconv.WAIT_PHASES or name in COLLECTIVE_PARTS for name in NAMES], np.bool_)
    kind = kinds[main.name]
    item: IntArray = np.full(len(main), -1, np.int64)
    awaits = np.flatnonzero(main.wait >= 0)
    wait = main.wait[awaits]
    # With work inside, as of a loader without workers, the rest of the wait is overhead of that work.
    kind[awaits[waits.inline[wait]]] = KINDS.index(WORK)
    made = found.item_of_waits[wait]
    item[awaits] = np.where(made >= 0, made, np.where(waits.batch[wait] >= 0, len(items) + wait, -1))
    step: IntArray = np.full(len(main), -1, np.int64)
    in_row = np.flatnonzero(main.row >= 0)
    step[in_row] = run.steps.step[main.row[in_row]]
    return draft.add(
        lanes[np.searchsorted(np.array(run.ranks, np.int64), main.rank)],
        main.start,
        np.where(_after_the_end(run, main), main.start, main.end),
        phases[main.name],
        kind,
        waits=waiting[main.name],
        step=step,
        item=item,
        span_ix=main.span_ix,
        holder=_holders(main.outermost),
        inferred=main.inferred,
    )


def _after_the_end(run: Run, main: MainLanes) -> BoolArray:
    """Return which pieces lie after the end of their process, while another one goes on: they are nothing."""
    after, last = np.zeros(len(main), np.bool_), last_rank(run) if run.ranks else None
    for rank in run.ranks:
        if rank != last:
            pieces = main.of(rank)
            after[pieces] = main.start[pieces] >= bounds_of(run, rank)[1]
    return after


def _holders(outermost: IntArray) -> IntArray:
    """Return ``outermost`` where a neighbour is part of the same, else -1."""
    same = (outermost[1:] == outermost[:-1]) & (outermost[1:] >= 0)
    shared = np.zeros(len(outermost), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    return np.where(shared, outermost, -1)
