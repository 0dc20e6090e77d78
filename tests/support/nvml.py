# SPDX-License-Identifier: Apache-2.0
"""GPUs where there are none: a libnvidia-ml.so.1 of ours, which the unmodified nvidia-ml-py loads.

`Control.environment` makes another process use it (LD_LIBRARY_PATH); `load()` this one, for its whole life.
A `Control` writes the file that the library answers from (`fakenvml/nvml.c` tells its lines), at any time.

    control = Control(folder, "a100", count=2)
    subprocess.run([...], env={**os.environ, **control.environment()})
    control.advance(10)                            # counters ran for 10 s
    control.fail("nvmlDeviceGetPowerUsage", UNKNOWN, gpu=1)
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from .needed import cannot_be_had

SHAPES: Final = ("a100", "h100", "t4", "mig", "laptop", "vgpu")
"""Written after NVIDIA's documentation, not recorded: 8 A100, 8 H100 with 8 NVLinks each, 4 T4, an A100 in
instances, a laptop, a vGPU."""

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
MISMATCH: Final = 18
UNKNOWN: Final = 999

XID: Final = 8
"""Type of the event of a critical Xid error."""

_FOLDER: Final = Path(__file__).parent / "fakenvml"
_SONAME: Final = "libnvidia-ml.so.1"


@functools.cache
def build(old_driver: bool = False) -> Path:
    """Return the library, compiled when it is not there yet; skips the test where no C compiler is.

    ``old_driver``: without the functions that drivers before 510 lack.
    """
    if sys.platform != "linux":
        pytest.skip("NVIDIA's library is one of Linux, and so is its stand-in")
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("gcc")
    if compiler is None:
        cannot_be_had("no C compiler (cc, gcc), which makes the stand-in for NVIDIA's library")
    source = _FOLDER / "nvml.c"
    flags = ["-DOLD_DRIVER"] if old_driver else []
    key = hashlib.sha256(source.read_bytes() + repr((flags, compiler)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"grademl-fakenvml-{os.getuid()}-{key}"
    library = folder / _SONAME
    if library.exists():
        return library
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / _SONAME
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-O2",
                "-fvisibility=hidden",
                f"-Wl,-soname,{_SONAME}",
                *flags,
                "-o",
                str(made),
                str(source),
                "-lpthread",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        made.replace(library)
    return library


_KEPT: Final[list[ctypes.CDLL]] = []


def load() -> None:
    """Make it this process's libnvidia-ml.so.1: what is loaded under that name first, stays."""
    if not _KEPT:
        _KEPT.append(ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL))


def gpu_id(shape: str, index: int, instance: int | None = None) -> str:
    """Return the UUID of a GPU or of one of its MIG instances."""
    name = f"{shape}/{index}" if instance is None else f"{shape}/{index}/{instance}"
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"grademl/{name}")
    return f"{'GPU' if instance is None else 'MIG'}-{made}"


class Control:
    """The file that the library answers from; each method writes it anew, whole.

    ``shape`` is one of `SHAPES`, ``count`` how many GPUs instead of its own, ``links`` how many NVLinks.
    GPUs are named by their slot: 0, 1, ...; it stays theirs when others go.
    """

    def __init__(self, folder: Path, shape: str, count: int | None = None, links: int | None = None) -> None:
        self.path = folder / "nvml.txt"
        self.shape = shape
        self._system: dict[str, str] = {"generation": "1", "clock": "0"}
        self._template: list[tuple[int | None, dict[str, str]]] = []
        """Sections of a GPU: None is the GPU, a number one of its instances."""
        counted = self._read(links)
        self._gpus: dict[int, list[tuple[int | None, dict[str, str]]]] = {}
        self._rules: dict[tuple[str, str], list[str]] = {}
        self._events = itertools.count(1)
        for slot in range(counted if count is None else count):
            self._gpus[slot] = self._made(slot)
        self._write()

    def environment(self, old_driver: bool = False) -> dict[str, str]:
        """Return the variables with which a process uses this file through the library."""
        return {"LD_LIBRARY_PATH": str(build(old_driver).parent), "FAKE_NVML": str(self.path)}

    @property
    def ids(self) -> list[str]:
        """UUIDs of the GPUs, in their order."""
        return [self.id(slot) for slot in sorted(self._gpus)]

    def id(self, slot: int, instance: int | None = None) -> str:
        return gpu_id(self.shape, slot, instance)

    # Values

    def get(self, key: str, gpu: int = 0, instance: int | None = None) -> str | None:
        """Return what the file says, as text; None: not supported."""
        return self._section(gpu, instance).get(key)

    def set(self, key: str, value: object, gpu: int | None = 0, instance: int | None = None) -> None:
        """Change a value; None: no longer supported; ``gpu`` None: of the system. "!4" answers error 4."""
        section = self._system if gpu is None else self._section(gpu, instance)
        if value is None:
            section.pop(key, None)
        else:
            section[key] = str(value)
        self._write()

    def advance(self, seconds: float) -> None:
        """Let the counters run for so long, at once."""
        self._system["clock"] = repr(float(self._system["clock"]) + seconds)
        self._write()

    def run(self) -> None:
        """Let the counters run with the time from now on."""
        self._system["clock"] = f"live {time.clock_gettime_ns(time.CLOCK_MONOTONIC)}"
        self._write()

    def xid(self, code: int, gpu: int = 0) -> None:
        """Report a critical error."""
        section = self._section(gpu, None)
        event = f"{next(self._events)}:{XID}:{code}"
        section["events"] = f"{section['events']},{event}" if section.get("events") else event
        self._write()

    # Failures

    def fail(self, function: str, error: int, gpu: int | None = None) -> None:
        """Make calls end with an error; ``function`` "*" is all of them, ``gpu`` None any or no GPU."""
        self._rule(function, gpu, f"error {error}")

    def hang(self, function: str, seconds: float, gpu: int | None = None) -> None:
        """Make calls take so long first, or until `heal`."""
        self._rule(function, gpu, f"hang {round(seconds * 1000)}")

    def heal(self) -> None:
        """All calls work again."""
        self._rules.clear()
        self._write()

    def lose(self, gpu: int) -> None:
        """It fell off the bus: still counted, and all calls for it fail."""
        self.fail("*", GPU_IS_LOST, gpu)

    def reset_driver(self) -> None:
        """All that was initialized is no longer; counters begin again."""
        self._system["generation"] = str(int(self._system["generation"]) + 1)
        self._system["clock"] = "0"
        self._write()

    # Plugging

    def add(self) -> int:
        """Plug in one more of the same kind; return its slot."""
        slot = max(self._gpus, default=-1) + 1
        self._gpus[slot] = self._made(slot)
        self._write()
        return slot

    def remove(self, gpu: int) -> None:
        """Take it out: no longer counted."""
        del self._gpus[gpu]
        self._write()

    def add_instance(self, instance: int, gpu: int = 0) -> None:
        """Make one more MIG instance, as the first one is."""
        template = next(values for number, values in self._gpus[gpu] if number is not None)
        made = {**template, "uuid": self.id(gpu, instance), "mig.gpu_instance": str(20 + instance)}
        self._gpus[gpu].append((instance, made))
        self._write()

    def remove_instance(self, instance: int, gpu: int = 0) -> None:
        self._gpus[gpu] = [each for each in self._gpus[gpu] if each[0] != instance]
        self._write()

    def _section(self, gpu: int, instance: int | None) -> dict[str, str]:
        return next(values for number, values in self._gpus[gpu] if number == instance)

    def _rule(self, function: str, gpu: int | None, what: str) -> None:
        self._rules[function, "*" if gpu is None else str(gpu)] = [what]
        self._write()

    def _read(self, links: int | None) -> int:
        section = self._system
        for line in (_FOLDER / "shapes" / f"{self.shape}.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            key, _, value = line.partition(" ")
            if key == "gpu" or key == "mig":
                section = {}
                self._template.append((int(value) if key == "mig" else None, section))
            else:
                section[key] = value
        self._links = links or int(self._system.pop("links", "0"))
        return int(self._system.pop("count"))

    def _made(self, slot: int) -> list[tuple[int | None, dict[str, str]]]:
        made = []
        for instance, values in self._template:
            names = {
                "index": str(slot),
                "uuid": self.id(slot),
                "mig": self.id(slot, instance) if instance is not None else "",
                "bus": f"00000000:{0x07 + 8 * slot:02X}:00.0",
                "links": str(self._links),
            }
            section: dict[str, str] = {}
            for key, value in values.items():
                for name, text in names.items():
                    value = value.replace("{" + name + "}", text)
                if "{link}" in key:
                    for link in range(self._links):
                        section[key.replace("{link}", str(link))] = value
                else:
                    section[key] = value
            made.append((instance, section))
        return made

    def _write(self) -> None:
        lines = [f"{key} {value}" for key, value in self._system.items()]
        for slot in sorted(self._gpus):
            for instance, values in self._gpus[slot]:
                lines.append(f"gpu {slot}" if instance is None else f"mig {instance}")
                lines += [f"{key} {value}" for key, value in values.items()]
        for (function, which), rules in self._rules.items():
            lines += [f"call {function} {which} {rule}" for rule in rules]
        beside = self.path.with_suffix(".new")
        beside.write_text("\n".join(lines) + "\n")
        beside.replace(self.path)


@contextmanager
def in_process(control: Control) -> Iterator[Control]:
    """Make this process's nvidia-ml-py answer from `control` in this block."""
    load()
    before = os.environ.get("FAKE_NVML")
    os.environ["FAKE_NVML"] = str(control.path)
    try:
        yield control
    finally:
        control.heal()  # calls that hang return
        if before is None:
            del os.environ["FAKE_NVML"]
        else:
            os.environ["FAKE_NVML"] = before
