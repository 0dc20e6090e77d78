# SPDX-License-Identifier: Apache-2.0
"""Where drivers of accelerators tell of themselves, and whether one does at all."""

from __future__ import annotations

import os
from typing import NamedTuple


class Places(NamedTuple):
    """Where the kernel and drivers tell of devices, to be read from other places in tests."""

    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    opt: str = "/opt"
    usr: str = "/usr"


def any_accelerator(places: Places | None = None) -> bool:
    """Whether there is a driver of any accelerator: nothing more is looked at without one."""
    places = Places() if places is None else places
    return any(
        os.path.exists(place)
        for place in (
            f"{places.proc}/driver/nvidia",
            f"{places.sys}/class/kfd",
            f"{places.sys}/class/accel",
            f"{places.sys}/class/neuron_device",
            f"{places.dev}/neuron0",
            f"{places.dev}/accel0",
            f"{places.dev}/vfio",
            f"{places.dev}/dri",
        )
    )
