# SPDX-License-Identifier: Apache-2.0
"""Marks in, spans out: the conversion that docs/telemetry.md describes, for one ring.

No input or output, no clock: times come with the marks or from the caller, so that a relay and a thread in
the training process do the same, and tests compute by hand what must come out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from grademl_otel import marks, semconv
from grademl_otel.detail import LevelGovernor, OutlierDetector, share_of_rank, worker_spans_per_part
from grademl_otel.ringreader import Mark, OpenPhase
from grademl_otel.rows import NO_ITEM, OpenRow, Row
from grademl_otel.spans import Attributes, Link, Span
from grademl_otel.windows import Cumulative, Part, window_attributes

How = Literal["exit", "killed"]

MAX_OPEN_ROWS: Final = 256
"""Rows whose closing mark was lost are given up when so many are open."""
MAX_RUN_TRACE_PHASES: Final = 500
"""Checkpoints, compilations and collections that a process puts into the run's trace."""
_MAX_EARLY_MARKS: Final = 4096
_MAX_SCOPES: Final = 1024

_RUN_TRACE_PHASES: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD, semconv.COMPILE})
"""Phases that go into the run's trace wherever they happen."""
_OUTSIDE_ROWS: Final = _RUN_TRACE_PHASES | {semconv.GC}
_CHECKPOINTS: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD})
_REDUCED: Final = semconv.WAIT_PHASES | {semconv.COLLECTIVE}
_COMPUTE: Final = frozenset(semconv.PHASE_INDEX[name] for name in (semconv.FORWARD, semconv.BACKWARD))
_WORKER_LANE: Final = re.compile(r"^loader(\d*)-worker-(\d+)$")
_BYTES: Final = "grademl.bytes"
_TRUE: Final = 1


@dataclass(slots=True)
class _Scope:
    """A span of the workflow that is open."""

    serial: int
    parent: int
    index: int
    number: int
    start: int
    span_id: int
    lane: int
    attributes: Attributes = field(default_factory=dict)
    steps: int = 0
    eval_steps: int = 0


@dataclass(slots=True)
class _Closed:
    """How the run's scope ended; its span is held back until the end, when the totals are known."""

    end: int
    error: str | None


class Converter:
    """Turns the marks of one ring into the spans of one rank of one run.

    ``strings`` is the reader's list of interned texts, which grows while marks arrive.
    """

    def __init__(self, strings: Sequence[str], random: Random | None = None):
        self._strings = strings
        self._random = random or Random()
        self.info: marks.RunInfo | None = None
        """Whose marks these are; None until the ring said it."""
        self.lost = 0
        """Marks that the reader missed, plus those that the process gave up; the caller keeps it up to date.
        """
        self.emitted = 0
        """Spans returned so far."""
        self._early: list[tuple[int, Mark]] = []
        self._scopes: dict[int, _Scope] = {}
        self._run_serial = 0
        self._run_closed: _Closed | None = None
        self._open_rows: dict[int, OpenRow] = {}
        self._last_row = 0
        self._part: Part | None = None
        self._next_part: dict[int, int] = {}
        self._so_far = Cumulative()
        self._incomplete = 0
        self._next_step = 0
        self._governor = LevelGovernor()
        self._outliers = OutlierDetector()
        self._run_trace_phases = 0
        self._workers: dict[int, int | None] = {}
        self._last_time = 0
        self._first_time = 0
        self._sequence = 0
        self._out: list[Span] = []
        self._finished = False

    # --- What callers do --------------------------------------------------------------------------------

    def feed(self, batch: Iterable[Mark], first_sequence: int = 0) -> list[Span]:
        """Take further marks, consecutive from ``first_sequence`` on, and return the spans that they
        complete.
        """
        sequence = first_sequence
        for mark in batch:
            if self.info is None:
                self._take_early(sequence, mark)
            else:
                self._take(sequence, mark)
            sequence += 1
        return self._taken()

    def flush(self, now: int) -> list[Span]:
        """Close the part of the window that is due at ``now`` (ns of ``perf_counter``), marks or not."""
        if self._part is not None and self._part.due(now, self._run_start):
            self._close_part(last=False)
        return self._taken()

    def finish(
        self, how: How, open_phases: Sequence[OpenPhase], now: int, totals: Sequence[int] | None = None
    ) -> list[Span]:
        """Close everything at the end of the run and return the last spans; the converter is done then.

        ``how`` is ``killed`` when the process died without a word; then all ends at its last mark, not at
        ``now``. ``open_phases`` is what ran at that moment and ``totals`` are the ring's accumulators
        (`marks.ACC_SLOTS`), exact even if marks were lost.
        """
        if self.info is None or self._finished:
            return []
        self._finished = True
        killed = how == "killed"
        if killed:
            self._rescue_open_row()
        for row in self._open_rows.values():
            self._emit_outside_rows(row.marks)
        self._open_rows.clear()
        if self._part is not None:
            self._close_part(last=not killed)
        end = self._last_time if killed else now
        for scope in reversed(list(self._scopes.values())):
            if scope.serial != self._run_serial:
                self._emit_scope(scope, scope.index, end, "killed" if killed else None, terminated=killed)
        self._emit_run(killed, open_phases, end, totals)
        self._scopes.clear()
        return self._taken()

    @property
    def safe_sequence(self) -> int:
        """Marks up to and with this number are fully told by the spans returned so far."""
        pending = [row.first_sequence for row in self._open_rows.values()]
        if self._part is not None:
            pending += [self._part.rows[0].first_sequence]
        pending += [sequence for sequence, _ in self._early[:1]]
        return min(pending, default=self._sequence + 1) - 1

    @property
    def run_start_unix_ns(self) -> int:
        """Unix time of the run's start, 0 when not known yet."""
        return self._run_start + self.info.perf_to_unix_ns if self.info else 0

    # --- Marks ------------------------------------------------------------------------------------------

    def _take_early(self, sequence: int, mark: Mark) -> None:
        """Hold marks back until the run is known: no span can be named before."""
        self._early.append((sequence, mark))
        if mark[0] == marks.RUN_INFO:
            try:
                self.info = marks.RunInfo.from_json(self._text(mark[5]))
            except (ValueError, TypeError, KeyError):
                return
            early, self._early = self._early, []
            for held_sequence, held in early:
                self._take(held_sequence, held)
        elif len(self._early) > _MAX_EARLY_MARKS:
            del self._early[0]

    def _take(self, sequence: int, mark: Mark) -> None:
        kind, _, t0, t1, *_ = mark
        self._sequence = sequence
        if not 0 <= t0 <= t1:
            return
        self._last_time = max(self._last_time, t1)
        self._first_time = self._first_time or t0
        if marks.PHASE_BASE <= kind < marks.PHASE_BASE + len(semconv.PHASES):
            self._take_phase(sequence, mark)
        elif kind == marks.ROW:
            self._take_row(sequence, mark)
        elif kind == marks.SCOPE_OPEN:
            self._open_scope(mark)
        elif kind == marks.SCOPE_CLOSE:
            self._close_scope(mark)
        elif kind in _SCOPE_VALUES:
            self._set_scope_value(mark)
        elif kind == marks.RUN_INFO:
            self._run_serial = mark[4]

    def _take_phase(self, sequence: int, mark: Mark) -> None:
        kind, serial = mark[0], mark[4]
        if serial <= 0:
            self._emit_outside_rows([mark])
            return
        row = self._open_rows.get(serial)
        if row is None:
            if len(self._open_rows) >= MAX_OPEN_ROWS:
                oldest = next(iter(self._open_rows))
                self._emit_outside_rows(self._open_rows.pop(oldest).marks)
            row = self._open_rows[serial] = OpenRow(sequence)
        row.add(kind - marks.PHASE_BASE, mark)

    # --- Scopes -----------------------------------------------------------------------------------------

    def _open_scope(self, mark: Mark) -> None:
        _, lane, t0, _, serial, parent, index, number = mark
        if not 0 <= index < len(marks.SCOPES) or len(self._scopes) >= _MAX_SCOPES:
            return
        span_id = self._random_id()
        if marks.SCOPES[index] == semconv.RUN:
            self._run_serial = self._run_serial or serial
            span_id = self._run_span_id(self._known.rank)
        self._scopes[serial] = _Scope(serial, parent, index, number, t0, span_id, lane)

    def _set_scope_value(self, mark: Mark) -> None:
        kind, _, _, _, serial, key, value, _ = mark
        scope = self._scopes.get(serial)
        name = self._text(key)
        if scope is None or not name:
            return
        if kind == marks.SCOPE_INT:
            scope.attributes[name] = value
        elif kind == marks.SCOPE_BOOL:
            scope.attributes[name] = value == _TRUE
        elif kind == marks.SCOPE_TEXT:
            scope.attributes[name] = self._text(value)
        else:
            scope.attributes[name] = struct.unpack("<d", struct.pack("<q", value))[0]

    def _close_scope(self, mark: Mark) -> None:
        _, _, _, t1, serial, failed, index, error = mark
        scope = self._scopes.get(serial)
        if scope is None:
            return
        message = (self._text(error) or "error") if failed else None
        if serial == self._run_serial:
            self._run_closed = _Closed(t1, message)
            return
        del self._scopes[serial]
        self._emit_scope(scope, index if 0 <= index < len(marks.SCOPES) else scope.index, t1, message)

    def _emit_scope(
        self, scope: _Scope, index: int, end: int, error: str | None, terminated: bool = False
    ) -> None:
        name = marks.SCOPES[index]
        attributes: Attributes = {semconv.LANE: self._text(scope.lane) or "main", **scope.attributes}
        if name in (semconv.EPOCH, semconv.EVALUATE):
            attributes.setdefault(semconv.STEPS_TOTAL, scope.steps)
            attributes.setdefault(semconv.EVAL_STEPS_TOTAL, scope.eval_steps)
        if name == semconv.EPOCH and scope.number >= 0:
            attributes.setdefault(semconv.EPOCH_NUMBER, scope.number)
        if name != semconv.EPOCH:
            attributes.pop(semconv.EPOCH_NUMBER, None)
        if terminated:
            attributes[semconv.TERMINATED] = "killed"
        elif error is not None:
            attributes["error.type"] = error
        parent = self._scopes.get(scope.parent)
        parent_id = parent.span_id if parent else self._run_span_id(self._known.rank)
        self._emit(name, self._run_trace, scope.span_id, parent_id, scope.start, end, attributes, error)

    def _emit_run(
        self, killed: bool, open_phases: Sequence[OpenPhase], end: int, totals: Sequence[int] | None
    ) -> None:
        info = self._known
        scope = self._scopes.get(self._run_serial)
        closed = self._run_closed
        error = closed.error if closed else None
        if closed is not None:
            # The run ended in order, even if the process was killed on its way out.
            killed, end = False, closed.end
        attributes: Attributes = {
            semconv.LANE: "main",
            semconv.SCRIPT: info.script,
            semconv.EXPORTERS: list(info.exporters),
        }
        attributes.update(scope.attributes if scope else {})
        attributes.pop(semconv.WINDOW_RECORD_LEVEL, None)
        attributes.pop(semconv.WINDOW_RECORD_REASON, None)
        attributes[semconv.STEPS_TOTAL] = totals[marks.ACC_STEPS] if totals else self._so_far.steps
        attributes[semconv.EVAL_STEPS_TOTAL] = (
            totals[marks.ACC_EVAL_STEPS] if totals else self._so_far.eval_steps
        )
        attributes[semconv.INCOMPLETE_STEPS_TOTAL] = max(
            totals[marks.ACC_INCOMPLETE] if totals else 0, self._incomplete
        )
        if totals and end > self._run_start:
            attributes[semconv.TRACER_COST] = totals[marks.ACC_COST_NS] / (end - self._run_start)
        attributes[semconv.TRACER_DROPPED] = self.lost
        attributes[semconv.SPANS_EMITTED] = self.emitted + 1
        if killed:
            error = "killed"
            attributes[semconv.ENDED] = attributes[semconv.TERMINATED] = "killed"
            phase = self._innermost(open_phases)
            if phase:
                attributes[semconv.OPEN_PHASE] = phase
        elif error is not None:
            attributes[semconv.ENDED] = "exception"
            attributes["error.type"] = error
        else:
            attributes[semconv.ENDED] = "exit"
        parent = 0 if info.rank == 0 else self._run_span_id(0)
        span_id = self._run_span_id(info.rank)
        self._emit(
            semconv.RUN, self._run_trace, span_id, parent, self._run_start, max(end, self._run_start),
            attributes, error,
        )  # fmt: skip

    def _innermost(self, open_phases: Sequence[OpenPhase]) -> str | None:
        """Return the name of the phase that the process died in: that of the main lane, else the latest."""
        known = [phase for phase in open_phases if phase.kind - marks.PHASE_BASE < len(semconv.PHASES)]
        main = [phase for phase in known if self._text(phase.lane) == "main"]
        latest = max(main or known, key=lambda phase: phase.t0, default=None)
        return semconv.PHASES[latest.kind - marks.PHASE_BASE] if latest else None

    # --- Rows -------------------------------------------------------------------------------------------

    def _take_row(self, sequence: int, mark: Mark) -> None:
        _, lane, t0, t1, serial, step, packed, samples = mark
        flags, micro, pass_serial = marks.unpack_row(packed)
        flags &= semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
        collected = self._open_rows.pop(serial, None) or OpenRow(sequence)
        self._last_row = max(self._last_row, serial)
        row = Row(
            step, t0, t1, micro, flags, self._item(collected), collected.totals, collected.first_sequence
        )
        self._add_row(row, serial, lane, pass_serial, samples, collected.marks)

    def _add_row(
        self, row: Row, serial: int, lane: int, pass_serial: int, samples: int, phases: list[Mark]
    ) -> None:
        scope = self._scopes.get(pass_serial)
        window = semconv.window_of_step(max(row.step, 0))
        if self._part is not None and self._part.window != window:
            self._close_part(last=False)
        if self._part is None:
            if self._next_part and window not in self._next_part:
                self._governor.next_window(row.start)
            number = self._next_part.get(window, 0)
            self._next_part[window] = number + 1
            self._part = Part(window, number, self._governor.level)
        kind, number = self._kind_and_number(row, serial)
        weight = self._weight(row, number, phases)
        if weight is not None and self._emit_step(row, kind, number, weight, lane, scope, samples, phases):
            row.flags |= semconv.FLAG_DETAILED
        self._emit_run_trace_phases(phases, row.step)
        self._part.rows.append(row)
        self._count(row, scope)
        if row.training and self._part.complete:
            self._close_part(last=True)
        elif self._part.due(row.end, self._run_start):
            self._close_part(last=False)

    def _kind_and_number(self, row: Row, serial: int) -> tuple[str, int]:
        """Return the kind of the trace that this row's detail would have, and its number there."""
        if row.flags & semconv.FLAG_INCOMPLETE:
            return semconv.TRACE_INCOMPLETE_STEP, serial
        if row.flags & semconv.FLAG_EVALUATE:
            return semconv.TRACE_EVAL_STEP, self._so_far.eval_steps
        return semconv.TRACE_STEP, row.step

    def _weight(self, row: Row, number: int, phases: list[Mark]) -> int | None:
        """Return how many steps this one's detail stands for, None when it is not kept; flags outliers."""
        duration = row.end - row.start
        spans = len(phases) + 1
        outlier = row.training and self._outliers.is_outlier(duration)
        if outlier:
            row.flags |= semconv.FLAG_OUTLIER
        if row.flags & semconv.FLAG_INCOMPLETE or duration >= semconv.SLOW_STEP_NS:
            return 1
        assert self._part is not None
        level = self._part.detail_level
        if semconv.detail_bits(self._known.run_id, number) >= level:
            self._governor.count(spans, row.start)
            return 1 << level
        if outlier and self._outliers.afford(spans, row.end):
            return 0
        return None

    def _count(self, row: Row, scope: _Scope | None) -> None:
        self._so_far.add(row)
        if row.training:
            self._next_step = row.step + 1
            if scope is not None:
                scope.steps += 1
        elif row.flags & semconv.FLAG_INCOMPLETE:
            self._incomplete += 1
        elif scope is not None:
            scope.eval_steps += 1

    def _item(self, row: OpenRow) -> tuple[int, int, int, int]:
        """Return pass, batch, loader and worker of the first batch of ``row``."""
        if row.item < 0:
            return NO_ITEM
        pass_serial, batch = marks.unpack_item(row.item)
        scope = self._scopes.get(pass_serial)
        loader = scope.attributes.get(semconv.LOADER_ID, -1) if scope else -1
        worker = next(
            (
                number
                for kind, lane, _, _, _, item, _, _ in row.marks
                if item == row.item and kind in _WORKER_KINDS and (number := self._worker(lane)) is not None
            ),
            -1,
        )
        return pass_serial, batch, loader if isinstance(loader, int) else -1, worker

    def _rescue_open_row(self) -> None:
        """Make an incomplete row of the step that was running when the process died, if it had computed."""
        serial = max(self._open_rows, default=0)
        if serial <= self._last_row or not _COMPUTE & self._open_rows[serial].totals.keys():
            return
        collected = self._open_rows.pop(serial)
        own = [mark for mark in collected.marks if self._worker(mark[1]) is None]
        main = next(mark for mark in own if mark[0] - marks.PHASE_BASE in _COMPUTE)
        pass_serial = marks.unpack_item(collected.item)[0] if collected.item >= 0 else 0
        row = Row(
            self._next_step,
            min(mark[2] for mark in own),
            max(mark[3] for mark in own),
            0,
            semconv.FLAG_INCOMPLETE,
            self._item(collected),
            collected.totals,
            collected.first_sequence,
        )
        self._add_row(row, serial, main[1], pass_serial, 0, collected.marks)

    def _close_part(self, last: bool) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        info = self._known
        run = self._scopes.get(self._run_serial)
        settings = run.attributes if run else {}
        attributes = window_attributes(part, self._so_far, last)
        attributes[semconv.WINDOW_RECORD_LEVEL] = settings.get(semconv.WINDOW_RECORD_LEVEL, 0)
        reason = settings.get(semconv.WINDOW_RECORD_REASON)
        if reason:
            attributes[semconv.WINDOW_RECORD_REASON] = reason
        attributes[semconv.SPANS_EMITTED] = self.emitted + 1
        attributes[semconv.TRACER_DROPPED] = self.lost
        trace, span = self._window_ids(part)
        start, end = part.rows[0].start, max(row.end for row in part.rows)
        self._emit(
            semconv.WINDOW, trace, span, 0, start, end, attributes, links=[self._link_to_run(info)]
        )  # fmt: skip

    # --- Detail -----------------------------------------------------------------------------------------

    def _emit_step(
        self,
        row: Row,
        trace_kind: str,
        number: int,
        weight: int,
        lane: int,
        scope: _Scope | None,
        samples: int,
        phases: list[Mark],
    ) -> bool:
        """Emit the step's span and its phases; return False when this rank sends none of this step."""
        info = self._known
        own: list[Mark] = []
        fetched: list[Mark] = []
        for mark in phases:
            name = semconv.PHASES[mark[0] - marks.PHASE_BASE]
            if name in _RUN_TRACE_PHASES:
                continue
            remote = name in semconv.WORKER_PHASES and self._worker(mark[1]) is not None
            (fetched if remote else own).append(mark)
        reduced = [mark for mark in own if semconv.PHASES[mark[0] - marks.PHASE_BASE] in _REDUCED]
        share = share_of_rank(info.rank, info.world_size, len(own) + 1, len(reduced) + 1)
        if share == "none":
            return False
        if share == "reduced":
            own, fetched = reduced, []
        trace = semconv.trace_id(info.run_id, info.attempt, trace_kind, number)
        step_id = semconv.span_id(info.run_id, info.attempt, trace_kind, number, info.rank)
        attributes: Attributes = {
            semconv.LANE: self._text(lane) or "main",
            semconv.STEP_NUMBER: row.step,
            semconv.STEP_KIND: _STEP_KINDS[trace_kind],
            semconv.STEP_MICRO: row.micro,
            semconv.WEIGHT: weight,
            semconv.EVIDENCE: "inferred",
        }
        if samples > 0:
            attributes[semconv.STEP_SAMPLES] = samples
        if scope is not None and scope.number >= 0 and trace_kind != semconv.TRACE_EVAL_STEP:
            attributes[semconv.EPOCH_NUMBER] = scope.number
        self._emit(
            semconv.STEP, trace, step_id, 0, row.start, row.end, attributes, links=[self._link_to_run(info)]
        )  # fmt: skip
        self._emit_nested(own[: semconv.MAX_SPANS_PER_TRACE - 1], trace, step_id, row.step)
        self._emit_fetched(fetched, row.step)
        return True

    def _emit_nested(self, phases: list[Mark], trace: int, step_id: int, step: int) -> None:
        """Emit phases under the step, each inside the one of its lane that encloses it in time."""
        stacks: dict[int, list[tuple[int, int]]] = {}
        for mark in sorted(phases, key=lambda mark: (mark[2], -mark[3])):
            lane, t1 = mark[1], mark[3]
            stack = stacks.setdefault(lane, [])
            while stack and stack[-1][0] < t1:
                stack.pop()
            span_id = self._random_id()
            parent = stack[-1][1] if stack else step_id
            self._emit_phase(mark, trace, span_id, parent, step)
            stack.append((t1, span_id))

    def _emit_fetched(self, phases: list[Mark], step: int) -> None:
        """Emit what loader workers did, under the window: it overlaps other steps than the waiting one."""
        part = self._part
        if part is None:
            return
        room = worker_spans_per_part(self._known.world_size) - part.worker_spans
        trace, parent = self._window_ids(part)
        for mark in phases[: max(room, 0)]:
            part.worker_spans += 1
            self._emit_phase(mark, trace, self._random_id(), parent, step)

    def _emit_phase(self, mark: Mark, trace: int, span_id: int, parent: int, step: int) -> None:
        kind, lane, t0, t1, _, item, _, _ = mark
        name = semconv.PHASES[kind - marks.PHASE_BASE]
        attributes: Attributes = {semconv.LANE: self._text(lane) or "main", semconv.STEP_NUMBER: step}
        if item >= 0:
            pass_serial, batch = marks.unpack_item(item)
            attributes[semconv.ITEM] = f"{pass_serial}:{batch}"
        self._emit(name, trace, span_id, parent, t0, t1, attributes)

    def _emit_outside_rows(self, phases: Iterable[Mark]) -> None:
        for mark in phases:
            if semconv.PHASES[mark[0] - marks.PHASE_BASE] in _OUTSIDE_ROWS:
                self._emit_in_run_trace(mark, None)

    def _emit_run_trace_phases(self, phases: Iterable[Mark], step: int) -> None:
        for mark in phases:
            if semconv.PHASES[mark[0] - marks.PHASE_BASE] in _RUN_TRACE_PHASES:
                self._emit_in_run_trace(mark, step)

    def _emit_in_run_trace(self, mark: Mark, step: int | None) -> None:
        kind, lane, t0, t1, _, _, number, _ = mark
        if self._run_trace_phases >= MAX_RUN_TRACE_PHASES:
            return
        self._run_trace_phases += 1
        name = semconv.PHASES[kind - marks.PHASE_BASE]
        attributes: Attributes = {semconv.LANE: self._text(lane) or "main"}
        if step is not None:
            attributes[semconv.STEP_NUMBER] = step
        if name in _CHECKPOINTS and number > 0:
            attributes[_BYTES] = number
        around = [scope for scope in self._scopes.values() if scope.start <= t0]
        innermost = max(around, key=lambda scope: scope.start, default=None)
        parent = innermost.span_id if innermost else self._run_span_id(self._known.rank)
        self._emit(name, self._run_trace, self._random_id(), parent, t0, t1, attributes)

    # --- Names and ids ----------------------------------------------------------------------------------

    def _emit(
        self,
        name: str,
        trace: int,
        span: int,
        parent: int,
        start: int,
        end: int,
        attributes: Attributes,
        error: str | None = None,
        links: list[Link] | None = None,
    ) -> None:
        offset = self._known.perf_to_unix_ns
        start, end = start + offset, end + offset
        self._out.append(Span(name, trace, span, parent, start, end, attributes, links or [], error))
        self.emitted += 1

    def _taken(self) -> list[Span]:
        taken, self._out = self._out, []
        return taken

    @property
    def _known(self) -> marks.RunInfo:
        assert self.info is not None  # no mark is taken before
        return self.info

    @property
    def _run_start(self) -> int:
        scope = self._scopes.get(self._run_serial)
        return scope.start if scope else self._first_time

    @property
    def _run_trace(self) -> int:
        return semconv.trace_id(self._known.run_id, self._known.attempt, semconv.TRACE_RUN)

    def _run_span_id(self, rank: int) -> int:
        return semconv.span_id(self._known.run_id, self._known.attempt, semconv.RUN, 0, rank)

    def _window_ids(self, part: Part) -> tuple[int, int]:
        """Return trace id and span id of the span of ``part``."""
        info = self._known
        shard = semconv.window_shard(info.rank, part.number)
        trace = semconv.trace_id(info.run_id, info.attempt, semconv.TRACE_WINDOW, part.window, shard)
        span = semconv.span_id(info.run_id, info.attempt, semconv.WINDOW, part.window, info.rank, part.number)
        return trace, span

    def _link_to_run(self, info: marks.RunInfo) -> Link:
        return Link(self._run_trace, self._run_span_id(info.rank), {semconv.LINK_KIND: "run"})

    def _text(self, number: int) -> str:
        return self._strings[number] if 0 <= number < len(self._strings) else ""

    def _worker(self, lane: int) -> int | None:
        """Return the number of the loader worker whose lane this is, None for any other lane."""
        if lane not in self._workers:
            match = _WORKER_LANE.match(self._text(lane))
            self._workers[lane] = int(match.group(2)) if match else None
        return self._workers[lane]

    def _random_id(self) -> int:
        return self._random.getrandbits(64) or 1


_SCOPE_VALUES: Final = frozenset({marks.SCOPE_INT, marks.SCOPE_BOOL, marks.SCOPE_TEXT, marks.SCOPE_DOUBLE})
_WORKER_KINDS: Final = frozenset(marks.phase_kind(name) for name in semconv.WORKER_PHASES)
_STEP_KINDS: Final = {
    semconv.TRACE_STEP: "train",
    semconv.TRACE_EVAL_STEP: "evaluate",
    semconv.TRACE_INCOMPLETE_STEP: "incomplete",
}
