# SPDX-License-Identifier: Apache-2.0
"""What was there before the hooks were set: copies of hooked functions in modules that are imported already.

A program that is instrumented from its start copies the wrappers (``from torch import save``); one that calls
`grademl_otel.instrument()` late, as a notebook does, has copied the originals. Copies elsewhere, in a closure
or an attribute of an object, are not found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from grademl_otel.instrumentations.patches import Patches

_HOOKED: Final = (
    ("torch.autograd", "backward"),
    ("torch.autograd", "grad"),
    ("torch", "compile"),
    ("torch", "save"),
    ("torch", "load"),
    ("accelerate.utils.operations", "send_to_device"),
    ("lightning.fabric.utilities.apply_func", "move_data_to_device"),
    ("lightning_fabric.utilities.apply_func", "move_data_to_device"),
    *(
        ("torch.distributed.checkpoint", name)
        for name in ("save", "async_save", "load", "save_state_dict", "load_state_dict")
    ),
    *(
        ("safetensors.torch", name)
        for name in ("save_file", "load_file", "save_model", "load_model", "save", "load")
    ),
)


@contextmanager
def taking_copies_along(patches: Patches) -> Iterator[None]:
    """Replace the copies of what the block replaces, in all modules but torch's own."""
    before = []
    for path, name in _HOOKED:
        owner = sys.modules.get(path)
        former = getattr(owner, name, None)
        if former is not None:
            before.append((owner, name, former))
    yield
    wrappers = {id(former): getattr(owner, name) for owner, name, former in before}
    if not wrappers:
        return  # the usual case: torch is yet to be imported
    for path, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or path.partition(".")[0] == "torch":
            continue
        for name, value in list(vars(module).items()):
            wrapper = wrappers.get(id(value))
            if wrapper is not None and wrapper is not value:
                patches.replace(module, name, wrapper)
