# SPDX-License-Identifier: Apache-2.0
"""Disks: what was read and written, and for how long they had anything to do.

Only devices that stand for themselves: no partitions, and nothing that consists of other disks (LVM, RAID,
multipath), whose bytes would count twice. Mounts are never touched: a network file system that does not
answer would hold up whoever asks.
"""

from __future__ import annotations

import os
import re
from typing import Final

from grademl_otel.catalog import host
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.host import cgroups, files
from grademl_otel.instrumentations.host.cgroups import Group
from grademl_otel.instrumentations.host.counting import Counted
from grademl_otel.instrumentations.host.cpu import REFRESH
from grademl_otel.sampling.counters import Running
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series

MOST_DISKS: Final = 64
_SECTOR: Final = 512
"""Bytes; of /proc/diskstats whatever the disk's own sectors are."""
_NO_DISK: Final = re.compile(rb"(loop|ram|zram|sr|fd|nbd)\d+$")
_PARTITION: Final = re.compile(rb"((s|v|h|xv)d[a-z]+\d+|(nvme\d+n\d+|mmcblk\d+|pmem\d+)p\d+)$")
_OF_OTHERS: Final = re.compile(rb"(dm-|md)\d+")
"""Both by name, for where there is no /sys."""
_PATH: Final = re.compile(rb"(nvme\d+)c\d+(n\d+)$")
"""One of the ways to an NVMe disk, which may count as well as the disk itself, or in its place."""
_LEAST_WORDS: Final = 14
_MS: Final = 1000
_MS_BITS: Final = 32
"""Times in ms are printed as 32 bits; after 50 days of work they begin anew."""


class DiskSource:
    """All disks of the host. One thread reads."""

    name = "disk"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._stats_at = f"{roots.proc}/diskstats"
        self._readings = 0
        self._disks: dict[bytes, _Disk | None] = {}
        """By number and name; None for what is not told of."""
        self._io = _CgroupIo(roots)

    def read(self) -> list[Reading]:
        if self._readings % REFRESH == 0:
            self._io.refresh()
        self._readings += 1
        readings: list[Reading] = []
        numbers: set[bytes] = set()
        used: dict[bytes, tuple[_Disk, list[bytes]]] = {}
        any_line = False
        stats = files.read(self._stats_at)
        seen: set[bytes] = set()
        for line in stats.split(b"\n")[:-1]:  # a line that is cut is none
            words = line.split(None, _LEAST_WORDS)
            if len(words) < _LEAST_WORDS:
                continue
            any_line = True
            key = b" ".join(words[:3])
            seen.add(key)
            disk = self._disks[key] if key in self._disks else self._meet(key, words)
            if disk:
                used[words[2]] = disk, words
        for disk, words in used.values():
            if disk.is_path_to not in used:
                disk.read(words, readings)
                numbers.add(words[0] + b":" + words[1])
        for gone in self._disks.keys() - seen:
            del self._disks[gone]
        self._io.read(numbers, readings)
        if stats and not any_line:
            raise ValueError("/proc/diskstats says nothing of disks")
        return readings

    def close(self) -> None:
        pass

    def _meet(self, key: bytes, words: list[bytes]) -> _Disk | None:
        if not any(word.strip(b"0") for word in words[3:_LEAST_WORDS]):
            return None  # never used so far: asked again next time
        full = sum(disk is not None for disk in self._disks.values()) >= MOST_DISKS
        name = words[2]
        disk = None if full or not self._is_disk(name) else _Disk(name)
        if disk or not full:
            self._disks[key] = disk
        return disk

    def _is_disk(self, name: bytes) -> bool:
        if _NO_DISK.match(name):
            return False
        # "cciss/c0d0" is cciss!c0d0 there
        file_name = name.decode("utf-8", "surrogateescape").replace("/", "!")
        folder = f"{self._roots.sys}/class/block/{file_name}"
        if not os.path.isdir(folder):
            return not _PARTITION.match(name) and not _OF_OTHERS.match(name)
        if os.path.exists(f"{folder}/partition"):
            return False
        try:
            return not os.listdir(f"{folder}/slaves")
        except OSError:
            return True


class _Disk:
    """The series of a disk."""

    def __init__(self, file_name: bytes) -> None:
        path = _PATH.match(file_name)
        self.is_path_to = path[1] + path[2] if path else b""
        """The name of the disk to which it is but a way."""
        name = file_name.decode("utf-8", "replace")
        read: Attributes = {"system.device": name, "disk.io.direction": "read"}
        write: Attributes = {"system.device": name, "disk.io.direction": "write"}
        busy = Series(host.DISK_IO_TIME, {"system.device": name}, name, 1)
        self._counted = (
            (3, 1, Counted(Series(host.DISK_OPERATIONS, read, name))),
            (5, _SECTOR, Counted(Series(host.DISK_READ, read, name))),
            (6, 1, Counted(Series(host.DISK_OPERATION_TIME, read, name), _MS, _MS_BITS)),
            (7, 1, Counted(Series(host.DISK_OPERATIONS, write, name))),
            (9, _SECTOR, Counted(Series(host.DISK_WRITE, write, name))),
            (10, 1, Counted(Series(host.DISK_OPERATION_TIME, write, name), _MS, _MS_BITS)),
            (12, 1, Counted(busy, _MS, _MS_BITS)),
        )

    def read(self, words: list[bytes], readings: list[Reading]) -> None:
        for column, times, counted in self._counted:
            raw = files.number(words[column])
            counted.add(raw * times if raw is not None else None, readings)


class _CgroupIo:
    """What the job's innermost control group read and wrote."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._group: Group | None = None
        self._path = ""
        self._running: dict[tuple[bytes, str], Running] = {}
        self._totals: dict[str, int | float] = {"read": 0, "write": 0}
        self._series = {
            way: Series(host.CGROUP_DISK_IO, {"disk.io.direction": way}, "cgroup") for way in self._totals
        }

    def refresh(self) -> None:
        self._group = group = cgroups.find(self._roots, "blkio")
        path = ""
        if group:
            # The second is of before Linux 4.18.
            recursive = "blkio.throttle.io_service_bytes_recursive"
            folder = group.folder(group.levels[0])
            names = ("io.stat",) if group.version == 2 else (recursive, recursive.removesuffix("_recursive"))
            path = next((at for name in names if os.path.exists(at := f"{folder}/{name}")), "")
        if path != self._path:
            self._running.clear()
        self._path = path

    def read(self, numbers: set[bytes], readings: list[Reading]) -> None:
        """Add readings of the devices with these numbers, ``8:0``."""
        if not self._group or not self._path:
            return
        found = False
        for line in files.maybe(self._path).split(b"\n")[:-1]:
            words = line.split()
            if len(words) < 2 or words[0] not in numbers:
                continue
            for way, raw in _ways(words, self._group.version):
                found = True
                # Each device by itself: one that is met later brings with it what it counted before.
                running = self._running.setdefault((words[0], way), Running())
                before = running.total
                try:
                    self._totals[way] += running.add(raw) - before
                except ValueError:
                    pass
        if found:
            readings += [(self._series[way], total) for way, total in self._totals.items()]


def _ways(words: list[bytes], version: int) -> list[tuple[str, int]]:
    """Return the bytes of a line: ``8:0 rbytes=1 wbytes=2 ...``, or ``8:0 Read 1`` of version 1."""
    way: str | None
    if version == 1:
        way = {b"Read": "read", b"Write": "write"}.get(words[1])
        raw = files.number(words[2]) if len(words) == 3 else None
        return [(way, raw)] if way and raw is not None else []
    ways = []
    for word in words[1:]:
        key, _, value = word.partition(b"=")
        way = {b"rbytes": "read", b"wbytes": "write"}.get(key)
        raw = files.number(value)
        if way and raw is not None:
            ways.append((way, raw))
    return ways
