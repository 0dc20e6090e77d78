# SPDX-License-Identifier: Apache-2.0
"""Scopes of the workflow: the run and the passes in it, from their opening marks to their spans."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grademl_otel import marks, semconv
from grademl_otel.convert.bounds import admitted, spans_of_run
from grademl_otel.convert.emitter import Emitter
from grademl_otel.convert.origin import links_of, parent_run
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.spans import Attributes, Value
from grademl_otel.ring.reader import Mark, OpenPhase

_MAX_OPEN: Final = 1024
_TRUE: Final = 1
_KILLED: Final = "killed"
_ERROR_TYPE: Final = "error.type"
_CHECKPOINT: Final = marks.SCOPE_INDEX[semconv.CHECKPOINT_SAVE]
"""What is saved beside the training: it holds nothing, and may outlast what it began in."""
_OF_WINDOWS_ONLY: Final = (semconv.WINDOW_RECORD_LEVEL, semconv.WINDOW_RECORD_REASON)
_OF_WINDOWS: Final = frozenset({semconv.DEVICE, semconv.GPU_ID, *_OF_WINDOWS_ONLY})
"""Set on the run's scope, and said by each window from then on."""


@dataclass(slots=True)
class Scope:
    """A span of the workflow that is open."""

    serial: int
    parent: int
    index: int
    """Into `marks.SCOPES`; for a pass a guess until it closes."""
    number: int
    """Of the epoch; -1 for none."""
    start: int
    lane: int
    steps: int = 0
    eval_steps: int = 0
    sent: bool = True
    """Whether the run's trace has room for its span."""
    attributes: Attributes = field(default_factory=dict)


class Places:
    """The places for spans of one kind in the run's trace: half of what the rank may send each."""

    def __init__(self, rank: int, world_size: int):
        self._room = spans_of_run(rank, world_size) // 2
        self.asked = 0
        self.left_out = 0

    def take(self) -> bool:
        """Ask for a place; False when the next one has none, and is counted as left out."""
        given = admitted(self.asked, self._room)
        self.asked += 1
        self.left_out += not given
        return given


@dataclass(slots=True)
class RunTotals:
    """What the run span says of the whole run."""

    steps: int
    eval_steps: int
    incomplete: int
    cost_ns: int | None
    lost: int


class Scopes:
    """The scopes of one rank that are open now."""

    def __init__(self, emitter: Emitter):
        self._emitter = emitter
        self._open: dict[int, Scope] = {}
        self._of_windows: dict[str, int] = {}
        """Values of `_OF_WINDOWS`, of a text its id."""
        self.passes = Places(emitter.info.rank, emitter.info.world_size)
        self.phases = Places(emitter.info.rank, emitter.info.world_size)
        self.run_serial = 0
        self._run_end: int | None = None
        self._run_error: str | None = None

    def get(self, serial: int) -> Scope | None:
        """Return the open scope with this serial."""
        return self._open.get(serial)

    @property
    def open(self) -> list[Scope]:
        """Scopes that are open, outermost first."""
        return list(self._open.values())

    def of_windows(self) -> Attributes:
        """Return what the windows say of the run, which may go on for long or never report its end."""
        known = self._of_windows
        attributes: Attributes = {
            semconv.SCRIPT: self._emitter.info.script,
            semconv.WINDOW_RECORD_LEVEL: known.get(semconv.WINDOW_RECORD_LEVEL, 0),
        }
        for key in (semconv.DEVICE, semconv.GPU_ID, semconv.WINDOW_RECORD_REASON):
            if text := self._emitter.text(known.get(key, 0)):
                attributes[key] = _value(key, text)
        return attributes

    def progress(self) -> dict[str, Any]:
        """Return the fields of `Progress` that are about scopes."""
        known = self._of_windows
        return {
            "run_serial": self.run_serial,
            "passes": self.passes.asked,
            "passes_left_out": self.passes.left_out,
            "phases": self.phases.asked,
            "phases_left_out": self.phases.left_out,
            "device": known.get(semconv.DEVICE, 0),
            "gpus": known.get(semconv.GPU_ID, 0),
            "record_level": known.get(semconv.WINDOW_RECORD_LEVEL, 0),
            "record_reason": known.get(semconv.WINDOW_RECORD_REASON, 0),
            "scopes": [
                [s.serial, s.parent, s.index, s.number, s.start, s.lane, s.steps, s.eval_steps, int(s.sent)]
                for s in self.open
            ],
        }

    def resume(self, progress: Progress) -> None:
        """Go on from where an earlier relay has stopped."""
        self.run_serial = progress.run_serial
        self.passes.asked, self.passes.left_out = progress.passes, progress.passes_left_out
        self.phases.asked, self.phases.left_out = progress.phases, progress.phases_left_out
        self._of_windows = {
            semconv.DEVICE: progress.device,
            semconv.GPU_ID: progress.gpus,
            semconv.WINDOW_RECORD_LEVEL: progress.record_level,
            semconv.WINDOW_RECORD_REASON: progress.record_reason,
        }
        for serial, parent, index, number, start, lane, steps, eval_steps, sent in progress.scopes:
            if 0 <= index < len(marks.SCOPES):
                scope = Scope(serial, parent, index, number, start, lane, steps, eval_steps, bool(sent))
                self._open[serial] = scope
                for key in (semconv.DEVICE, semconv.GPU_ID) if serial == self.run_serial else ():
                    if text := self._emitter.text(self._of_windows[key]):
                        scope.attributes[key] = _value(key, text)

    def run_start(self) -> int | None:
        """Return when the run began, in ns of ``perf_counter``."""
        run = self._open.get(self.run_serial)
        return run.start if run else None

    def span_around(self, time: int) -> int:
        """Return the id of the span of the innermost scope that was open at ``time``."""
        around = [
            scope
            for scope in self._open.values()
            if scope.start <= time and scope.sent and scope.index != _CHECKPOINT
        ]
        innermost = max(around, key=lambda scope: scope.start, default=None)
        return self._span_id(innermost.serial) if innermost else self._emitter.run_span

    def begin_run(self, mark: Mark) -> None:
        """Have the run begin with ``mark``, the first one that is left: those of its beginning are lost."""
        _, lane, t0, *_ = mark
        self.take_open(
            (marks.SCOPE_OPEN, lane, t0, t0, marks.RUN_SCOPE, 0, marks.SCOPE_INDEX[semconv.RUN], -1)
        )

    def take_open(self, mark: Mark) -> None:
        """Take a SCOPE_OPEN mark."""
        _, lane, t0, _, serial, parent, index, number = mark
        if not 0 <= index < len(marks.SCOPES) or len(self._open) >= _MAX_OPEN or serial in self._open:
            return
        if marks.SCOPES[index] == semconv.RUN and not self.run_serial:
            self.run_serial = serial
        places = self.phases if index == _CHECKPOINT else self.passes
        sent = serial == self.run_serial or self._emitter.muted or places.take()
        self._open[serial] = Scope(serial, parent, index, number, t0, lane, sent=sent)

    def take_value(self, mark: Mark) -> None:
        """Take a mark that sets an attribute of a scope."""
        kind, _, _, _, serial, key, value, _ = mark
        scope = self._open.get(serial)
        name = self._emitter.text(key)
        if scope is None or not name:
            return
        if serial == self.run_serial and name in _OF_WINDOWS:
            self._of_windows[name] = value
        if kind == marks.SCOPE_INT:
            scope.attributes[name] = value
        elif kind == marks.SCOPE_BOOL:
            scope.attributes[name] = value == _TRUE
        elif kind == marks.SCOPE_TEXT:
            scope.attributes[name] = _value(name, self._emitter.text(value))
        else:
            scope.attributes[name] = struct.unpack("<d", struct.pack("<q", value))[0]

    def take_close(self, mark: Mark) -> None:
        """Take a SCOPE_CLOSE mark: emit the scope's span; that of the run waits for its totals."""
        _, _, _, t1, serial, failed, index, error = mark
        scope = self._open.get(serial)
        if scope is None:
            return
        reason = (self._emitter.text(error) or "error") if failed else None
        if serial == self.run_serial:
            self._run_end, self._run_error = t1, reason
            return
        del self._open[serial]
        if 0 <= index < len(marks.SCOPES):
            scope.index = index
        self._emit(scope, t1, reason)

    def finish(self, killed: bool, end: int, open_phases: Sequence[OpenPhase], totals: RunTotals) -> None:
        """Emit whatever is open, the run last, ending at ``end``."""
        if self._run_end is not None:
            killed, end = False, self._run_end  # the run ended in order, even if its process then died
        for scope in reversed(self.open):
            if scope.serial != self.run_serial:
                self._emit(scope, end, _KILLED if killed else None, terminated=killed)
        self._emit_run(killed, end, open_phases, totals)
        self._open.clear()

    def _emit(self, scope: Scope, end: int, error: str | None, terminated: bool = False) -> None:
        if not scope.sent:
            return
        name = marks.SCOPES[scope.index]
        attributes: Attributes = {semconv.LANE: self._emitter.lane(scope.lane), **scope.attributes}
        if name in (semconv.EPOCH, semconv.EVALUATE):
            attributes.setdefault(semconv.STEPS_TOTAL, scope.steps)
            attributes.setdefault(semconv.EVAL_STEPS_TOTAL, scope.eval_steps)
        if name == semconv.CHECKPOINT_SAVE:
            attributes[semconv.CHECKPOINT_PART] = "background"
            attributes[semconv.CHECKPOINT_NUMBER] = scope.number
            attributes.setdefault(semconv.CHECKPOINT_COMPLETED, False)
        if name != semconv.EPOCH:
            attributes.pop(semconv.EPOCH_NUMBER, None)
        elif scope.number >= 0:
            attributes.setdefault(semconv.EPOCH_NUMBER, scope.number)
        if terminated:
            attributes[semconv.TERMINATED] = _KILLED
        elif error is not None:
            attributes[_ERROR_TYPE] = error
        self._emitter.emit(
            name,
            self._emitter.run_trace,
            self._span_id(scope.serial),
            self._parent_span(scope),
            scope.start,
            max(end, scope.start),
            attributes,
            error=error,
        )

    def _emit_run(self, killed: bool, end: int, open_phases: Sequence[OpenPhase], totals: RunTotals) -> None:
        emitter = self._emitter
        scope = self._open.get(self.run_serial)
        start = scope.start if scope else end
        attributes: Attributes = {
            semconv.LANE: "main",
            semconv.SCRIPT: emitter.info.script,
            semconv.EXPORTERS: list(emitter.info.exporters),
        }
        attributes.update(scope.attributes if scope else {})
        for key in _OF_WINDOWS_ONLY:
            attributes.pop(key, None)
        attributes[semconv.STEPS_TOTAL] = totals.steps
        attributes[semconv.EVAL_STEPS_TOTAL] = totals.eval_steps
        attributes[semconv.INCOMPLETE_STEPS_TOTAL] = totals.incomplete
        if totals.cost_ns is not None and end > start:
            attributes[semconv.TRACER_COST] = totals.cost_ns / (end - start)
        attributes[semconv.TRACER_DROPPED] = totals.lost
        attributes[semconv.SPANS_EMITTED] = emitter.emitted + 1
        attributes.update(self.left_out())
        error = self._run_error
        if killed:
            error = _KILLED
            attributes[semconv.ENDED] = attributes[semconv.TERMINATED] = _KILLED
            phase = self._innermost(open_phases)
            if phase:
                attributes[semconv.OPEN_PHASE] = emitter.name_of(phase.kind)
        elif error is not None:
            attributes[semconv.ENDED] = "exception"
            attributes[_ERROR_TYPE] = error
        else:
            attributes[semconv.ENDED] = "exit"
        parent_run_id = parent_run(emitter.info)
        if parent_run_id is not None:
            attributes[semconv.RUN_PARENT] = parent_run_id
        first = emitter.info.rank - emitter.info.rank % semconv.RANKS_PER_RUN_SHARD
        parent = 0 if emitter.info.rank == first else emitter.run_span_of(first)
        emitter.emit(
            semconv.RUN, emitter.run_trace, emitter.run_span, parent, start, max(end, start), attributes,
            error=error, links=links_of(emitter.info),
        )  # fmt: skip

    def left_out(self) -> Attributes:
        """Return how many spans the run's trace had no room for, where there are any."""
        counts = ((semconv.PASSES_LEFT_OUT, self.passes), (semconv.PHASES_LEFT_OUT, self.phases))
        return {key: places.left_out for key, places in counts if places.left_out}

    def running(self, open_phases: Sequence[OpenPhase], now: int) -> OpenPhase | None:
        """Return what the process is at, if it may be so at ``now``: the ring may be damaged."""
        return self._innermost([phase for phase in open_phases if 0 < phase.t0 <= now])

    def _innermost(self, open_phases: Sequence[OpenPhase]) -> OpenPhase | None:
        """Return what the process is at: the phase of the main lane, else the latest."""
        known = [
            phase
            for phase in open_phases
            if phase.kind in marks.USER_KINDS or 0 <= phase.kind - marks.PHASE_BASE < len(semconv.PHASES)
        ]
        main = [phase for phase in known if self._emitter.lane(phase.lane) == "main"]
        return max(main or known, key=lambda phase: phase.t0, default=None)

    def _parent_span(self, scope: Scope) -> int:
        """Return the id of the span of the innermost scope around ``scope`` that is open and is sent."""
        serial, seen = scope.parent, 0
        while (around := self._open.get(serial)) is not None and seen < _MAX_OPEN:
            if around.sent:
                return self._span_id(serial)
            serial, seen = around.parent, seen + 1
        return self._span_id(self.run_serial)

    def _span_id(self, serial: int) -> int:
        return self._emitter.run_span if serial == self.run_serial else self._emitter.scope_span(serial)


def _value(key: str, text: str) -> Value:
    """Return what ``text`` of a mark means as an attribute: ids of GPUs have commas between."""
    return text.split(",") if key == semconv.GPU_ID else text
