# SPDX-License-Identifier: Apache-2.0
"""Scopes of the workflow: the run and the passes in it, from their opening marks to their spans."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.emitter import Emitter
from grademl_otel.convert.spans import Attributes, Value
from grademl_otel.ring.reader import Mark, OpenPhase

_MAX_OPEN: Final = 1024
_TRUE: Final = 1
_KILLED: Final = "killed"
_ERROR_TYPE: Final = "error.type"
_OF_WINDOWS: Final = (semconv.WINDOW_RECORD_LEVEL, semconv.WINDOW_RECORD_REASON)
"""Kept on the run's scope because they hold from window to window; they are attributes of windows only."""


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
    attributes: Attributes = field(default_factory=dict)


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
        self.run_serial = 0
        self._run_end: int | None = None
        self._run_error: str | None = None

    def get(self, serial: int) -> Scope | None:
        """Return the open scope with this serial."""
        return self._open.get(serial)

    def adopt(self, scope: Scope) -> None:
        """Take over a scope that an earlier relay saw open."""
        self._open[scope.serial] = scope

    @property
    def open(self) -> list[Scope]:
        """Scopes that are open, outermost first."""
        return list(self._open.values())

    def run_value(self, key: str) -> Value | None:
        """Return an attribute of the run's scope."""
        run = self._open.get(self.run_serial)
        return run.attributes.get(key) if run else None

    def run_start(self) -> int | None:
        """Return when the run began, in ns of ``perf_counter``."""
        run = self._open.get(self.run_serial)
        return run.start if run else None

    def span_around(self, time: int) -> int:
        """Return the id of the span of the innermost scope that was open at ``time``."""
        around = [scope for scope in self._open.values() if scope.start <= time]
        innermost = max(around, key=lambda scope: scope.start, default=None)
        return self._span_id(innermost.serial) if innermost else self._emitter.run_span

    def take_open(self, mark: Mark) -> None:
        """Take a SCOPE_OPEN mark."""
        _, lane, t0, _, serial, parent, index, number = mark
        if not 0 <= index < len(marks.SCOPES) or len(self._open) >= _MAX_OPEN or serial in self._open:
            return
        if marks.SCOPES[index] == semconv.RUN and not self.run_serial:
            self.run_serial = serial
        self._open[serial] = Scope(serial, parent, index, number, t0, lane)

    def take_value(self, mark: Mark) -> None:
        """Take a mark that sets an attribute of a scope."""
        kind, _, _, _, serial, key, value, _ = mark
        scope = self._open.get(serial)
        name = self._emitter.text(key)
        if scope is None or not name:
            return
        if kind == marks.SCOPE_INT:
            scope.attributes[name] = value
        elif kind == marks.SCOPE_BOOL:
            scope.attributes[name] = value == _TRUE
        elif kind == marks.SCOPE_TEXT:
            scope.attributes[name] = self._emitter.text(value)
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
        name = marks.SCOPES[scope.index]
        attributes: Attributes = {semconv.LANE: self._emitter.lane(scope.lane), **scope.attributes}
        if name in (semconv.EPOCH, semconv.EVALUATE):
            attributes.setdefault(semconv.STEPS_TOTAL, scope.steps)
            attributes.setdefault(semconv.EVAL_STEPS_TOTAL, scope.eval_steps)
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
            self._span_id(scope.parent if scope.parent in self._open else self.run_serial),
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
        for key in _OF_WINDOWS:
            attributes.pop(key, None)
        attributes[semconv.STEPS_TOTAL] = totals.steps
        attributes[semconv.EVAL_STEPS_TOTAL] = totals.eval_steps
        attributes[semconv.INCOMPLETE_STEPS_TOTAL] = totals.incomplete
        if totals.cost_ns is not None and end > start:
            attributes[semconv.TRACER_COST] = totals.cost_ns / (end - start)
        attributes[semconv.TRACER_DROPPED] = totals.lost
        attributes[semconv.SPANS_EMITTED] = emitter.emitted + 1
        error = self._run_error
        if killed:
            error = _KILLED
            attributes[semconv.ENDED] = attributes[semconv.TERMINATED] = _KILLED
            phase = self._innermost(open_phases)
            if phase:
                attributes[semconv.OPEN_PHASE] = phase
        elif error is not None:
            attributes[semconv.ENDED] = "exception"
            attributes[_ERROR_TYPE] = error
        else:
            attributes[semconv.ENDED] = "exit"
        parent = 0 if emitter.info.rank == 0 else emitter.run_span_of(0)
        emitter.emit(
            semconv.RUN, emitter.run_trace, emitter.run_span, parent, start, max(end, start), attributes,
            error=error,
        )  # fmt: skip

    def _innermost(self, open_phases: Sequence[OpenPhase]) -> str | None:
        """Return the name of the phase that the process died in: that of the main lane, else the latest."""
        known = [phase for phase in open_phases if 0 <= phase.kind - marks.PHASE_BASE < len(semconv.PHASES)]
        main = [phase for phase in known if self._emitter.lane(phase.lane) == "main"]
        latest = max(main or known, key=lambda phase: phase.t0, default=None)
        return semconv.PHASES[latest.kind - marks.PHASE_BASE] if latest else None

    def _span_id(self, serial: int) -> int:
        return self._emitter.run_span if serial == self.run_serial else self._emitter.scope_span(serial)
