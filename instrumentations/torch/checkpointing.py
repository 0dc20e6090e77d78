# SPDX-License-Identifier: Apache-2.0
"""What the hooks of all checkpoint libraries share: the outermost call is one checkpoint, what it calls none.

A library's hook says what its functions mean by a :class:`Calls`; :func:`outermost` makes the wrapper.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from grademl_otel import marks, semconv
from grademl_otel.guard import Guard
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

SAVE: Final = marks.phase_kind(semconv.CHECKPOINT_SAVE)
LOAD: Final = marks.phase_kind(semconv.CHECKPOINT_LOAD)

T = TypeVar("T")
Arguments = tuple[Any, ...]
Size = Callable[[Any], int]
"""Tells the bytes of a checkpoint, 0 where they are not known, from what its call returned."""
Measure = Callable[[Arguments, dict[str, Any]], Size]
"""Called with the arguments before the call."""

_DISTRIBUTED: Final = "torch.distributed.checkpoint"


class _Inside(threading.local):
    call = False


_inside: Final = _Inside()


class Calls(Protocol[T]):
    """What a wrapped function means. Neither method may raise an Exception."""

    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> T | None:
        """It is called from outside of any other; None where this call is not recorded."""

    def end(self, call: T, result: Any, failure: str | None) -> None:
        """It returned ``result``, or raised an exception whose type is named ``failure``."""


def outermost(original: Callable[..., Any], calls: Calls[Any]) -> Callable[..., Any]:
    """Wrap ``original``, which saves or loads: calls of other such functions inside it are parts of it."""

    @pass_over
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            running = None if _inside.call else calls.begin(args, kwargs)
            if running is None:
                return original(*args, **kwargs)
            result = failure = None
            try:
                _inside.call = True
                result = original(*args, **kwargs)
                return result
            except BaseException as error:
                failure = type(error).__name__
                raise
            finally:
                _inside.call = False
                calls.end(running, result, failure)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return call


class Running(NamedTuple):
    """A call that is on its way; without a machine the run has not begun."""

    t0: int
    size: Size
    recorder: Recorder | None
    machine: StepMachine | None


class Whole:
    """Calls that return when the checkpoint is written or read."""

    def __init__(self, name: str, kind: int, form: str, measure: Measure) -> None:
        self.guard = Guard(name)
        self._kind = kind
        self._form = form
        self._measure = measure

    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> Running | None:
        if not self.guard.on or session.in_worker:
            return None
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder
            if recorder is None:
                return Running(t0, self._measure(args, kwargs), None, None)
            machine = recorder.here()
            if machine.waiting:
                return None  # a dataset that keeps its samples so
            size = self._measure(args, kwargs)
            machine.begin_aside(self._kind, t0)
            return Running(t0, size, recorder, machine)
        except Exception as error:
            self.guard.failed(error)
            return None

    def end(self, call: Running, result: Any, failure: str | None) -> None:
        self.ended(call, perf_counter_ns(), result, failure)

    def ended(self, call: Running, t1: int, result: Any, failure: str | None, number: int = -1) -> None:
        """Record what ended at ``t1``; ``number`` is that of a checkpoint whose other part is to come."""
        try:
            size = 0 if failure else call.size(result)
            detail = f"{self._form}:{failure}" if failure else self._form
            if call.machine is None or call.recorder is None:
                session.early(self._kind, call.t0, t1, size, detail)
            else:
                text = call.recorder.text(detail)
                call.machine.aside(self._kind, call.t0, t1, size, text, number)
        except Exception as error:
            self.guard.failed(error)


def called_by_distributed() -> bool:
    """Whether the caller of the wrapped function is `torch.distributed.checkpoint`, maybe in a thread of its
    own: what it writes is part of its checkpoint.
    """
    try:
        # This function, `begin` of the calls, the wrapper, its caller.
        name = sys._getframe(3).f_globals.get("__name__", "")
        return isinstance(name, str) and name.startswith(_DISTRIBUTED)
    except ValueError:
        return False


def argument(args: Arguments, kwargs: dict[str, Any], position: int, name: str) -> Any:
    """One argument of a call; None where it is missing."""
    return args[position] if len(args) > position else kwargs.get(name)
