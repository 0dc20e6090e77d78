# SPDX-License-Identifier: Apache-2.0
"""Marks in, spans out: the conversion that docs/telemetry.md describes, for one ring.

No input or output, no clock: times come with the marks or from the caller, so that a relay and a thread in
the training process do the same, and tests compute by hand what must come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from grademl_otel import marks, semconv
from grademl_otel.convert.bounds import cells_per_part
from grademl_otel.convert.checkpoints import CHECKPOINTS, describe_checkpoint
from grademl_otel.convert.collectives import COLLECTIVE
from grademl_otel.convert.compilations import describe_compilation
from grademl_otel.convert.cuts import Cut
from grademl_otel.convert.detail import TARGET_SPANS_PER_S, OutlierDetector
from grademl_otel.convert.emitter import UNNAMED, Emitter, Event, phase_name
from grademl_otel.convert.held import LONGEST_NS, HeldRow, HeldRows
from grademl_otel.convert.parts import Parts
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.rows import NO_ITEM, OpenRow, Row
from grademl_otel.convert.scopes import RunTotals, Scope, Scopes
from grademl_otel.convert.spans import Attributes, Span
from grademl_otel.convert.stepspans import RUN_TRACE_PHASES, Kept, emit_lost_step, emit_step
from grademl_otel.convert.windows import Cumulative, Part, Silence, part_interval, window_attributes
from grademl_otel.ring.reader import Mark, OpenPhase

How = Literal["exit", "killed"]

MAX_OPEN_ROWS: Final = 256
"""When so many rows are open, the closing mark of the oldest was lost: it is given up."""
_MAX_EARLY_MARKS: Final = 4096
_SECOND: Final = 1_000_000_000
_NEVER: Final = 1 << 63
_MAX_DEVICES: Final = 64
_DEVICE_KINDS: Final = frozenset(map(marks.device_kind, semconv.DEVICE_PHASES))

_OUTSIDE_ROWS: Final = RUN_TRACE_PHASES | {semconv.GC, UNNAMED}
_COMPUTE: Final = frozenset(semconv.PHASE_INDEX[name] for name in (semconv.FORWARD, semconv.BACKWARD))
_ROW_NOTES: Final = frozenset({marks.ROW_BESIDE, marks.ROW_CONTEXT, marks.ROW_LINK, marks.ROW_SAID})
_WORKER_KINDS: Final = frozenset(marks.phase_kind(name) for name in semconv.WORKER_PHASES)
_SCOPE_VALUES: Final = frozenset({marks.SCOPE_INT, marks.SCOPE_BOOL, marks.SCOPE_TEXT, marks.SCOPE_DOUBLE})
_PHASE_KINDS: Final = range(marks.PHASE_BASE, marks.PHASE_BASE + len(semconv.PHASES))
_RUN_ID: Final = re.compile("[0-9a-f]{32}")
_RUN_INFO_START: Final = '{"attempt":'


class Converter:
    """Turns the marks of one ring into the spans of one rank of one run.

    ``strings`` is the reader's list of interned texts, which grows while marks arrive; ``progress`` is where
    an earlier converter of the same ring has stopped: marks that it told are then read for their state only;
    what it has told beyond that is told as it was, with the ``cuts`` that it made.
    """

    def __init__(self, strings: Sequence[str], progress: Progress | None = None, cuts: Iterable[Cut] = ()):
        self._strings = strings
        self._resumed = progress
        self._emitter: Emitter | None = None
        self._scopes: Scopes | None = None
        self._early: list[tuple[int, Mark]] = []
        self._provisional = ""
        self._open_rows: dict[int, OpenRow] = {}
        self._held = HeldRows()
        self._memory: dict[int, Mark] = {}
        """The last DEVICE_MEMORY of each device."""
        self._last_row = 0
        self._parts = Parts(cuts)
        self._so_far = Cumulative()
        self._incomplete = 0
        self._next_step = 0
        self._outliers = OutlierDetector()
        self._silence = Silence()
        self._first_time = 0
        self._last_time = 0
        self._sequence = 0
        self._finished = False
        self.lost = 0
        """Marks that the reader missed, plus those that the process gave up; the caller keeps it up to date.
        """
        if progress is not None:
            self._resume(progress)

    # --- What callers do --------------------------------------------------------------------------------

    @property
    def info(self) -> marks.RunInfo | None:
        """Whose marks these are; None until the ring said it."""
        return self._emitter.info if self._emitter else None

    @property
    def cuts(self) -> Sequence[Cut]:
        """Parts that the clock has closed, the latest last."""
        return self._parts.cuts

    def feed(self, batch: Iterable[Mark], first_sequence: int) -> list[Span]:
        """Take further marks, consecutive from ``first_sequence`` on; return the spans that they complete."""
        if self._emitter is None and self._resumed is not None and self._recall_info():
            self._go_on(self._resumed)
        sequence = first_sequence
        for mark in batch:
            if self._emitter is None:
                self._take_early(sequence, mark)
            else:
                self._take(sequence, mark)
            sequence += 1
        if self._emitter is None and self.lost and self._recall_info():
            self._take_held()
        return self._taken()

    def name_of(self, kind: int) -> str:
        """Return the name of the phases of ``kind``; to be called once `info` is known."""
        assert self._emitter is not None
        return self._emitter.name_of(kind)

    def learn_names(self, totals: Sequence[int]) -> None:
        """Take from the ring's accumulators (`marks.ACC_SLOTS`) what the program calls its own phases."""
        if self._emitter is not None:
            for place, kind in enumerate(marks.USER_KINDS):
                self._emitter.learn(kind, totals[marks.ACC_USER_NAMES + place])

    def flush(self, now: int, open_phases: Sequence[OpenPhase] = ()) -> list[Span]:
        """Close the part of the window that is due at ``now`` (ns of ``perf_counter``), marks or not.

        ``open_phases`` is what runs at that moment. Where a step runs for longer than a part, one without
        rows says so: it is seen while it runs, and so is a process that hangs.
        """
        scopes = self._scopes
        if scopes is None or self._finished:
            return []
        self._unmute()
        self._tell_held(now - LONGEST_NS)
        running = scopes.running(open_phases, now)
        part = self._parts.open
        if part is not None and part.due(now, self._run_start):
            self._cut_part(running)
        if self._silence.lasts(self._so_far.rows, now, part_interval(now - self._run_start)) and (
            running is not None or self._open_rows
        ):
            self._say_alive(now, running)
        return self._taken()

    def cut(self) -> list[Span]:
        """Close the part of the window that is open, due or not."""
        self._unmute()
        if self._scopes is not None and not self._finished:
            self._cut_part()
        return self._taken()

    def finish(
        self, how: How, open_phases: Sequence[OpenPhase], now: int, totals: Sequence[int] | None = None
    ) -> list[Span]:
        """Close everything at the end of the run and return the last spans; the converter is done then.

        ``how`` is ``killed`` when the process died without a word; then all ends at its last mark, not at
        ``now``. ``open_phases`` is what ran at that moment and ``totals`` are the ring's accumulators
        (`marks.ACC_SLOTS`), exact even if marks were lost.
        """
        if self._emitter is None and (self._begin(self._provisional) or self._recall_info(provisional=True)):
            self._take_held()  # it died before it knew its run
        if self._scopes is None or self._finished:
            return []
        self._finished = True
        self._unmute()
        killed = how == "killed"
        self._tell_held(_NEVER)
        if killed:
            self._rescue_open_row()
        for serial in tuple(self._open_rows):
            self._give_up_row(serial)
        self._close_part(last=not killed)
        end = self._last_time if killed else max(now, self._last_time)
        self._scopes.finish(killed, end, open_phases, self._totals(totals))
        return self._taken()

    @property
    def caught_up(self) -> bool:
        """False while marks are fed that an earlier converter has told: there is no progress of its own
        yet.
        """
        return self._resumed is None or self._sequence >= self._resumed.fed

    @property
    def progress(self) -> Progress:
        """How far the spans returned so far tell what was fed."""
        pending = [row.first_sequence for row in self._open_rows.values()]
        pending += self._held.first_sequences
        part = self._parts.open
        pending += [row.first_sequence for row in part.rows] if part else []
        pending += [sequence for sequence, _ in self._early[:1]]
        unsent = self._parts.unsent()
        return Progress(
            told=min(pending, default=self._sequence + 1) - 1,
            fed=self._sequence,
            run_start=self._run_start,
            steps=self._so_far.steps - unsent.steps,
            eval_steps=self._so_far.eval_steps - unsent.eval_steps,
            rows=self._so_far.rows - unsent.rows,
            incomplete=self._incomplete,
            next_step=self._next_step,
            emitted=self._emitter.emitted if self._emitter else 0,
            **self._parts.progress(),
            **(self._scopes.progress() if self._scopes else {}),
        )

    @property
    def run_start_unix_ns(self) -> int:
        """Unix time of the run's start, 0 when not known yet."""
        return self._run_start + self._emitter.info.perf_to_unix_ns if self._emitter else 0

    # --- Beginning --------------------------------------------------------------------------------------

    def _take_early(self, sequence: int, mark: Mark) -> None:
        """Hold marks back until the run is known: no span can be named before."""
        self._early.append((sequence, mark))
        self._sequence = sequence
        if mark[0] == marks.RUN_INFO:
            text = self._strings[mark[5]] if 0 <= mark[5] < len(self._strings) else ""
            if mark[6] == marks.PROVISIONAL:
                self._provisional = text
            elif self._begin(text):
                self._take_held()
        elif len(self._early) > _MAX_EARLY_MARKS:
            del self._early[0]

    def _take_held(self) -> None:
        early, self._early = self._early, []
        if self._scopes is not None and early and early[0][0] > 1:
            self._scopes.begin_run(early[0][1])
        for sequence, mark in early:
            self._take(sequence, mark)

    def _begin(self, text: str) -> bool:
        try:
            info = marks.RunInfo.from_json(text)
        except (ValueError, TypeError, KeyError):
            return False
        if not _plausible(info):
            return False
        resource = {key: value for key, value in info.resource.items() if _attribute(value)}
        self._emitter = Emitter(replace(info, resource=resource), self._strings)
        self._scopes = Scopes(self._emitter)
        return True

    def _resume(self, progress: Progress) -> None:
        self._so_far = Cumulative(progress.steps, progress.eval_steps, progress.rows)
        self._incomplete = progress.incomplete
        self._next_step = progress.next_step
        self._first_time = progress.run_start
        self._parts.resume(progress)

    def _recall_info(self, provisional: bool = False) -> bool:
        """Find the run among the ring's texts: its mark may be overwritten long since."""
        return any(
            (text.lstrip() if provisional else text).startswith(_RUN_INFO_START) and self._begin(text)
            for text in self._strings
        )

    def _go_on(self, progress: Progress) -> None:
        """Go on with the run where an earlier converter has stopped."""
        assert self._emitter is not None
        assert self._scopes is not None
        self._emitter.emitted = progress.emitted
        self._scopes.resume(progress)

    # --- Marks ------------------------------------------------------------------------------------------

    def _take(self, sequence: int, mark: Mark) -> None:
        kind, _, t0, t1, *_ = mark
        self._sequence = sequence
        if not 0 <= t0 <= t1:
            return
        emitter, scopes = self._emitter, self._scopes
        assert emitter is not None
        assert scopes is not None
        emitter.muted = self._resumed is not None and sequence <= self._resumed.fed
        self._last_time = max(self._last_time, t1)
        self._first_time = self._first_time or t0
        if kind in _PHASE_KINDS or kind in marks.USER_KINDS:
            self._take_phase(sequence, mark)
        elif kind == marks.ROW:
            self._take_row(sequence, mark)
        elif kind in _ROW_NOTES:
            if mark[4] > 0:
                self._open_row(sequence, mark[4]).note(mark)
        elif kind in _DEVICE_KINDS:
            self._take_device_phase(sequence, mark)
        elif kind == marks.ROW_DEVICE:
            self._take_row_device(mark)
        elif kind == marks.DEVICE_MEMORY:
            if 0 < mark[4] <= _MAX_DEVICES:
                self._memory[mark[4] - 1] = mark
        elif kind == marks.SCOPE_OPEN:
            scopes.take_open(mark)
        elif kind == marks.SCOPE_CLOSE:
            scopes.take_close(mark)
        elif kind in _SCOPE_VALUES:
            if kind == marks.SCOPE_INT and emitter.text(mark[5]) == semconv.WINDOW_RECORD_LEVEL:
                self._tell_held(_NEVER)
                self._close_part(last=False)  # all rows of a part were recorded alike
            scopes.take_value(mark)
        elif kind == marks.RUN_INFO:
            scopes.run_serial = mark[4]

    def _take_phase(self, sequence: int, mark: Mark) -> None:
        kind, serial = mark[0], mark[4]
        if kind in marks.USER_KINDS and self._emitter is not None:
            self._emitter.learn(kind, mark[7])
        if serial <= 0:
            self._emit_outside_rows([(sequence, mark)])
            return
        if kind == COLLECTIVE and self._take_late(sequence, mark):
            return
        self._open_row(sequence, serial).add(kind - marks.PHASE_BASE, (sequence, mark))

    def _take_late(self, sequence: int, mark: Mark) -> bool:
        """Take a collective that has ended after its row; return False where that is open."""
        held = self._held.get(mark[4])
        if held is None:
            return self._held.was_told(mark[4])
        held.collected.add(mark[0] - marks.PHASE_BASE, (sequence, mark))
        self._tell_held()
        return True

    def _take_device_phase(self, sequence: int, mark: Mark) -> None:
        """What a device did for a row that is open or held; one that is gone has been told without."""
        held = self._held.get(mark[4])
        row = self._open_rows.get(mark[4]) if held is None else held.collected
        if row is not None:
            row.add(mark[0] - marks.PHASE_BASE, (sequence, mark))

    def _take_row_device(self, mark: Mark) -> None:
        """All is told of what a device did for a row."""
        held = self._held.get(mark[4])
        if held is None:
            if mark[4] in self._open_rows:
                self._open_rows[mark[4]].note(mark)
            return
        held.collected.note(mark)
        held.waits = False
        self._tell_held()

    def _open_row(self, sequence: int, serial: int) -> OpenRow:
        """Return the open row ``serial``, which the mark ``sequence`` may be the first of."""
        row = self._open_rows.get(serial)
        if row is None:
            if len(self._open_rows) >= MAX_OPEN_ROWS:
                self._give_up_row(next(iter(self._open_rows)))
            row = self._open_rows[serial] = OpenRow(sequence)
        return row

    def _give_up_row(self, serial: int) -> None:
        """Tell what can be told of a row whose end does not come."""
        assert self._emitter is not None
        row = self._open_rows.pop(serial)
        self._emit_outside_rows(row.events)
        if row.asked is not None:
            emit_lost_step(self._emitter, serial, row, self._next_step)

    # --- Rows -------------------------------------------------------------------------------------------

    def _take_row(self, sequence: int, mark: Mark) -> None:
        _, lane, t0, t1, serial, step, packed, samples = mark
        unpacked, micro, pass_serial = marks.unpack_row(packed)
        collected = self._open_rows.pop(serial, None) or OpenRow(sequence)
        collected.sampled = not unpacked & marks.UNSAMPLED
        flags = unpacked & (semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE)
        if collected.skipped:
            flags |= semconv.FLAG_SKIPPED
        self._last_row = max(self._last_row, serial)
        item = self._item(collected)
        row = Row(step, t0, t1, lane, micro, flags, item, collected.totals, collected.first_sequence)
        if unpacked & marks.SEVERAL and row.training:
            row.steps, samples = min(max(samples, 1), semconv.MAX_STEPS_PER_ROW), 0
            row.item = (pass_serial or -1, *NO_ITEM[1:])
        if self._resumed is not None and sequence <= self._resumed.told:
            if row.training:
                self._outliers.is_outlier(t1 - t0)
            self._held.tell(serial)
            return
        waits = bool(unpacked & marks.DEVICE_LATER) and not collected.device_told
        self._held.put(self._closed(row, serial, pass_serial, samples, collected, waits))
        self._tell_held()

    def _closed(
        self, row: Row, serial: int, pass_serial: int, samples: int, collected: OpenRow, waits: bool = False
    ) -> HeldRow:
        assert self._scopes is not None
        return HeldRow(row, serial, self._scopes.get(pass_serial), samples, collected, waits)

    def _tell_held(self, before: int = -1) -> None:
        """Tell the rows whose turn it is, and all that ended before ``before`` (ns)."""
        for held in self._held.ready(before):
            self._add_row(held)

    def _add_row(self, held: HeldRow) -> None:
        emitter = self._emitter
        assert emitter is not None
        row, serial, scope, samples, collected = (
            held.row, held.serial, held.scope, held.samples, held.collected,
        )  # fmt: skip
        row.device_lost = collected.device_lost
        part = self._part_for(row)
        kind, number = self._kind_and_number(row, serial)
        weight = self._weight(row, number, collected, part.detail_level)
        if weight is not None or collected.asked is not None:
            epoch = scope.number if scope else -1
            kept = Kept(row, serial, kind, number, weight, epoch, samples, collected)
            if emit_step(emitter, kept, part):
                row.flags |= semconv.FLAG_DETAILED
        for event in collected.events:
            if phase_name(event[1]) in RUN_TRACE_PHASES:
                self._emit_in_run_trace(event, row.step)
        part.add(row, self._sequence)
        self._count(row, scope)
        if row.training and part.complete:
            self._close_part(last=True)
        elif self._parts.ends_with(row, part, self._run_start):
            self._close_part(last=False)

    def _part_for(self, row: Row) -> Part:
        """Return the part that ``row`` belongs to; closes the one before where its window ends."""
        window = semconv.window_of_step(max(row.step, 0))
        if self._parts.open is not None and self._parts.open.window != window:
            self._close_part(last=False)
        return self._parts.open or self._parts.begin(window, row.start, self._max_cells)

    def _kind_and_number(self, row: Row, serial: int) -> tuple[str, int]:
        """Return the kind of the trace that this row's detail would have, and its number there."""
        if row.flags & semconv.FLAG_INCOMPLETE:
            return semconv.TRACE_INCOMPLETE_STEP, serial
        if row.flags & semconv.FLAG_EVALUATE:
            return semconv.TRACE_EVAL_STEP, self._so_far.eval_steps
        return semconv.TRACE_STEP, row.step

    def _weight(self, row: Row, number: int, collected: OpenRow, level: int) -> int | None:
        """Return how many steps this one's detail stands for, None when it is not kept; flags outliers."""
        assert self._emitter is not None
        duration = row.end - row.start
        spans = len(collected.events) + 1
        if row.steps > 1:
            return None  # there is nothing to show
        outlier = row.training and self._outliers.is_outlier(duration)
        if outlier:
            row.flags |= semconv.FLAG_OUTLIER
        if not collected.sampled:
            return None
        if row.flags & semconv.FLAG_INCOMPLETE:
            return 1 if self._outliers.afford(spans, row.end) else None
        if duration >= semconv.SLOW_STEP_NS and spans * _SECOND <= TARGET_SPANS_PER_S * duration:
            return 1
        if semconv.detail_bits(self._emitter.info.run_id, number) >= level:
            self._parts.governor.count(spans, row.start)
            return 1 << level
        if (outlier or collected.asked is not None) and self._outliers.afford(spans, row.end):
            return 0
        return None

    def _count(self, row: Row, scope: Scope | None) -> None:
        assert self._emitter is not None
        self._so_far.add(row)
        if row.training:
            self._next_step = row.step + row.steps
            self._parts.trained = True
        if self._emitter.muted:
            return  # counted by the converter before
        if row.flags & semconv.FLAG_INCOMPLETE:
            self._incomplete += 1
        elif scope is not None and row.training:
            scope.steps += row.steps
        elif scope is not None:
            scope.eval_steps += 1

    def _item(self, row: OpenRow) -> tuple[int, int, int, int]:
        """Return pass, batch, loader and worker of the first batch of ``row``."""
        assert self._emitter is not None
        assert self._scopes is not None
        if row.item < 0:
            return NO_ITEM
        pass_serial, batch = marks.unpack_item(row.item)
        scope = self._scopes.get(pass_serial)
        loader = scope.attributes.get(semconv.LOADER_ID, -1) if scope else -1
        worker = -1
        for _, mark in row.events:
            if mark[5] == row.item and mark[0] in _WORKER_KINDS:
                number = self._emitter.worker(mark[1])
                worker = -1 if number is None else number
                break
        return pass_serial, batch, loader if isinstance(loader, int) else -1, worker

    def _rescue_open_row(self) -> None:
        """Make an incomplete row of the step that was running when the process died, if it had computed.

        What was to be part of the one after it may have its marks already.
        """
        for serial in sorted(self._open_rows, reverse=True)[:2]:
            if serial > self._last_row and self._rescue(serial):
                return

    def _rescue(self, serial: int) -> bool:
        assert self._emitter is not None
        collected = self._open_rows[serial]
        own = [
            mark
            for _, mark in collected.events
            if mark[0] < marks.DEVICE_BASE and self._emitter.worker(mark[1]) is None
        ]
        computed = next((mark for mark in own if mark[0] - marks.PHASE_BASE in _COMPUTE), None)
        if computed is None and not collected.said_at:
            return False
        del self._open_rows[serial]
        item = self._item(collected)
        began = [collected.said_at] if collected.said_at else []
        start = min([*began, *(mark[2] for mark in own)])
        end = max([*began, *(mark[3] for mark in own)])
        lane = computed[1] if computed is not None else own[0][1] if own else 0
        flags = semconv.FLAG_INCOMPLETE
        row = Row(
            self._next_step, start, end, lane, 0, flags, item, collected.totals,
            collected.first_sequence,
        )  # fmt: skip
        self._add_row(self._closed(row, serial, max(item[0], 0), 0, collected))
        return True

    def _cut_part(self, running: OpenPhase | None = None) -> None:
        """Close the part that is open, for no reason that lies in the marks."""
        if self._parts.open is not None:
            self._parts.cut(self._parts.open)
        self._close_part(last=False, running=running)

    def _close_part(self, last: bool, running: OpenPhase | None = None) -> None:
        part = self._parts.close()
        if part is None or not part.rows:
            return
        start, end = part.rows[0].start, max(row.end for row in part.rows)
        self._emit_window(part, start, end, last, running)

    def _say_alive(self, now: int, running: OpenPhase | None) -> None:
        """Emit a part without rows, from the last mark to ``now``."""
        part = self._parts.next(semconv.window_of_step(max(self._next_step, 0)), self._max_cells)
        self._parts.cut(part)
        self._emit_window(part, min(self._last_time, now), now, False, running)

    def _emit_window(self, part: Part, start: int, end: int, last: bool, running: OpenPhase | None) -> None:
        emitter, scopes = self._emitter, self._scopes
        assert emitter is not None
        assert scopes is not None
        attributes = window_attributes(part, self._so_far, last, emitter.name_of)
        lanes = [emitter.lane(lane) for lane in part.lanes]
        if lanes not in ([], ["main"]):
            attributes[semconv.WINDOW_LANES] = lanes
        attributes.update(scopes.of_windows())
        attributes.update(scopes.left_out())
        attributes.update(_memory_attributes(self._memory))
        if running is not None:
            attributes[semconv.OPEN_PHASE] = emitter.name_of(running.kind)
            attributes[semconv.OPEN_SINCE] = running.t0 + emitter.info.perf_to_unix_ns
        attributes[semconv.SPANS_EMITTED] = emitter.emitted + 1
        attributes[semconv.TRACER_DROPPED] = self.lost
        trace, span = emitter.window_ids(part.window, part.number)
        emitter.emit(semconv.WINDOW, trace, span, 0, start, end, attributes, link_to_run=True)

    # --- Phases outside of steps ------------------------------------------------------------------------

    def _emit_outside_rows(self, phases: Iterable[Event]) -> None:
        for event in phases:
            if phase_name(event[1]) in _OUTSIDE_ROWS:
                self._emit_in_run_trace(event, None)

    def _emit_in_run_trace(self, event: Event, step: int | None) -> None:
        emitter, scopes = self._emitter, self._scopes
        assert emitter is not None
        assert scopes is not None
        if emitter.muted or not scopes.phases.take():
            return
        mark = event[1]
        attributes: Attributes = {} if step is None else {semconv.STEP_NUMBER: step}
        error = None
        if phase_name(mark) in CHECKPOINTS:
            error = describe_checkpoint(mark, emitter.text(mark[7]), attributes)
        elif phase_name(mark) == semconv.COMPILE:
            reason = emitter.text(mark[5])
            error = describe_compilation(mark, emitter.text(mark[7]), reason, attributes)
        parent = scopes.span_around(mark[2])
        emitter.emit_phase(event, emitter.run_trace, parent, attributes, error)

    # --- Helpers ----------------------------------------------------------------------------------------

    def _totals(self, totals: Sequence[int] | None) -> RunTotals:
        so_far = self._so_far
        if totals is None:
            return RunTotals(so_far.steps, so_far.eval_steps, self._incomplete, None, self.lost)
        return RunTotals(
            totals[marks.ACC_STEPS],
            totals[marks.ACC_EVAL_STEPS],
            # The step that a killed process was in is no total of its own.
            max(totals[marks.ACC_INCOMPLETE], self._incomplete),
            totals[marks.ACC_COST_NS],
            self.lost,
        )

    def _unmute(self) -> None:
        if self._emitter is not None:
            self._emitter.muted = False

    def _taken(self) -> list[Span]:
        return self._emitter.take() if self._emitter else []

    @property
    def _max_cells(self) -> int:
        assert self._emitter is not None
        return cells_per_part(self._emitter.info.world_size)

    @property
    def _run_start(self) -> int:
        start = self._scopes.run_start() if self._scopes else None
        return self._first_time if start is None else start


def _memory_attributes(memory: Mapping[int, Mark]) -> Attributes:
    """What was known last of the memory of each device."""
    known = sorted(memory.items())
    if not known:
        return {}
    return {
        semconv.DEVICE_MEMORY_INDEX: [device for device, _ in known],
        semconv.DEVICE_MEMORY_ALLOCATED: [mark[5] for _, mark in known],
        semconv.DEVICE_MEMORY_RESERVED: [mark[6] for _, mark in known],
        semconv.DEVICE_MEMORY_PEAK: [mark[7] for _, mark in known],
    }


def _plausible(info: marks.RunInfo) -> bool:
    """Return True when ``info`` is what a process writes; the ring may be damaged, or not ours at all."""
    numbers = (info.attempt, info.rank, info.local_rank, info.world_size)
    return (
        isinstance(info.run_id, str)
        and _RUN_ID.fullmatch(info.run_id) is not None
        and all(type(number) is int and 0 <= number < 1 << 31 for number in numbers)
        and type(info.perf_to_unix_ns) is int
        and 0 <= info.perf_to_unix_ns < 1 << 62
        and all(isinstance(text, str) for text in (info.store, info.script, *info.exporters))
        and isinstance(info.resource, dict)
    )


def _attribute(value: object) -> bool:
    """Return True for what OTLP takes as an attribute's value."""
    if isinstance(value, list):
        return all(type(element) is type(value[0]) and _attribute(element) for element in value)
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, str | bool | float)
