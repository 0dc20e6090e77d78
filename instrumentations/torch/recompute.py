# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: what `torch.utils.checkpoint` runs again inside a backward, modules or not.

Both kinds keep what they are to run again until then: the reentrant one in the context of its function, the
other in a frame. There it is replaced by a function that clocks it. Modules inside are part of it. On a
device the backward, and so the recomputation, runs in a thread of autograd's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from torch.utils import checkpoint

from grademl_otel import marks, semconv
from grademl_otel.governor import BOUNDARIES, ROOTS
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.forward import inside
from grademl_otel.instrumentations.torch.inner import InnerPhase
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_RECOMPUTE: Final = marks.phase_kind(semconv.RECOMPUTE)


def install(patches: Patches) -> None:
    """Wrap what each kind begins with."""
    phase = InnerPhase("recomputation", _RECOMPUTE)
    frame, function = checkpoint._CheckpointFrame, checkpoint.CheckpointFunction
    patches.replace(frame, "__init__", _wrap_frame(frame.__init__, phase), ROOTS)
    patches.replace(function, "forward", staticmethod(_wrap_forward(function.forward)), BOUNDARIES)
    patches.replace(function, "backward", staticmethod(_wrap_backward(function.backward, phase)), ROOTS)


def _wrap_frame(original: Callable[..., None], phase: InnerPhase) -> Callable[..., None]:
    @pass_over
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        function = getattr(self, "recompute_fn", None)
        if function is not None:
            self.recompute_fn = _clocked(function, phase)

    return __init__


def _wrap_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """The reentrant kind records no gradients where it runs first; it is no evaluation for that."""

    @pass_over
    @wraps(original)
    def forward(ctx: Any, *args: Any) -> Any:
        around = inside.to_run_again
        try:
            inside.to_run_again = around or any(ctx.needs_input_grad)
            return original(ctx, *args)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            inside.to_run_again = around

    return forward


def _wrap_backward(original: Callable[..., Any], phase: InnerPhase) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def backward(ctx: Any, *args: Any) -> Any:
        function = getattr(ctx, "run_function", None)
        try:
            if function is not None:
                ctx.run_function = _clocked(function, phase)
            return original(ctx, *args)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if function is not None:
                ctx.run_function = function

    return backward


def _clocked(function: Callable[..., Any], phase: InnerPhase) -> Callable[..., Any]:
    @pass_over
    def recompute(*args: Any, **kwargs: Any) -> Any:
        running, around = None, inside.root
        try:
            running = phase.begin()
            if running is None:
                return function(*args, **kwargs)
            phase.inside.call = inside.root = True
            return function(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if running is not None:
                phase.inside.call, inside.root = False, around
                phase.end(running)

    return recompute
