# SPDX-License-Identifier: Apache-2.0
"""What it costs a program's start to find out where it runs: our facts beside the detectors of the SDK.

Each way is measured once in a process of its own, in which the SDK's resources and what our hooks load anyway
are there. The program lies in this repository: its revision is looked up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.interleaved import Spread, compare
from benchmarks.tables import Table, duration, ratio, spread_duration
from benchmarks.ways import ROOT

SDK: Final = "the SDK's: otel, process, os, host"
PLAIN_HOST: Final = "ours, all of them; no accelerator"
GPU_HOST: Final = "ours, all of them; 8 GPUs"
_GPUS: Final = 8
_MODULES: Final = (
    "accelerators",
    "container",
    "frameworks",
    "launcher",
    "source",
    "git.changes",
    "git.repository",
)


def look(way: str, folder: str) -> dict[str, int]:
    """Look once; return the ns that loading modules and looking took, and how many facts were found."""
    from opentelemetry.sdk import resources

    from grademl_otel import hooks, identity, semconv  # noqa: F401

    began = time.perf_counter_ns()
    if way == SDK:
        detectors = [
            resources.OTELResourceDetector(),
            resources.ProcessResourceDetector(),
            resources.OsResourceDetector(),
            resources._HostResourceDetector(),
        ]
        loaded = time.perf_counter_ns()
        number = len(resources.get_aggregated_resources(detectors).attributes)
    else:
        for name in _MODULES:
            import_module(f"grademl_otel.resource_detectors.{name}")
        from grademl_otel.resource_detectors.facts import facts
        from grademl_otel.resource_detectors.places import Places

        # Elsewhere than in /proc and /sys, so that it is the same on a machine that has GPUs.
        places = (os.path.join(folder, way, name) for name in Places._fields)
        Places.__new__.__defaults__ = tuple(places)
        loaded = time.perf_counter_ns()
        number = len(facts())
    return {"loading": loaded - began, "looking": time.perf_counter_ns() - loaded, "facts": number}


def _make_places(folder: Path) -> None:
    """Write what NVIDIA's driver says of its GPUs, and of a host that has none nothing."""
    (folder / PLAIN_HOST / "proc").mkdir(parents=True)
    driver = folder / GPU_HOST / "proc/driver/nvidia"
    for number in range(_GPUS):
        gpu = driver / f"gpus/0000:{number + 1:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 307\n"
            f"GPU UUID: \t GPU-00000000-0000-0000-0000-{number:012d}\nVideo BIOS: \t 96.00.74.00.1a\n"
            f"Bus Type: \t PCIe\nBus Location: \t 0000:{number + 1:02x}:00.0\nDevice Minor: \t {number}\n"
        )
    (driver / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 11.4.0\n"
    )


def measure(folder: Path, rounds: int) -> Table:
    """Return how long each way takes; raises subprocess.CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    _make_places(folder)
    loading: dict[str, list[float]] = {}
    found: dict[str, int] = {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "GRADEML_"))}

    def run(way: str) -> Callable[[], list[float]]:
        def once() -> list[float]:
            answer = _answer(way, folder, kept)
            loading.setdefault(way, []).append(answer["loading"])
            found[way] = answer["facts"]
            return [float(answer["looking"])]

        return once

    results = compare({way: run(way) for way in (SDK, PLAIN_HOST, GPU_HOST)}, rounds)
    sdk = results[SDK]
    rows = [
        [
            way,
            spread_duration(Spread.of(each.means)),
            ratio(each.ratio_to(sdk)),
            duration(median(loading[way])),
            str(found[way]),
        ]
        for way, each in results.items()
    ]
    return Table(
        "(n) Finding out where a program runs",
        ("", "looking", "ratio to the SDK's", "loading modules", "facts"),
        rows,
        f"Once in the life of a process; {rounds} processes of each.",
    )


def _answer(way: str, folder: Path, environ: Mapping[str, str]) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.detectors", way, str(folder)],
        env={**environ, "PYTHONPATH": str(ROOT)}, cwd=folder, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], sys.argv[2])))
