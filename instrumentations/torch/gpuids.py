# SPDX-License-Identifier: Apache-2.0
"""Which GPUs this process uses, by the names under which they are sampled: ``GPU-...``, ``MIG-...``.

What is not certain is left out: an index alone says nothing, because CUDA's order is not that of the driver,
and a container or a launcher may show other devices than there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_GPU: Final = re.compile(f"GPU-{_UUID}", re.IGNORECASE)
_BARE: Final = re.compile(_UUID, re.IGNORECASE)
_MIG: Final = re.compile(f"MIG-(?:{_UUID}|GPU-{_UUID}/[0-9]+/[0-9]+)", re.IGNORECASE)


def gpu_ids(cuda: Any, devices: Iterable[int], environ: Mapping[str, str]) -> list[str]:
    """Return the ids of ``devices``, indices of ``cuda`` (`torch.cuda` or one like it) that are in use.

    To be called once CUDA is initialized: it asks for properties of devices. May raise what that does.
    """
    visible = [part.strip() for part in environ.get(_VISIBLE, "").split(",")]
    found = (_id(cuda, device, visible[device] if device < len(visible) else "") for device in devices)
    return list(dict.fromkeys(each for each in found if each))


def _id(cuda: Any, device: int, entry: str) -> str:
    if _MIG.fullmatch(entry):
        return entry
    properties = cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    if "MIG" in str(getattr(properties, "name", "")):
        return ""  # whether its uuid is that of the instance or of the whole GPU, CUDA does not say
    if _BARE.fullmatch(uuid):
        return f"GPU-{uuid.lower()}"
    if _GPU.fullmatch(uuid):
        return uuid
    return entry if _GPU.fullmatch(entry) else ""
