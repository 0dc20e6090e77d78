# SPDX-License-Identifier: Apache-2.0
"""CPUs: what they spent their time on, what of that the job may use, its quota, and who waits for one.

With 128 CPUs /proc/stat has 1,400 words. They are split at once, and only those of the columns that matter
become numbers, a column at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import add, sub
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
_MOST_DIGITS: Final = 20
_MOST: Final = 1 << 64
_NO_DIGITS: Final = (b"-", b"+", b"_")
"""Which Python takes for a part of numbers, and the kernel never writes."""
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
        self._logical = _Logical()
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
        self._group.read(readings)
        self._read_cpus(stat, readings)
        self._read_tail(stat, readings)
        self._read_load(readings)
        if not readings:
            raise ValueError("/proc/stat says nothing of CPUs")
        return readings

    def close(self) -> None:
        pass

    def _read_cpus(self, stat: bytes, readings: list[Reading]) -> None:
        table = _Table(stat, self._logical.names)
        if table.totals:
            for (series, forward), (_, columns) in zip(self._modes, _MODES, strict=True):
                ticks = forward.add(sum(table.totals[column] for column in columns))
                readings.append((series, ticks / TICKS))
        if not table.names:
            return
        readings.append((self._online, len(table.names)))
        grown = self._logical.read(table, self._allowed, readings)
        if self._logical.busiest is not None:
            readings.append((self._busiest, self._logical.busiest))
        cpus, quota, used = self._logical.count, self._group.quota, self._group.take()
        if quota is not None and quota < cpus and used is not None:
            self._busy_total += used
            self._busy.capacity = quota
        else:
            # Without what the group used, all that is known is what its CPUs did.
            self._busy_total += grown / TICKS
            self._busy.capacity = cpus
        readings.append((self._busy, self._busy_total))
        readings.append((self._capacity, cpus if quota is None else min(cpus, quota)))

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
    """The lines of CPUs in /proc/stat; ``known`` are names of CPUs that were found to be good before."""

    def __init__(self, stat: bytes, known: Sequence[bytes] = ()) -> None:
        last = stat.rfind(b"\ncpu")
        end = stat.find(b"\n", last + 1)
        lines = stat[:end] if end >= 0 else stat[: max(0, stat.rfind(b"\n"))]  # a cut line is none
        self.names: list[bytes] = []
        """Those that are online, ``cpu0``, in the order of the lines."""
        self.totals: list[int] = []
        """Of all CPUs, by column; empty where it is not told."""
        self.busy: list[int] = []
        self.idle: list[int] = []
        """Ticks of each of `names`."""
        try:
            if any(sign in lines for sign in _NO_DIGITS):
                raise ValueError("numbers that are none")
            self._take(lines.split(), len(lines.partition(b"\n")[0].split()), known)
        except ValueError:
            self._take(*_good_lines(lines), known)

    def _take(self, words: list[bytes], width: int, known: Sequence[bytes]) -> None:
        """Take the words of lines that are equally long; raises ValueError where they are not."""
        if not words:
            return
        if width < _LEAST_WORDS or len(words) % width:
            raise ValueError("lines of another length")
        has_totals = words[0] == b"cpu"
        names = words[width if has_totals else 0 :: width]
        if names != known and not (all(map(_is_cpu, names)) and len(set(names)) == len(names)):
            raise ValueError("lines of something else")
        rows = words[width:] if has_totals else words
        busy, idle = _sums(rows, width, _BUSY), _sums(rows, width, (_IDLE, _IOWAIT))
        totals = [0, *map(int, words[1:width])] if has_totals else []
        if not 0 <= min(busy + idle + totals) <= max(busy + idle + totals) < _MOST:
            raise ValueError("numbers that are none")
        self.names, self.totals, self.busy, self.idle = names, totals, busy, idle


def _good_lines(lines: bytes) -> tuple[list[bytes], int]:
    """Return the words of the lines that are as they should be, and how many words a line has."""
    kept: dict[bytes, list[bytes]] = {}
    width = 0
    for line in lines.splitlines():
        words = line.split()
        if len(words) < _LEAST_WORDS or not (words[0] == b"cpu" or _is_cpu(words[0])):
            continue
        if not all(word.isdigit() and len(word) <= _MOST_DIGITS for word in words[1:]):
            continue
        width = width or len(words)
        if len(words) == width:
            kept.setdefault(words[0], words)
    totals = kept.pop(b"cpu", [])
    return totals + [word for words in kept.values() for word in words], width


def _sums(words: list[bytes], width: int, columns: tuple[int, ...]) -> list[int]:
    """Return the sums of these columns, line by line."""
    sums: Iterable[int] = map(int, words[columns[0] :: width])
    for each in columns[1:]:
        sums = map(add, sums, map(int, words[each::width]))
    return list(sums)


def _is_cpu(name: bytes) -> bool:
    number = name[3:]
    return (
        name[:3] == b"cpu"
        and number.isdigit()
        and len(number) <= 5
        and (number == b"0" or number[:1] != b"0")
    )


class _Logical:
    """The CPUs that the job may run on. Lists, an item a CPU, as there may be hundreds."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        """Of all that were online the last time."""
        self._allowed: frozenset[int] | None = None
        self._chosen: list[bool] = []
        """Which of these the job may run on. The lists that follow are of those only."""
        self._series: list[Series] = []
        self._highest: list[int] = []
        self._totals: list[int] = []
        self._idle: list[int] = []
        self._away: dict[Series, tuple[int, int, int]] = {}
        """What was known of those that are not there now."""
        self._met: dict[int, Series] = {}
        self.busiest: float | None = None
        """For which part of the time since the last reading the busiest was; None where it is not known."""

    def read(self, table: _Table, allowed: frozenset[int] | None, readings: list[Reading]) -> int:
        """Add readings; return for how many ticks they were busy since the last time, all together."""
        if table.names != self.names or allowed != self._allowed:
            self._choose(table, allowed)
        busy, idle = list(compress(table.busy, self._chosen)), list(compress(table.idle, self._chosen))
        grown = list(map(sub, busy, self._highest))
        if grown and min(grown) < 0:
            # See `Forward`, which this is for many.
            anew = [raw < highest // 2 for raw, highest in zip(busy, self._highest, strict=True)]
            busy = [
                raw if new else max(raw, last)
                for raw, new, last in zip(busy, anew, self._highest, strict=True)
            ]
            grown = [0 if new else max(0, each) for each, new in zip(grown, anew, strict=True)]
        self._totals = list(map(add, self._totals, grown))
        idled = map(sub, idle, self._idle)
        self._highest, self._idle = busy, idle
        readings += [
            (series, total / TICKS) for series, total in zip(self._series, self._totals, strict=True)
        ]
        self.busiest = max(
            (
                each / (each + rest)
                for each, rest in zip(grown, idled, strict=True)
                if each + rest > 0 <= rest
            ),
            default=None,
        )
        return sum(grown)

    @property
    def count(self) -> int:
        return len(self._series)

    def _choose(self, table: _Table, allowed: frozenset[int] | None) -> None:
        """Make the lists anew for these CPUs; what comes back goes on where it was."""
        known = zip(self._highest, self._totals, self._idle, strict=True)
        self._away.update(zip(self._series, known, strict=True))
        cpus = [int(name[3:]) for name in table.names]
        # LXCFS numbers CPUs anew: where none of those shown is in the cpuset, all of them are.
        everywhere = allowed is None or allowed.isdisjoint(cpus)
        self.names, self._allowed = table.names, allowed
        self._chosen = [everywhere or (allowed is not None and cpu in allowed) for cpu in cpus]
        self._series, self._highest, self._totals, self._idle = [], [], [], []
        for cpu, busy, idle in compress(zip(cpus, table.busy, table.idle, strict=True), self._chosen):
            series = self._met.get(cpu)
            if series is None:
                series = Series(host.LOGICAL_BUSY, {"cpu.logical_number": cpu}, f"{_DEVICE}{cpu}", 1)
                self._met[cpu] = series
            highest, total, idled = self._away.pop(series, (busy, 0, idle))
            self._series.append(series)
            self._highest.append(highest)
            self._totals.append(total)
            self._idle.append(idled)


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
        self._told: float | None = None
        """CPU time in s, as it was read last; None where it cannot be."""
        self._silent = 0
        """Readings since then."""
        self._taken: float | None = None

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

    def read(self, readings: list[Reading]) -> None:
        """Add readings."""
        if not self._group or not self._usage:
            self._told = None
            return
        stat = files.keyed(files.maybe(self._stat_at))
        if self.quota is not None:
            readings.append((self._quota_series, self.quota))
            for key, counted in self._throttling:
                counted.add(stat.get(key), readings)
        raw = files.first_number(self._usage_at) if self._usage_at else stat.get(b"usage_usec")
        before = len(readings)
        self._usage.add(raw, readings)
        if len(readings) > before:
            self._told, self._silent = float(readings[-1][1]), 0
            return
        self._silent += 1
        if self._silent >= REFRESH:
            self._told = None

    def take(self) -> float | None:
        """Return the CPU time in s since the last call; None where that is not told.

        What could not be read once is in what is read next.
        """
        used = (
            None if self._told is None else self._told - (self._told if self._taken is None else self._taken)
        )
        self._taken = self._told
        return used


def _accounting(roots: Roots, level: str) -> str:
    """Return where version 1 tells the CPU time of a group: another controller, often mounted elsewhere."""
    group = cgroups.find(roots, "cpuacct")
    return f"{group.folder(level)}/cpuacct.usage" if group and level in group.levels else ""
