# SPDX-License-Identifier: Apache-2.0
"""All that a run did, lane by lane, on arrays: what every analysis of a run starts from."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grademl_otel.analyzers.graph.items import Items, loader_items
from grademl_otel.analyzers.graph.main_lane import MainLanes, Waits, main_lanes
from grademl_otel.analyzers.model.collectives import Collectives, collectives_of
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run

_Key = tuple[int, int, int]
"""(rank, pass, batch)."""


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
    def item_by_key(self) -> dict[_Key, int]:
        items = self.items
        return _by_key(items.rank, items.pass_serial, items.batch)

    @cached_property
    def wait_by_key(self) -> dict[_Key, int]:
        """The wait that each item ended."""
        waits = self.waits
        return _by_key(waits.rank, waits.pass_serial, waits.batch)

    @cached_property
    def _takes(self) -> dict[tuple[int, int], list[int]]:
        """(rank, pass) -> its waits in order of time."""
        takes: dict[tuple[int, int], list[int]] = {}
        for wait in np.argsort(self.waits.end, kind="stable").tolist():
            if self.waits.batch[wait] >= 0:
                key = (int(self.waits.rank[wait]), int(self.waits.pass_serial[wait]))
                takes.setdefault(key, []).append(wait)
        return takes

    def item_of_wait(self, wait: int) -> int | None:
        """Return the worker's item that ended ``wait``; None when it is not known."""
        waits = self.waits
        if waits.inline[wait] or waits.batch[wait] < 0:
            return None
        return self.item_by_key.get(
            (int(waits.rank[wait]), int(waits.pass_serial[wait]), int(waits.batch[wait]))
        )

    def wait_of_item(self, item: int) -> int | None:
        """Return the wait that ``item`` ended; None when it is not known."""
        items = self.items
        return self.wait_by_key.get(
            (int(items.rank[item]), int(items.pass_serial[item]), int(items.batch[item]))
        )

    def text_of_wait(self, wait: int) -> str | None:
        """Return the item that ``wait`` was for as `grademl.item` writes it; None when it is not known."""
        serial, batch = int(self.waits.pass_serial[wait]), int(self.waits.batch[wait])
        return f"{serial}:{batch}" if batch >= 0 else None

    def wait_that_let(self, item: int) -> int | None:
        """Return the wait at whose end the index of ``item`` was put: the queue to the workers is bounded.

        With W workers and p batches ahead each, p x W indices are put when the pass begins, and one more each
        time that a batch is taken. None when ``item`` is one of the first or that wait is not known.
        """
        items = self.items
        ahead, in_order = self.window_of_loader.get(int(items.loader[item]), (None, True))
        batch = int(items.batch[item])
        if ahead is None or batch < ahead:
            return None
        rank, serial = int(items.rank[item]), int(items.pass_serial[item])
        if in_order:
            return self.wait_by_key.get((rank, serial, batch - ahead))
        takes = self._takes.get((rank, serial), [])
        # The n-th taken, whichever it was; with a take not recorded its place is not known.
        complete = len(takes) > max((int(self.waits.batch[wait]) for wait in takes), default=0)
        return takes[batch - ahead] if complete and batch - ahead < len(takes) else None

    def first_wait(self, item: int) -> int | None:
        """Return the first wait of the pass of ``item``: by its start the first indices were put."""
        takes = self._takes.get((int(self.items.rank[item]), int(self.items.pass_serial[item])))
        return takes[0] if takes else None

    def among_first(self, item: int) -> bool:
        """Return whether the index of ``item`` was put when its pass began."""
        ahead, _ = self.window_of_loader.get(int(self.items.loader[item]), (None, True))
        return ahead is not None and int(self.items.batch[item]) < ahead

    def item_before(self, item: int) -> int | None:
        """Return what the same worker made before ``item`` in the same pass; see `knows_before`."""
        return item - 1 if self._follows(item) and self.knows_before(item) else None

    def knows_before(self, item: int) -> bool:
        """Return whether all that the worker of ``item`` can have made just before it is known.

        It is when every batch between its last known item and ``item`` is known, whichever worker made it.
        Steps that consume several batches and have no detail, or are lost, leave unknown ones.
        """
        batch, before = self.items.batch, item - 1
        if self._follows(item):
            apart = abs(int(batch[item]) - int(batch[before]))
            return abs(int(self._places[item]) - int(self._places[before])) == apart
        return int(self._places[item]) == int(batch[item])

    def _follows(self, item: int) -> bool:
        """Whether the item listed before ``item`` is of the same worker and the same pass."""
        items, before = self.items, item - 1
        return before >= 0 and all(
            column[before] == column[item]
            for column in (items.rank, items.loader, items.worker, items.pass_serial)
        )

    @cached_property
    def _places(self) -> IntArray:
        """For each item how many items of its pass with a smaller batch number are known."""
        items = self.items
        order = np.lexsort((items.batch, items.pass_serial, items.rank))
        place = np.arange(len(order))
        begins = np.ones(len(order), bool)
        begins[1:] = (np.diff(items.pass_serial[order]) != 0) | (np.diff(items.rank[order]) != 0)
        place -= np.maximum.accumulate(np.where(begins, place, 0))
        places = np.empty(len(order), np.int64)
        places[order] = place
        return places


def _by_key(rank: IntArray, serial: IntArray, batch: IntArray) -> dict[_Key, int]:
    known = np.flatnonzero(batch >= 0)
    keys = zip(rank[known].tolist(), serial[known].tolist(), batch[known].tolist(), strict=True)
    return dict(zip(keys, known.tolist(), strict=True))


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
