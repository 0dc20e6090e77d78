# SPDX-License-Identifier: Apache-2.0
"""Transfers by the movers of frameworks: one phase for a whole batch, which they send to a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch

from grademl_otel.governor import ROOTS
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.devicecalls import transfers
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

MOVERS: Final = {
    "accelerate.utils.operations": "send_to_device",
    "lightning.fabric.utilities.apply_func": "move_data_to_device",
    "lightning_fabric.utilities.apply_func": "move_data_to_device",
}
"""Modules and their functions of a batch and a device."""
_MARK: Final = "_grademl_mover"


def install(patches: Patches) -> None:
    """Wrap the movers of the frameworks that are imported."""
    for path, name in MOVERS.items():
        original = getattr(sys.modules.get(path), name, None)
        if original is not None and not hasattr(original, _MARK):
            patches.replace(sys.modules[path], name, _wrap(original), ROOTS)


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    inside = transfers.inside

    @pass_over
    @wraps(original)
    def move(*args: Any, **kwargs: Any) -> Any:
        running = None
        try:
            if not inside.call and _leaves_host(kwargs["device"] if "device" in kwargs else args[1:2]):
                running = transfers.begin()
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
                transfers.end(running)

    setattr(move, _MARK, True)
    return move


def _leaves_host(device: Any) -> bool:
    """Whether ``device``, or the one in a tuple, is another one than the CPU."""
    try:
        if isinstance(device, tuple):
            (device,) = device
        return bool(torch.device(device).type != "cpu")
    except Exception:
        return False  # none was given: the error is the mover's to tell
