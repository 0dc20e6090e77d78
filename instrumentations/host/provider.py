# SPDX-License-Identifier: Apache-2.0
"""Finds which sources this host has: one a kind, so that a file which blocks stops its own kind only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.instrumentations.host.cpu import CpuSource
from grademl_otel.instrumentations.host.disks import DiskSource
from grademl_otel.instrumentations.host.frequency import FrequencySource
from grademl_otel.instrumentations.host.memory import MemorySource
from grademl_otel.instrumentations.host.pressure import RESOURCES, PressureSource
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Source

_MOST_CPUS: Final = 8192


class HostProvider:
    """The sources of one host. What has once been there stays: a file may come back."""

    name = "host"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._sources: dict[str, Source] = {}

    def sources(self) -> Sequence[Source]:
        for kind, find in _KINDS:
            if kind not in self._sources:
                source = find(self._roots)
                if source:
                    self._sources[kind] = source
        return list(self._sources.values())

    def close(self) -> None:
        self._sources.clear()


def _cpu(roots: Roots) -> Source | None:
    return CpuSource(roots) if (roots.proc / "stat").exists() else None


def _frequency(roots: Roots) -> Source | None:
    folder = roots.sys / "devices" / "system" / "cpu"
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return None
    cpus = [int(name[3:]) for name in names[:_MOST_CPUS] if name.startswith("cpu") and name[3:].isdecimal()]
    told = [cpu for cpu in cpus if (folder / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq").exists()]
    return FrequencySource(roots, told) if told else None


def _memory(roots: Roots) -> Source | None:
    return MemorySource(roots) if (roots.proc / "meminfo").exists() else None


def _pressure(roots: Roots) -> Source | None:
    there = any((roots.proc / "pressure" / resource).exists() for resource in RESOURCES)
    return PressureSource(roots) if there else None


def _disks(roots: Roots) -> Source | None:
    return DiskSource(roots) if (roots.proc / "diskstats").exists() else None


_KINDS: Final[tuple[tuple[str, Callable[[Roots], Source | None]], ...]] = (
    ("cpu", _cpu),
    ("frequency", _frequency),
    ("memory", _memory),
    ("pressure", _pressure),
    ("disk", _disks),
)
