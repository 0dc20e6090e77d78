# SPDX-License-Identifier: Apache-2.0
"""Forward: `nn.Module.__call__` of root modules.

This file is alone for Dynamo's sake: it must see through the wrapper when it compiles a module, so the file
is not among those that Dynamo skips, and `is_compiling()` comes first. Calls of modules inside a module cost
one look at a thread-local flag.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch.compiler import is_compiling

from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Guard, Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame

_NESTED_NS = 350
"""What the wrapper adds to the call of a module inside a module: timing each would cost more than that."""

_MAX_ROOTS = 64


class _Inside(threading.local):
    root = False


def install(patches: Patches) -> None:
    """Wrap ``torch.nn.Module.__call__``."""
    patches.replace(torch.nn.Module, "__call__", _wrap(torch.nn.Module.__call__))


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    inside = _Inside()
    guard = Guard("torch: forward")

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        call = None if inside.root else _begin(self, guard)
        try:
            if call is None:
                return original(self, *args, **kwargs)
            try:
                inside.root = True
                return original(self, *args, **kwargs)
            finally:
                inside.root = False
                _end(call, self, guard)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return __call__


_nested: dict[int, int] = {}
"""Modules inside a root, by its id: counting those of a large model takes longer than recording a step."""


def _count_nested(module: torch.nn.Module) -> int:
    number = _nested.get(id(module))
    if number is None:
        if len(_nested) >= _MAX_ROOTS:
            _nested.clear()
        number = _nested[id(module)] = sum(1 for _ in module.modules()) - 1
    return number


_Call = tuple[Recorder, StepMachine, int, bool]


def _begin(module: torch.nn.Module, guard: Guard) -> _Call | None:
    if not guard.on:
        return None
    t0 = perf_counter_ns()
    try:
        recorder = session.recorder
        if recorder is None or t0 > recorder.idle_at:
            recorder = session.begin(training=False, at=t0)
        if recorder is None:
            return None
        if recorder.is_helper():
            return None  # a replica's thread: part of the forward that waits for it
        machine = recorder.here()
        if machine.waiting:  # inside a dataset or a collate function: part of the fetching
            return None
        grad = torch.is_grad_enabled()
        if not machine.in_backward:
            machine.begin_forward(t0, id(module))
            recorder.forward_owner = machine
        if recorder.measuring:
            recorder.spent(t0)
        return recorder, machine, t0, grad
    except Exception as error:
        guard.failed(error)
        return None


def _end(call: _Call, module: torch.nn.Module, guard: Guard) -> None:
    t1 = perf_counter_ns()
    recorder, machine, t0, grad = call
    try:
        # A compiled module's class is OptimizedModule, which tells nothing. Not by `getattr`: where there is
        # no such attribute, a module takes longer to say so than all the rest here.
        inner = module._modules
        named = inner["_orig_mod"] if "_orig_mod" in inner else module  # noqa: SIM401 - scripted ones' lack `get`
        kind = type(named).__name__
        if machine.in_backward:
            machine.recomputed(t0, t1, recorder.text(kind))
        else:
            recorder.forward_owner = None
            machine.end_forward(t0, t1, grad, id(module), recorder.text(kind))
        if recorder.measuring:
            nested = _NESTED_NS * _count_nested(module)
            recorder.spent(t1 - nested)
    except Exception as error:
        guard.failed(error)
        recorder.lost()
