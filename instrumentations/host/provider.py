# SPDX-License-Identifier: Apache-2.0
"""Finds which sources this host has: one a kind, so that a file which blocks stops its own kind only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.instrumentations.host.cpu import CpuSource
from grademl_otel.instrumentations.host.disks import DiskSource
from grademl_otel.instrumentations.host.frequency import FrequencySource, path
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
    return CpuSource(roots) if os.path.exists(f"{roots.proc}/stat") else None


def _frequency(roots: Roots) -> Source | None:
    try:
        names = os.listdir(f"{roots.sys}/devices/system/cpu")
    except OSError:
        return None
    cpus = [int(name[3:]) for name in names[:_MOST_CPUS] if re.fullmatch(r"cpu[0-9]{1,5}", name)]
    told = [cpu for cpu in cpus if os.path.exists(path(roots, cpu))]
    return FrequencySource(roots, told) if told else None


def _memory(roots: Roots) -> Source | None:
    return MemorySource(roots) if os.path.exists(f"{roots.proc}/meminfo") else None


def _pressure(roots: Roots) -> Source | None:
    there = any(os.path.exists(f"{roots.proc}/pressure/{resource}") for resource in RESOURCES)
    return PressureSource(roots) if there else None


def _disks(roots: Roots) -> Source | None:
    return DiskSource(roots) if os.path.exists(f"{roots.proc}/diskstats") else None


_KINDS: Final[tuple[tuple[str, Callable[[Roots], Source | None]], ...]] = (
    ("cpu", _cpu),
    ("frequency", _frequency),
    ("memory", _memory),
    ("pressure", _pressure),
    ("disk", _disks),
)
