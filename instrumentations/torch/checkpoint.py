# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: `torch.save` and `torch.load`, the outermost call only, with the size where it is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final

import torch

from grademl_otel import semconv
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Guard, Recorder
from grademl_otel.steps import StepMachine

_SAVE: Final = semconv.PHASE_INDEX[semconv.CHECKPOINT_SAVE]
_LOAD: Final = semconv.PHASE_INDEX[semconv.CHECKPOINT_LOAD]


class _Inside(threading.local):
    call = False


def install(patches: Patches) -> None:
    """Wrap both functions under both of their names."""
    inside = _Inside()
    for name, phase in (("save", _SAVE), ("load", _LOAD)):
        wrapper = _wrap(getattr(torch.serialization, name), phase, inside)
        patches.replace(torch.serialization, name, wrapper)
        patches.replace(torch, name, wrapper)


def _wrap(original: Callable[..., Any], phase: int, inside: _Inside) -> Callable[..., Any]:
    guard = Guard(f"torch: {semconv.PHASES[phase]}")

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if inside.call or not guard.on or session.in_worker:
            return original(*args, **kwargs)
        recorder = session.recorder
        machine = None if recorder is None else recorder.here()
        if machine is not None and machine.waiting:
            return original(*args, **kwargs)  # a dataset that keeps its samples so
        target = (
            kwargs["f"] if "f" in kwargs else args[phase == _SAVE] if len(args) > (phase == _SAVE) else None
        )
        before = _position(target) if phase == _SAVE else 0
        t0 = perf_counter_ns()
        inside.call = True
        _begin(guard, machine, phase, t0)
        try:
            return original(*args, **kwargs)
        finally:
            t1 = perf_counter_ns()
            inside.call = False
            _end(guard, recorder, machine, phase, t0, t1, target, before)

    return call


def _begin(guard: Guard, machine: StepMachine | None, phase: int, t0: int) -> None:
    if machine is not None:
        try:
            machine.begin_aside(phase, t0)
        except Exception as error:
            guard.failed(error)


def _end(
    guard: Guard,
    recorder: Recorder | None,
    machine: StepMachine | None,
    phase: int,
    t0: int,
    t1: int,
    target: Any,
    before: int,
) -> None:
    try:
        size = _size(target, before, saved=phase == _SAVE)
        if machine is None or recorder is not session.recorder:
            session.early(phase, t0, t1, size)
        else:
            machine.aside(phase, t0, t1, size)
    except Exception as error:
        guard.failed(error)


def _position(target: Any) -> int:
    try:
        return int(target.tell())
    except Exception:
        return 0


def _size(target: Any, before: int, saved: bool) -> int:
    """Bytes of the checkpoint: the file's size, or how far an open file moved on; 0 when unknown."""
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.stat(target).st_size
        if saved:
            return max(0, _position(target) - before)
        return os.fstat(target.fileno()).st_size
    except Exception:
        return 0
