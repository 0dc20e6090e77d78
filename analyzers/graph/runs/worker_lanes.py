# SPDX-License-Identifier: Apache-2.0
"""Loader workers in the event graph: their lanes, and the bounded queues between them and the main lanes.

The end of an item ends the wait for it. The start of an item waits for what its worker did before, and for
its index to be put into the queue: when the pass began (which is known by the start of its first wait only),
or when an earlier batch was taken. From the beginning of a pass to the start of its first item a worker comes
up; where what it did before an item was not recorded, it may have been busy with that since the put.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.draft import Draft, numbers_of
from grademl_otel.analyzers.graph.event_graph import QUEUE, Edges
from grademl_otel.analyzers.graph.path import GAP, INFERRED, OBSERVED, UNEXPLAINED, WORK
from grademl_otel.analyzers.graph.runs.activities import Activities
from grademl_otel.analyzers.graph.runs.main_lane import LOADER_START
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.facts import Run

_ROUNDING_NS: Final = 5_000
"""How far a time from a table may contradict one from another lane and still be taken for rounded."""


def add_workers(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add the items that workers made; ``main`` are the numbers of the pieces of the main lanes."""
    items = found.items
    if not len(items):
        return
    lane = _lanes(draft, found)
    every = np.arange(len(items))
    step: IntArray = np.full(len(items), -1, np.int64)
    consumed = np.flatnonzero(found.wait_of_items >= 0)
    step[consumed] = run.steps.step[found.waits.row[found.wait_of_items[consumed]]]
    fetch = draft.add(
        lane, items.start, items.fetched, semconv.DATA_FETCH, WORK,
        step=step, item=every, span_ix=items.fetch_span,
    )  # fmt: skip
    collate = draft.add(
        lane, items.collating, items.end, semconv.DATA_COLLATE, WORK,
        step=step, item=every, span_ix=items.collate_span,
    )  # fmt: skip
    fetched, collated = items.fetched > items.start, items.end > items.collating
    first, last = np.where(fetched, fetch, collate), np.where(collated, collate, fetch)
    put, observed, told = _puts(found)
    source = np.where(told, numbers_of(found.main.at(items.rank, put), main), -1)
    filler, filled = _before_items(draft, found, lane, step, put, observed)
    target = np.where(filled, filler, first)
    for seen, evidence in ((observed, OBSERVED), (~observed, INFERRED)):
        draft.connect(Edges.of(QUEUE, source[seen], put[seen], target[seen], evidence=evidence))
    _connect_waits(draft, found, main, last, ~(fetched | collated), (source, put), lane)


def _lanes(draft: Draft, found: Activities) -> IntArray:
    items = found.items
    begins = changes(items.rank, items.loader, items.worker)
    numbers = [
        draft.lane(int(items.rank[first]), items.lane(first)) for first in np.flatnonzero(begins).tolist()
    ]
    lane: IntArray = np.array(numbers, np.int64)[np.cumsum(begins) - 1]
    return lane


def _puts(found: Activities) -> tuple[IntArray, BoolArray, BoolArray]:
    """Return when the index of each item was put, whether that was observed, and whether it is of use.

    Where nothing tells, it is taken for put when the item began, unless the item before tells why it did.
    """
    items, waits = found.items, found.waits
    put = items.start.copy()
    let, opening = found.let, np.where(found.among_first, found.first_wait, -1)
    opened, allowed = np.flatnonzero(opening >= 0), np.flatnonzero(let >= 0)
    put[opened] = waits.start[opening[opened]]
    allowed = allowed[waits.end[let[allowed]] <= items.start[allowed] + _ROUNDING_NS]
    put[allowed] = waits.end[let[allowed]]
    observed = np.zeros(len(items), np.bool_)
    observed[allowed] = True
    told = observed | ~(found.follows & found.knows_before)
    told[opened] = True
    return np.minimum(put, items.start), observed, told


def _before_items(
    draft: Draft, found: Activities, lane: IntArray, step: IntArray, put: IntArray, observed: BoolArray
) -> tuple[IntArray, BoolArray]:
    """Add what a worker is taken to have done between a put and the item; return its numbers, and where."""
    items = found.items
    reached = put.copy()
    same = np.flatnonzero(lane[1:] == lane[:-1])
    reached[same + 1] = np.maximum(put[same + 1], items.end[same])
    known = found.knows_before
    idle = (reached < items.start) & ~(found.follows & known)
    starting, unknown = idle & known & ~observed, idle & ~known
    filler: IntArray = np.full(len(items), -1, np.int64)
    for which, phase, kind in ((starting, LOADER_START, GAP), (unknown, semconv.DATA_FETCH, UNEXPLAINED)):
        filler[which] = draft.add(
            lane[which], reached[which], items.start[which], phase, kind,
            step=step[which], item=np.flatnonzero(which), inferred=True,
        )  # fmt: skip
    return filler, filler >= 0


def _connect_waits(
    draft: Draft,
    found: Activities,
    main: IntArray,
    last: IntArray,
    empty: BoolArray,
    put: tuple[IntArray, IntArray],
    lane: IntArray,
) -> None:
    """Add the edges from the ends of items to the ends of the waits for them.

    An item that took no time is no activity: what it waited for itself ended the wait then.
    """
    pieces = np.flatnonzero(found.main.wait >= 0)
    wait = found.main.wait[pieces]
    item = found.item_of_waits[wait]
    pieces, wait, item = pieces[item >= 0], wait[item >= 0], item[item >= 0]
    at = np.minimum(found.items.end[item], found.waits.end[wait])
    within = found.main.end[pieces] >= at
    pieces, item, at = pieces[within], item[within], at[within]
    draft.connect(Edges.of(QUEUE, last[item], at, main[pieces], to_end=True))
    nothing = np.flatnonzero(empty[item])
    if not len(nothing):
        return
    pieces, item, at = main[pieces[nothing]], item[nothing], at[nothing]
    source, moment = put
    before = np.maximum.accumulate(np.where(empty, -1, np.arange(len(empty))))[item]
    mine = (before >= 0) & (lane[before] == lane[item])
    draft.connect(
        Edges.of(QUEUE, source[item], np.minimum(moment[item], at), pieces, to_end=True),
        Edges.of(
            QUEUE,
            last[before[mine]],
            np.minimum(found.items.end[before[mine]], at[mine]),
            pieces[mine],
            to_end=True,
        ),
    )
