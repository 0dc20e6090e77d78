# SPDX-License-Identifier: Apache-2.0
"""Gradients by hand: `torch.autograd.grad`, and the setting of gradients to zero.

Dynamo must see through these wrappers as through that of `forward`: it traces the functions, and
`torch.func.grad` calls the first one. So the file is not among those that Dynamo skips.

A call of ``grad`` is a backward. One for the parameters of a model that keeps no graph makes its step a
training step, as the update by hand may follow; others (a penalty, forces, an inner loop) say nothing of it.
What these wrappers call of ours is in files that Dynamo does skip.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch.compiler import is_compiling
from torch.nn import Module
from torch.optim import Optimizer

from grademl_otel import marks, semconv
from grademl_otel.governor import BOUNDARIES, ROOTS
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.backward import BackwardHook, of_parameters
from grademl_otel.instrumentations.torch.compile import here
from grademl_otel.instrumentations.torch.disguise import disguised
from grademl_otel.instrumentations.torch.forward import inside
from grademl_otel.instrumentations.torch.inner import InnerPhase
from grademl_otel.tracebacks import leave_out_this_frame

_ZERO_GRAD: Final = marks.phase_kind(semconv.ZERO_GRAD)


def install(patches: Patches) -> None:
    """Wrap ``grad`` and both functions of the name ``zero_grad``."""
    patches.replace(torch.autograd, "grad", _wrap_grad(torch.autograd.grad), BOUNDARIES)
    phase = InnerPhase("zero_grad", _ZERO_GRAD)
    for owner in (Optimizer, Module):
        patches.replace(owner, "zero_grad", _wrap_zero_grad(owner.zero_grad, phase), ROOTS)


def _wrap_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    hook = BackwardHook("autograd.grad")

    @wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        # AOTAutograd calls this as it traces, where only later versions of torch say that they compile.
        if is_compiling() or here.frame:
            return original(*args, **kwargs)
        call, returned = None, False
        try:
            call = hook.begin(inner=inside.root or not of_parameters(args, kwargs))
            if call is not None:
                call.machine.in_backward = True
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

    return disguised(grad, original)


def _wrap_zero_grad(original: Callable[..., Any], phase: InnerPhase) -> Callable[..., Any]:
    around = phase.inside

    @wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        running = None
        try:
            # An update inside a backward, of one parameter, is part of that.
            running = phase.begin(in_backward=False)
            if running is None:
                return original(self, *args, **kwargs)
            around.call = True
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if running is not None:
                around.call = False
                phase.end(running)

    return disguised(zero_grad, original)
