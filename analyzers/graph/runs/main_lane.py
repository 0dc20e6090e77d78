# SPDX-License-Identifier: Apache-2.0
"""What each rank's main lane did at every instant of the run, without gap or overlap.

Steps with detail give their phases with exact times and all occurrences; the other rows of the step table
give a phase that ran once its place, and one that ran several times its sum (`intervals.lay_out`). Time
outside rows gets the name of what it was:

========== ===================================================================================================
name       time of the main lane
========== ===================================================================================================
start-up   from the start of the process to its first pass over a loader, or its first row
epoch gap  after the first pass began: between the last training row before and the first of another pass
evaluate   rows of evaluation steps, and passes that hold only such
teardown   after the last row, evaluation or checkpoint, to the end of the process
idle       before this process started or after it ended, while the run went on
untraced   nothing that is here tells: lost rows, a step cut short by the death of the process, code
           between steps of one pass, and all that was before and after what is here of a process that never
           said that it ended
other      in a row, outside its phases: the user's own code
========== ===================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.inferences.table_ties import table_ties
from grademl_otel.analyzers.graph.intervals import Canvas, cut_overlaps, lay_out, nesting_depths
from grademl_otel.analyzers.graph.runs.collective_parts import (
    COLLECTIVE_PARTS,
    Parts,
    of_backward,
    of_blocking,
    of_waits,
    told_apart,
    waited_for,
)
from grademl_otel.analyzers.model.collectives import Collectives
from grademl_otel.analyzers.model.facts import Run, names_itself
from grademl_otel.analyzers.units import count

START_UP: Final = "start-up"
EPOCH_GAP: Final = "epoch gap"
TEARDOWN: Final = "teardown"
IDLE: Final = "idle"
UNTRACED: Final = "untraced"
OTHER: Final = "other"
LOADER_START: Final = "loader start"
"""Only in paths, in a worker's lane: from the put of one of a pass' first items to the start of its fetch."""

_AREAS: Final = (semconv.EVALUATE, START_UP, EPOCH_GAP, TEARDOWN, IDLE, UNTRACED, OTHER)
NAMES: Final = [*semconv.PHASES, *_AREAS, *COLLECTIVE_PARTS]
"""What a piece may be called, by index; grows by the names that programs give their own phases."""
_INDEX: Final = {name: ix for ix, name in enumerate(NAMES)}
GAPS: Final = frozenset((*_AREAS, LOADER_START))
"""Names that are no phase: in a path their sections are of kind ``gap``."""

WORK_SCOPES: Final = (semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD, semconv.COMPILE)
"""Scopes that are work themselves, wherever they lie; the other scopes only hold work."""

STEP_PHASES: Final = frozenset(semconv.PHASES) - frozenset(WORK_SCOPES)
"""Phases of which the main lane's time, where it is a budget row of its own, lies in steps."""

_OUTER_FIRST: Final = (semconv.DATA_WAIT, semconv.OPTIMIZER, semconv.BACKWARD)
"""Of two phases with equal bounds the one named first is the outer one."""
_COLLECTIVES: Final = (semconv.COLLECTIVE, semconv.COLLECTIVE_WAIT)
_NESTED_IN: Final = {
    semconv.DATA_FETCH: semconv.DATA_WAIT,
    semconv.DATA_COLLATE: semconv.DATA_WAIT,
    semconv.RECOMPUTE: semconv.BACKWARD,
}
"""Phases that run within another by definition; a table's sums of several runs cannot show it."""

_ROUNDING_NS: Final = 2_000
"""Two floored microseconds: what a start and a busy time of a table together may be off."""
_SNAP_NS: Final = 1_000
_ROWS_AT_ONCE: Final = 8_192
"""Rows of a table that are laid out together: their matrices stay in the processor's cache."""
_TOLERATED_MISMATCH: Final = 0.01
"""Difference of detail and table, of the table's busy time, above which the detail is taken as incomplete."""


@dataclass(frozen=True)
class MainLanes:
    """Pieces of all main lanes, sorted by (rank, start); per rank they tile ``[run.start, run.end)``."""

    rank: IntArray
    start: IntArray
    end: IntArray
    name: IntArray
    """Index into `NAMES` of the innermost phase, or of what the time outside phases was."""
    top: IntArray
    """The same of the outermost, by which the lane budget counts; `evaluate` for all of an evaluation row."""
    row: IntArray
    """Index into the run's step table; -1 outside rows."""
    span_ix: IntArray
    """Span that the piece comes from; -1 when it comes from a table or is a gap."""
    wait: IntArray
    """Index into the waits when the piece is (part of) one; -1 otherwise."""
    one: IntArray
    """Index of the collective that the piece waits for, or is the transfer of; -1 for none."""
    outermost: IntArray
    """Number of the outermost phase that the piece is part of; -1 outside of phases."""
    inferred: BoolArray
    """True when only the sum is known, not the place; or where nothing but times tells of it."""
    told: BoolArray
    """For each row of the run's step table: whether waiting for other ranks is told apart in all of it."""

    def __len__(self) -> int:
        return len(self.start)

    def of(self, rank: int) -> slice:
        """Return the slice of the pieces of ``rank``."""
        first, last = np.searchsorted(self.rank, (rank, rank + 1))
        return slice(int(first), int(last))

    def at(self, rank: IntArray, moment: IntArray, *, ended: bool = True) -> IntArray:
        """Return the pieces of main lanes in which moments lie; -1 for those outside.

        Of a moment between two pieces it is the one that ``ended`` then, else the one that began.
        """
        found: IntArray = np.full(len(rank), -1, np.int64)
        order = np.argsort(rank, kind="stable")
        present = np.unique(rank)
        begins, ends = np.searchsorted(rank[order], present), np.searchsorted(rank[order], present, "right")
        for one, begin, end in zip(present.tolist(), begins.tolist(), ends.tolist(), strict=True):
            pieces, mine = self.of(one), order[begin:end]
            edges, side = (self.start[pieces], "left") if ended else (self.end[pieces], "right")
            place = np.searchsorted(edges, moment[mine], side=side) - int(ended)  # type: ignore[call-overload]
            known = (place >= 0) & (place < len(edges))
            known[known] &= moment[mine[known]] >= self.start[pieces][place[known]]
            known[known] &= moment[mine[known]] <= self.end[pieces][place[known]]
            found[mine[known]] = pieces.start + place[known]
        return found


@dataclass(frozen=True)
class Waits:
    """The waits for data of all main lanes."""

    rank: IntArray
    start: IntArray
    end: IntArray
    pass_serial: IntArray
    """With ``batch`` the item that ends the wait; -1 when not known."""
    batch: IntArray
    inline: BoolArray
    """The item was made within the wait, by a loader without workers."""
    row: IntArray

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Phases:
    """Phases of rows as flat arrays."""

    start: IntArray
    end: IntArray
    name: IntArray
    row: IntArray
    span_ix: IntArray
    depth: IntArray
    one: IntArray
    """Collective that it waits for, or is the transfer of; -1 for none."""
    inferred: BoolArray

    @classmethod
    def join(cls, parts: list[Phases]) -> Phases:
        if not parts:
            none, no = np.zeros(0, np.int64), np.zeros(0, bool)
            return cls(none, none, none, none, none, none, none, no)
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("start", "end", "name", "row", "span_ix", "depth", "one", "inferred")
            )
        )

    def where(self, mask: BoolArray | IntArray) -> Phases:
        return Phases(
            self.start[mask], self.end[mask], self.name[mask], self.row[mask],
            self.span_ix[mask], self.depth[mask], self.one[mask], self.inferred[mask],
        )  # fmt: skip


def _learn(names: frozenset[str]) -> None:
    """Give the phases that a program named itself their places among `NAMES`, which keep them."""
    for name in sorted(names - _INDEX.keys()):
        _INDEX[name] = len(NAMES)
        NAMES.append(name)


def main_lanes(run: Run, collectives: Collectives) -> tuple[MainLanes, Waits, list[str]]:
    """Return the pieces of the main lanes, the waits for data, and what did not agree, one line each."""
    _learn(run.user_phases)
    rows = _Rows(run, collectives)
    phases, conflicts = rows.phases()
    order = np.lexsort((phases.start, run.steps.rank[phases.row]))
    rank_of = run.steps.rank[phases.row[order]]
    pieces = []
    for rank in run.ranks:
        low, high = np.searchsorted(rank_of, (rank, rank + 1))
        pieces.append(_tile(run, rows, phases, rank, order[low:high]))
    waits, wait_of_phase = rows.waits(phases)
    inner = _concat([p.phase for p in pieces])
    lanes = MainLanes(
        rank=np.repeat(np.array(run.ranks, np.int64), [len(p.start) for p in pieces]),
        start=_concat([p.start for p in pieces]),
        end=_concat([p.end for p in pieces]),
        name=_concat([p.name for p in pieces]),
        top=_concat([p.top for p in pieces]),
        row=_concat([p.row for p in pieces]),
        span_ix=_concat([p.span_ix for p in pieces]),
        wait=_take(wait_of_phase, inner, -1),
        one=_take(phases.one, inner, -1),
        outermost=_concat([p.outermost for p in pieces]),
        inferred=_take(phases.inferred, inner, False).astype(bool),
        told=rows.told,
    )
    return lanes, waits, conflicts


def rows_and_phases(run: Run, collectives: Collectives) -> tuple[IntArray, IntArray, IntArray, Phases]:
    """Return (start, end, span) of each row of the step table, -1 for no span; and the phases in them.

    Rows of a rank are disjoint. A phase of depth n + 1 lies in one of depth n, or in none.
    """
    _learn(run.user_phases)
    rows = _Rows(run, collectives)
    return rows.start, rows.end, rows.span_ix, rows.phases()[0]


def _concat(arrays: list[IntArray]) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _take(values: IntArray | BoolArray, at: IntArray, default: int) -> IntArray:
    """Return ``values[at]``, and ``default`` where ``at`` is -1."""
    found = np.full(len(at), default, dtype=np.int64)
    found[at >= 0] = values[at[at >= 0]]
    return found


class _Rows:
    """Rows of the step table with the exact bounds of their spans, disjoint and in order per rank."""

    def __init__(self, run: Run, collectives: Collectives) -> None:
        self.run, self.collectives = run, collectives
        steps = run.steps
        self.start: IntArray = steps.start.copy()
        self.end: IntArray = steps.end.copy()
        self.span_ix: IntArray = np.full(len(steps), -1, np.int64)
        self._match_spans()
        for rank in run.ranks:
            self._put_in_order(rank)
        workers = {loader.loader_id: loader.workers for loader in run.loaders.values()}
        has_workers = np.isin(steps.item_loader, [id for id, count in workers.items() if count > 0])
        self.inline: BoolArray = (steps.item_batch >= 0) & (steps.item_worker < 0) & ~has_workers
        self.told: BoolArray = np.zeros(len(steps), bool)
        """Rows whose waiting for other ranks is known; see `phases`."""
        self._placed: dict[str, BoolArray] = {}
        """Of collectives and waits for them the rows of which the table tells where in the lane they were."""

    def of(self, rank: int) -> IntArray:
        """Return the rows of ``rank`` in order of time."""
        mine = self.run.steps.of_rank(rank)
        return np.arange(mine.start, mine.stop)

    def _match_spans(self) -> None:
        """Find the row of each `step` span: of its rank and number, and started in the same microsecond."""
        run, steps = self.run, self.run.steps
        by_key: dict[tuple[int, int], list[int]] = {}
        wanted = {(rank, number) for rank, number, _ in run.step_spans}
        for row in np.flatnonzero(np.isin(steps.step, [number for _, number in wanted])).tolist():
            by_key.setdefault((int(steps.rank[row]), int(steps.step[row])), []).append(row)
        for (rank, number, start), ix in run.step_spans.items():
            for row in by_key.get((rank, number), ()):
                if -_ROUNDING_NS < start - int(steps.start[row]) < _ROUNDING_NS:
                    self.span_ix[row] = ix
                    self.start[row], self.end[row] = run.spans.start[ix], run.spans.end[ix]

    def _put_in_order(self, rank: int) -> None:
        rows = self.of(rank)
        if not len(rows):
            return
        low, high = bounds_of(self.run, rank)
        start = np.clip(self.start[rows], low, high)
        end = np.maximum(np.clip(self.end[rows], low, high), start)
        reached = np.maximum.accumulate(end)
        start[1:] = np.maximum(start[1:], reached[:-1])
        end = np.maximum(end, start)
        # Rows that followed each other directly are apart by their rounding at most.
        apart = start[1:] - end[:-1]
        end[:-1] = np.where((apart > 0) & (apart <= _SNAP_NS), start[1:], end[:-1])
        self.start[rows], self.end[rows] = start, end

    # --- phases -------------------------------------------------------------------------------------------

    def phases(self) -> tuple[Phases, list[str]]:
        """Return the main-lane phases of all rows: from detail where it is whole, else from the table."""
        detail = self._detail()
        mismatched = self._mismatched(detail)
        detailed = np.zeros(len(self.start), bool)
        detailed[detail.row] = True
        detailed &= ~mismatched
        expected = self.run.steps.count.get(semconv.COLLECTIVE, np.zeros(len(self.start), np.int64))
        self.told = told_apart(self.collectives, expected, detailed)
        self._placed = {phase: self._where_placed(phase, detail) for phase in _COLLECTIVES}
        conflicts = []
        if mismatched.any():
            steps = sorted({int(step) for step in self.run.steps.step[mismatched]})
            shown = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
            conflicts.append(
                f"{count(int(mismatched.sum()), 'step')} whose detail and step table differ by over 1 %, "
                f"the table counts: {shown}"
            )
        detail = detail.where(detailed[detail.row])
        table = self._from_table(~detailed)
        return Phases.join([detail, *self._parts(detail), table, self._tied(table)]), conflicts

    def _parts(self, detail: Phases) -> list[Phases]:
        """Return what collectives of ``detail`` consist of, as phases inside of it."""
        rank = self.run.steps.rank[detail.row]
        waits = np.flatnonzero(detail.name == _INDEX[semconv.COLLECTIVE_WAIT])
        backward = np.flatnonzero(detail.name == _INDEX[semconv.BACKWARD])
        found, start, end = self.collectives, detail.start, detail.end
        waits, waited = waited_for(found, rank, start, end, waits)
        return [
            _phases_of(parts, detail)
            for parts in (
                of_blocking(found, start, end, detail.span_ix),
                of_waits(found, start, end, waits, waited),
                of_backward(found, rank, start, end, backward, waited),
            )
        ]

    def _tied(self, table: Phases) -> Phases:
        """Return what collectives consist of that only the step table tells, as phases inside of them."""
        clocks = self.collectives.clocks
        ties = table_ties(self.run, clocks)
        if ties is None:
            return Phases.join([])
        last: IntArray = np.full(len(self.start), np.iinfo(np.int64).min, np.int64)
        last[ties.rows] = ties.last + clocks.shift(np.array(ties.ranks, np.int64))
        at = np.flatnonzero((table.name == _INDEX[semconv.COLLECTIVE]) & ~table.inferred)
        cut = last[table.row[at]]
        at, cut = at[cut >= self.start[table.row[at]]], cut[cut >= self.start[table.row[at]]]
        none, told = np.full(len(at), -1, np.int64), np.ones(len(at), bool)
        parts = Parts.of(table.start[at], cut, table.end[at], at, none, none, none, told, inferred=True)
        return _phases_of(parts, table)

    def _where_placed(self, phase: str, detail: Phases) -> BoolArray:
        """Return the rows in whose lane the table's collectives, or waits for them, have their own time.

        The table adds up those that ran beside the lane, or within a phase, with the others: it does not tell
        where unless the rank's detail shows that there are none of those. Without detail, one has its place.
        """
        steps, found = self.run.steps, self.collectives
        mine = detail.name == _INDEX[phase]
        elsewhere = set(steps.rank[detail.row[mine & (detail.depth > 0)]].tolist())
        known = set(steps.rank[detail.row[mine]].tolist())
        if phase == semconv.COLLECTIVE:
            elsewhere |= set(found.rank[found.beside].tolist())
        once = steps.count.get(phase, np.zeros(len(steps), np.int64)) == 1
        placed: BoolArray = np.where(np.isin(steps.rank, list(known)), True, once)
        return placed & ~np.isin(steps.rank, list(elsewhere))

    def _detail(self) -> Phases:
        """Return the phases below the matched `step` spans, with their exact times."""
        spans = self.run.spans
        row_of = np.full(len(spans) + 1, -1, np.int64)  # the last element serves spans without a parent
        matched = np.flatnonzero(self.span_ix >= 0)
        row_of[self.span_ix[matched]] = matched
        parent = np.where(spans.parent_ix >= 0, spans.parent_ix, len(spans))
        found: list[IntArray] = []
        while True:
            below = np.flatnonzero((row_of[parent] >= 0) & (row_of[:-1] < 0))
            if not len(below):
                break
            row_of[below] = row_of[parent[below]]
            found.append(below)
        name_of = np.array([_INDEX.get(name, -1) for name in spans.names] or [-1], np.int64)
        ixs = _concat(found)
        name = name_of[spans.name_ix[ixs]]
        phase = (name >= 0) & (name < len(semconv.PHASES))
        user = np.isin(name, [_INDEX[each] for each in self.run.user_phases])
        for at in np.flatnonzero(user).tolist():
            phase[at] = names_itself(spans, int(ixs[at]))
        ixs = ixs[phase]
        ixs = ixs[~np.isin(ixs, self.collectives.span_ix[self.collectives.beside])]
        row = row_of[ixs]
        start = np.maximum(spans.start[ixs], self.start[row])
        end = np.minimum(spans.end[ixs], self.end[row])
        kept = end > start
        ixs, row, start, end = ixs[kept], row[kept], start[kept], end[kept]
        name = name_of[spans.name_ix[ixs]]
        # Rows are disjoint within a rank, not between ranks: far apart, all can be nested at once.
        shift = self._apart()[row]
        depth = nesting_depths(start + shift, end + shift, _priorities()[name])
        for level in range(int(depth.max(initial=-1)) + 1):
            beside = np.flatnonzero(depth == level)
            beside = beside[np.argsort(start[beside] + shift[beside], kind="stable")]
            end[beside] = (
                cut_overlaps(start[beside] + shift[beside], end[beside] + shift[beside]) - shift[beside]
            )
        none = np.full(len(ixs), -1, np.int64)
        return Phases(start, end, name, row, ixs, depth, none, np.zeros(len(ixs), bool))

    def _apart(self) -> IntArray:
        """Return a shift per row that keeps the rows of different ranks apart."""
        length = self.run.end - self.run.start + 1
        number = np.searchsorted(np.array(self.run.ranks, np.int64), self.run.steps.rank)
        return number * length - self.run.start

    def _mismatched(self, detail: Phases) -> BoolArray:
        """Return the rows with detail whose phases do not add up to what the table says."""
        steps, names = self.run.steps, len(NAMES)
        rows = np.flatnonzero(self.span_ix >= 0)
        cell = np.searchsorted(rows, detail.row) * names + detail.name
        flat = np.bincount(cell, weights=detail.end - detail.start, minlength=len(rows) * names)
        sums = flat.reshape(len(rows), names)
        differs = np.zeros(len(rows), bool)
        for phase, busy in steps.busy.items():
            if phase not in _INDEX or phase in WORK_SCOPES or phase == semconv.COLLECTIVE:
                continue  # of collectives the table has those beside the lane too
            expected = np.where(self._in_main_lane(phase), busy, 0)[rows]
            allowed = np.maximum(
                _TOLERATED_MISMATCH * expected, _ROUNDING_NS * (steps.count[phase][rows] + 1)
            )
            differs |= np.abs(sums[:, _INDEX[phase]] - expected) > allowed
        wrong = np.zeros(len(steps), bool)
        wrong[rows] = differs
        return wrong

    def _in_main_lane(self, phase: str) -> BoolArray:
        """Return for each row whether it ran ``phase`` in the main lane, according to the table."""
        ran: BoolArray = self.run.steps.count[phase] > 0
        if phase in self._placed:
            return ran & self._placed[phase]
        return ran & self.inline if phase in semconv.WORKER_PHASES else ran

    def _from_table(self, chosen: BoolArray) -> Phases:
        """Return the phases of the ``chosen`` rows as the table gives them."""
        rows, priority = np.flatnonzero(chosen), _priorities()
        columns = sorted(
            (phase for phase in self.run.steps.count if phase in _INDEX),
            key=lambda phase: priority[_INDEX[phase]],
        )
        if not columns:
            return Phases.join([])
        in_main = np.stack([self._in_main_lane(phase) for phase in columns]) & ~self._has_scope(columns)
        blocks = [rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE)]
        return Phases.join([self._of_rows(block, columns, in_main[:, block].T) for block in blocks])

    def _of_rows(self, rows: IntArray, columns: list[str], ran: BoolArray) -> Phases:
        """Return the phases of ``rows`` of the table; ``ran`` [row, column]: in the main lane."""
        steps = self.run.steps
        first = np.stack([steps.first[phase][rows] for phase in columns], axis=1)
        busy = np.stack([steps.busy[phase][rows] for phase in columns], axis=1)
        once = np.stack([steps.count[phase][rows] == 1 for phase in columns], axis=1)
        outer = _enclosing(columns, first, busy, once, ran)
        starts, ends = lay_out(first, busy, ran & (outer < 0), self.start[rows], self.end[rows])
        for k in range(len(columns)):
            inner = ran & (outer == k)
            if inner.any():
                low, high = lay_out(first, busy, inner, starts[:, k], ends[:, k])
                starts, ends = np.where(inner, low, starts), np.where(inner, high, ends)
        moved = (np.abs(starts - first) > _ROUNDING_NS) | (np.abs(ends - starts - busy) > _ROUNDING_NS)
        at, column = np.nonzero(ran & (ends > starts))
        names = np.array([_INDEX[phase] for phase in columns], np.int64)
        return Phases(
            start=starts[at, column],
            end=ends[at, column],
            name=names[column],
            row=rows[at],
            span_ix=np.full(len(at), -1, np.int64),
            depth=(outer[at, column] >= 0).astype(np.int64),
            one=np.full(len(at), -1, np.int64),
            inferred=(~once | moved)[at, column],
        )

    def _has_scope(self, columns: list[str]) -> BoolArray:
        """Return for each (column, row) whether the phase arrived as a scope, too, which has exact times."""
        also = np.zeros((len(columns), len(self.start)), bool)
        for scope in self.run.scopes:
            if scope.name in WORK_SCOPES and scope.name in columns:
                mine = self.run.steps.of_rank(scope.rank)
                first = int(np.searchsorted(self.end[mine], scope.start, "right"))
                last = int(np.searchsorted(self.start[mine], scope.end, "left"))
                also[columns.index(scope.name), mine.start + first : mine.start + max(first, last)] = True
        return also

    # --- waits --------------------------------------------------------------------------------------------

    def waits(self, phases: Phases) -> tuple[Waits, IntArray]:
        """Return the waits among ``phases``, and for each phase the index of its wait or -1."""
        steps = self.run.steps
        at = np.flatnonzero(phases.name == _INDEX[semconv.DATA_WAIT])
        row = phases.row[at]
        known = ~phases.inferred[at] & (phases.span_ix[at] < 0)
        pass_serial = np.where(known, steps.item_pass[row], -1)
        batch = np.where(known, steps.item_batch[row], -1)
        for i in np.flatnonzero(phases.span_ix[at] >= 0).tolist():
            item = item_of(self.run.spans.attributes(int(phases.span_ix[at[i]])).get(semconv.ITEM))
            if item is not None:
                pass_serial[i], batch[i] = item
        index = np.full(len(phases.start), -1, np.int64)
        index[at] = np.arange(len(at))
        waits = Waits(
            steps.rank[row], phases.start[at], phases.end[at], pass_serial, batch, self.inline[row], row
        )
        return waits, index


def _phases_of(parts: Parts, detail: Phases) -> Phases:
    """Return ``parts`` of phases of ``detail`` as phases one level deeper."""
    names = np.array([_INDEX[name] for name in (*COLLECTIVE_PARTS, semconv.COLLECTIVE)], np.int64)
    return Phases(
        start=parts.start,
        end=parts.end,
        name=names[parts.kind],
        row=detail.row[parts.phase],
        span_ix=parts.span_ix,
        depth=detail.depth[parts.phase] + 1,
        one=parts.one,
        inferred=parts.inferred,
    )


def phase_named(name: str) -> str:
    """Return the phase that a piece called ``name`` is of."""
    return semconv.COLLECTIVE if name in COLLECTIVE_PARTS else name


def bounds_of(run: Run, rank: int) -> tuple[int, int]:
    """Return start and end of the main lane of ``rank``; those of the run when they are not known."""
    return run.rank_bounds.get(rank, (run.start, run.end))


def last_rank(run: Run) -> int:
    """Return the rank whose main lane ended last, the lowest of several."""
    return max(run.ranks, key=lambda rank: (bounds_of(run, rank)[1], -rank))


def item_of(text: object) -> tuple[int, int] | None:
    """Return (pass, batch) of a `grademl.item`; None when it is none."""
    if not isinstance(text, str):
        return None
    serial, _, batch = text.partition(":")
    return (int(serial), int(batch)) if serial.isdecimal() and batch.isdecimal() else None


def _priorities() -> IntArray:
    """Return for each name its place among phases of equal bounds, the outermost first."""
    priority = np.full(len(NAMES), len(_OUTER_FIRST), np.int64)
    for place, phase in enumerate(_OUTER_FIRST):
        priority[_INDEX[phase]] = place
    return priority


def _enclosing(
    columns: list[str], first: IntArray, busy: IntArray, once: BoolArray, ran: BoolArray
) -> IntArray:
    """Return for each (row, phase) the column of the outermost phase that it ran within; -1 for none.

    ``columns`` are sorted outermost first. A phase lies in one that ran once and whose bounds hold it, or in
    the one that `_NESTED_IN` tells.
    """
    outer = np.full(first.shape, -1, np.int64)
    last = first + busy
    for k, name in enumerate(columns):
        for o, other in enumerate(columns):
            if o == k:
                continue
            if _NESTED_IN.get(name) == other:
                within = ran[:, o]
            else:
                # Inner and outer are told apart by their length; at equal length by the order of columns.
                longer = (busy[:, o] > busy[:, k]) | ((busy[:, o] == busy[:, k]) & (o < k))
                held = (first[:, k] >= first[:, o]) & (first[:, k] < last[:, o])
                held &= last[:, k] <= last[:, o] + _ROUNDING_NS
                within = ran[:, o] & once[:, o] & held & longer
            outer[:, k] = np.where(ran[:, k] & within & (outer[:, k] < 0), o, outer[:, k])
    for _ in columns:
        # Of a chain the outermost counts.
        above = np.where(outer >= 0, np.take_along_axis(outer, np.maximum(outer, 0), 1), -1)
        if not (above >= 0).any():
            break
        outer = np.where(above >= 0, above, outer)
    return outer


@dataclass(frozen=True)
class _Pieces:
    start: IntArray
    end: IntArray
    name: IntArray
    top: IntArray
    row: IntArray
    span_ix: IntArray
    phase: IntArray
    """Index into the phases; -1 outside."""
    outermost: IntArray
    """The same of the outermost."""


def _tile(run: Run, rows: _Rows, phases: Phases, rank: int, own: IntArray) -> _Pieces:
    """Return the pieces of one rank's main lane over ``[run.start, run.end)``.

    ``own`` are the ``phases`` of the rank, in order of their starts.
    """
    mine = rows.of(rank)
    scopes = [
        s for s in run.scopes if s.rank == rank and (s.user or s.name in WORK_SCOPES) and s.end > s.start
    ]
    scope_start = np.array([s.start for s in scopes], np.int64)
    scope_end = np.array([s.end for s in scopes], np.int64)
    outside = _Outside(run, rows, rank, mine, scope_end)
    canvas = Canvas.over(
        run.start, run.end,
        rows.start[mine], rows.end[mine], phases.start[own], phases.end[own],
        scope_start, scope_end, outside.changes(),
    )  # fmt: skip
    row, outer, inner, scope = canvas.blank(), canvas.blank(), canvas.blank(), canvas.blank()
    canvas.paint(row, rows.start[mine], rows.end[mine], mine)
    for level in range(int(phases.depth[own].max(initial=-1)) + 1):
        chosen = own[phases.depth[own] == level]
        canvas.paint(inner, phases.start[chosen], phases.end[chosen], chosen)
        if level == 0:
            outer = inner.copy()
    canvas.paint(scope, scope_start, scope_end, np.arange(len(scopes)))
    low, high = bounds_of(run, rank)
    scope[(canvas.bounds[:-1] < low) | (canvas.bounds[:-1] >= high)] = -1
    # A phase of the program's own may hold many steps, which tell more.
    scope[(_take(np.array([s.user for s in scopes], bool), scope, False) > 0) & (row >= 0)] = -1

    inner, outer = np.where(scope >= 0, -1, inner), np.where(scope >= 0, -1, outer)
    evaluation = (_take(run.steps.flags, row, 0) & semconv.FLAG_EVALUATE) > 0
    name = np.where(row >= 0, _INDEX[OTHER], outside.names(canvas))
    top = np.where(evaluation, _INDEX[semconv.EVALUATE], name)
    in_phase = inner >= 0
    name = np.where(in_phase, _take(phases.name, inner, 0), name)
    top = np.where(in_phase & ~evaluation, _take(phases.name, outer, 0), top)
    scope_name = _take(np.array([_INDEX[s.name] for s in scopes], np.int64), scope, 0)
    name, top = np.where(scope >= 0, scope_name, name), np.where(scope >= 0, scope_name, top)
    scope_span = _take(np.array([s.span_ix for s in scopes], np.int64), scope, -1)
    span_ix = np.where(scope >= 0, scope_span, _take(phases.span_ix, inner, -1))

    changed = np.ones(len(canvas), bool)
    changed[1:] = False
    for owner in (name, top, row, inner, scope):
        changed[1:] |= owner[1:] != owner[:-1]
    at = np.flatnonzero(changed)
    end = np.append(canvas.bounds[at[1:]], canvas.bounds[-1]) if len(at) else np.zeros(0, np.int64)
    return _Pieces(canvas.bounds[at], end, name[at], top[at], row[at], span_ix[at], inner[at], outer[at])


class _Outside:
    """What the time of a main lane outside its rows was; the names are those of the module's docstring."""

    def __init__(self, run: Run, rows: _Rows, rank: int, mine: IntArray, work_ends: IntArray) -> None:
        steps = run.steps
        self._low, self._high = bounds_of(run, rank)
        # Of a process that was killed, or still runs, nothing is known after its last row.
        how = {ended.how for ended in run.completeness.ended if ended.rank == rank}
        self._ended = not how & {"killed", "unknown"}
        self._heard = "unknown" not in how
        """Whether the process said when it began and ended: outside of that it was not there."""
        evaluation = (steps.flags[mine] & semconv.FLAG_EVALUATE) > 0
        training = mine[~evaluation]
        self._counted = training if len(training) else mine
        """Rows between which a gap is judged."""
        self._start, self._end = rows.start[self._counted], rows.end[self._counted]
        self._pass = steps.item_pass[self._counted]
        self._step = steps.step[self._counted]
        done = (steps.flags[self._counted] & (semconv.FLAG_INCOMPLETE | semconv.FLAG_EVALUATE)) == 0
        self._next_step = self._step + done
        passes = [s for s in run.scopes if s.rank == rank and s.name in (semconv.EPOCH, semconv.EVALUATE)]
        self._eval_start, self._eval_end = self._evaluations(
            [(s.start, s.end) for s in passes if s.name == semconv.EVALUATE],
            rows.start[training],
            rows.end[mine[evaluation]],
        )
        begins = [s.start for s in passes] + rows.start[mine[:1]].tolist()
        self._begin = min(begins) if begins else None
        ends = [*rows.end[mine[-1:]].tolist(), *self._eval_end.tolist(), *work_ends.tolist()]
        self._finish = min(max(ends), self._high) if ends else None
        covered = run.completeness.coverage.get(rank)
        holes = () if covered is None else covered.holes
        self._holes = np.array(holes, np.int64).reshape(-1, 2)
        self._evaluated = covered is None or not covered.evaluation_missing

    def _evaluations(
        self, passes: list[tuple[int, int]], training_start: IntArray, eval_end: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the evaluation passes, each ended where it was left.

        A pass that the script breaks out of stays open until its loop starts another or the run ends; then it
        ended with its last row.
        """
        left: list[tuple[int, int]] = []
        for start, end in passes:
            resumed = training_start[(training_start >= start) & (training_start < end)]
            until = int(resumed[0]) if len(resumed) else end
            if len(resumed) or end >= self._high:
                ends = eval_end[(eval_end > start) & (eval_end <= until)]
                until = int(ends[-1]) if len(ends) else start
            left.append((start, until))
        bounds = np.array(left, np.int64).reshape(-1, 2)
        return bounds[:, 0], bounds[:, 1]

    def changes(self) -> IntArray:
        """Return the times at which the name may change, besides the bounds of rows and scopes."""
        marks = [self._low, self._high, *(t for t in (self._begin, self._finish) if t is not None)]
        return np.concatenate(
            [np.array(marks, np.int64), self._holes.ravel(), self._eval_start, self._eval_end]
        )

    def names(self, canvas: Canvas) -> IntArray:
        """Return the name of each piece of ``canvas``, as if it lay outside rows."""
        at = canvas.bounds[:-1]
        name = np.full(len(at), _INDEX[UNTRACED], np.int64)
        if self._evaluated:
            name[self._between(at)] = _INDEX[EPOCH_GAP]
        if self._finish is not None and self._ended:
            name[at >= self._finish] = _INDEX[TEARDOWN]
        elif self._finish is not None:
            name[at >= self._finish] = _INDEX[UNTRACED]
        if self._begin is not None:
            name[at < self._begin] = _INDEX[START_UP]
        hole = canvas.blank()
        canvas.paint(hole, self._holes[:, 0], self._holes[:, 1], np.zeros(len(self._holes), np.int64))
        name[hole >= 0] = _INDEX[UNTRACED]
        evaluation = canvas.blank()
        canvas.paint(evaluation, self._eval_start, self._eval_end, np.zeros_like(self._eval_start))
        name[evaluation >= 0] = _INDEX[semconv.EVALUATE]
        name[(at < self._low) | (at >= self._high)] = _INDEX[IDLE if self._heard else UNTRACED]
        return name

    def _between(self, at: IntArray) -> BoolArray:
        """Return which times lie at a change of passes, with no row lost there."""
        known = len(self._start)
        if not known:
            return np.zeros(len(at), bool)
        before = np.searchsorted(self._end, at, side="right") - 1
        after = np.searchsorted(self._start, at, side="left")
        b, a = np.maximum(before, 0), np.minimum(after, known - 1)
        first, last = (before < 0) & (self._step[0] == 0), after >= known
        other_pass = (before >= 0) & (self._pass[b] != self._pass[a])
        lost = self._step[a] > self._next_step[b]
        changes: BoolArray = first | last | (other_pass & ~lost)
        return changes
