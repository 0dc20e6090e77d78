# SPDX-License-Identifier: Apache-2.0
"""Generation: a call of `generate` of transformers is one evaluation step, with a forward for each token."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final

import torch

from grademl_otel.governor import UPDATES
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

PATH: Final = "transformers.generation.utils"


def install(patches: Patches) -> None:
    """Wrap `GenerationMixin.generate`, which all models of transformers share."""
    mixin = sys.modules[PATH].GenerationMixin
    patches.replace(mixin, "generate", _wrap(mixin.generate))


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("transformers: generate")

    @pass_over
    @wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        machine = None
        try:
            machine = _begin(self, guard)
            if machine is not None:
                machine.in_series = True
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if machine is not None:
                machine.in_series = False

    return generate


def _begin(model: Any, guard: Guard) -> StepMachine | None:
    """A generation begins; None inside another one, and where it is part of something else."""
    if not guard.on:
        return None
    try:
        t0 = perf_counter_ns()
        recorder = session.recorder
        if recorder is None or t0 > recorder.idle_at:
            recorder = session.begin(training=False, at=t0)
        if recorder is None or recorder.level == UPDATES:
            return None
        machine = recorder.here()
        if machine.in_series or machine.waiting or machine.in_backward:
            return None
        machine.begin_series(id(model), torch.is_grad_enabled() and model.training)
        return machine
    except Exception as error:
        guard.failed(error)
        return None
