# SPDX-License-Identifier: Apache-2.0
"""What a hook does around a call that is inside a step and no boundary of it: one phase, the outermost call.

Such a call makes neither a run nor a lane: before the first batch or forward, in a thread that does not train
and where a batch is being fetched, it is not recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any

from grademl_otel.governor import BOUNDARIES
from grademl_otel.guard import Guard
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

Running = tuple[Recorder, StepMachine, int]
"""A call that is on its way, and when it began."""


class _Inside(threading.local):
    call = False


class InnerPhase:
    """Records the calls of one hook as phases of ``kind``; ``name`` is what it is called where it fails."""

    def __init__(self, name: str, kind: int) -> None:
        self.kind = kind
        self.guard = Guard(f"torch: {name}")
        self.inside = _Inside()
        """``call`` is set by the wrapper while the outermost call of its thread runs."""

    def begin(self, in_backward: bool = True) -> Running | None:
        """The call begins; None where it is not recorded, as inside a backward without ``in_backward``."""
        if self.inside.call or not self.guard.on:
            return None
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder
            if recorder is None or recorder.level >= BOUNDARIES:
                return None
            machine = recorder.known()
            if machine is None or machine.waiting or (machine.in_backward and not in_backward):
                return None
            machine.begin_inner(self.kind, t0)
            if recorder.measuring:
                recorder.spent(t0)
            return recorder, machine, t0
        except Exception as error:
            self.guard.failed(error)
            return None

    def end(self, running: Running) -> None:
        """It returned or raised."""
        t1 = perf_counter_ns()
        recorder, machine, t0 = running
        try:
            machine.inner(self.kind, t0, t1)
            if recorder.measuring:
                recorder.spent(t1)
        except Exception as error:
            self.guard.failed(error)
            recorder.lost()

    def tell(self, t0: int, kind: int) -> None:
        """Record what began at ``t0`` and is over, of which it shows only now that it is one of ``kind``."""
        t1 = perf_counter_ns()
        recorder = session.recorder
        if recorder is None or recorder.level >= BOUNDARIES or self.inside.call or not self.guard.on:
            return
        try:
            machine = recorder.known()
            if machine is not None and not machine.waiting:
                machine.inner(kind, t0, t1)
                if recorder.measuring:
                    recorder.spent(t1)
        except Exception as error:
            self.guard.failed(error)
            recorder.lost()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the wrapper of ``original``, a function that Dynamo need not see through."""
        inside = self.inside

        @pass_over
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            running = None
            try:
                running = self.begin()
                if running is None:
                    return original(*args, **kwargs)
                inside.call = True
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                if running is not None:
                    inside.call = False
                    self.end(running)

        return call
