# SPDX-License-Identifier: Apache-2.0
"""Optimizers: their global hooks, their making, and the steps that a `GradScaler` skips.

Dynamo skips this file (see the package's ``__init__``): a wrapper that it compiled as a frame of its own
would lose its events.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from grademl_otel.governor import UPDATES
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over


def install(patches: Patches) -> None:
    """Wrap `Optimizer.__init__` and `GradScaler.step`; register the optimizers' hooks."""
    optimizers = _Optimizers()
    patches.on_restore(register_optimizer_step_pre_hook(optimizers.before).remove)
    patches.on_restore(register_optimizer_step_post_hook(optimizers.after).remove)
    patches.replace(Optimizer, "__init__", _wrap_init(Optimizer.__init__, optimizers))
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is not None:
        with patches.together("torch: skipped steps of a GradScaler"):
            patches.replace(scaler, "step", _wrap_scaler(scaler.step))


class _Running(threading.local):
    """Steps that are running in this thread, or that raised, for which there is no hook."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        """(optimizer, start, backwards that the thread had seen by then), the innermost last."""
        self.nested = False
        """The step that ended last was taken for a part of another one."""


@dataclass(slots=True)
class _Watched:
    """An optimizer that lives, and the thread that uses it."""

    reference: weakref.ref[Optimizer]
    recorder: Recorder
    machine: StepMachine


class _Optimizers:
    """Follows the steps of all optimizers, nested ones too, and their lives."""

    def __init__(self) -> None:
        self._running = _Running()
        self._watched: dict[int, _Watched] = {}
        self._guard = Guard("torch: optimizer")

    def watch(
        self, optimizer: Optimizer, recorder: Recorder, machine: StepMachine, built: bool = False
    ) -> None:
        """Tell ``machine`` of the optimizer, and later of its end; the machine that had it before lets go.

        Some programs build an optimizer in one thread and train with it in another.
        """
        number = id(optimizer)
        known = self._watched.get(number)
        if known is not None and known.reference() is optimizer and known.recorder is recorder:
            if known.machine is not machine:
                known.machine.optimizer_gone(number)
                known.machine = machine
            return
        watched = self._watched

        def gone(reference: weakref.ref[Optimizer]) -> None:
            entry.machine.optimizer_gone(number)
            if watched.get(number) is entry:
                del watched[number]

        entry = watched[number] = _Watched(weakref.ref(optimizer, gone), recorder, machine)
        machine.optimizer_made(number, built)

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer was built."""
        if not self._guard.on:
            return
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder
            if recorder is None or t0 > recorder.idle_at:
                recorder = session.begin(training=False, at=t0)
            if recorder is not None:
                self.watch(optimizer, recorder, recorder.here(), built=True)
        except Exception as error:
            self._guard.failed(error)

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global pre-hook of `Optimizer.step`."""
        if not self._guard.on:
            return
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder or session.begin(training=True, at=t0)
            if recorder is None:
                return
            machine = recorder.here()
            steps = self._running.steps
            number = id(optimizer)
            while steps and steps[-1][0] == number and steps[-1][2] != machine.backwards:
                steps.pop()  # that step raised: no `super().step()` has a backward between
            if recorder.level == UPDATES:
                if self._running.nested:
                    steps.clear()  # that was no nested step: the one around it had raised
                    self._running.nested = False
                steps.append((number, t0, machine.backwards))
                return
            steps.append((number, t0, machine.backwards))
            if len(steps) == 1 and not machine.in_backward:
                machine.begin_optimizer(t0)
            if recorder.measuring:
                recorder.spent(t0)
        except Exception as error:
            self._guard.failed(error)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Global post-hook of `Optimizer.step`; not called when the step raises."""
        recorder = session.recorder
        steps = self._running.steps
        if recorder is None or not steps or not self._guard.on:
            return
        try:
            t1 = perf_counter_ns()
            number = id(optimizer)
            while steps[-1][0] != number:
                steps.pop()  # that one raised, and its caller went on
            _, t0, _ = steps.pop()
            self._running.nested = any(outer[0] == number for outer in steps)
            if self._running.nested:
                return  # a subclass that calls its parent's step
            if recorder.level == UPDATES:
                recorder.updated(number, t1)
                return
            machine = recorder.here()
            self.watch(optimizer, recorder, machine)
            machine.stepped(number, t0, t1, phase=not steps and not machine.in_backward)
            if recorder.measuring:
                recorder.spent(t1)
        except IndexError:
            pass  # its beginning was before the run
        except Exception as error:
            self._guard.failed(error)


def _wrap_init(original: Callable[..., None], optimizers: _Optimizers) -> Callable[..., None]:
    @pass_over
    @wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        optimizers.made(self)

    return __init__


def _wrap_scaler(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: skipped steps of a GradScaler")

    @pass_over
    @wraps(original)
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        t0 = perf_counter_ns()
        machine = _machine(guard)
        before = 0 if machine is None else machine.optimizer_steps
        try:
            result = original(self, optimizer, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        if machine is not None and machine.optimizer_steps == before:
            # Gradients were not finite.
            _skipped(machine, id(optimizer), t0, guard)
        return result

    return step


def _machine(guard: Guard) -> StepMachine | None:
    """That of this thread; None where nothing is recorded."""
    recorder = session.recorder
    if recorder is None or not guard.on:
        return None
    try:
        return recorder.here()
    except Exception as error:
        guard.failed(error)
        return None


def _skipped(machine: StepMachine, optimizer: int, t0: int, guard: Guard) -> None:
    try:
        now = perf_counter_ns()
        recorder = session.recorder
        if recorder is not None and recorder.level == UPDATES:
            recorder.updated(optimizer, now)
        else:
            machine.skipped(optimizer, t0, now)
    except Exception as error:
        guard.failed(error)
