# SPDX-License-Identifier: Apache-2.0
"""Frequencies of some CPUs: a host that is too hot, or saves power, is slow although nobody is busy."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog import host
from grademl_otel.instrumentations.host import files
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series

_MOST: Final = 8
"""A reading may interrupt that CPU, or wait for it some ms."""


class FrequencySource:
    """A source of its own, as a reading may take its time."""

    name = "cpu frequency"

    def __init__(self, roots: Roots, cpus: list[int]) -> None:
        self._series = [
            (path(roots, cpu), Series(host.FREQUENCY, {"cpu.logical_number": cpu}, f"cpu{cpu}"))
            for cpu in spread(cpus, _MOST)
        ]

    def read(self) -> list[Reading]:
        readings: list[Reading] = []
        for at, series in self._series:
            khz = files.first_number(at)
            if khz:  # 0: a CPU that is off
                readings.append((series, khz * 1000))
        if not readings:
            raise ValueError("no CPU tells its frequency")
        return readings

    def close(self) -> None:
        pass


def path(roots: Roots, cpu: int) -> str:
    """Return where the frequency of a CPU is told, in kHz."""
    return f"{roots.sys}/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"


def spread(cpus: list[int], most: int) -> list[int]:
    """Return so many of them at most, at even distances."""
    ordered = sorted(cpus)
    if len(ordered) <= most:
        return ordered
    return [ordered[number * len(ordered) // most] for number in range(most)]
