# SPDX-License-Identifier: Apache-2.0
"""Instrumentation of PyTorch: data loading, forward, backward, optimizer and checkpoints of any loop.

Nothing of torch is imported before the user imports it: the hooks are set from post-import hooks. Each hook
stands alone; one that does not fit the torch at hand says so in one line and stays off, the others go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from types import ModuleType
from typing import Any, Final

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from grademl_otel.governor import levels
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.late import taking_copies_along
from grademl_otel.instrumentations.torch.package import instruments
from grademl_otel.lifecycle import session
from grademl_otel.messages import warn

__all__ = ["TorchInstrumentor"]

_AT_ONCE: Final = (
    *("forward", "functions", "training", "backward", "gradients", "data", "worker", "checkpoint", "cuda"),
    *("collector", "devicecalls"),
)
"""The modules of ours that hook into what ``import torch`` imports."""

_LATER: Final = {
    "torch._dynamo": "compile",
    "safetensors.torch": "safetensors",
    "torch.distributed.checkpoint": "distributed_checkpoint",
    "torch.distributed.distributed_c10d": "collectives",
    "torch.distributed._functional_collectives": "implicitwaits",
    "torch.utils.checkpoint": "recompute",
    "torchdata.stateful_dataloader.stateful_dataloader": "stateful",
    "accelerate.utils.operations": "movers",
    "lightning.fabric.utilities.apply_func": "movers",
    "lightning_fabric.utilities.apply_func": "movers",
    "transformers.generation.utils": "generation",
}
"""What a program imports after torch, or never, and the module of ours that hooks into it."""

_DYNAMO_SKIPS: Final = (
    # Dynamo must not look into these. Wrappers that it has to see through, or compiled modules would break
    # into graphs at each call, are for it in the files of what they wrap, see `disguise`.
    "grademl_otel.instrumentations.torch.training",
    "grademl_otel.instrumentations.torch.forward",
    "grademl_otel.instrumentations.torch.backward",
    "grademl_otel.instrumentations.torch.inner",
    "grademl_otel.instrumentations.torch.recompute",
    "grademl_otel.instrumentations.torch.collector",
    "grademl_otel.instrumentations.torch.devicecalls",
    "grademl_otel.instrumentations.torch.tensors",
    "grademl_otel.instrumentations.torch.movers",
    "grademl_otel.instrumentations.torch.generation",
    "grademl_otel.instrumentations.torch.compile",
    "grademl_otel.instrumentations.torch.functions",
    "grademl_otel.instrumentations.torch.data",
    "grademl_otel.instrumentations.torch.checkpoint",
    "grademl_otel.instrumentations.torch.checkpointing",
    "grademl_otel.instrumentations.torch.distributed_checkpoint",
    "grademl_otel.instrumentations.torch.safetensors",
    "grademl_otel.instrumentations.torch.cuda",
    "grademl_otel.instrumentations.torch.collectives",
    "grademl_otel.instrumentations.torch.groupcalls",
    "grademl_otel.instrumentations.torch.groups",
    "grademl_otel.instrumentations.torch.implicitwaits",
    "grademl_otel.instrumentations.torch.operations",
    "grademl_otel.instrumentations.torch.works",
    "grademl_otel.devicememory",
    "grademl_otel.devicetime",
    "grademl_otel.deviceclock",
    "grademl_otel.guard",
    "grademl_otel.manual",
    "grademl_otel.vocabulary",
    "grademl_otel.recorder",
    "grademl_otel.governor",
    "grademl_otel.tally",
    "grademl_otel.steps",
    "grademl_otel.loops",
    "grademl_otel.lifecycle",
    "grademl_otel.activerun",
    "grademl_otel.context",
    "grademl_otel.ring.plaincore",
    "grademl_otel.ring.writer",
)


class TorchInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """The `opentelemetry_instrumentor` of torch; never raises."""

    _patches: Patches | None = None
    _waiting_for_torch = False
    _torch_is_there = False

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether hooks are in place, or will be when torch is imported; False where settings forbid them."""
        return self._patches is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the versions of torch that are let in."""
        return instruments

    def _instrument(self, **kwargs: Any) -> None:
        try:
            if not session.install():
                return
            self._patches = Patches()
            self._patches.on_restore(levels.follow(self._work_at))
            with taking_copies_along(self._patches):
                self._set_hooks()
        except Exception as error:
            warn(f"torch is not recorded: {type(error).__name__}: {error}")

    def _set_hooks(self) -> None:
        """Set the hooks of what is imported, and have those of the rest set with their import."""
        if self._waiting_for_torch:  # instrumented again: post-import hooks cannot be taken back
            if "torch" in sys.modules:
                self._on_torch(sys.modules["torch"])
            return
        self._waiting_for_torch = True
        wrapt.register_post_import_hook(self._on_torch, "torch")
        for path, name in _LATER.items():
            if path not in sys.modules:
                wrapt.register_post_import_hook(partial(self._on_import, name), path)
        wrapt.register_post_import_hook(_tell_dynamo, "torch._dynamo.trace_rules")

    def _uninstrument(self, **kwargs: Any) -> None:
        patches, self._patches = self._patches, None
        try:
            session.uninstall()
        except Exception as error:
            warn(f"the end of the run is not recorded: {type(error).__name__}: {error}")
        if patches is not None:
            patches.restore()

    def _on_torch(self, torch: ModuleType) -> None:
        """Set the hooks; called when ``import torch`` is done."""
        patches = self._patches
        if patches is None:
            return
        session.framework = ("torch", str(getattr(torch, "__version__", "")))
        session.device = _device
        session.names.prepare()  # torch has imported multiprocessing
        session.records_grad = torch.is_grad_enabled
        for name in _AT_ONCE:
            _set(name, patches)
        self._torch_is_there = True
        for path, name in _LATER.items():
            if path in sys.modules:
                _set(name, patches)

    def _work_at(self, level: int, learning: bool) -> None:
        """Do as the recording level says; see `governor`."""
        if self._patches is not None:
            self._patches.work_at(level)

    def _on_import(self, name: str, module: ModuleType) -> None:
        """Set the hooks of `_LATER`, whenever ``module`` is imported; by torch itself: when that is done."""
        if self._patches is not None and self._torch_is_there:
            _set(name, self._patches)


def _set(name: str, patches: Patches) -> None:
    with patches.together(f"torch: {name.replace('_', ' ')}"):
        module = __import__(f"{__name__}.{name}", fromlist=["install"])
        install: Callable[[Patches], None] = module.install
        install(patches)


def _tell_dynamo(trace_rules: ModuleType) -> None:
    try:
        for name in _DYNAMO_SKIPS:
            trace_rules.add(name)
    except Exception:
        pass  # compiled train steps then look into the wrappers: slower to compile, not wrong


def _device() -> str | None:
    """The device in use; never initializes one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    cuda = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return f"cuda:{cuda.current_device()} {cuda.get_device_name()}"
    return "cpu"
