# SPDX-License-Identifier: Apache-2.0
"""Compiled functions: a call of what `torch.compile` returns for a function is a forward.

No module is called there: Dynamo has put what they do into the function. Where the function is a whole
training step, its forward ends where its backward begins, which Dynamo leaves as it is; one that only steps
an optimizer is none. Compiled modules are modules, see `forward`.

Each function of the user's that is compiled gets a wrapper, which Dynamo takes for the function: it carries
all that Dynamo has put on it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.compiler import is_compiling

from grademl_otel.governor import UPDATES
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.forward import inside
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_DYNAMOS_OWN = "_torchdynamo_wrapper_id"
"""Dynamo puts the id of what it returns there; it trusts its other marks on a function where that fits."""


def install(patches: Patches) -> None:
    """Wrap ``torch.compile``, which its own decorator form calls, too."""
    patches.replace(torch, "compile", _wrap_compile(torch.compile))


def _wrap_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: compiled functions")

    @pass_over
    @wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        try:
            compiled = original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        model = args[0] if args else kwargs.get("model")
        if isinstance(compiled, FunctionType) and compiled is not model and _is_function(model):
            return _recorded(compiled, guard)
        return compiled

    return compile


def _is_function(model: Any) -> bool:
    """Whether it is none of torch's own: the decorator form has no model, and `Module.compile` gives the call
    of the module, which is recorded as it is.
    """
    if isinstance(model, MethodType) and isinstance(model.__self__, torch.nn.Module):
        return model.__name__ not in ("_call_impl", "_wrapped_call_impl")
    return model is not None


def _recorded(compiled: FunctionType, guard: Guard) -> Callable[..., Any]:
    """Return the wrapper of a compiled function; pickled by value it is that alone, as in `forward`."""
    around, hook = inside, _Hook(compiled.__qualname__, guard)

    @pass_over
    @wraps(compiled)
    def function(*args: Any, **kwargs: Any) -> Any:
        if around.root or is_compiling():
            return compiled(*args, **kwargs)
        call = None
        try:
            call = hook.begin()
            if call is None:
                return compiled(*args, **kwargs)
            around.root, around.function = True, call
            return compiled(*args, **kwargs)
        except BaseException as error:
            if hook:
                hook.left_by(error)
            raise
        finally:
            if call is not None:
                around.root, around.function = False, None
                hook.end(call)

    if getattr(compiled, _DYNAMOS_OWN, None) == id(compiled):
        setattr(function, _DYNAMOS_OWN, id(function))
    return function


class FunctionCall:
    """A call of a compiled function that is on its way."""

    __slots__ = ("_grad", "_hook", "_steps", "machine", "over", "recorder", "t0")

    def __init__(self, hook: _Hook, recorder: Recorder, machine: StepMachine, t0: int) -> None:
        self.recorder = recorder
        self.machine = machine
        self.t0 = t0
        self.over = False
        """Its forward has been recorded."""
        self._hook = hook
        self._grad = torch.is_grad_enabled()
        self._steps = machine.optimizer_steps

    def ends(self, at: int) -> None:
        """Its forward ends: it returns, raises or begins a backward."""
        if self.over:
            return
        self.over = True
        recorder, machine = self.recorder, self.machine
        recorder.forward_owner = None
        if machine.optimizer_steps != self._steps:
            recorder.ended(machine.lane)  # the step of an optimizer, compiled
            return
        machine.end_forward(self.t0, at, self._grad, id(self._hook), recorder.text(self._hook.name))


class _Hook:
    """What the wrapper of one function calls of ours; pickles as None."""

    left_by = staticmethod(leave_out_this_frame)

    def __init__(self, qualname: str, guard: Guard) -> None:
        self.name = qualname.rpartition("<locals>.")[2]
        self._guard = guard

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def begin(self) -> FunctionCall | None:
        """The function is called outside of any module; None where that is not recorded."""
        guard = self._guard
        if not guard.on:
            return None
        t0 = perf_counter_ns()
        try:
            recorder = session.recorder
            if recorder is None or t0 > recorder.idle_at:
                recorder = session.begin(training=False, at=t0)
            if recorder is None or recorder.level == UPDATES or recorder.is_helper():
                return None
            machine = recorder.here()
            if machine.waiting or machine.in_backward:
                return None
            machine.begin_forward(t0, id(self))
            recorder.forward_owner = machine
            if recorder.measuring:
                recorder.spent(t0)
            return FunctionCall(self, recorder, machine, t0)
        except Exception as error:
            guard.failed(error)
            return None

    def end(self, call: FunctionCall) -> None:
        """It returned or raised."""
        t1 = perf_counter_ns()
        try:
            call.ends(t1)
            if call.recorder.measuring:
                call.recorder.spent(t1)
        except Exception as error:
            self._guard.failed(error)
            call.recorder.lost()
