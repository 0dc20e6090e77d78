# SPDX-License-Identifier: Apache-2.0
"""All that a run did, lane by lane, on arrays: what every analysis of a run starts from."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.runs.items import Items, loader_items
from grademl_otel.analyzers.graph.runs.main_lane import MainLanes, Waits, main_lanes
from grademl_otel.analyzers.model.arrays import changes, places
from grademl_otel.analyzers.model.collectives import Collectives, collectives_of
from grademl_otel.analyzers.model.facts import Run


@dataclass(frozen=True)
class Activities:
    """The main lanes, their waits for data, the items of the loader workers, and how these hang together."""

    collectives: Collectives
    main: MainLanes
    waits: Waits
    items: Items
    window_of_loader: dict[int, tuple[int | None, bool]]
    """Loader -> (batches that may be on their way at once, None when not known; delivered in order)."""
    conflicts: list[str]
    """What two sources told differently, one line each."""

    @cached_property
    def item_of_waits(self) -> IntArray:
        """The worker's item that ended each wait; -1 where it is not known, or made within the wait."""
        waits, items = self.waits, self.items
        found = places(
            (waits.rank, waits.pass_serial, waits.batch), (items.rank, items.pass_serial, items.batch)
        )
        return np.where(waits.inline | (waits.batch < 0), -1, found)

    @cached_property
    def wait_of_items(self) -> IntArray:
        """The wait that each item ended; -1 where it is not known."""
        return self._wait_for(self.items.batch)

    @cached_property
    def let(self) -> IntArray:
        """For each item the wait at whose end its index was put: the queue to the workers is bounded.

        With W workers and p batches ahead each, p x W indices are put when the pass begins, and one more each
        time that a batch is taken. -1 for one of the first, or where that wait is not known.
        """
        items, (ahead, in_order) = self.items, self._windows
        before = items.batch - ahead
        after_first = (ahead >= 0) & (before >= 0)
        let = np.where(after_first & in_order, self._wait_for(before), -1)
        mixed = np.flatnonzero(after_first & ~in_order)
        if len(mixed):
            # The n-th taken, whichever it was; with a take not recorded its place is not known.
            takes = self._takes
            which = self._pass_of_items[mixed]
            known = which >= 0
            mixed, which = mixed[known], which[known]
            known = takes.complete[which] & (before[mixed] < takes.count[which])
            mixed, which = mixed[known], which[known]
            let[mixed] = takes.order[takes.first[which] + before[mixed]]
        return let

    @cached_property
    def among_first(self) -> BoolArray:
        """Whether the index of each item was put when its pass began."""
        ahead, _ = self._windows
        first: BoolArray = (ahead >= 0) & (self.items.batch < ahead)
        return first

    @cached_property
    def first_wait(self) -> IntArray:
        """For each item the first wait of its pass: by its start the first indices were put; -1 for none."""
        which, takes = self._pass_of_items, self._takes
        found: IntArray = np.full(len(which), -1, np.int64)
        found[which >= 0] = takes.order[takes.first[which[which >= 0]]]
        return found

    @cached_property
    def follows(self) -> BoolArray:
        """Whether the item listed before each one is of the same worker and the same pass."""
        items = self.items
        if not len(items):
            return np.zeros(0, np.bool_)
        follows: BoolArray = ~changes(items.rank, items.loader, items.worker, items.pass_serial)
        return follows

    @cached_property
    def knows_before(self) -> BoolArray:
        """Whether all that the worker of each item can have made just before it is known.

        It is when every batch between its last known item and this one is known, whichever worker made it.
        Steps that consume several batches and have no detail, or are lost, leave unknown ones.
        """
        batch, place = self.items.batch, self._places
        first = place == batch
        apart, listed = np.zeros(len(batch), np.int64), np.zeros(len(batch), np.int64)
        apart[1:], listed[1:] = np.abs(np.diff(batch)), np.abs(np.diff(place))
        known: BoolArray = np.where(self.follows, apart == listed, first)
        return known

    def _wait_for(self, batch: IntArray) -> IntArray:
        """Return for each item the wait for this ``batch`` of its pass."""
        items, waits = self.items, self.waits
        found = places((items.rank, items.pass_serial, batch), (waits.rank, waits.pass_serial, waits.batch))
        return np.where(batch >= 0, found, -1)

    @cached_property
    def _windows(self) -> tuple[IntArray, BoolArray]:
        """For each item the batches that its loader may have on their way, -1 where not known; the order."""
        loaders, which = np.unique(self.items.loader, return_inverse=True)
        known = [self.window_of_loader.get(loader, (None, True)) for loader in loaders.tolist()]
        ahead = np.array([-1 if ahead is None else ahead for ahead, _ in known], np.int64)
        in_order = np.array([in_order for _, in_order in known], np.bool_)
        return ahead[which], in_order[which]

    @cached_property
    def _takes(self) -> _Takes:
        waits = self.waits
        known = np.flatnonzero(waits.batch >= 0)
        order = known[np.lexsort((waits.end[known], waits.pass_serial[known], waits.rank[known]))]
        rank, serial = waits.rank[order], waits.pass_serial[order]
        first = np.flatnonzero(changes(rank, serial)) if len(order) else order
        count = np.diff(np.append(first, len(order)))
        most = np.maximum.reduceat(waits.batch[order], first) if len(order) else first
        return _Takes(order, rank[first], serial[first], first, count, count > most)

    @cached_property
    def _pass_of_items(self) -> IntArray:
        """For each item its pass, a place in `_takes`; -1 where nothing was taken of it."""
        items, takes = self.items, self._takes
        return places((items.rank, items.pass_serial), (takes.rank, takes.serial))

    @cached_property
    def _places(self) -> IntArray:
        """For each item how many items of its pass with a smaller batch number are known."""
        items = self.items
        order = np.lexsort((items.batch, items.pass_serial, items.rank))
        place = np.arange(len(order))
        begins = np.ones(len(order), bool)
        begins[1:] = (np.diff(items.pass_serial[order]) != 0) | (np.diff(items.rank[order]) != 0)
        place -= np.maximum.accumulate(np.where(begins, place, 0))
        found = np.empty(len(order), np.int64)
        found[order] = place
        return found

    def item_of_wait(self, wait: int) -> int | None:
        """Return the worker's item that ended ``wait``; None when it is not known."""
        item = int(self.item_of_waits[wait])
        return item if item >= 0 else None


@dataclass(frozen=True)
class _Takes:
    """Which batches were taken, pass by pass."""

    order: IntArray
    """Waits for batches that are known, sorted by (rank, pass, end)."""
    rank: IntArray
    serial: IntArray
    """Of each pass."""
    first: IntArray
    """Place in ``order`` where each pass begins."""
    count: IntArray
    complete: BoolArray
    """Whether no take of the pass is missing."""


_latest: tuple[weakref.ref[Run], Activities] | None = None


def activities(run: Run) -> Activities:
    """Return the activities of ``run``; the latest are kept, as several analyses ask in a row."""
    global _latest
    latest = _latest  # one read: another thread may replace it
    if latest is not None and latest[0]() is run:
        return latest[1]
    collectives = collectives_of(run)
    main, waits, conflicts = main_lanes(run, collectives)
    windows = {
        loader.loader_id: (
            None if loader.prefetch is None or not loader.workers else loader.prefetch * loader.workers,
            loader.in_order,
        )
        for loader in run.loaders.values()
    }
    found = Activities(collectives, main, waits, loader_items(run), windows, conflicts)
    _latest = (weakref.ref(run), found)
    return found
