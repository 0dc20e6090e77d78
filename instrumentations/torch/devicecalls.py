# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, and waits for a device: `Tensor.to` and `.cuda`, `.item` and its like.

On the CPU none of them is either, so nothing is hooked until the program initializes a device: a program
without one pays nothing. From then on a call on a tensor of the host costs two looks at it.

The hooks are descriptors. Who asks the class gets the original method, as `__torch_function__` and the tables
that are keyed by it do; only a call on a tensor comes here. Tensors of subclasses, and all where the program
has a `TorchFunctionMode` of its own, are left alone: a look at their device would be a call of theirs. So is
what PyTorch notes or warns of with the line that is running: that must be the program's. A program that
compiles gets its tensors back, see `tensors`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from types import MethodType, ModuleType
from typing import Any, Final

import torch
from torch._guards import TracingContext
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from grademl_otel import marks, semconv
from grademl_otel.governor import ROOTS, levels
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.disguise import disguised
from grademl_otel.instrumentations.torch.forward import has_compiled
from grademl_otel.instrumentations.torch.inner import InnerPhase
from grademl_otel.instrumentations.torch.tensors import hooks
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

TRANSFER: Final = marks.phase_kind(semconv.DATA_TRANSFER)
SYNC: Final = marks.phase_kind(semconv.DEVICE_SYNC)

_READS: Final = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__")
"""Methods that give a value of a tensor to the host, and wait for it."""
_MOVES: Final = ("to", "cuda", "xpu")
"""Methods that may copy a tensor to another device."""

transfers: Final = InnerPhase("data.transfer", TRANSFER)
"""Of all that moves: a framework's mover calls the methods of tensors."""

OnHost = Callable[[torch.Tensor], bool]
Warns = Callable[[torch.Tensor], bool]
"""Whether a method may warn when called on a tensor: of a gradient or an imaginary part that is lost."""


def install(patches: Patches) -> None:
    """Hook into what waits for a device at once, and into tensors as soon as one is initialized."""
    for device in (torch.cuda, torch.xpu):
        _when_initialized(device, patches)
        _wrap_synchronize(device, patches)


def _when_initialized(device: ModuleType, patches: Patches) -> None:
    """Hook into tensors when the program initializes ``device``, as other calls wait for that."""

    def initialized() -> None:
        if has_compiled():
            return
        with patches.together("torch: transfers and syncs"):
            hook_tensors(patches)

    if device.is_initialized():
        initialized()
        return
    # Not by `_lazy_call`, which first reads the source of all callers.
    queued: list[Any] = device._queued_calls
    entry = (initialized, ["grademl_otel"])
    queued.append(entry)
    patches.on_restore(lambda: queued.remove(entry) if entry in queued else None)


def _on_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cpu)


def hook_tensors(patches: Patches, on_host: OnHost = _on_host) -> None:
    """Hook into the methods of tensors, once; ``on_host`` says of one whether it is on the CPU."""
    if isinstance(vars(torch.Tensor).get("item"), _Hooked):
        return
    patches.on_restore(hooks.restore)
    patches.on_restore(levels.follow(_work_at))
    reads = InnerPhase("device.sync", SYNC)
    for name in _READS:
        original = getattr(torch.Tensor, name)
        warns = torch.Tensor.requires_grad.__get__ if name.startswith("__") else None
        hook = _Hooked(original, reads.around(original), on_host, warns)
        hooks.replace(torch.Tensor, name, hook, ROOTS)
    for name in _MOVES:
        original = getattr(torch.Tensor, name, None)
        if original is not None:
            hook = _Hooked(original, _move(original, on_host), None, torch.Tensor.is_complex)
            hooks.replace(torch.Tensor, name, hook, ROOTS)
    hooks.replace(torch.nn.Module, "_apply", _wrap_apply(torch.nn.Module._apply), ROOTS)
    hooks.work_at(levels.level)


def _work_at(level: int, learning: bool) -> None:
    hooks.work_at(level)


_Tensor: Final = torch.Tensor
_trace: Final = TracingContext.try_get


class _Hooked:
    """A method that is ``wrapper`` for a plain tensor; ``original`` for who asks the class, for tensors of
    subclasses, for those that are ``on_host`` if that is asked, for those of which it ``warns``, and for
    what traces.
    """

    def __init__(
        self, original: Any, wrapper: Callable[..., Any], on_host: OnHost | None, warns: Warns | None
    ) -> None:
        self._original = original
        self._wrapper = wrapper
        self._on_host = on_host
        self._warns = warns

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if type(instance) is _Tensor and not _left_alone():
            on_host = self._on_host
            warns = self._warns
            if (on_host is None or not on_host(instance)) and not (warns and warns(instance)):
                return MethodType(self._wrapper, instance)
        return self._original if instance is None else self._original.__get__(instance, owner)


_modes: Final = torch._C._len_torch_function_stack
_mode: Final = torch._C._get_function_stack_at
_script: Final = torch._C._get_tracing_state


def _left_alone() -> bool:
    """Whether a call here would be seen: by a mode of the program's, by Dynamo, or by `torch.jit.trace`."""
    if _trace() is not None or _script() is not None:
        return True
    return _modes() > 0 and not (_modes() == 1 and type(_mode(0)) is DeviceContext)


def _move(original: Any, on_host: OnHost) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        t0 = perf_counter_ns()
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        if result is not self and type(result) is _Tensor:
            here, there = on_host(self), on_host(result)
            if here != there:
                # To the host it is a wait for what is still to be computed.
                waits = there and not kwargs.get("non_blocking", False)
                transfers.tell(t0, SYNC if waits else TRANSFER)
        return result

    return move


def _wrap_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """A module that is moved is no batch: its parameters and their gradients are not transfers."""
    inside = transfers.inside

    @pass_over
    @wraps(original)
    def _apply(*args: Any, **kwargs: Any) -> Any:
        around = inside.call
        try:
            inside.call = True
            return original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            inside.call = around

    return _apply


def _wrap_synchronize(device: ModuleType, patches: Patches) -> None:
    """Wrap what waits for ``device``, a stream or an event of it."""
    phase = InnerPhase("device.sync", SYNC)
    for owner in (device, device.Stream, device.Event):
        original = owner.synchronize
        patches.replace(owner, "synchronize", synchronizing(original, phase, device.is_initialized), ROOTS)


def synchronizing(original: Any, phase: InnerPhase, in_use: Callable[[], bool]) -> Callable[..., Any]:
    """Return the wrapper of ``original``, which waits for a device that is ``in_use``."""
    inside = phase.inside

    def synchronize(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        running = None
        try:
            if in_use():
                running = phase.begin()
            if running is None:
                return original(*args, **kwargs)
            inside.call = True
            return original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if running is not None:
                inside.call = False
                phase.end(running)

    return disguised(synchronize, original)
