# SPDX-License-Identifier: Apache-2.0
"""What goes onto tracks: processes, their lanes, and in these slices as parallel arrays."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.packets import Note

BY_TIME: Final = "time"
"""A thread does one thing within another: what lies in a slice is shown in it."""
BY_PARENT: Final = "parent"
"""Much goes on side by side: only what a slice is the parent of is shown in it."""
FLAT: Final = "flat"
"""Nothing is part of anything else."""

_MOST_LANES: Final = 1 << 13
_REST: Final = "other lanes"
_BLOCK: Final = 1 << 16
_COLUMNS: Final = 9
_MOST_PID: Final = 1 << 22
"""Process ids of Linux are below."""


@dataclass(frozen=True)
class Process:
    """One process, as the trace has it."""

    name: str
    pid: int | None
    """As the system had it, where that is known."""
    order: tuple[Any, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lane:
    """One lane of a process: a thread, a stream, what a loader worker does."""

    process: int
    name: str
    nesting: str
    order: tuple[Any, ...]


Telling = Callable[[int, str], Iterable[Note]]
"""From what a slice is of, and its name, to what is told of it."""


@dataclass(frozen=True)
class Slices:
    """Slices, as arrays of one length; times are Unix ns."""

    lane: IntArray
    start: IntArray
    end: IntArray
    name: IntArray
    """Index into ``names``."""
    category: IntArray
    """Index into ``categories``."""
    depth: IntArray
    """Of two with the same bounds, that which is further out has less."""
    above: IntArray
    """Index of the slice that it is a child of, in the same lane; -1 for none."""
    source: IntArray
    """Index into ``tellings``."""
    ref: IntArray
    """What it is of, as that takes it."""
    names: list[str]
    categories: list[str]
    tellings: list[Telling]
    processes: list[Process]
    keys: dict[Hashable, int]
    """What a process is known by -> its number."""
    lanes: list[Lane]

    def __len__(self) -> int:
        return len(self.start)

    def notes(self, ix: int) -> Iterable[Note]:
        """Return what is told of slice ``ix``."""
        telling = self.tellings[int(self.source[ix])]
        return telling(int(self.ref[ix]), self.names[int(self.name[ix])])


@dataclass
class Draft:
    """Slices as they are found."""

    processes: dict[Hashable, tuple[int, Process]] = field(default_factory=dict)
    lanes: dict[tuple[int, str], tuple[int, Lane]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)
    _tellings: list[Telling] = field(default_factory=list)
    _parts: list[tuple[IntArray, ...]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def process(self, key: Hashable, made: Callable[[], Process]) -> int:
        """Return the number of the process ``key``, which is ``made`` where it is new."""
        if key not in self.processes:
            self.processes[key] = len(self.processes), made()
        return self.processes[key][0]

    def lane(self, process: int, name: str, nesting: str, order: tuple[Any, ...] = ()) -> int:
        """Return the number of the lane of this ``name``; where there are very many, that of the rest."""
        if (process, name) not in self.lanes and len(self.lanes) >= _MOST_LANES:
            name, nesting, order = _REST, FLAT, (sys.maxsize,)
        if (process, name) not in self.lanes:
            self.lanes[process, name] = len(self.lanes), Lane(process, name, nesting, order)
        return self.lanes[process, name][0]

    def name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def category(self, name: str) -> int:
        return self._categories.setdefault(name, len(self._categories))

    def add(
        self,
        lane: IntArray,
        start: IntArray,
        end: IntArray,
        name: IntArray,
        category: IntArray,
        depth: IntArray,
        telling: Telling,
        ref: IntArray,
        above: IntArray | None = None,
    ) -> IntArray:
        """Add slices, and return their numbers."""
        count = len(start)
        none = np.full(count, -1, np.int64)
        source = np.full(count, len(self._tellings), np.int64)
        self._tellings.append(telling)
        columns = (lane, start, end, name, category, depth, none if above is None else above, source, ref)
        self._parts.append(tuple(np.broadcast_to(column, (count,)) for column in columns))
        first = self._count
        self._count += count
        return np.arange(first, self._count)

    def finish(self) -> Slices:
        """Return all that was added."""
        empty = np.zeros(0, np.int64)
        parts = [(empty,) * _COLUMNS, *self._parts]
        lane, start, end, name, category, depth, above, source, ref = map(
            np.concatenate, zip(*parts, strict=True)
        )
        return Slices(
            lane, start, end, name, category, depth, above, source, ref,
            names=list(self._names),
            categories=list(self._categories),
            tellings=self._tellings,
            processes=[process for _, process in self.processes.values()],
            keys={key: number for key, (number, _) in self.processes.items()},
            lanes=[one for _, one in self.lanes.values()],
        )  # fmt: skip


def rows_of(*columns: IntArray) -> Iterator[tuple[int, ...]]:
    """Yield the rows of arrays, a block at a time: as lists, millions of numbers take gigabytes."""
    for first in range(0, len(columns[0]), _BLOCK):
        yield from zip(*(column[first : first + _BLOCK].tolist() for column in columns), strict=True)


def pids(processes: list[Process]) -> list[int]:
    """Return a number for each process that no other has: its own, else one that no system gives.

    Processes of several hosts may have had the same.
    """
    often = Counter(process.pid for process in processes)
    return [
        pid if pid is not None and 0 < pid < _MOST_PID and often[pid] == 1 else _MOST_PID + number
        for number, pid in enumerate(process.pid for process in processes)
    ]
