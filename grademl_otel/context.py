# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's current context during a step: what makes the spans of others nest in it.

While a thread is in a row of the step table, a :class:`StepSpan` is its current span. Most rows are never
asked who they are, so one such span serves row after row, and the ids are made when somebody asks: another
span that begins, a propagator, a log record. Then the span stays with its row, and one mark keeps the step,
in the trace of the step that the row is foreseen to be; its kind and number are known at its end only.

A span of the user's that is current when a row begins stays current: the step links to it instead. In a
coroutine nothing is attached, since the loop may be at any other task when the row ends. No token is kept;
what was attached is taken away only where it still is the current span.
"""

from __future__ import annotations

import os
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.span import INVALID_SPAN_CONTEXT

from grademl_otel import marks, semconv
from grademl_otel.convert.bounds import shard_of_asked_step
from grademl_otel.messages import warn
from grademl_otel.recorder import Recorder
from grademl_otel.steps import EVALUATION, INCOMPLETE, TRAIN, StepMachine

_TRACES: Final[Mapping[int, str]] = {
    TRAIN: semconv.TRACE_STEP,
    EVALUATION: semconv.TRACE_EVAL_STEP,
    INCOMPLETE: semconv.TRACE_INCOMPLETE_STEP,
}
_KINDS: Final[Mapping[int, str]] = {TRAIN: "train", EVALUATION: "evaluate", INCOMPLETE: "incomplete"}
_MAX_AROUND: Final = 64
"""Rows that are remembered; few are open at a time, but some never come to be."""
_LOW_HALF: Final = (1 << 64) - 1


class StepSpan(NonRecordingSpan):
    """Stands for the spans of rows that are not over: records nothing, and has ids for whoever asks."""

    def __init__(self, contexts: StepContexts, machine: StepMachine, serial: int) -> None:
        self.machine = machine
        self.serial = serial
        """Of the row it stands for now; 0 between rows, when its ids are invalid."""
        self.known: SpanContext | None = None
        """The ids, once somebody has asked: from then on it stands for that row only."""
        self._contexts = contexts
        self._thread = threading.get_ident()

    def get_span_context(self) -> SpanContext:
        """Return the ids; invalid ones once the row is over, so that nothing of later becomes part of it.

        Other threads and tasks that began in the step keep what they were given.
        """
        over = not self.serial or self._contexts.left(self)
        if self.known is None:
            return INVALID_SPAN_CONTEXT if over else self._contexts.name(self)
        return INVALID_SPAN_CONTEXT if over and threading.get_ident() == self._thread else self.known

    def __repr__(self) -> str:
        return f"StepSpan({self.known!r})"


class _Decision(NamedTuple):
    """What a sampler said."""

    sampled: bool
    state: TraceState | None = None


class _Place:
    """What is attached in one thread."""

    __slots__ = ("attached", "before", "span")

    def __init__(self) -> None:
        self.span: StepSpan | None = None
        self.attached: Context | None = None
        """The context with this span in it."""
        self.before = Context()
        """What the context was before."""


class StepContexts:
    """The step contexts of one run in this process.

    ``sampler`` is OpenTelemetry's, asked with the ids that the traces of steps have; ``records_grad`` says
    whether the framework records gradients in the thread that calls it; without ``nests`` none is attached.
    Nothing here raises.
    """

    def __init__(
        self,
        recorder: Recorder,
        info: marks.RunInfo,
        sampler: Any,
        records_grad: Callable[[], bool],
        nests: bool = True,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self._nests = nests
        self._info = info
        self._sampler = sampler
        root = _root(sampler)
        self._always = True if root is ALWAYS_ON else False if root is ALWAYS_OFF else None
        self._bound = root.bound if type(root) is TraceIdRatioBased else None
        self._records_grad = records_grad
        self._places: dict[int, _Place] = {}
        self._asked: dict[int, StepSpan] = {}
        """Spans that have ids, by the serials of their rows, which are not over."""
        self._around: dict[int, SpanContext] = {}
        """Spans of the user's that were current when a row began that is not over, by the row's serial."""
        self._naming = threading.RLock()  # a signal handler may ask, too

    # --- What the recorder says --------------------------------------------------------------------------

    def inside(self, machine: StepMachine, serial: int) -> None:
        """Make the row ``serial`` what this thread is in; 0: no row."""
        if not self._nests:
            return
        try:
            place = self._places.get(machine.lane)
            if place is None:
                place = self._places[machine.lane] = _Place()
            current = otel_context.get_current()
            attached = serial != 0 and running_loop() is None
            if current is place.attached and place.span is not None:
                if place.span.known is None and serial not in self._asked:
                    place.span.serial = serial if attached else 0
                    return
                before = place.before
            elif isinstance(get_current_span(current), StepSpan):
                before = set_span_in_context(INVALID_SPAN, current)  # inherited, or with more of the user's
            else:
                before = current
            self._around.pop(serial, None)  # the loop that told this row ended, and another makes it
            place.span = self._span_in(machine, serial, before) if attached else None
            place.attached, place.before = before, before
            if place.span is not None:
                place.attached = set_span_in_context(place.span, before)
            if place.attached is not current:
                otel_context.attach(place.attached)
        except Exception as error:
            self._give_up(error)

    def over(self, lane: int, serial: int, kind: int, number: int) -> bool:
        """Say that a row has ended, and as what; return whether spans of it are wanted."""
        place = self._places.get(lane)
        with self._naming:
            if place is not None and place.span is not None and place.span.serial == serial:
                place.span.serial = 0
            asked = self._asked.pop(serial, None)
        around = self._around.pop(serial, None) if self._around else None
        if around is not None:
            self._link(serial, around)
        if asked is not None and asked.known is not None:
            asked.serial = 0
            return asked.known.trace_flags.sampled
        if self._always is not None:
            return self._always
        trace = semconv.trace_id(self._info.run_id, self._info.attempt, _TRACES[kind], number)
        return self._sample(trace, kind, number).sampled

    def mute(self) -> None:
        """Give out no further ids: the run is over, or this is a forked child, whose parent has the steps."""
        self._recorder = None
        current = otel_context.get_current()
        for place in self._places.values():
            if place.span is not None:
                place.span.serial = 0
                if current is place.attached:
                    otel_context.attach(place.before)
        for span in self._asked.values():
            span.serial = 0

    # --- What others ask -----------------------------------------------------------------------------------

    def name(self, span: StepSpan) -> SpanContext:
        """Give ``span`` its ids and have its row kept; invalid ones when it is too late for that."""
        recorder = self._recorder
        if recorder is None or recorder.pid != os.getpid():
            return INVALID_SPAN_CONTEXT  # before the lock, which another thread may have held at a fork
        try:
            with self._naming:
                serial = span.serial
                if span.known is not None:
                    return span.known
                if not serial or self._recorder is None:
                    return INVALID_SPAN_CONTEXT
                kind, number = span.machine.foresee(serial, self._records_grad())
                info = self._info
                shard = shard_of_asked_step(info.rank, info.world_size)
                trace = semconv.trace_id(info.run_id, info.attempt, _TRACES[kind], number, shard)
                sampled, state = self._sample(trace, kind, number)
                if sampled:
                    recorder.note(marks.ROW_CONTEXT, perf_counter_ns(), serial, kind, number, 0)
                span.known = SpanContext(
                    trace,
                    semconv.span_id(info.run_id, info.attempt, semconv.STEP, serial, info.rank),
                    is_remote=False,
                    trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT),
                    trace_state=state,
                )
                self._asked[serial] = span
                return span.known
        except Exception as error:
            self._give_up(error)
            return INVALID_SPAN_CONTEXT

    def left(self, span: StepSpan) -> bool:
        """Whether the loop of the span's row was left; see `steps.StepMachine.left`."""
        try:
            return span.machine.left(span.serial)
        except Exception as error:
            self._give_up(error)
            return True

    # --- Inside ------------------------------------------------------------------------------------------

    def _span_in(self, machine: StepMachine, serial: int, before: Context) -> StepSpan | None:
        """The span for a row that begins or goes on in ``before``; None where the user's is current."""
        around = get_current_span(before)
        if around is not INVALID_SPAN:
            outer = around.get_span_context()
            if outer.is_valid:
                if outer.trace_flags.sampled:
                    if len(self._around) >= _MAX_AROUND:
                        self._around.clear()
                    self._around[serial] = outer
                return None
        if self._recorder is None:
            return None
        return self._asked.get(serial) or StepSpan(self, machine, serial)

    def _link(self, serial: int, outer: SpanContext) -> None:
        if self._recorder is not None:
            upper = marks.pack_half(outer.trace_id >> 64)
            lower = marks.pack_half(outer.trace_id & _LOW_HALF)
            at, span = perf_counter_ns(), marks.pack_half(outer.span_id)
            self._recorder.note(marks.ROW_LINK, at, serial, upper, lower, span)

    def _sample(self, trace: int, kind: int, number: int) -> _Decision:
        if self._always is not None:
            return _Decision(self._always)
        if self._bound is not None:  # as the sampler does, in a fifth of its time
            return _Decision(trace & _LOW_HALF < self._bound)
        attributes = {semconv.STEP_NUMBER: number, semconv.STEP_KIND: _KINDS[kind]}
        try:
            # An empty context: a step has no parent, whatever span is current where it begins.
            result = self._sampler.should_sample(
                Context(), trace, semconv.STEP, SpanKind.INTERNAL, attributes, ()
            )
            return _Decision(result.decision.is_sampled(), result.trace_state)
        except Exception as error:
            self._always = True
            warn(f"the sampler failed, all steps are sampled: {type(error).__name__}: {error}")
            return _Decision(True)

    def _give_up(self, error: Exception) -> None:
        if self._recorder is not None:
            self._recorder = None
            warn(f"spans no longer nest in the steps: {type(error).__name__}: {error}")


def _root(sampler: Any) -> Any:
    """Who decides about traces without a parent: ``sampler`` or what it asks then; without one all are in."""
    if type(sampler) is ParentBased:
        sampler = getattr(sampler, "_root", sampler)
    return ALWAYS_ON if sampler is None else sampler
