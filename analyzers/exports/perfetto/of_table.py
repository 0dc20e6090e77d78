# SPDX-License-Identifier: Apache-2.0
"""What only the step table of a run tells, as slices: steps without spans, their phases, items, devices.

Every step has its slice, and every phase that its row counts. One that ran once has its place; of one that
ran several times only the sum is known: it is called `forward x3`, and placed as the execution model does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.exports.perfetto.packets import Note
from grademl_otel.analyzers.exports.perfetto.slices import Draft
from grademl_otel.analyzers.exports.perfetto.spans import (
    MAIN,
    STEP,
    STEP_DEPTH,
    category_of,
    lane_of_rank,
    step_name,
)
from grademl_otel.analyzers.graph.runs.activities import Activities, activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import NAMES, Phases, rows_and_phases
from grademl_otel.analyzers.model.facts import Run

_TABLE: Final = ",table"
"""After the category of what has no span."""
_SUM: Final = ",table,sum"
"""After that of a sum over several."""
_ROUNDING_NS: Final = 1_000
"""What the times of a table, in whole microseconds, are too early at most."""
_DEVICE: Final = "device"


def add_table(draft: Draft, run: Run, process_of_rank: dict[int, int], spans: IntArray) -> int:
    """Add what the table of ``run`` tells and no span of ``spans``, its own, does; return how many slices."""
    before = len(draft)
    _Table(draft, run, process_of_rank, spans).add()
    return len(draft) - before


class _Table:
    def __init__(self, draft: Draft, run: Run, processes: dict[int, int], spans: IntArray) -> None:
        self._draft, self._run, self._processes = draft, run, processes
        self._spans = spans
        self._found: Activities = activities(run)
        self._edges = {rank: self._edges_of(rank) for rank in run.ranks}

    def add(self) -> None:
        if not len(self._run.steps):
            return
        start, end, span_ix, phases = rows_and_phases(self._run, self._found.collectives)
        self._add_rows(np.flatnonzero(span_ix < 0), start, end)
        parts = [NAMES.index(name) for name in COLLECTIVE_PARTS]
        mine = np.flatnonzero((phases.span_ix < 0) & ~np.isin(phases.name, parts))
        told = self._told_by_spans(start, end)
        mine = mine[~np.isin(phases.row[mine] * len(NAMES) + phases.name[mine], told)]
        self._add_phases(phases, mine)
        self._add_items()
        self._add_devices()

    # --- main lanes ---------------------------------------------------------------------------------------

    def _edges_of(self, rank: int) -> IntArray:
        """Return when spans of the main lane of ``rank`` begin and end, sorted."""
        spans, scopes = self._run.spans, self._run.scopes
        mine = [scope.span_ix for scope in scopes if scope.rank == rank]
        mine += [ix for key, ix in self._run.step_spans.items() if key[0] == rank]
        return np.unique(np.concatenate([spans.start[mine], spans.end[mine]]) if mine else mine).astype(
            np.int64
        )

    def _snapped(self, rank: IntArray, start: IntArray, end: IntArray) -> IntArray:
        """Return ``start``, of those that are a rounding before a span begins or ends then."""
        snapped = start.copy()
        for one in self._run.ranks:
            mine, edges = np.flatnonzero(rank == one), self._edges[one]
            if not len(edges):
                continue
            at = np.minimum(np.searchsorted(edges, start[mine]), len(edges) - 1)
            near = (edges[at] >= start[mine]) & (edges[at] - start[mine] < _ROUNDING_NS)
            snapped[mine[near]] = np.minimum(edges[at[near]], end[mine[near]])
        return snapped

    def _add_rows(self, rows: IntArray, start: IntArray, end: IntArray) -> None:
        draft, steps = self._draft, self._run.steps
        rank = steps.rank[rows]
        names = [
            draft.name(step_name(number, _kind(flags)))
            for number, flags in zip(steps.step[rows].tolist(), steps.flags[rows].tolist(), strict=True)
        ]
        draft.add(
            self._lanes(rank, MAIN), self._snapped(rank, start[rows], end[rows]), end[rows],
            np.array(names, np.int64), _constant(draft.category(STEP + _TABLE)), _constant(STEP_DEPTH),
            self._of_row, rows,
        )  # fmt: skip

    def _add_phases(self, phases: Phases, mine: IntArray) -> None:
        draft, steps = self._draft, self._run.steps
        row, name, start, end = (one[mine] for one in (phases.row, phases.name, phases.start, phases.end))
        rank, count = steps.rank[row], np.ones(len(row), np.int64)
        for number in np.unique(name).tolist():
            if NAMES[number] in steps.count:
                of_name = name == number
                count[of_name] = steps.count[NAMES[number]][row[of_name]]
        # One that had to be moved has no sure place either.
        called, category = self._called(NAMES, name, count, phases.inferred[mine] | (count > 1))
        draft.add(
            self._lanes(rank, MAIN), self._snapped(rank, start, end), end, called, category,
            phases.depth[mine] + STEP_DEPTH + 1, self._of_phase, row,
        )  # fmt: skip

    def _called(
        self, phases: Sequence[str], which: IntArray, count: IntArray, summed: BoolArray
    ) -> tuple[IntArray, IntArray]:
        """Return name and category of ``phases[which]``, each of which ran ``count`` times."""
        draft = self._draft
        keys = np.stack([which, count, summed.astype(np.int64)], axis=1)
        distinct, of_key = np.unique(keys, axis=0, return_inverse=True)
        names, categories = [], []
        for number, times, no_place in distinct.tolist():
            phase = phases[number]
            names.append(draft.name(phase if times == 1 else f"{phase} x{times}"))
            categories.append(draft.category(category_of(phase) + (_SUM if no_place else _TABLE)))
        of_key = of_key.reshape(-1)
        return np.array(names, np.int64)[of_key], np.array(categories, np.int64)[of_key]

    def _told_by_spans(self, start: IntArray, end: IntArray) -> IntArray:
        """Return the pairs of row and phase, as one number, of which spans tell."""
        run, steps = self._run, self._run.steps
        spans, found = run.spans, []
        number = {name: at for at, name in enumerate(NAMES)}
        of_name = np.array([number.get(name, -1) for name in spans.names] or [-1], np.int64)
        ranks = np.array([_rank(resource.get(sc.RANK)) for resource in spans.resources] or [-1], np.int64)
        name = of_name[spans.name_ix[self._spans]]
        phases, name = self._spans[name >= 0], name[name >= 0]
        for rank in run.ranks:
            rows = steps.of_rank(rank)
            mine = ranks[spans.resource_ix[phases]] == rank
            row = rows.start + np.searchsorted(start[rows], spans.start[phases[mine]], side="right") - 1
            inside = row >= rows.start
            found.append(row[inside] * len(NAMES) + name[mine][inside])
        return np.concatenate([np.zeros(0, np.int64), *found])

    # --- beside them --------------------------------------------------------------------------------------

    def _add_items(self) -> None:
        draft, items = self._draft, self._found.items
        for name, start, end, span in (
            (sc.DATA_FETCH, items.start, items.fetched, items.fetch_span),
            (sc.DATA_COLLATE, items.collating, items.end, items.collate_span),
        ):
            some = np.flatnonzero((span < 0) & (end > start))
            if not len(some):
                continue
            keys = np.stack([items.rank[some], items.loader[some], items.worker[some]], axis=1)
            _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            lanes = [
                self._lane(int(items.rank[some[at]]), items.lane(int(some[at]))) for at in first.tolist()
            ]
            draft.add(
                np.array(lanes, np.int64)[which.reshape(-1)], start[some], end[some],
                _constant(draft.name(name)), _constant(draft.category(category_of(name) + _TABLE)),
                _constant(STEP_DEPTH), self._of_item, some,
            )  # fmt: skip

    def _add_devices(self) -> None:
        """Add what devices did for steps of which no span tells it, where the phase ran first, if known."""
        run, steps, spans = self._run, self._run.steps, self._run.spans
        names = {sc.DEVICE_PREFIX + phase for phase in sc.DEVICE_PHASES}
        usual: dict[tuple[int, str], str] = {}
        told: set[tuple[int, int]] = set()
        wanted = [ix for ix, name in enumerate(spans.names) if name in names]
        for ix in self._spans[np.isin(spans.name_ix[self._spans], wanted)].tolist():
            said, rank = spans.attributes(ix), _rank(spans.resource(ix).get(sc.RANK))
            step, lane = said.get(sc.STEP_NUMBER), said.get(sc.LANE)
            if isinstance(step, int) and isinstance(lane, str):
                told.add((rank, step))
                usual.setdefault((rank, spans.name(ix)), lane)
        width = int(steps.step.max(initial=0)) + 1
        keys = np.array([rank * width + step for rank, step in told if step < width], np.int64)
        left = ~np.isin(steps.rank * width + steps.step, keys)
        for column in sorted(names & steps.count.keys()):
            for rank in run.ranks:
                rows = steps.of_rank(rank)
                some = rows.start + np.flatnonzero((steps.count[column][rows] > 0) & left[rows])
                if not len(some):
                    continue
                lane = self._lane(rank, usual.get((rank, column), _DEVICE))
                start = steps.first[column][some]
                count = steps.count[column][some]
                called, category = self._called([column], np.zeros_like(count), count, count > 1)
                self._draft.add(
                    _constant(lane), start, start + steps.busy[column][some], called, category,
                    _constant(STEP_DEPTH), self._of_phase, some,
                )  # fmt: skip

    # --- lanes, notes -------------------------------------------------------------------------------------

    def _lane(self, rank: int, name: str) -> int:
        return lane_of_rank(self._draft, self._processes[rank], name)

    def _lanes(self, rank: IntArray, name: str) -> IntArray:
        present, which = np.unique(rank, return_inverse=True)
        lanes = np.array([self._lane(one, name) for one in present.tolist()], np.int64)
        of_rank: IntArray = lanes[which.reshape(-1)] if len(lanes) else np.zeros(0, np.int64)
        return of_rank

    def _of_row(self, row: int, name: str) -> Iterator[Note]:
        steps = self._run.steps
        yield from self._place(row)
        for key, column in (("step.micro", steps.micro), ("window", steps.window)):
            yield key, int(column[row])
        if steps.item_batch[row] >= 0:
            yield "item", f"{int(steps.item_pass[row])}:{int(steps.item_batch[row])}"
        flags = int(steps.flags[row])
        for key, flag in (("outlier", sc.FLAG_OUTLIER), ("skipped", sc.FLAG_SKIPPED)):
            if flags & flag:
                yield key, True

    def _of_phase(self, row: int, name: str) -> Iterator[Note]:
        steps = self._run.steps
        yield from self._place(row)
        phase = name if name in steps.count else name.rpartition(" x")[0]
        if phase in steps.count:
            count = int(steps.count[phase][row])
            yield "count", count
            yield "busy_ns", int(steps.busy[phase][row])
            if count > 1:
                yield "evidence", "inferred"

    def _of_item(self, at: int, name: str) -> Iterator[Note]:
        yield "item", self._found.items.text(at)
        yield "told_by", "step table"

    def _place(self, row: int) -> Iterator[Note]:
        yield "step", int(self._run.steps.step[row])
        yield "told_by", "step table"


def _kind(flags: int) -> str:
    if flags & sc.FLAG_EVALUATE:
        return sc.EVALUATE
    return "incomplete" if flags & sc.FLAG_INCOMPLETE else ""


def _constant(number: int) -> IntArray:
    return np.array([number], np.int64)


def _rank(value: object) -> int:
    return value if isinstance(value, int) else -1
