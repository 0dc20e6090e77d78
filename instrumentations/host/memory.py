# SPDX-License-Identifier: Apache-2.0
"""Memory: of the host, of the control group whose limit binds, and what was swapped for want of it."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog import host
from grademl_otel.convert.spans import Value
from grademl_otel.instrumentations.host import cgroups, files
from grademl_otel.instrumentations.host.cgroups import Group
from grademl_otel.instrumentations.host.counting import Counted
from grademl_otel.instrumentations.host.cpu import REFRESH
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series

_DEVICE: Final = "memory"
_KB: Final = 1024
_MAJOR: Final[dict[str, Value]] = {"system.paging.fault.type": "major"}


class MemorySource:
    """Everything of memory but pressure. One thread reads."""

    name = "memory"

    def __init__(self, roots: Roots) -> None:
        self._meminfo_at = f"{roots.proc}/meminfo"
        self._vmstat_at = f"{roots.proc}/vmstat"
        self._readings = 0
        self._group = _CgroupMemory(roots)
        self._states = {
            state: Series(host.MEMORY_USAGE, {"system.memory.state": state}, _DEVICE)
            for state in ("used", "free", "buffers", "cached")
        }
        self._swap = {
            state: Series(host.PAGING_USAGE, {"system.paging.state": state}, _DEVICE)
            for state in ("used", "free")
        }
        self._total = Series(host.MEMORY_LIMIT, {}, _DEVICE)
        self._available = Series(host.MEMORY_AVAILABLE, {}, _DEVICE)
        self._shared = Series(host.MEMORY_SHARED, {}, _DEVICE)
        self._dirty = Series(host.MEMORY_DIRTY, {}, _DEVICE)
        self._used = Series(host.MEMORY_USED, {}, _DEVICE)
        self._swapped = tuple(
            (
                key,
                Counted(Series(host.PAGING_OPERATIONS, {**_MAJOR, "system.paging.direction": way}, _DEVICE)),
            )
            for key, way in ((b"pswpin", "in"), (b"pswpout", "out"))
        )
        self._major = Counted(Series(host.PAGING_FAULTS, _MAJOR, _DEVICE))
        self._minor = Counted(Series(host.PAGING_FAULTS, {"system.paging.fault.type": "minor"}, _DEVICE))
        self._kills = Counted(Series(host.OOM_KILLS, {}, _DEVICE))

    def read(self) -> list[Reading]:
        if self._readings % REFRESH == 0:
            self._group.refresh()
        self._readings += 1
        readings: list[Reading] = []
        told = files.keyed(files.maybe(self._meminfo_at))
        total = told.get(b"MemTotal", 0) * _KB
        available = _available(told)
        self._read_host(told, readings)
        working_set = self._group.read(readings)
        limit = self._group.limit
        if limit is not None and (not total or limit < total) and self._group.tells:
            if working_set is not None:
                self._used.capacity = limit
                readings.append((self._used, working_set))
        elif total and available is not None:
            self._used.capacity = total
            readings.append((self._used, max(0, total - available)))
        self._read_events(readings)
        if not readings:
            raise ValueError("/proc/meminfo says nothing of memory")
        return readings

    def close(self) -> None:
        pass

    def _read_host(self, told: dict[bytes, int], readings: list[Reading]) -> None:
        total, free = told.get(b"MemTotal"), told.get(b"MemFree")
        if total:
            readings.append((self._total, total * _KB))
        parts = {"free": free, "buffers": told.get(b"Buffers"), "cached": told.get(b"Cached")}
        known = [part for part in parts.values() if part is not None]
        if total and len(known) == len(parts) and sum(known) <= total:
            readings.append((self._states["used"], (total - sum(known)) * _KB))
        readings += [(self._states[state], part * _KB) for state, part in parts.items() if part is not None]
        if b"MemAvailable" in told:
            readings.append((self._available, told[b"MemAvailable"] * _KB))
        if b"Shmem" in told:
            readings.append((self._shared, told[b"Shmem"] * _KB))
        if b"Dirty" in told and b"Writeback" in told:
            readings.append((self._dirty, (told[b"Dirty"] + told[b"Writeback"]) * _KB))
        swap, unused = told.get(b"SwapTotal"), told.get(b"SwapFree")
        if swap and unused is not None and unused <= swap:
            readings.append((self._swap["used"], (swap - unused) * _KB))
            readings.append((self._swap["free"], unused * _KB))

    def _read_events(self, readings: list[Reading]) -> None:
        # Of some 180 lines a few are wanted; where they stand is found without looking at the others.
        vmstat = b"\n" + files.maybe(self._vmstat_at)
        for key, counted in self._swapped:
            counted.add(_line(vmstat, key), readings)
        major, faults = _line(vmstat, b"pgmajfault"), _line(vmstat, b"pgfault")
        self._major.add(major, readings)
        if major is not None and faults is not None and faults >= major:
            self._minor.add(faults - major, readings)  # the kernel counts the major ones in both
        self._kills.add(_line(vmstat, b"oom_kill"), readings)


def _available(told: dict[bytes, int]) -> int | None:
    """Return the memory that programs can have, in bytes; before Linux 3.14 by its rule of thumb."""
    if b"MemAvailable" in told:
        return told[b"MemAvailable"] * _KB
    parts = [told.get(key) for key in (b"MemFree", b"Buffers", b"Cached")]
    known = [part for part in parts if part is not None]
    return sum(known) * _KB if len(known) == len(parts) else None


def _line(text: bytes, key: bytes) -> int | None:
    """Return the number of the line that begins with this key; None where there is none, or it is cut."""
    at = text.find(b"\n" + key + b" ")
    if at < 0:
        return None
    start = at + len(key) + 2
    end = text.find(b"\n", start)
    return files.number(text[start:end]) if end >= 0 else None


class _CgroupMemory:
    """Memory of the control group whose limit binds."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._group: Group | None = None
        self._folder = ""
        self.limit: int | None = None
        """In bytes, None where there is none."""
        self._silent = REFRESH
        """Readings since it told its working set."""
        self._usage = Series(host.CGROUP_MEMORY_USAGE, {}, _DEVICE)
        self._working_set = Series(host.CGROUP_WORKING_SET, {}, _DEVICE)
        self._limit = Series(host.CGROUP_MEMORY_LIMIT, {}, _DEVICE)
        self._events = {
            event: Counted(Series(host.CGROUP_MEMORY_EVENTS, {host.EVENT: event}, _DEVICE))
            for event in ("high", "max", "oom", "oom_kill")
        }

    @property
    def tells(self) -> bool:
        """Whether it has told its working set lately."""
        return self._silent < REFRESH

    def refresh(self) -> None:
        """Look which groups there are, and what their limits are."""
        self._group = group = cgroups.find(self._roots, "memory")
        if not group:
            self.limit = None
            return
        found = cgroups.memory_limit(group)
        self.limit = found.limit
        if group.folder(found.level) != self._folder:
            if self._folder:
                for counted in self._events.values():
                    counted.elsewhere()
            self._folder = group.folder(found.level)

    def read(self, readings: list[Reading]) -> int | None:
        """Add readings; return the working set in bytes, None where it is not told."""
        if not self._group:
            self._silent = REFRESH
            return None
        unified = self._group.version == 2
        usage = files.first_number(f"{self._folder}/memory.{'current' if unified else 'usage_in_bytes'}")
        stat = b"\n" + files.maybe(f"{self._folder}/memory.stat")
        cache = _line(stat, b"inactive_file" if unified else b"total_inactive_file")
        working_set = None
        if self.limit is not None:
            readings.append((self._limit, self.limit))
        if usage is not None:
            readings.append((self._usage, usage))
            if cache is not None:
                working_set = max(0, usage - cache)  # the two are not of the same moment
                readings.append((self._working_set, working_set))
        self._silent = self._silent + 1 if working_set is None else 0
        if unified:
            told = files.keyed(files.maybe(f"{self._folder}/memory.events"))
            for event, counted in self._events.items():
                counted.add(told.get(event.encode()), readings)
        else:
            self._events["max"].add(files.first_number(f"{self._folder}/memory.failcnt"), readings)
            told = files.keyed(files.maybe(f"{self._folder}/memory.oom_control"))
            self._events["oom_kill"].add(told.get(b"oom_kill"), readings)
        return working_set
