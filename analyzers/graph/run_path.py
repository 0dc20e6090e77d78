# SPDX-License-Identifier: Apache-2.0
"""The critical path of a run: what the end of the run waited for, back to its start.

The walk goes backwards through the main lane that ended last. At the end of a wait for data it jumps into the
worker that made the item, if that was done only after the wait began; the rest of the wait is the handoff. In
the worker's lane it goes on to what made the item late: the worker's own previous item, or, where the worker
was idle, the main lane at the time the item's index was put into the bounded queue. The sections tile the
run's wall time exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.activities import Activities, activities
from grademl_otel.analyzers.graph.main_lane import (
    GAPS,
    LOADER_START,
    NAMES,
    UNTRACED,
    bounds_of,
    phase_named,
)
from grademl_otel.analyzers.graph.path import (
    GAP,
    HANDOFF,
    INFERRED,
    UNEXPLAINED,
    WORK,
    EnteredBy,
    Path,
    Section,
    Sections,
    kind_of,
)
from grademl_otel.analyzers.model.facts import Run

_PROGRAM = EnteredBy("program")
_PROGRAM_INFERRED = EnteredBy("program", INFERRED)
_QUEUE = EnteredBy("queue")
_QUEUE_INFERRED = EnteredBy("queue", INFERRED)

_MAIN = "main"
_ROUNDING_NS = 5_000
"""How far a time from a table may contradict one from another lane and still be taken for rounded."""


def run_path(run: Run) -> Path:
    """Return the critical path over ``[run.start, run.end)``, from the main lane that ended last."""
    if not run.ranks:
        return _without_lanes(run.start, run.end)
    rank = max(run.ranks, key=lambda r: (bounds_of(run, r)[1], -r))
    return _Walk(run, activities(run), rank, run.start, run.end).path()


def step_path(run: Run, rank: int, step: int) -> Path:
    """Return the critical path of training step ``step`` of ``rank``, over that row of the step table.

    Raises LookupError, with the steps there are, when it was not recorded.
    """
    found = activities(run)
    steps = run.steps
    not_training = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
    of_rank = (steps.rank == rank) & ((steps.flags & not_training) == 0)
    rows = np.flatnonzero(of_rank & (steps.step == step))
    if not len(rows):
        known = steps.step[of_rank]
        there = f"{known.min()} to {known.max()}" if len(known) else "none"
        raise LookupError(f"no training step {step} of rank {rank}; recorded: {there}")
    pieces = np.flatnonzero(found.main.row == rows[0])
    if not len(pieces):
        return Path(int(steps.start[rows[0]]), int(steps.start[rows[0]]), Sections.of([]))
    low, high = int(found.main.start[pieces[0]]), int(found.main.end[pieces[-1]])
    return _Walk(run, found, rank, low, high).path()


def _without_lanes(start: int, end: int) -> Path:
    gap = Section(start, end, UNTRACED, GAP, None, _MAIN, None, None, None, _PROGRAM)
    return Path(start, end, Sections.of([gap] if end > start else []))


@dataclass
class _Place:
    """Where the walk is: before ``cursor`` in the main lane of a rank, or in the lane of a worker's item."""

    cursor: int
    entered_by: EnteredBy
    item: int | None = None


class _Walk:
    def __init__(self, run: Run, found: Activities, rank: int, low: int, high: int) -> None:
        self._run, self._found, self._rank, self._low, self._high = run, found, rank, low, high
        main, pieces = found.main, found.main.of(rank)
        # Lists: the walk looks at one piece after the other, where arrays are slow.
        self._start: list[int] = main.start[pieces].tolist()
        self._name: list[int] = main.name[pieces].tolist()
        self._row: list[int] = main.row[pieces].tolist()
        self._wait: list[int] = main.wait[pieces].tolist()
        self._span: list[int] = main.span_ix[pieces].tolist()
        self._inferred: list[bool] = main.inferred[pieces].tolist()
        self._sections: list[Section] = []
        self._entered: set[int] = set()  # an item is entered once, so that contradictory times cannot loop

    def path(self) -> Path:
        place = _Place(self._high, _PROGRAM)
        while place.cursor > self._low:
            place = self._main(place) if place.item is None else self._worker(place, place.item)
        self._sections.reverse()
        return Path(self._low, self._high, Sections.of(self._sections))

    # --- the main lane ------------------------------------------------------------------------------------

    def _main(self, place: _Place) -> _Place:
        cursor = place.cursor
        piece = bisect_left(self._start, cursor) - 1
        start, wait = self._start[piece], self._wait[piece]
        kind = None
        if wait >= 0:
            waits = self._found.waits
            item = self._found.item_of_wait(wait)
            if item is not None and item not in self._entered:
                arrived = int(self._found.items.end[item])
                if cursor == waits.end[wait]:
                    arrived = min(arrived, cursor)
                if int(waits.start[wait]) < arrived <= cursor:
                    self._emit_main(
                        piece, arrived, cursor, HANDOFF, place.entered_by, self._found.items.text(item)
                    )
                    self._entered.add(item)
                    return _Place(arrived, _QUEUE, item)
                if arrived <= int(waits.start[wait]):
                    kind = HANDOFF  # it was there before the wait began: all of the wait was taking it over
            elif waits.inline[wait]:
                kind = WORK
        self._emit_main(piece, start, cursor, kind, place.entered_by)
        return _Place(start, _PROGRAM)

    def _emit_main(
        self,
        piece: int,
        start: int,
        end: int,
        kind: str | None,
        entered_by: EnteredBy,
        item: str | None = None,
    ) -> None:
        name, span = NAMES[self._name[piece]], self._span[piece]
        row, wait = self._row[piece], self._wait[piece]
        if item is None and wait >= 0:
            item = self._found.text_of_wait(wait)
        if kind is None:
            kind = GAP if name in GAPS else kind_of(name)
        if entered_by is _PROGRAM and self._inferred[piece]:
            entered_by = _PROGRAM_INFERRED
        self._emit(
            Section(
                start=start,
                end=end,
                phase=phase_named(name),
                kind=kind,
                rank=self._rank,
                lane=_MAIN,
                step=int(self._run.steps.step[row]) if row >= 0 else None,
                item=item,
                span_ix=span if span >= 0 else None,
                entered_by=entered_by,
            )
        )

    # --- a worker's lane ----------------------------------------------------------------------------------

    def _worker(self, place: _Place, item: int) -> _Place:
        """Walk back through ``item``, and return what made the worker begin it no earlier."""
        items, found = self._found.items, self._found
        cursor, entered_by = place.cursor, place.entered_by
        for phase, start, end, span in (
            (semconv.DATA_COLLATE, items.collating[item], items.end[item], items.collate_span[item]),
            (semconv.DATA_FETCH, items.start[item], items.fetched[item], items.fetch_span[item]),
        ):
            cursor, entered_by = self._emit_item(item, phase, GAP, int(end), cursor, entered_by, -1)
            cursor, entered_by = self._emit_item(item, phase, WORK, int(start), cursor, entered_by, int(span))
        before = found.item_before(item)
        ended = None
        if before is not None and before not in self._entered:
            ended = min(int(items.end[before]), cursor)
        put, opening = self._put(item, cursor)
        if ended is not None and before is not None and (put is None or ended >= put):
            cursor, _ = self._emit_item(item, semconv.DATA_FETCH, GAP, ended, cursor, _PROGRAM, -1)
            self._entered.add(before)
            return _Place(cursor, _PROGRAM, before)
        if put is None:
            return _Place(cursor, _QUEUE_INFERRED)
        phase, kind = (LOADER_START, GAP) if opening else (semconv.DATA_FETCH, HANDOFF)
        if not found.knows_before(item):
            # The worker may have been busy since the put, with something that was not recorded.
            phase, kind = semconv.DATA_FETCH, UNEXPLAINED
        edge = _QUEUE_INFERRED if opening else _QUEUE
        cursor, _ = self._emit_item(item, phase, kind, put, cursor, edge, -1)
        return _Place(cursor, edge)

    def _put(self, item: int, started: int) -> tuple[int | None, bool]:
        """Return when the index of ``item`` was put, and whether that was when the pass began.

        From then to the start of the item its worker was coming up, or took the index over.
        """
        waits, found = self._found.waits, self._found
        if found.among_first(item):
            first = found.first_wait(item)
            return (None if first is None else min(int(waits.start[first]), started)), True
        wait = found.wait_that_let(item)
        if wait is None:
            return None, False
        put = int(waits.end[wait])
        return (min(put, started) if put <= started + _ROUNDING_NS else None), False

    def _emit_item(
        self, item: int, phase: str, kind: str, start: int, cursor: int, entered_by: EnteredBy, span: int
    ) -> tuple[int, EnteredBy]:
        """Emit ``[start, cursor)`` in the lane of ``item`` when that is any time; return cursor and edge."""
        if start >= cursor:
            return cursor, entered_by
        items = self._found.items
        wait = self._found.wait_of_item(item)
        row = int(self._found.waits.row[wait]) if wait is not None else -1
        self._emit(
            Section(
                start=start,
                end=cursor,
                phase=phase,
                kind=kind,
                rank=self._rank,
                lane=items.lane(item),
                step=int(self._run.steps.step[row]) if row >= 0 else None,
                item=items.text(item),
                span_ix=span if span >= 0 else None,
                entered_by=entered_by,
            )
        )
        return start, _PROGRAM

    def _emit(self, section: Section) -> None:
        """Keep ``section``, cut at the start of what is looked at."""
        if section.end <= self._low or section.end <= section.start:
            return
        if section.start < self._low:
            section = msgspec.structs.replace(section, start=self._low)
        self._sections.append(section)
