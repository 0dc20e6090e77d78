# SPDX-License-Identifier: Apache-2.0
"""Exposed wait: the part of the waiting for data in which an asynchronous device had nothing to do.

That it had nothing to do is known in two ways:

times of the device  where its work of a step was timed, it is idle from the end of all that earlier steps
                     gave it; before that it was busy
a full wait for it   from the end of a `device.sync`, as `Tensor.item` or `.cpu()`, it is idle until the host
                     next launches work

All other waiting is unknown, and told as such. On a CPU the thread that waits is the device itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.budget import steady_rows
from grademl_otel.analyzers.graph.device import ended_once, ends_of_rows, is_timed
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.main_lane import NAMES, OTHER
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, Run

MOST_UNKNOWN: Final = 0.2
"""Share of the waiting that may be unknown where anything is held against it."""
_NO_LAUNCH: Final = frozenset(
    {
        semconv.DATA_WAIT, *semconv.WORKER_PHASES, semconv.DEVICE_SYNC, semconv.GC, semconv.LOG,
        semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD,
    }
)  # fmt: skip
"""Phases in which the host gives a device no work; in every other it may, those that programs name too."""


@dataclass(frozen=True)
class ExposedWait:
    """The waiting for data of the steady steps of one rank, by what its device did meanwhile; ns."""

    wait_ns: int
    idle_ns: int
    """The device had nothing to do."""
    busy_ns: int
    """It did what earlier steps gave it."""
    n: int
    """Steps of which that is known."""

    @property
    def unknown_ns(self) -> int:
        """The rest of the waiting."""
        return self.wait_ns - self.idle_ns - self.busy_ns

    @property
    def unknown_share(self) -> float:
        return self.unknown_ns / self.wait_ns if self.wait_ns else 0.0

    @property
    def share(self) -> float:
        """Part of the waiting of which it is known that was idle."""
        known = self.idle_ns + self.busy_ns
        return self.idle_ns / known if known else 0.0

    @property
    def at_most(self) -> float:
        """Part of all waiting that was idle, if all that is not known was."""
        return 1.0 - self.busy_ns / self.wait_ns if self.wait_ns else 0.0

    @property
    def told(self) -> bool:
        """Whether enough is known."""
        return self.unknown_share <= MOST_UNKNOWN


def exposed_wait(run: Run, rank: int) -> ExposedWait | None:
    """Return that of the steady steps of ``rank``; None where they do not wait, or nothing is known of it."""
    steps = run.steps
    if semconv.DATA_WAIT not in steps.count:
        return None
    rows = steady_rows(run, rank)
    rows = rows[steps.busy[semconv.DATA_WAIT][rows] > 0]
    wait = steps.busy[semconv.DATA_WAIT][rows]
    if (run.device or "").split(":")[0] == "cpu":
        idle, busy, told = wait, np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_)
    else:
        idle, timed = _by_times(run, rank, rows)
        proven = np.minimum(_by_waits(run, rank)[rows], wait)
        busy = np.where(timed, wait - idle, 0)
        idle = np.where(timed, idle, proven)
        told = timed | (proven > 0)
    if not told.any():
        return None
    return ExposedWait(int(wait.sum()), int(idle.sum()), int(busy.sum()), int(np.count_nonzero(told)))


def _by_times(run: Run, rank: int, rows: IntArray) -> tuple[IntArray, BoolArray]:
    """Return (idle ns, whether known) of each row by the times of the device; of rows that waited once.

    Steps of which its times are lost say nothing of the wait that follows.
    """
    steps, mine = run.steps, run.steps.of_rank(rank)
    if not is_timed(steps):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    ends = ends_of_rows(steps)
    before = np.maximum(rows - 1, mine.start)
    known = (rows > mine.start) & (ends[before] > 0) & ended_once(steps)[before]
    known &= steps.count[semconv.DATA_WAIT][rows] == 1
    start, wait = steps.first[semconv.DATA_WAIT][rows], steps.busy[semconv.DATA_WAIT][rows]
    reached = np.maximum.accumulate(ends[mine])[before - mine.start]
    idle = np.clip(start + wait - np.maximum(start, reached), 0, wait)
    return np.where(known, idle, 0), known


def _by_waits(run: Run, rank: int) -> IntArray:
    """Return of each row of the table the waiting, in ns, that follows a wait of the host for the device."""
    main = activities(run).main
    pieces = main.of(rank)
    name, row, inferred = main.name[pieces], main.row[pieces], main.inferred[pieces]
    syncs = name == NAMES.index(semconv.DEVICE_SYNC)
    launches = (row >= 0) & ~np.isin(name, [number for number, of in enumerate(NAMES) if of in _NO_LAUNCH])
    launches &= name != NAMES.index(OTHER)
    # Where phases of a row are known by their sums alone, or not all were measured, their order is not known.
    unsure = np.zeros(len(run.steps) + 1, np.bool_)
    unsure[row[inferred & (syncs | launches)]] = True
    unsure[:-1] |= run.steps.level > COMPLETE_LEVEL
    unsure[-1] = False  # outside of rows
    at = np.arange(len(name))
    last_sync = np.maximum.accumulate(np.where(syncs, at, -1))
    last_launch = np.maximum.accumulate(np.where(launches, at, -1))
    idle = (main.wait[pieces] >= 0) & (last_sync > last_launch)
    idle &= ~unsure[row] & ~unsure[row[last_sync]]
    idle &= row >= 0
    found: IntArray = np.zeros(len(run.steps), np.int64)
    np.add.at(found, row[idle], (main.end[pieces] - main.start[pieces])[idle])
    return found
