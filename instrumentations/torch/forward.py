# SPDX-License-Identifier: Apache-2.0
"""Forward: `nn.Module.__call__` of root modules.

Dynamo must see through the wrapper when it compiles a module, and not compile the wrapper itself: it is
disguised as what it wraps, and `is_compiling()` comes first. What it calls is in files that Dynamo skips,
this one among them. Calls of modules inside a module cost one look at a thread-local flag.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.compiler import is_compiling

from grademl_otel.governor import EVERYTHING, ROOTS, UPDATES, levels
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.disguise import disguised
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame

_NESTED_NS = 350
"""What the wrapper adds to the call of a module inside a module: timing each would cost more than that."""

_MAX_ROOTS = 64

_Module: Final = torch.nn.Module


class _Inside(threading.local):
    root = False
    to_run_again = False
    function: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleNamespace, (), {"root": True}


inside: Final = _Inside()
"""Of this thread: ``root`` is True where a module that is called is part of something that is recorded;
``to_run_again`` where it will be called again in the backward; ``function`` is the call of a compiled
function, see `functions`.
"""


def install(patches: Patches) -> None:
    """Wrap ``torch.nn.Module.__call__``, and do as the recording level says."""
    forward = _Forward()
    forward.work_at(levels.level, levels.learning)
    patches.on_restore(forward.restore)
    patches.on_restore(levels.follow(forward.work_at))


class _Forward:
    """The wrappers in force: that of all modules, or those of the classes that were seen as the outermost.

    Once Dynamo has compiled anything, nothing is changed any more: it may have seen a wrapper, and would
    compile again. Nor where somebody else has patched over a wrapper, which can then not be taken out.
    """

    def __init__(self) -> None:
        self._everywhere = Patches()
        self._roots = Patches()
        self._place: int | None = None
        self._hook = _Hook()
        self._bare = vars(_Module)["__call__"]
        self._of_all = self._wrap(_Module.__call__)

    def work_at(self, level: int, learning: bool) -> None:
        """Wrap what is to be wrapped at the recording level ``level``."""
        place = EVERYTHING if learning else min(level, ROOTS) if level < UPDATES else UPDATES
        if place == self._place or (self._place is not None and self._is_fixed()):
            return
        if place == ROOTS and len(_roots) > _MAX_ROOTS:
            return
        self._place = place
        self._roots.restore()
        _nested.clear()
        if place == EVERYTHING:
            self._everywhere.replace(_Module, "__call__", self._of_all)
        else:
            self._everywhere.restore()
        if place == ROOTS:
            for kind in tuple(_roots):
                self._roots.replace(kind, "__call__", self._wrap(_own_call(kind)))

    def _is_fixed(self) -> bool:
        bare = self._place == EVERYTHING or vars(_Module)["__call__"] is self._bare
        return has_compiled() or not (bare and self._everywhere.undisturbed and self._roots.undisturbed)

    def restore(self) -> None:
        """Wrap nothing."""
        self._roots.restore()
        self._everywhere.restore()
        _roots.clear()

    def _wrap(self, own: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return the wrapper of ``own``; None stands for that of all modules at each call: torch.fx puts
        another in its place while it traces.

        A class of the user's that is pickled by value, as cloudpickle does with those of a script, takes its
        wrapper along to where we may not be. There all calls are nested ones and the hook is None: nothing
        but these two is ours in the code below.
        """
        around, hook = inside, self._hook

        def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            original = own or _Module.__call__
            if is_compiling():
                return original(self, *args, **kwargs)
            try:
                call = None if around.root else hook.begin(self)
                if call is None:
                    return original(self, *args, **kwargs)
                try:
                    around.root = True
                    return original(self, *args, **kwargs)
                finally:
                    around.root = False
                    hook.end(call, self)
            except BaseException as error:
                if hook:
                    hook.left_by(error)
                raise

        return disguised(__call__, own or vars(_Module)["__call__"])


_roots: set[type] = set()
"""Classes of modules that were called from outside of any module."""


def _own_call(kind: type) -> Callable[..., Any] | None:
    """The ``__call__`` that classes of modules define themselves; None where it is that of all modules."""
    found = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
    return None if found is vars(_Module)["__call__"] else found


def has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(frames, "FRAME_COUNTER", 0))


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


class _Hook:
    """What the wrappers call of ours; pickles as None."""

    left_by = staticmethod(leave_out_this_frame)

    def __init__(self) -> None:
        self._guard = Guard("torch: forward")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def begin(self, module: torch.nn.Module) -> _Call | None:
        """A module is called that is not inside another one; None where that is not recorded."""
        guard = self._guard
        if not guard.on:
            return None
        t0 = perf_counter_ns()
        try:
            recorder = session.recorder
            if recorder is None or t0 > recorder.idle_at:
                recorder = session.begin(training=False, at=t0)
            if recorder is None or recorder.level == UPDATES:
                return None
            if recorder.forward_owner is not None and recorder.is_helper():
                return None  # a replica's thread: part of the forward that waits for it
            machine = recorder.here()
            if machine.waiting:  # inside a dataset or a collate function: part of the fetching
                return None
            # An evaluation may forget `no_grad`, but hardly `eval`.
            grad = (torch.is_grad_enabled() or inside.to_run_again) and module.training
            if len(_roots) <= _MAX_ROOTS:
                _roots.add(type(module))
            if not machine.in_backward:
                machine.begin_forward(t0, id(module), grad)
                recorder.forward_owner = machine
            if recorder.measuring:
                recorder.spent(t0)
            return recorder, machine, t0, grad
        except Exception as error:
            guard.failed(error)
            return None

    def end(self, call: _Call, module: torch.nn.Module) -> None:
        """It returned or raised."""
        t1 = perf_counter_ns()
        recorder, machine, t0, grad = call
        try:
            # A compiled module's class is OptimizedModule, which tells nothing. Not by `getattr`: where there
            # is no such attribute, a module takes longer to say so than all the rest here.
            inner = module._modules
            named = module
            if "_orig_mod" in inner:  # no `get`: that of a scripted module has none
                named = inner["_orig_mod"]
            name = type(named).__name__
            kind = recorder.ids.get(name) or recorder.text(name)
            if machine.in_backward:
                machine.recomputed(t0, t1, kind)
            else:
                recorder.forward_owner = None
                machine.end_forward(t0, t1, grad, id(module), kind)
            if recorder.measuring:
                nested = _NESTED_NS * _count_nested(module) if recorder.level == EVERYTHING else 0
                recorder.spent(t1 - nested)
        except Exception as error:
            self._guard.failed(error)
            recorder.lost()
