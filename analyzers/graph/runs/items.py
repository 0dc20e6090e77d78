# SPDX-License-Identifier: Apache-2.0
"""What loader workers did: one item (a batch of a pass) after another, each fetched, then collated."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.runs.main_lane import item_of
from grademl_otel.analyzers.model.facts import Run

_LANE: Final = re.compile(r"loader(\d*)-worker-(\d+)")


@dataclass(frozen=True)
class Items:
    """Items with known times, sorted by (rank, loader, worker, pass, start); times in Unix ns."""

    rank: IntArray
    loader: IntArray
    worker: IntArray
    pass_serial: IntArray
    batch: IntArray
    start: IntArray
    """Start of the fetch."""
    fetched: IntArray
    """End of the fetch."""
    collating: IntArray
    """Start of the collate; the end of the fetch when none was recorded."""
    end: IntArray
    """End of the collate."""
    fetch_span: IntArray
    collate_span: IntArray
    """Spans that they come from; -1 when they come from the table."""

    def __len__(self) -> int:
        return len(self.start)

    def lane(self, ix: int) -> str:
        """Return the name of the lane of item ``ix``."""
        loader = int(self.loader[ix])
        return f"loader{loader or ''}-worker-{int(self.worker[ix])}"

    def text(self, ix: int) -> str:
        """Return item ``ix`` as `grademl.item` writes it."""
        return f"{int(self.pass_serial[ix])}:{int(self.batch[ix])}"

    def take(self, order: IntArray) -> Items:
        return Items(**{field.name: getattr(self, field.name)[order] for field in fields(self)})


def loader_items(run: Run) -> Items:
    """Return the items that workers made: from their spans where there are any, else from the step table.

    A row of the table gives an item only when it consumed one: sums over several have no place in time.
    """
    both = _joined(_from_spans(run), _from_table(run))
    keys = (both.batch, both.pass_serial, both.rank)
    order = np.lexsort(keys)  # stable: of the same item the span stays first
    first = np.ones(len(order), bool)
    if len(order):
        same = np.ones(len(order) - 1, bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        first[1:] = ~same
    items = both.take(order[first])
    return items.take(
        np.lexsort((items.batch, items.start, items.pass_serial, items.worker, items.loader, items.rank))
    )


def _joined(*parts: Items) -> Items:
    return Items(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Items)})


def _from_table(run: Run) -> Items:
    steps = run.steps
    none = np.zeros(len(steps), np.int64)
    fetches = steps.count.get(semconv.DATA_FETCH, none)
    rows = np.flatnonzero((fetches == 1) & (steps.item_worker >= 0) & (steps.item_batch >= 0))
    start = steps.first.get(semconv.DATA_FETCH, none)[rows]
    fetched = start + steps.busy.get(semconv.DATA_FETCH, none)[rows]
    collated = steps.count.get(semconv.DATA_COLLATE, none)[rows] == 1
    collating = np.where(collated, steps.first.get(semconv.DATA_COLLATE, none)[rows], fetched)
    collating = np.maximum(collating, fetched)
    end = np.where(collated, collating + steps.busy.get(semconv.DATA_COLLATE, none)[rows], fetched)
    no_span = np.full(len(rows), -1, np.int64)
    return Items(
        rank=steps.rank[rows],
        loader=steps.item_loader[rows],
        worker=steps.item_worker[rows],
        pass_serial=steps.item_pass[rows],
        batch=steps.item_batch[rows],
        start=start,
        fetched=fetched,
        collating=collating,
        end=end,
        fetch_span=no_span,
        collate_span=no_span,
    )


def _from_spans(run: Run) -> Items:
    spans = run.spans
    wanted = [ix for ix, name in enumerate(spans.names) if name in semconv.WORKER_PHASES]
    ixs = run.span_ixs[np.isin(spans.name_ix[run.span_ixs], wanted)]
    fetch: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    collate: dict[tuple[int, int, int], int] = {}
    for ix in ixs[spans.end[ixs] >= spans.start[ixs]].tolist():
        attributes = spans.attributes(ix)
        item = item_of(attributes.get(semconv.ITEM))
        lane = _LANE.fullmatch(str(attributes.get(semconv.LANE, "")))
        rank = spans.resource(ix).get(semconv.RANK)
        if item is None or lane is None or not isinstance(rank, int):
            continue
        key = (rank, *item)
        if spans.name(ix) == semconv.DATA_FETCH:
            fetch.setdefault(key, (ix, int(lane[1] or 0), int(lane[2])))
        else:
            collate.setdefault(key, ix)
    found = [
        (rank, loader, worker, serial, batch, ix, collate.get((rank, serial, batch), -1))
        for (rank, serial, batch), (ix, loader, worker) in fetch.items()
    ]
    table = np.array(found, np.int64).reshape(-1, 7)
    fetches, collates = table[:, 5], table[:, 6]
    start, fetched = spans.start[fetches], spans.end[fetches]
    collated = collates >= 0
    collating, end = fetched.copy(), fetched.copy()
    collating[collated] = np.maximum(spans.start[collates[collated]], fetched[collated])
    end[collated] = spans.end[collates[collated]]
    return Items(
        rank=table[:, 0],
        loader=table[:, 1],
        worker=table[:, 2],
        pass_serial=table[:, 3],
        batch=table[:, 4],
        start=start,
        fetched=fetched,
        collating=collating,
        end=np.maximum(end, collating),
        fetch_span=fetches,
        collate_span=collates,
    )
