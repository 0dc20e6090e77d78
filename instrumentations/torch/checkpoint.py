# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: `torch.save` and `torch.load`, the outermost call only, with the size where it is known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch

from grademl_otel import marks, semconv
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_SAVE: Final = marks.phase_kind(semconv.CHECKPOINT_SAVE)
_LOAD: Final = marks.phase_kind(semconv.CHECKPOINT_LOAD)


class _Inside(threading.local):
    call = False


def install(patches: Patches) -> None:
    """Wrap both functions under both of their names."""
    inside = _Inside()
    for name, kind in (("save", _SAVE), ("load", _LOAD)):
        wrapper = _wrap(name, getattr(torch.serialization, name), kind, inside)
        patches.replace(torch.serialization, name, wrapper)
        patches.replace(torch, name, wrapper)


def _wrap(name: str, original: Callable[..., Any], kind: int, inside: _Inside) -> Callable[..., Any]:
    guard = Guard(f"torch.{name}")
    position = 1 if kind == _SAVE else 0  # of the argument that says where

    @pass_over
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        target = running = None
        if not inside.call and guard.on and not session.in_worker:
            target = kwargs.get("f", args[position] if len(args) > position else None)
            running = _begin(guard, kind, target)
        try:
            if running is None:
                return original(*args, **kwargs)
            try:
                inside.call = True
                return original(*args, **kwargs)
            finally:
                inside.call = False
                _end(guard, kind, target, running)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return call


class _Running(NamedTuple):
    """A call that is on its way; without a machine the run has not begun."""

    machine: StepMachine | None
    t0: int
    position: int


def _begin(guard: Guard, kind: int, target: Any) -> _Running | None:
    try:
        t0 = perf_counter_ns()
        recorder = session.recorder
        position = _position(target) if kind == _SAVE else 0
        if recorder is None:
            return _Running(None, t0, position)
        machine = recorder.here()
        if machine.waiting:
            return None  # a dataset that keeps its samples so
        machine.begin_aside(kind, t0)
        return _Running(machine, t0, position)
    except Exception as error:
        guard.failed(error)
        return None


def _end(guard: Guard, kind: int, target: Any, running: _Running) -> None:
    t1 = perf_counter_ns()
    try:
        size = _size(target, running.position, saved=kind == _SAVE)
        if running.machine is None:
            session.early(kind, running.t0, t1, size)
        else:
            running.machine.aside(kind, running.t0, t1, size)
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
