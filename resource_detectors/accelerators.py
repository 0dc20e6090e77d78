# SPDX-License-Identifier: Apache-2.0
"""The accelerators that this process may use, as drivers tell of them in files.

No library of a vendor is loaded, and no device is opened: that takes seconds where no driver is kept loaded,
and what a process has opened, those that it forks cannot use.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from grademl_otel import semconv
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.partial import Facts, collect
from grademl_otel.resource_detectors.places import Places, any_accelerator

_MOST_DEVICES: Final = 256
_MOST_NAMES: Final = 4096
_GOOGLE: Final = "0x1ae0"
_TPUS: Final = {
    "0x0027": "TPU v2 or v3", "0x005e": "TPU v4", "0x0062": "TPU v5p", "0x0063": "TPU v5e",
    "0x006f": "TPU v6e", "0x0076": "TPU7x",
}  # fmt: skip
_INTEL: Final = "0x8086"
_DISPLAY_CONTROLLER: Final = "0x0380"
"""Class of GPUs without a display: data centre ones; others of Intel's are part of a CPU."""
_KERNEL_MODULE: Final = re.compile(r"Kernel Module(?: for [\w.-]+)?\s+([0-9]+(?:\.[0-9]+)+)")
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9A-Za-z_+-]+)*")


class Device(NamedTuple):
    """One accelerator; what is not known is empty or 0."""

    model: str = ""
    memory: int = 0
    """Bytes."""


class Found(NamedTuple):
    """The devices of one vendor."""

    vendor: str
    devices: list[Device]
    driver: str = ""


def accelerator_facts(
    environ: Mapping[str, str],
    seconds: float,
    places: Places | None = None,
    modules: Mapping[str, Any] | None = None,
) -> Facts:
    """Return model, number, memory, driver and runtime of the accelerators; empty where there are none.

    A driver that does not answer within ``seconds`` is not waited for.
    """
    places = Places() if places is None else places
    modules = sys.modules if modules is None else modules
    if not any_accelerator(places):
        return {}
    said: list[Facts] = []
    looking = threading.Thread(
        target=lambda: said.append(_facts(environ, places, modules)), name="grademl-accelerators", daemon=True
    )
    looking.start()
    looking.join(seconds)
    if not said:
        return {}
    return said[0] | collect([lambda: _memory_told_by_torch(said[0], modules)])


def _facts(environ: Mapping[str, str], places: Places, modules: Mapping[str, Any]) -> Facts:
    found: list[Found] = []
    for look in (_nvidia, _amd, _gaudi, _neuron, _tpu, _intel):
        with suppress(Exception):  # what one driver says must not hide the others' devices
            some = look(places)
            if some is not None and some.devices:
                found.append(some)
    if not found:
        return {}
    first = max(found, key=lambda some: len(some.devices))  # a GPU for the display beside those that compute
    vendor = first.vendor
    parts: list[Callable[[], Facts]] = [lambda: _devices(first)]
    if vendor == "nvidia":
        parts.append(lambda: {semconv.ACCELERATOR_CUDA: _cuda(places, modules)})
    if vendor == "amd":
        parts.append(lambda: {semconv.ACCELERATOR_ROCM: _rocm(places, modules)})
    if vendor in _VISIBLE:
        parts.append(lambda: _visible(environ, vendor, len(first.devices)))
    return collect(parts)


def _devices(found: Found) -> Facts:
    facts: Facts = {
        semconv.ACCELERATOR_VENDOR: found.vendor,
        semconv.ACCELERATOR_COUNT: len(found.devices),
        semconv.ACCELERATOR_MODEL: ", ".join(
            sorted({device.model for device in found.devices if device.model})
        ),
        semconv.ACCELERATOR_DRIVER: found.driver,
    }
    memories = {device.memory for device in found.devices}
    if len(memories) == 1 and 0 not in memories:
        facts[semconv.ACCELERATOR_MEMORY] = memories.pop()
    return facts


# --- NVIDIA -------------------------------------------------------------------------------------------------


def _nvidia(places: Places) -> Found | None:
    """As the kernel module tells. In a container only devices that have a node there count."""
    folder = f"{places.proc}/driver/nvidia"
    if not os.path.isdir(folder):
        return None
    nodes = {name for name in files.names(places.dev, _MOST_NAMES) if re.fullmatch(r"nvidia[0-9]+", name)}
    devices: list[Device] = []
    for gpu in sorted(files.names(f"{folder}/gpus", _MOST_DEVICES)):
        said = _fields(files.read_text_lines(f"{folder}/gpus/{gpu}/information"))
        minor = said.get("Device Minor", "")
        if said.get("GPU Excluded", "No") == "Yes" or (nodes and minor and f"nvidia{minor}" not in nodes):
            continue
        if said:
            devices.append(Device(said.get("Model", "")))
    if not devices:
        devices = [Device() for _ in nodes]
    match = _KERNEL_MODULE.search(files.read_text(f"{folder}/version"))
    driver = match[1] if match else _version(files.read_text(f"{places.sys}/module/nvidia/version"))
    return Found("nvidia", devices, driver)


def _fields(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): files.text(value) for name, colon, value in pairs if colon}


def _memory_told_by_torch(facts: Facts, modules: Mapping[str, Any]) -> Facts:
    """What NVIDIA's kernel module does not tell; a PyTorch that has initialized CUDA does, of its device.

    Only where all devices are of one model, so that it is the memory of each.
    """
    if facts.get(semconv.ACCELERATOR_VENDOR) != "nvidia" or "," in str(
        facts.get(semconv.ACCELERATOR_MODEL, ",")
    ):
        return {}
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {semconv.ACCELERATOR_MEMORY: int(cuda.get_device_properties(cuda.current_device()).total_memory)}


def _cuda(places: Places, modules: Mapping[str, Any]) -> str:
    """Version of CUDA that the program computes with, else that of the toolkit on this host."""
    told = _of_torch(modules, "cuda")
    if told:
        return told
    try:
        said = json.loads(files.read(f"{places.usr}/local/cuda/version.json", 1 << 16) or b"{}")
        return _version(str(said["cuda"]["version"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


# --- AMD ----------------------------------------------------------------------------------------------------


def _amd(places: Places) -> Found | None:
    """As the topology of the compute driver tells; what a container was not given cannot be read there."""
    nodes = f"{places.sys}/class/kfd/kfd/topology/nodes"
    devices: list[Device] = []
    for node in sorted(files.names(nodes, _MOST_DEVICES), key=_number):
        said = dict(_words(files.read_text_lines(f"{nodes}/{node}/properties")))
        if not said.get("simd_count", 0):
            continue  # a CPU
        minor = said.get("drm_render_minor", 0)
        if (
            minor
            and os.path.isdir(f"{places.dev}/dri")
            and not os.path.exists(f"{places.dev}/dri/renderD{minor}")
        ):
            continue
        card = f"{places.sys}/class/drm/renderD{minor}/device"
        model = files.read_text(f"{card}/product_name") or _gfx(said.get("gfx_target_version", 0))
        total = files.read_text(f"{card}/mem_info_vram_total")
        memory = int(total) if total.isascii() and total.isdigit() else _banks(f"{nodes}/{node}/mem_banks")
        devices.append(Device(model, memory))
    driver = _version(files.read_text(f"{places.sys}/module/amdgpu/version"))
    return Found("amd", devices, driver)


def _words(lines: list[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        name, _, value = line.strip().partition(" ")
        if value.isascii() and value.isdigit():
            yield name, int(value[:20])


def _gfx(version: int) -> str:
    """The architecture's name: 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _banks(folder: str) -> int:
    """Bytes of memory that is the device's own (heaps 1 and 2)."""
    size = 0
    for bank in files.names(folder, 16):
        said = dict(_words(files.read_text_lines(f"{folder}/{bank}/properties")))
        if said.get("heap_type") in (1, 2):
            size += said.get("size_in_bytes", 0)
    return size


def _rocm(places: Places, modules: Mapping[str, Any]) -> str:
    return _of_torch(modules, "hip") or _version(files.read_text(f"{places.opt}/rocm/.info/version"))


# --- Others -------------------------------------------------------------------------------------------------


def _gaudi(places: Places) -> Found | None:
    folder = f"{places.sys}/class/accel"
    models = [
        files.read_text(f"{folder}/{name}/device/device_type")
        for name in sorted(files.names(folder, _MOST_DEVICES), key=_number)
        if re.fullmatch(r"accel[0-9]+", name)
    ]
    devices = [Device(model) for model in models if model.upper().startswith("GAUDI")]
    return Found("habana", devices, _version(files.read_text(f"{places.sys}/module/habanalabs/version")))


def _neuron(places: Places) -> Found | None:
    nodes = [name for name in files.names(places.dev, _MOST_NAMES) if re.fullmatch(r"neuron[0-9]+", name)]
    told = f"{places.sys}/devices/virtual/neuron_device"
    devices = [
        Device(files.read_text(f"{told}/{name}/info/architecture/device_name"))
        for name in sorted(nodes, key=_number)
    ]
    return Found("aws", devices, _version(files.read_text(f"{places.sys}/module/neuron/version")))


def _tpu(places: Places) -> Found | None:
    if not (os.path.exists(f"{places.dev}/accel0") or os.path.exists(f"{places.dev}/vfio")):
        return None
    devices = [
        Device(_TPUS[kind])
        for card in _cards(places)
        if files.read_text(f"{card}/vendor") == _GOOGLE
        and (kind := files.read_text(f"{card}/device")) in _TPUS
    ]
    return Found("google", devices)


def _intel(places: Places) -> Found | None:
    folder = f"{places.sys}/class/drm"
    devices: list[Device] = []
    for name in sorted(files.names(f"{places.dev}/dri", _MOST_DEVICES), key=_number):
        card = f"{folder}/{name}/device"
        if not name.startswith("renderD") or files.read_text(f"{card}/vendor") != _INTEL:
            continue
        if files.read_text(f"{card}/class").startswith(_DISPLAY_CONTROLLER):
            devices.append(Device(files.read_text(f"{card}/product_name")))
    return Found("intel", devices)


def _cards(places: Places) -> list[str]:
    folder = f"{places.sys}/bus/pci/devices"
    return [f"{folder}/{name}" for name in sorted(files.names(folder, _MOST_NAMES))]


# --- What all share -----------------------------------------------------------------------------------------

_VISIBLE: Final = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables that hide whole devices, by vendor."""


def _visible(environ: Mapping[str, str], vendor: str, count: int) -> Facts:
    """How many devices the program is left with by the variables that hide some; absent without any."""
    told = [environ[name] for name in _VISIBLE[vendor] if name in environ]
    if not told:
        return {}
    return {semconv.ACCELERATOR_VISIBLE: min(_listed(value, count) for value in told)}


def _listed(value: str, count: int) -> int:
    """Devices that ``value`` lists: as CUDA reads it, up to the first that makes no sense."""
    number = 0
    for word in value.split(",")[:_MOST_DEVICES]:
        word = word.strip()
        if word.isascii() and word.isdigit():
            if int(word[:9]) >= count:
                break
        elif not word.startswith(("GPU-", "MIG-")):
            break
        number += 1
    return number


def _of_torch(modules: Mapping[str, Any], name: str) -> str:
    told = getattr(getattr(modules.get("torch"), "version", None), name, None)
    return _version(told) if isinstance(told, str) else ""


def _version(text: str) -> str:
    match = _VERSION.match(text)
    return match[0][:64] if match else ""


def _number(name: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", name)[:9]
    return int(digits) if digits else -1, name
