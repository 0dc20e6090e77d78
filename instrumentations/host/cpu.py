# SPDX-License-Identifier: Apache-2.0
"""CPUs: what they spent their time on, what of that the job may use, its quota, and who waits for one.

With 128 CPUs /proc/stat has 1,400 words. They are split at once, and only those of the columns that matter
become numbers, a column at a time.
"""

from __future__ import annotations

import math
from typing import Final

from grademl_otel.catalog import host
from grademl_otel.catalog.metric import Metric
from grademl_otel.instrumentations.host import cgroups, files
from grademl_otel.instrumentations.host.cgroups import Group
from grademl_otel.instrumentations.host.counting import TICKS, Counted, Forward
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series

REFRESH: Final = 30
"""So many readings from one look at the control groups, which hardly ever change, to the next."""
_DEVICE: Final = "cpu"
_MODES: Final = (
    ("user", (1,)),
    ("nice", (2,)),
    ("system", (3,)),
    ("idle", (4,)),
    ("iowait", (5,)),
    ("interrupt", (6, 7)),
    ("steal", (8,)),
)
"""Modes, and the columns of /proc/stat that each adds up. Time of guests is part of user and nice."""
_IDLE: Final = 4
_IOWAIT: Final = 5
_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""The time that a hypervisor took away is busy, too: the CPU had something to do."""
_LEAST_WORDS: Final = 9
_US: Final = 1_000_000
_NS: Final = 1_000_000_000


class CpuSource:
    """Everything of CPUs but frequencies. One thread reads."""

    name = "cpu"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._stat_at = f"{roots.proc}/stat"
        self._load_at = f"{roots.proc}/loadavg"
        self._readings = 0
        self._allowed: frozenset[int] | None = None
        self._group = _CgroupCpu(roots)
        self._modes = [(Series(host.CPU_TIME, {"cpu.mode": mode}, _DEVICE), Forward()) for mode, _ in _MODES]
        self._busy = Series(host.CPU_BUSY, {}, _DEVICE)
        self._busy_total = 0.0
        self._capacity = _plain(host.CPU_CAPACITY)
        self._busiest = _plain(host.BUSIEST)
        self._online = _plain(host.LOGICAL_COUNT)
        self._logical: dict[int, tuple[Series, Forward]] = {}
        self._idle: dict[int, int] = {}
        self._tail = (
            (b"ctxt", Counted(_plain(host.CONTEXT_SWITCHES))),
            (b"processes", Counted(_plain(host.CREATED))),
        )
        self._queues = (
            (b"procs_running", _plain(host.RUN_QUEUE)),
            (b"procs_blocked", _plain(host.BLOCKED)),
        )
        self._load = _plain(host.LOAD)

    def read(self) -> list[Reading]:
        if self._readings % REFRESH == 0:
            self._allowed = cgroups.cpuset(self._roots)
            self._group.refresh()
        self._readings += 1
        readings: list[Reading] = []
        stat = files.read(self._stat_at)
        used = self._group.read(readings)
        self._read_cpus(stat, used, readings)
        self._read_tail(stat, readings)
        self._read_load(readings)
        if not readings:
            raise ValueError("/proc/stat says nothing of CPUs")
        return readings

    def close(self) -> None:
        pass

    def _read_cpus(self, stat: bytes, used: float | None, readings: list[Reading]) -> None:
        """Read the lines of CPUs. ``used``: what the group used in s since the last time, where told."""
        table = _Table(stat)
        if table.totals:
            for (series, forward), (_, columns) in zip(self._modes, _MODES, strict=True):
                ticks = forward.add(sum(table.totals[column] for column in columns))
                readings.append((series, ticks / TICKS))
        if not table.cpus:
            return
        readings.append((self._online, len(table.cpus)))
        allowed, quota = self._allowed, self._group.quota
        # LXCFS numbers CPUs anew: where none of those shown is in the cpuset, all of them are.
        if allowed is None or allowed.isdisjoint(table.cpus):
            allowed = frozenset(table.cpus)
        grown, busiest, cpus = 0, -1.0, 0
        for cpu, busy, idle in zip(
            table.cpus, table.column(_BUSY), table.column((_IDLE, _IOWAIT)), strict=True
        ):
            if cpu not in allowed:
                continue
            cpus += 1
            series, forward = self._logical.get(cpu) or self._new(cpu)
            before = forward.total
            total = forward.add(busy)
            readings.append((series, total / TICKS))
            grown += total - before
            was_idle = self._idle.get(cpu)
            self._idle[cpu] = idle
            if was_idle is not None:
                all_of_it = total - before + max(0, idle - was_idle)
                if all_of_it and total - before > busiest * all_of_it:
                    busiest = (total - before) / all_of_it
        if busiest >= 0:
            readings.append((self._busiest, busiest))
        by_quota = quota is not None and quota < cpus and used is not None
        self._busy_total += used if by_quota and used is not None else grown / TICKS
        capacity = min(cpus, quota) if quota is not None else cpus
        # Without what its group used, all that is known is what these CPUs did.
        self._busy.capacity = capacity if by_quota else cpus
        readings.append((self._busy, self._busy_total))
        readings.append((self._capacity, capacity))

    def _new(self, cpu: int) -> tuple[Series, Forward]:
        series = Series(host.LOGICAL_BUSY, {"cpu.logical_number": cpu}, f"{_DEVICE}{cpu}", 1)
        self._logical[cpu] = series, Forward()
        return self._logical[cpu]

    def _read_tail(self, stat: bytes, readings: list[Reading]) -> None:
        # Between the CPUs and this there is one line of interrupts, of up to some 100 KB.
        at = stat.rfind(b"\nctxt ")
        if at < 0:
            return
        told = files.keyed(stat[at + 1 : stat.rfind(b"\n") + 1])
        for key, counted in self._tail:
            counted.add(told.get(key), readings)
        for key, series in self._queues:
            if key in told:
                readings.append((series, told[key]))

    def _read_load(self, readings: list[Reading]) -> None:
        words = files.maybe(self._load_at).split()
        try:
            load = float(words[0])
        except (IndexError, ValueError):
            return
        if math.isfinite(load) and load >= 0:
            readings.append((self._load, load))


class _Table:
    """The lines of CPUs in /proc/stat."""

    def __init__(self, stat: bytes) -> None:
        last = stat.rfind(b"\ncpu")
        end = stat.find(b"\n", last + 1)
        lines = stat[:end] if end >= 0 else stat[: max(0, stat.rfind(b"\n"))]  # a cut line is none
        words = lines.split()
        self._width = len(lines[: lines.find(b"\n")].split()) if b"\n" in lines else len(words)
        self._words = words
        self.totals: list[int] = []
        """Of all CPUs, by column; empty where it is not told."""
        self.cpus: list[int] = []
        """Those that are online, in the order of the lines."""
        if self._width < _LEAST_WORDS or not self._is_regular():
            self._keep_good_lines(lines)
        if self._words[:1] == [b"cpu"]:
            self.totals = [0, *map(int, self._words[1 : self._width])]
            self._words = self._words[self._width :]
        self.cpus = [int(name[3:]) for name in self._words[:: self._width]]

    def _is_regular(self) -> bool:
        words, width = self._words, self._width
        names = words[::width]
        if len(words) % width or not (names[:1] == [b"cpu"] or _is_cpu(names[0])):
            return False
        if not all(map(_is_cpu, names[1:])) or len(set(names)) != len(names):
            return False
        # One test for all numbers: without the names, all there is are digits.
        joined = b"".join(words)
        digits = joined.replace(b"cpu", b"")
        return digits.isdigit() and len(joined) - len(digits) == 3 * len(names)

    def _keep_good_lines(self, lines: bytes) -> None:
        kept: dict[bytes, list[bytes]] = {}
        width = 0
        for line in lines.splitlines():
            words = line.split()
            if len(words) < _LEAST_WORDS or not (words[0] == b"cpu" or _is_cpu(words[0])):
                continue
            if not all(word.isdigit() and len(word) <= 20 for word in words[1:]):
                continue
            width = width or len(words)
            if len(words) == width:
                kept.setdefault(words[0], words)
        totals = kept.pop(b"cpu", [])
        self._width = width or _LEAST_WORDS
        self._words = totals + [word for words in kept.values() for word in words]

    def column(self, columns: tuple[int, ...]) -> list[int]:
        """Return the sums of these columns, for each of `cpus`."""
        width = self._width
        return list(map(sum, zip(*(map(int, self._words[each::width]) for each in columns), strict=True)))


def _is_cpu(name: bytes) -> bool:
    return name[:3] == b"cpu" and name[3:].isdigit() and len(name) <= 8


def _plain(metric: Metric) -> Series:
    return Series(metric, {}, _DEVICE)


class _CgroupCpu:
    """CPU time, quota and throttling of the control group whose quota binds."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._group: Group | None = None
        self._holder = ""
        self.quota: float | None = None
        """In CPUs, None where there is none."""
        self._quota_series = _plain(host.CGROUP_QUOTA)
        self._usage: Counted | None = None
        self._usage_at = ""
        self._stat_at = ""
        self._throttling: tuple[tuple[bytes, Counted], ...] = ()
        self._last: float | None = None

    def refresh(self) -> None:
        """Look which groups there are, and what their quotas are."""
        self._group = group = cgroups.find(self._roots, "cpu")
        if not group:
            self.quota = None
            return
        found = cgroups.quota(group)
        self.quota = found.cpus
        if group.folder(found.level) == self._holder:
            return
        self._holder = group.folder(found.level)
        self._stat_at = f"{self._holder}/cpu.stat"
        self._usage_at = "" if group.version == 2 else _accounting(self._roots, found.level)
        if self._usage is None:
            per, throttled = (_US, b"throttled_usec") if group.version == 2 else (_NS, b"throttled_time")
            self._usage = Counted(_plain(host.CGROUP_CPU_TIME), per)
            self._throttling = (
                (b"nr_periods", Counted(_plain(host.CGROUP_PERIODS))),
                (b"nr_throttled", Counted(_plain(host.CGROUP_THROTTLED_PERIODS))),
                (throttled, Counted(_plain(host.CGROUP_THROTTLED), per)),
            )
        else:
            for counted in (self._usage, *(each for _, each in self._throttling)):
                counted.elsewhere()

    def read(self, readings: list[Reading]) -> float | None:
        """Add readings; return the CPU time in s since the last one, None where that is not told."""
        if not self._group or not self._usage:
            return None
        stat = files.keyed(files.maybe(self._stat_at))
        if self.quota is not None:
            readings.append((self._quota_series, self.quota))
            for key, counted in self._throttling:
                counted.add(stat.get(key), readings)
        raw = files.first_number(self._usage_at) if self._usage_at else stat.get(b"usage_usec")
        before = len(readings)
        self._usage.add(raw, readings)
        if len(readings) == before:
            return None
        total = float(readings[-1][1])
        used = total - self._last if self._last is not None else 0.0
        self._last = total
        return used


def _accounting(roots: Roots, level: str) -> str:
    """Return where version 1 tells the CPU time of a group: another controller, often mounted elsewhere."""
    group = cgroups.find(roots, "cpuacct")
    return f"{group.folder(level)}/cpuacct.usage" if group and level in group.levels else ""
