# SPDX-License-Identifier: Apache-2.0
"""Backward: `torch.autograd.backward`, which `Tensor.backward` calls, and what `autograd.grad` has of it.

Dynamo skips this file (see the package's ``__init__``): a wrapper that it compiled as a frame of its own
would lose its events.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter

from grademl_otel.governor import BOUNDARIES, UPDATES
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.forward import inside
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import BACKWARD, StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over


def install(patches: Patches) -> None:
    """Wrap it where `Tensor.backward` looks for it."""
    patches.replace(torch.autograd, "backward", _wrap(torch.autograd.backward), BOUNDARIES)


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    hook = BackwardHook("backward")

    @pass_over
    @wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        call, returned = None, False
        try:
            call = hook.begin()
            if call is not None:
                call.machine.in_backward = True  # here, so that no interrupt leaves it so
            result = original(*args, **kwargs)
            returned = True
            return result
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if call is not None:
                call.machine.in_backward = False
                hook.end(call, returned)

    return backward


class Call(NamedTuple):
    """A backward that is on its way."""

    recorder: Recorder
    machine: StepMachine
    t0: int
    around: StepMachine | None
    """The machine of the thread whose backward was under way when this one began."""
    inner: bool
    """It takes no part in what the step is."""


class BackwardHook:
    """Tells of the outermost backward of each thread; the wrapper sets ``machine.in_backward`` meanwhile."""

    def __init__(self, name: str) -> None:
        self._guard = Guard(f"torch: {name}")

    def begin(self, inner: bool = False) -> Call | None:
        """A backward begins; None where it is not recorded."""
        if not self._guard.on:
            return None
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder
            if not inner and (recorder is None or t0 > recorder.idle_at):
                recorder = session.begin(training=True, at=t0)
            if recorder is None or recorder.level >= (BOUNDARIES if inner else UPDATES):
                return None
            machine = recorder.known() if inner else recorder.here()
            # A backward inside a backward is reentrant checkpointing; one inside `next()` is part of
            # fetching.
            if machine is None or machine.in_backward or machine.waiting:
                return None
            if inner:
                machine.begin_inner(BACKWARD, t0)
            else:
                if inside.function is not None:
                    inside.function.ends(t0)  # a whole step is compiled: its forward is over
                machine.begin_backward(t0)
            around, recorder.backward_owner = recorder.backward_owner, machine
            if recorder.measuring:
                recorder.spent(t0)
            return Call(recorder, machine, t0, around, inner)
        except Exception as error:
            self._guard.failed(error)
            return None

    def end(self, call: Call, returned: bool) -> None:
        """It returned or raised."""
        recorder, machine, t0, around, inner = call
        try:
            t1 = perf_counter_ns()
            if recorder.backward_owner is machine:  # else it is that of a thread which began later
                recorder.backward_owner = around
            if inner:
                machine.inner(BACKWARD, t0, t1)
            elif returned:
                machine.end_backward(t0, t1)
            else:
                machine.backward_failed(t0, t1)
            if recorder.measuring:
                recorder.spent(t1)
        except Exception as error:
            self._guard.failed(error)


_INPUTS, _CREATE_GRAPH = 1, 4
"""Positions among the arguments of ``grad``."""


def of_parameters(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``grad`` is for the parameters of a model: an update may follow."""
    try:
        inputs = args[_INPUTS] if len(args) > _INPUTS else kwargs["inputs"]
        graph = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph", False)
        if isinstance(inputs, torch.Tensor):
            return isinstance(inputs, Parameter) and not graph
        if not isinstance(inputs, (list, tuple)):
            # `model.parameters()`, which must not be asked: it gives each of them once.
            return not graph
        if inputs and torch._C._functorch.is_gradtrackingtensor(inputs[0]):
            # `torch.func.grad`, which always keeps the graph. One tensor alone is an input, not a model.
            return len(inputs) > 1
        return bool(inputs) and isinstance(inputs[0], Parameter) and not graph
    except Exception:
        return False
