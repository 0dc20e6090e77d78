# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information: for how long tasks stood still for want of CPU, memory or disks."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog import host
from grademl_otel.catalog.metric import Metric
from grademl_otel.instrumentations.host import cgroups, files
from grademl_otel.instrumentations.host.counting import Counted
from grademl_otel.instrumentations.host.cpu import REFRESH
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series

RESOURCES: Final = ("cpu", "memory", "io", "irq")
_KINDS: Final = ("some", "full")
_US: Final = 1_000_000


class PressureSource:
    """Of the host, and of the job's innermost control group where that is one of version 2."""

    name = "pressure"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._readings = 0
        self._host = _Stalls(host.PRESSURE, host.PRESSURE_SOME, "host")
        self._cgroup = _Stalls(host.CGROUP_PRESSURE, host.CGROUP_PRESSURE_SOME, "cgroup")
        self._folder = ""

    def read(self) -> list[Reading]:
        if self._readings % REFRESH == 0:
            group = cgroups.find(self._roots, "pressure")  # no version 1 knows of it
            folder = group.folder(group.levels[0]) if group and group.version == 2 else ""
            if folder != self._folder:
                self._cgroup.elsewhere()
            self._folder = folder
        self._readings += 1
        readings: list[Reading] = []
        for resource in RESOURCES:
            self._host.read(resource, f"{self._roots.proc}/pressure/{resource}", readings)
            if self._folder:
                self._cgroup.read(resource, f"{self._folder}/{resource}.pressure", readings)
        if not readings:
            raise ValueError("/proc/pressure says nothing of stalls")
        return readings

    def close(self) -> None:
        pass


class _Stalls:
    """The series of the host, or of a control group."""

    def __init__(self, metric: Metric, with_columns: dict[str, Metric], device: str) -> None:
        self._counted = {
            (resource, kind): Counted(
                Series(
                    with_columns.get(resource, metric) if kind == "some" else metric,
                    {host.RESOURCE: resource, host.KIND: kind},
                    device,
                    1,
                ),
                _US,
            )
            for resource in RESOURCES
            for kind in _KINDS
        }
        # All tasks of a host cannot want a CPU: one has it. The kernel says 0 there for the sake of the form.
        if device == "host":
            del self._counted["cpu", "full"]

    def elsewhere(self) -> None:
        for counted in self._counted.values():
            counted.elsewhere()

    def read(self, resource: str, path: str, readings: list[Reading]) -> None:
        for line in files.maybe(path).split(b"\n")[:-1]:  # a line that is cut is none
            kind = line.partition(b" ")[0]
            counted = self._counted.get((resource, kind.decode("ascii", "replace")))
            if counted:
                counted.add(files.number(line.rpartition(b" total=")[2]), readings)
