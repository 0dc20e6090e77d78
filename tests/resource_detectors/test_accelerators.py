# SPDX-License-Identifier: Apache-2.0
"""Accelerators from written trees of /proc, /sys and /dev, as drivers have them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grademl_otel import semconv
from grademl_otel.resource_detectors.accelerators import accelerator_facts
from grademl_otel.resource_detectors.partial import Facts
from grademl_otel.resource_detectors.places import Places, any_accelerator


def tree(folder: Path, files: dict[str, str]) -> Places:
    """Write ``files`` by their absolute paths below ``folder``."""
    for name, content in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Places(*(str(folder / name) for name in ("proc", "sys", "dev", "opt", "usr")))


def facts(places: Places, environ: dict[str, str] | None = None, **modules: Any) -> Facts:
    return accelerator_facts(environ or {}, 10, places, modules)


def gpu(
    number: int, model: str = "NVIDIA H100 80GB HBM3", minor: int | None = None, more: str = ""
) -> dict[str, str]:
    name = f"/proc/driver/nvidia/gpus/0000:{number:02x}:00.0/information"
    return {
        name: f"Model: \t\t {model}\nIRQ:   \t\t 99\n"
        f"GPU UUID: \t GPU-{number:08x}-0000-0000-0000-000000000000\nVideo BIOS: \t 96.00.61.00.01\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDevice Minor: \t {number if minor is None else minor}\n"
        f"GPU Firmware: \t 535.129.03\n{more}"
    }


NVIDIA = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 "
    "18:56:32 UTC 2023\nGCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
}
OPEN = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  "
    "Release Build  (dvs-builder@U16)\n"
}
EIGHT = {key: value for number in range(8) for key, value in gpu(number).items()}


def test_nothing(tmp_path: Path) -> None:
    places = tree(tmp_path, {"/proc/cpuinfo": "", "/dev/null": ""})
    assert not any_accelerator(places)
    assert facts(places) == {}


def test_eight_of_nvidia(tmp_path: Path) -> None:
    places = tree(tmp_path, NVIDIA | EIGHT)
    assert facts(places) == {
        "grademl.accelerator.vendor": "nvidia",
        "grademl.accelerator.count": 8,
        "grademl.accelerator.model": "NVIDIA H100 80GB HBM3",
        "grademl.accelerator.driver.version": "535.129.03",
    }


def test_the_open_module_says_its_version_otherwise(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, OPEN | gpu(0)))[semconv.ACCELERATOR_DRIVER] == "570.86.15"


def test_a_container_has_what_it_was_given(tmp_path: Path) -> None:
    places = tree(tmp_path, NVIDIA | EIGHT | {"/dev/nvidia2": "", "/dev/nvidia5": "", "/dev/nvidiactl": ""})
    assert facts(places)[semconv.ACCELERATOR_COUNT] == 2
    hidden = tree(tmp_path / "2", NVIDIA | {"/dev/nvidia0": "", "/dev/nvidia1": ""})
    assert facts(hidden)[semconv.ACCELERATOR_COUNT] == 2
    assert semconv.ACCELERATOR_MODEL not in facts(hidden)


def test_a_driver_without_a_device(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, NVIDIA)) == {}
    lost = tree(
        tmp_path / "2", NVIDIA | gpu(0, more="GPU Excluded:\t Yes\n") | gpu(1, more="GPU Excluded:\t No\n")
    )
    assert facts(lost)[semconv.ACCELERATOR_COUNT] == 1


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("0,1", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("3", 1), ("8", 0), ("0,9,1", 1),
        (" 0 , 1", 2), ("0,x", 1),
        ("GPU-00000001,GPU-2", 2), ("MIG-GPU-1/2/3", 1), ("0,1,-1,2", 2), ("99999999999999999999", 0),
    ],
)  # fmt: skip
def test_what_is_left_visible(value: str, visible: int, tmp_path: Path) -> None:
    found = facts(tree(tmp_path, NVIDIA | EIGHT), {"CUDA_VISIBLE_DEVICES": value})
    assert (found[semconv.ACCELERATOR_COUNT], found[semconv.ACCELERATOR_VISIBLE]) == (8, visible)


class FakeCuda:
    """As `torch.cuda` of a process that has a device; says whether it was asked."""

    def __init__(self, initialized: bool) -> None:
        self._initialized = initialized
        self.asked = False

    def is_initialized(self) -> bool:
        return self._initialized

    def current_device(self) -> int:
        return 1

    def get_device_properties(self, number: int) -> Any:
        assert (self._initialized, number) == (True, 1)
        self.asked = True
        return SimpleNamespace(total_memory=85_899_345_920)


@pytest.mark.parametrize("initialized", [True, False])
def test_what_torch_knows_already(initialized: bool, tmp_path: Path) -> None:
    torch = SimpleNamespace(cuda=FakeCuda(initialized), version=SimpleNamespace(cuda="12.4", hip=None))
    found = facts(tree(tmp_path, NVIDIA | EIGHT), torch=torch)
    assert found[semconv.ACCELERATOR_CUDA] == "12.4"
    assert found.get(semconv.ACCELERATOR_MEMORY) == (85_899_345_920 if initialized else None)
    assert torch.cuda.asked is initialized
    mixed = facts(tree(tmp_path / "2", NVIDIA | gpu(0) | gpu(1, "NVIDIA T4")), torch=torch)
    assert mixed[semconv.ACCELERATOR_MODEL] == "NVIDIA H100 80GB HBM3, NVIDIA T4"
    assert semconv.ACCELERATOR_MEMORY not in mixed


def test_the_toolkit_tells_the_version_where_no_torch_does(tmp_path: Path) -> None:
    said = '{"cuda": {"name": "CUDA SDK", "version": "12.6.20241001"}}'
    places = tree(tmp_path, NVIDIA | gpu(0) | {"/usr/local/cuda/version.json": said})
    assert facts(places)[semconv.ACCELERATOR_CUDA] == "12.6.20241001"
    for bad in ("", "{", "[]", '{"cuda": 1}', "[" * 9000):
        tree(tmp_path, {"/usr/local/cuda/version.json": bad})
        assert semconv.ACCELERATOR_CUDA not in facts(places)


def amd(node: int, minor: int, memory: str | None = "206141652992") -> dict[str, str]:
    files = {
        f"/sys/class/kfd/kfd/topology/nodes/{node}/properties": "cpu_cores_count 0\nsimd_count 1216\n"
        f"vendor_id 4098\ndevice_id 29857\ndrm_render_minor {minor}\ngfx_target_version 90402\n"
        "unique_id 18446744073709551615\n",
        f"/sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 7\n",
        f"/sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/1/properties": "heap_type 0\nsize_in_bytes 9\n",
    }
    if memory is not None:
        files[f"/sys/class/drm/renderD{minor}/device/mem_info_vram_total"] = memory + "\n"
    return files


AMD = {
    "/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 96\nsimd_count 0\n",
    "/sys/module/amdgpu/version": "6.8.5\n",
    "/opt/rocm/.info/version": "6.2.4-139\n",
}


def test_amd(tmp_path: Path) -> None:
    places = tree(
        tmp_path, AMD | amd(1, 128) | amd(2, 129) | {"/dev/dri/renderD128": "", "/dev/dri/renderD129": ""}
    )
    assert facts(places, {"HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "1"}) == {
        "grademl.accelerator.vendor": "amd",
        "grademl.accelerator.count": 2,
        "grademl.accelerator.model": "gfx942",
        "grademl.accelerator.memory": 206141652992,
        "grademl.accelerator.driver.version": "6.8.5",
        "grademl.accelerator.rocm.version": "6.2.4-139",
        "grademl.accelerator.visible": 1,
    }
    os.unlink(tmp_path / "dev/dri/renderD129")
    tree(tmp_path, {"/sys/class/drm/renderD128/device/product_name": "AMD Instinct MI300X OAM\n"})
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None, hip="6.3.42131"))
    found = facts(places, torch=torch)
    assert (found[semconv.ACCELERATOR_COUNT], found[semconv.ACCELERATOR_MODEL]) == (
        1,
        "AMD Instinct MI300X OAM",
    )
    assert found[semconv.ACCELERATOR_ROCM] == "6.3.42131"


def test_amd_by_its_memory_banks(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, AMD | amd(1, 128, None)))[semconv.ACCELERATOR_MEMORY] == 7
    assert facts(tree(tmp_path, AMD | amd(1, 128, "many")))[semconv.ACCELERATOR_MEMORY] == 7


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "/sys/class/accel/accel0/device/device_type": "GAUDI2\n",
                "/sys/class/accel/accel1/device/device_type": "GAUDI2\n",
                "/sys/class/accel/accel_controlD0/device/device_type": "GAUDI2\n",
                "/sys/class/accel/accel2/device/device_type": "NPU\n",
                "/sys/module/habanalabs/version": "1.18.0-ee698fb\n",
            },
            ("habana", 2, "GAUDI2", "1.18.0-ee698fb"),
        ),
        (
            {
                "/dev/neuron0": "",
                "/dev/neuron11": "",
                "/sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name": "Trainium2\n",
                "/sys/devices/virtual/neuron_device/neuron11/info/architecture/device_name": "Trainium2\n",
                "/sys/module/neuron/version": "2.19.64.0\n",
            },
            ("aws", 2, "Trainium2", "2.19.64.0"),
        ),
        (
            {
                "/dev/vfio/0": "",
                **{f"/sys/bus/pci/devices/0000:00:0{n}.0/vendor": "0x1ae0\n" for n in range(4)},
                **{f"/sys/bus/pci/devices/0000:00:0{n}.0/device": "0x0063\n" for n in range(3)},
                "/sys/bus/pci/devices/0000:00:03.0/device": "0x0042\n",  # a network card of the same vendor
            },
            ("google", 3, "TPU v5e", None),
        ),
        (
            {
                "/dev/dri/renderD128": "",
                "/dev/dri/card0": "",
                "/sys/class/drm/renderD128/device/vendor": "0x8086\n",
                "/sys/class/drm/renderD128/device/class": "0x038000\n",
            },
            ("intel", 1, None, None),
        ),
    ],
)
def test_others(files: dict[str, str], expected: tuple[object, ...], tmp_path: Path) -> None:
    found = facts(tree(tmp_path, files))
    keys = (
        semconv.ACCELERATOR_VENDOR,
        semconv.ACCELERATOR_COUNT,
        semconv.ACCELERATOR_MODEL,
        semconv.ACCELERATOR_DRIVER,
    )
    assert tuple(found.get(key) for key in keys) == expected


def test_graphics_for_a_screen_do_not_count(tmp_path: Path) -> None:
    screen = {
        "/dev/dri/renderD128": "",
        "/sys/class/drm/renderD128/device/vendor": "0x8086\n",
        "/sys/class/drm/renderD128/device/class": "0x030000\n",
    }
    assert facts(tree(tmp_path, screen)) == {}
    assert facts(tree(tmp_path, NVIDIA | EIGHT))[semconv.ACCELERATOR_VENDOR] == "nvidia"


def test_odd_files_make_facts_absent(tmp_path: Path) -> None:
    places = tree(tmp_path, NVIDIA | gpu(0) | gpu(1) | gpu(2))
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    (gpus / "0000:01:00.0/information").write_bytes(b"Model: \xff\xfe\x00\x1b[31m\nDevice Minor: x\n:\n")
    (gpus / "0000:02:00.0/information").unlink()
    os.mkfifo(gpus / "0000:02:00.0/information")
    (tmp_path / "proc/driver/nvidia/version").write_bytes(b"\xff" * 100_000)
    found = facts(places)
    assert found[semconv.ACCELERATOR_COUNT] == 2
    assert all(c.isprintable() for c in str(found[semconv.ACCELERATOR_MODEL]))
    assert semconv.ACCELERATOR_DRIVER not in found


def test_a_driver_that_does_not_answer_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grademl_otel.resource_detectors import accelerators

    answer = threading.Event()

    def hangs(places: Places) -> None:
        answer.wait(60)

    monkeypatch.setattr(accelerators, "_nvidia", hangs)
    before = set(threading.enumerate())
    assert accelerator_facts({}, 0.02, tree(tmp_path, NVIDIA | EIGHT), {}) == {}
    (left,) = set(threading.enumerate()) - before
    assert left.daemon
    answer.set()
    left.join(10)
    assert not left.is_alive()
