# SPDX-License-Identifier: Apache-2.0
"""A process of the job and all that it started: loader workers, compilers, and whatever else.

CPU time is known of the living, and the kernel gives what a dead one used to the parent that waited for it.
So there is nothing to lose as long as nothing counts twice (see `_Tally`). Proportional shares of memory are
left alone: to have them the kernel walks all pages of a process, which stops it for as long.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from grademl_otel.catalog import host
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.host import files
from grademl_otel.instrumentations.host.counting import TICKS, Counted
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series, SourceGone

MOST_PROCESSES: Final = 512
"""Of a tree; later ones are left out while there are so many."""
_LOOK: Final = 5
"""In every so many readings each process is asked for its children and its bytes; the first one for children
in all of them."""
_LOOK_AT_THREADS: Final = 30
"""In so many all of its threads are: a child is one of the thread that started it."""
_NS: Final = 1_000_000_000
_GONE: Final = (errno.ENOENT, errno.ESRCH)
_IO: Final = (
    (b"read_bytes", host.TREE_DISK_IO, "read"),
    (b"write_bytes", host.TREE_DISK_IO, "write"),
    (b"rchar", host.TREE_IO, "read"),
    (b"wchar", host.TREE_IO, "write"),
)


class ProcessTree:
    """A process and its descendants, as a source. Gone as soon as the process is.

    ``attributes`` are those of its series, by default its ``process.pid``; ``device`` is its name in resource
    tables, by default its pid. Pids are those of this process's own namespace: where ``roots.proc`` shows
    another (the host's, in a container), /proc is read instead.
    """

    def __init__(
        self, pid: int, roots: Roots, attributes: Attributes | None = None, device: str | None = None
    ) -> None:
        self.name = f"process {pid}"
        self._proc = _of_own_namespace(roots)
        self._pid = pid
        self._root = _Process(pid, None)
        self._processes = {pid: self._root}
        """Parents before their children."""
        self._readings = 0
        self._foreign: set[int] = set()
        self._has_children_files = os.path.exists(f"{self._proc}/{pid}/task/{pid}/children")

        told: Attributes = {"process.pid": pid} if attributes is None else attributes
        at = str(pid) if device is None else device
        self._cpu_modes = tuple(
            Counted(Series(host.PROCESS_CPU_TIME, {**told, "cpu.mode": mode}, at), TICKS)
            for mode in ("user", "system")
        )
        self._faults = tuple(
            Counted(Series(host.PROCESS_FAULTS, {**told, "system.paging.fault.type": kind}, at))
            for kind in ("minor", "major")
        )
        self._delay = Counted(Series(host.MAIN_THREAD_DELAY, told, at), _NS)
        self._memory = Series(host.PROCESS_MEMORY, told, at)
        self._threads = Series(host.PROCESS_THREADS, told, at)
        self._tree_cpu = Series(host.TREE_CPU_TIME, told, at)
        self._tree_count = Series(host.TREE_COUNT, told, at)
        self._tree_threads = Series(host.TREE_THREADS, told, at)
        self._tree_memory = Series(host.TREE_MEMORY, told, at)
        self._cpu = _Tally()
        self._io = tuple(
            (key, _Tally(), Series(metric, {**told, "disk.io.direction": way}, at))
            for key, metric, way in _IO
        )

    def read(self) -> list[Reading]:
        stats = self._look()
        if self._readings % _LOOK == 0:
            self._read_io(list(stats))
        self._readings += 1
        root = stats[self._root]
        readings: list[Reading] = []
        for counted, ticks in zip(self._cpu_modes, (root.user, root.system), strict=True):
            counted.add(ticks, readings)
        for counted, faults in zip(self._faults, root.faults, strict=True):
            counted.add(faults, readings)
        words = files.maybe(f"{self._proc}/{self._pid}/schedstat").split()
        self._delay.add(files.number(words[1]) if len(words) == 3 else None, readings)
        self._cpu.update({process: (stat.own, stat.of_children) for process, stat in stats.items()})
        every = stats.values()
        readings += [
            (self._memory, root.resident),
            (self._threads, root.threads),
            (self._tree_cpu, self._cpu.total / TICKS),
            (self._tree_count, len(stats)),
            (self._tree_threads, sum(stat.threads for stat in every)),
            (self._tree_memory, sum(stat.resident for stat in every)),
        ]
        readings += [(series, tally.total) for _, tally, series in self._io if tally.is_known]
        return readings

    def close(self) -> None:
        self._processes.clear()

    def _look(self) -> dict[_Process, _Stat]:
        """Read all processes, find new ones, and let go of those that are gone. Raises SourceGone."""
        if not self._has_children_files and self._readings % _LOOK == 0:
            self._scan()
        stats: dict[_Process, _Stat] = {}
        queue = list(self._processes.values())
        for process in queue:  # which grows
            stat = self._stat(process)
            if stat is None:
                process.is_alive = False
                del self._processes[process.pid]
                continue
            process.started = stat.started
            stats[process] = stat
            if self._has_children_files and (process is self._root or self._readings % _LOOK == 0):
                for child in self._children(process.pid):
                    if child not in self._processes and len(self._processes) < MOST_PROCESSES:
                        self._processes[child] = _Process(child, process)
                        queue.append(self._processes[child])
        return stats

    def _stat(self, process: _Process) -> _Stat | None:
        """Return what it says now; None where it is gone, or another process has its pid."""
        try:
            stat = _Stat(files.read_line(f"{self._proc}/{process.pid}/stat"))
        except (OSError, ValueError) as error:
            if process is not self._root:
                return None
            if isinstance(error, OSError) and error.errno in _GONE:
                raise SourceGone(f"process {self._pid} has ended") from error
            raise
        if process.started is not None and process.started != stat.started:
            if process is self._root:
                raise SourceGone(f"process {self._pid} has ended, and its pid is another's")
            return None
        return stat

    def _children(self, pid: int) -> list[int]:
        """Return the children of its main thread, and now and then of all its threads."""
        threads = [str(pid)]
        if self._readings % _LOOK_AT_THREADS == 0:
            try:
                threads = os.listdir(f"{self._proc}/{pid}/task")
            except OSError:
                return []
        return [
            int(word)
            for thread in threads
            for word in files.maybe(f"{self._proc}/{pid}/task/{thread}/children").split()
            if word.isdigit()
        ]

    def _scan(self) -> None:
        """Find descendants among all processes, for kernels that do not list children."""
        pids = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}
        self._foreign &= pids
        parents = {}
        for pid in pids - self._foreign - self._processes.keys():
            try:
                parents[pid] = _Stat(files.read_line(f"{self._proc}/{pid}/stat")).parent
            except (OSError, ValueError):
                continue
        found = True
        while found:
            found = False
            for pid, parent in list(parents.items()):
                if parent in self._processes and len(self._processes) < MOST_PROCESSES:
                    self._processes[pid] = _Process(pid, self._processes[parent])
                    del parents[pid]
                    found = True
        self._foreign.update(parents)

    def _read_io(self, processes: list[_Process]) -> None:
        told = {process: files.keyed(files.maybe(f"{self._proc}/{process.pid}/io")) for process in processes}
        for key, tally, _ in self._io:
            tally.update({process: (0, each[key]) for process, each in told.items() if key in each})


class _Process:
    """A process of the tree; another one with the same pid is another object."""

    __slots__ = ("is_alive", "parent", "pid", "started")

    def __init__(self, pid: int, parent: _Process | None) -> None:
        self.pid = pid
        self.parent = parent
        self.started: int | None = None
        """In ticks since the start of the host, as soon as it was read."""
        self.is_alive = True


class _Stat:
    """What /proc/PID/stat says. Raises ValueError for what is none."""

    __slots__ = (
        "_words",
        "of_children",
        "own",
        "resident",
        "started",
        "system",
        "threads",
        "user",
    )

    def __init__(self, data: bytes) -> None:
        # The name before it is in parentheses, and may hold some itself.
        words = data[data.rindex(b")") + 1 :].split(None, 22)
        if len(words) < 23:
            raise ValueError("a line of /proc/PID/stat that is cut")
        self._words = words
        self.user, self.system, reaped_user, reaped_system = map(int, words[11:15])
        self.own = self.user + self.system
        self.of_children = reaped_user + reaped_system
        """Ticks of children that it waited for, and of those that they waited for."""
        self.threads = int(words[17])
        self.started = int(words[19])
        self.resident = int(words[21]) * _PAGE

    @property
    def parent(self) -> int:
        return int(self._words[1])

    @property
    def faults(self) -> tuple[int, int]:
        """Minor and major ones, of the process itself."""
        return int(self._words[7]), int(self._words[9])


_PAGE: Final[int] = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class _Tally:
    """What the processes of a tree have counted since it was first read, dead ones included; never falls.

    Each tells what it counted itself, and what those of its children had that it waited for. When a process
    is gone, what it was last seen with is expected among what its parent, or who is next above that lives,
    gains for its children: so much of that gain has been counted already. It is expected for two readings: a
    parent is read before its children, and may have waited in between. What nobody waited for stays counted.
    Where the two cannot be told apart (bytes), all is said to be of children; then what a process gains
    itself may, once, be taken for what a child had that nobody waited for.
    """

    __slots__ = ("_expected", "_last", "is_known", "total")

    def __init__(self) -> None:
        self._last: dict[_Process, tuple[int, int]] = {}
        self._expected: dict[_Process, int] = {}
        self.is_known = False
        self.total = 0

    def update(self, told: dict[_Process, tuple[int, int]]) -> None:
        """Take what living processes say now: of themselves, and of children that they waited for."""
        new: dict[_Process, int] = {}
        for process in [each for each in self._last if not each.is_alive]:
            above = process.parent
            while above is not None and not above.is_alive:
                above = above.parent
            lost = sum(self._last.pop(process)) + self._expected.pop(process, 0)
            if above is not None:
                new[above] = new.get(above, 0) + lost
        for process, (own, of_children) in told.items():
            before = self._last.get(process)
            if before is not None:
                gained = max(0, of_children - before[1])
                expected, late = new.get(process, 0), self._expected.pop(process, 0)
                self.total += max(0, own - before[0]) + max(0, gained - late - expected)
                still = min(expected, max(0, late + expected - gained))
                if still:
                    self._expected[process] = still
                self._last[process] = max(own, before[0]), max(of_children, before[1])
            else:
                # Whoever is new was started since the last time, but for the first time of all.
                self.total += own + of_children if self.is_known else 0
                self._last[process] = own, of_children
        if told:
            self.is_known = True


def _of_own_namespace(roots: Roots) -> str:
    """Return where the pids are those that this process knows."""
    try:
        own = os.readlink(roots.proc / "self")
    except OSError:
        return str(roots.proc)
    return str(roots.proc) if own == str(os.getpid()) or not own.isdecimal() else "/proc"
