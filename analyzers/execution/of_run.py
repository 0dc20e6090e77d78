# SPDX-License-Identifier: Apache-2.0
"""An attempt of a run as phases: ranks, fits, passes, steps and what is in them, from spans and step tables.

In a rank's main lane phases nest: what lies in another is part of it. What runs beside the main lane (loader
workers, collectives under way, devices) has a phase of its own for each lane, and takes none of the rank's
time. Millions of steps stay arrays from the table to the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.execution.beside import Lanes, note
from grademl_otel.analyzers.execution.draft import Draft
from grademl_otel.analyzers.execution.meetings import note_meetings
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, INFERRED, MISSING
from grademl_otel.analyzers.graph.runs.main_lane import NAMES, WORK_SCOPES, rows_and_phases
from grademl_otel.analyzers.model.attempts import whole
from grademl_otel.analyzers.model.collectives import Collectives, collectives_of
from grademl_otel.analyzers.model.facts import Run, Scope, StepTable

ATTEMPT: Final = "attempt"
RANK: Final = "rank"

_TYPE_TAGS: Final[Mapping[str, Mapping[str, str]]] = {
    sc.CHECKPOINT_SAVE: {"format": sc.CHECKPOINT_FORMAT, "part": sc.CHECKPOINT_PART},
    sc.CHECKPOINT_LOAD: {"format": sc.CHECKPOINT_FORMAT},
    sc.COMPILE: {"trigger": sc.COMPILE_TRIGGER},
}
"""Name of a scope -> tag of its type -> attribute."""
_TAGS: Final[Mapping[str, Mapping[str, str]]] = {
    sc.TRIAL: {"name": sc.RUN_NAME},
    sc.CHECKPOINT_SAVE: {"checkpoint": sc.CHECKPOINT_NUMBER},
    sc.COMPILE: {"function": sc.COMPILE_FUNCTION, "id": sc.COMPILE_ID},
}
_BACKGROUND: Final = "background"


def add_attempt(
    draft: Draft, run: Run, parent: int, phase_of_span: IntArray, meeting_of_span: IntArray
) -> int:
    """Add the attempt ``run`` below ``parent``; return its number.

    ``phase_of_span`` gets, at the index of each span that becomes a phase, the number of that;
    ``meeting_of_span`` the number of each collective in which ranks meet.
    """
    attempt = draft.add_one(draft.kind(ATTEMPT, counted="attempt"), parent, number=run.attempt, flags=DERIVED)
    collectives = collectives_of(run)
    note_meetings(meeting_of_span, collectives)
    _Attempt(draft, run, attempt, phase_of_span).add(collectives)
    return attempt


class _Attempt:
    """One attempt that becomes phases."""

    def __init__(self, draft: Draft, run: Run, number: int, phase_of_span: IntArray) -> None:
        self._draft, self._run, self._phase_of_span = draft, run, phase_of_span
        self._ranks = {rank: self._rank(rank, number) for rank in run.ranks}
        self._run_spans = set(run.run_spans.values())
        self._scopes: IntArray = np.zeros(0, np.int64)
        """Number of the phase of each scope of the run."""

    def add(self, collectives: Collectives) -> None:
        run, draft = self._run, self._draft
        self._scopes = self._add_scopes()
        start, end, span_ix, phases = rows_and_phases(run, collectives)
        rows = self._add_rows(start, end, span_ix)
        note(self._phase_of_span, span_ix, rows)
        above = _parents(phases.row, phases.start, phases.end, phases.depth)
        kinds = np.array([draft.kind(name) for name in NAMES], np.int64)
        first = len(draft)
        within = np.where(above >= 0, first + above, rows[phases.row])
        added = draft.add(
            kinds[phases.name],
            within,
            phases.start,
            phases.end,
            span_ix=phases.span_ix,
            flags=np.where(phases.inferred, INFERRED, 0),
        ) if len(phases.start) else np.zeros(0, np.int64)  # fmt: skip
        note(self._phase_of_span, phases.span_ix, added)
        self._put_work_into_rows(start, end, rows, phases.row, phases.start, phases.end, added)
        Lanes(draft, run, self._ranks, self._phase_of_span).add(collectives)

    def _rank(self, rank: int, attempt: int) -> int:
        run, draft = self._run, self._draft
        start, end = run.rank_bounds[rank]
        span_ix = run.run_spans.get(rank, -1)
        phase = draft.add_one(
            draft.kind(RANK, counted="rank"),
            attempt,
            start,
            end,
            number=rank,
            span_ix=span_ix,
            host=draft.host(self._host(rank, span_ix)),
            flags=0 if span_ix >= 0 else DERIVED | MISSING,
        )
        if span_ix >= 0:
            self._phase_of_span[span_ix] = phase
        return phase

    def _host(self, rank: int, span_ix: int) -> str:
        """Return the host, else the clock, of the process of ``rank``."""
        spans = self._run.spans
        if span_ix < 0:
            of_rank = [ix for ix, resource in enumerate(spans.resources) if resource.get(sc.RANK) == rank]
            mine = self._run.span_ixs[np.isin(spans.resource_ix[self._run.span_ixs], of_rank)]
            span_ix = int(mine[0]) if len(mine) else -1
        resource: Mapping[str, Any] = spans.resource(span_ix) if span_ix >= 0 else {}
        return str(resource.get("host.name") or resource.get(sc.CLOCK_ID) or "")

    # --- scopes -------------------------------------------------------------------------------------------

    def _add_scopes(self) -> IntArray:
        """Add fits, passes, trials, checkpoints, compilations and phases that the program named."""
        scopes, draft = self._run.scopes, self._draft
        first = len(draft)
        number_of = {scope.span_ix: number for number, scope in enumerate(scopes)}
        above = (self._scope_above(scope, number_of) for scope in scopes)
        columns = [
            (
                self._kind(scope),
                self._ranks[scope.rank] if outer is None else first + outer,
                scope.start,
                scope.end,
                self._number(scope),
                draft.label(_said(scope, _TAGS)),
                scope.span_ix,
                BESIDE if _in_background(scope) else 0,
            )
            for scope, outer in zip(scopes, above, strict=True)
        ]
        table = np.array(columns, np.int64).reshape(-1, 8).T
        added = draft.add(*table[:4], number=table[4], label=table[5], span_ix=table[6], flags=table[7])
        note(self._phase_of_span, table[6], added)
        return added

    def _kind(self, scope: Scope) -> int:
        counted = "epoch" if scope.name == sc.EPOCH else None
        return self._draft.kind(scope.name, _said(scope, _TYPE_TAGS), counted)

    def _number(self, scope: Scope) -> int:
        number = whole(scope.attributes.get(sc.EPOCH_NUMBER)) if scope.name == sc.EPOCH else None
        return -1 if number is None else number

    def _scope_above(self, scope: Scope, number_of: Mapping[int, int]) -> int | None:
        """Return the number of the scope that ``scope`` is a child of; None where that is its rank."""
        spans, at = self._run.spans, scope.span_ix
        while (at := int(spans.parent_ix[at])) >= 0:
            number = number_of.get(at)
            if number is not None and self._run.scopes[number].rank == scope.rank:
                return number
            if at in self._run_spans:
                break
        return None

    # --- rows ---------------------------------------------------------------------------------------------

    def _add_rows(self, start: IntArray, end: IntArray, span_ix: IntArray) -> IntArray:
        draft, steps = self._draft, self._run.steps
        if not len(steps):
            return np.zeros(0, np.int64)
        evaluation, broken = (steps.flags & sc.FLAG_EVALUATE) > 0, (steps.flags & sc.FLAG_INCOMPLETE) > 0
        kind = np.where(
            evaluation,
            draft.kind(sc.STEP, {"kind": "evaluate"}),
            np.where(
                broken,
                draft.kind(sc.STEP, {"kind": "incomplete"}, counted="step"),
                draft.kind(sc.STEP, counted="step"),
            ),
        )
        # That of an evaluation step is the training step at which it ran, of all in a pass the same.
        number = np.where(evaluation, -1, steps.step)
        parent = self._passes_of(steps, start, evaluation)
        return draft.add(kind, parent, start, end, number=number, span_ix=span_ix)

    def _passes_of(self, steps: StepTable, start: IntArray, evaluation: BoolArray) -> IntArray:
        """Return the phase that each row is part of: the innermost that holds its start.

        Work is no place for steps, and an evaluation is none for training: one that its loop has left stays
        open until that loop begins another.
        """
        scopes = self._run.scopes
        passes: dict[int, list[int]] = {rank: [] for rank in self._ranks}
        for ix, one in enumerate(scopes):
            if one.name not in WORK_SCOPES and one.end > one.start:
                passes[one.rank].append(ix)
        parent = np.zeros(len(steps), np.int64)
        for rank, of_rank in self._ranks.items():
            rows, mine = steps.of_rank(rank), passes[rank]
            training = [ix for ix in mine if scopes[ix].name not in (sc.EVALUATE, sc.PREDICT)]
            any_pass = self._innermost(start[rows], mine, of_rank)
            no_evaluation = self._innermost(start[rows], training, of_rank)
            parent[rows] = np.where(evaluation[rows], any_pass, no_evaluation)
        return parent

    def _innermost(self, times: IntArray, chosen: list[int], otherwise: int) -> IntArray:
        """Return, for each of ``times``, the phase of the innermost ``chosen`` scope that holds it."""
        scopes = self._run.scopes
        edges = sorted({time for ix in chosen for time in (scopes[ix].start, scopes[ix].end)})
        owner = np.full(len(edges) + 1, otherwise, np.int64)
        bounds = np.array(edges, np.int64)
        for ix in sorted(chosen, key=lambda ix: (scopes[ix].start, -scopes[ix].end)):
            low, high = np.searchsorted(bounds, (scopes[ix].start, scopes[ix].end))
            owner[low + 1 : high + 1] = self._scopes[ix]
        found: IntArray = owner[np.searchsorted(bounds, times, side="right")]
        return found

    def _put_work_into_rows(
        self,
        start: IntArray,
        end: IntArray,
        rows: IntArray,
        row_of: IntArray,
        phase_start: IntArray,
        phase_end: IntArray,
        added: IntArray,
    ) -> None:
        """Make checkpoints, compilations and the program's own phases part of what is around them."""
        steps = self._run.steps
        by_row = np.argsort(row_of, kind="stable")
        first = np.searchsorted(row_of[by_row], np.arange(len(steps) + 1))
        for scope, phase in zip(self._run.scopes, self._scopes.tolist(), strict=True):
            if scope.name not in WORK_SCOPES and not scope.user:
                continue
            of_rank = steps.of_rank(scope.rank)
            row = of_rank.start + int(np.searchsorted(start[of_rank], scope.start, side="right")) - 1
            if row < of_rank.start or scope.end > end[row] or _in_background(scope):
                continue
            around = by_row[first[row] : first[row + 1]]
            holds = (phase_start[around] <= scope.start) & (phase_end[around] >= scope.end)
            around = around[holds]
            if len(around):
                shortest = np.lexsort((phase_start[around], (phase_end - phase_start)[around]))[0]
                self._draft.move(phase, int(added[around[shortest]]))
            else:
                self._draft.move(phase, int(rows[row]))


def _in_background(scope: Scope) -> bool:
    return scope.attributes.get(sc.CHECKPOINT_PART) == _BACKGROUND


def _said(scope: Scope, of: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {tag: scope.attributes.get(key) for tag, key in of.get(scope.name, {}).items()}


def _parents(row: IntArray, start: IntArray, end: IntArray, depth: IntArray) -> IntArray:
    """Return for each phase the index of that one of its row, a level further out, that holds it; else -1."""
    above = np.full(len(row), -1, np.int64)
    order = np.lexsort((depth, start, row))
    place = np.arange(len(order))
    for level in range(1, int(depth.max(initial=0)) + 1):
        outer = np.maximum.accumulate(np.where(depth[order] == level - 1, place, -1))
        at = np.flatnonzero((depth[order] == level) & (outer >= 0))
        inner, holder = order[at], order[outer[at]]
        held = (row[inner] == row[holder]) & (end[inner] <= end[holder])
        above[inner[held]] = holder[held]
    return above
