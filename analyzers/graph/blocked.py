# SPDX-License-Identifier: Apache-2.0
"""For how long main lanes stood still, and for what."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.runs.activities import Activities, activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.model.facts import Run

_WAITS: Final = (*semconv.WAIT_PHASES, semconv.COLLECTIVE, *COLLECTIVE_PARTS, *semconv.WORKER_PHASES)
"""Phases that a main lane does nothing else in; the work of loader workers is there where it has none."""


def blocked_by_rank(run: Run) -> dict[int, int]:
    """Return for how long the main lane of each rank waited, for whatever it was, in ns."""
    main = activities(run).main
    waits = np.isin(main.name, [NAMES.index(phase) for phase in _WAITS])
    return {
        rank: int((main.end - main.start)[main.of(rank)][waits[main.of(rank)]].sum()) for rank in run.ranks
    }


def blocked_by_phase(run: Run) -> dict[str, int]:
    """Return for how long main lanes were blocked on each phase, in ns."""
    found = activities(run)
    main, waits = found.main, found.waits
    blocked: dict[str, int] = {}
    for phase in semconv.WAIT_PHASES:
        of_phase = main.name == NAMES.index(phase)
        ns = int((main.end - main.start)[of_phase].sum())
        if ns:
            blocked[phase] = ns
    in_collectives = [NAMES.index(name) for name in (semconv.COLLECTIVE, *COLLECTIVE_PARTS)]
    if ns := int((main.end - main.start)[np.isin(main.name, in_collectives)].sum()):
        blocked[semconv.COLLECTIVE] = ns
    # An inline fetch blocks for as long as it takes.
    inline = {phase: NAMES.index(phase) for phase in semconv.WORKER_PHASES}
    for phase, ix in inline.items():
        ns = int((main.end - main.start)[main.name == ix].sum())
        if ns:
            blocked[phase] = ns
    items = found.items
    ended = np.flatnonzero(found.item_of_waits >= 0)
    item = found.item_of_waits[ended]
    start = waits.start[ended]
    end = np.maximum(np.minimum(waits.end[ended], items.end[item]), start)
    lane = _lane_numbers(found)
    for phase, begin, finish in (
        (semconv.DATA_FETCH, items.start, items.fetched),
        (semconv.DATA_COLLATE, items.collating, items.end),
    ):
        busy = _BusyTime(lane, begin, finish)
        ns = busy.between(lane[item], start, end)
        if ns:
            blocked[phase] = blocked.get(phase, 0) + ns
    return blocked


def _lane_numbers(found: Activities) -> IntArray:
    """Return for each item the number of its worker's lane, ascending in the order of items."""
    items = found.items
    new = np.zeros(len(items), np.int64)
    if len(items):
        changed = np.zeros(len(items) - 1, bool)
        for column in (items.rank, items.loader, items.worker):
            changed |= column[1:] != column[:-1]
        new[1:] = changed
    return np.cumsum(new)


class _BusyTime:
    """Time that lanes were busy, summed up to any instant; intervals sorted by (lane, start) and disjoint."""

    def __init__(self, lane: IntArray, start: IntArray, end: IntArray) -> None:
        self._origin = int(start.min()) if len(start) else 0
        self._span = (int(end.max()) - self._origin + 1) if len(end) else 1
        # Lanes one after another on one axis.
        self._start = lane * self._span + (start - self._origin)
        order = np.argsort(self._start, kind="stable")
        self._start = self._start[order]
        length = np.maximum(end - start, 0)[order]
        self._length = length
        self._before = np.cumsum(length) - length

    def between(self, lane: IntArray, start: IntArray, end: IntArray) -> int:
        """Return the busy time of ``lane[i]`` in ``[start[i], end[i])``, summed."""
        if not len(self._start):
            return 0
        return int((self._until(lane, end) - self._until(lane, start)).sum())

    def _until(self, lane: IntArray, at: IntArray) -> IntArray:
        moment = lane * self._span + np.clip(at - self._origin, 0, self._span - 1)
        last = np.maximum(np.searchsorted(self._start, moment, side="right") - 1, 0)
        until: IntArray = self._before[last] + np.clip(moment - self._start[last], 0, self._length[last])
        return until
