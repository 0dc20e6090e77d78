# SPDX-License-Identifier: Apache-2.0
"""What asynchronous devices did in steady steps, where their times were recorded.

On such a device the phases of the host only enqueue: how long forward or backward take there is how long it
takes to give the work away. The step table says beside it when the device did that work; nothing here mixes
the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.budget import Quantiles, steady_rows
from grademl_otel.analyzers.model.facts import Run, StepTable

_COLUMNS: Final = tuple((name, semconv.DEVICE_PREFIX + name) for name in semconv.DEVICE_PHASES)


@dataclass(frozen=True)
class DeviceStep:
    """Steady steps as their device saw them, those of all ranks that have its times; ns."""

    steps: int
    step_ns: int
    """Of all of them together, by the host's clock, which is that of the training."""
    busy_ns: int
    """Time in which a stream was between the first and the last kernel of a phase, all of them together."""
    phases: list[tuple[str, int]]
    """Name and time, the longest first; they sum to ``busy_ns``."""
    behind: Quantiles
    """From the end of a step on the host to the end of its last phase on the device."""

    @property
    def idle_ns(self) -> int:
        """Time outside of all phases: the device waited, or did what no phase tells."""
        return max(0, self.step_ns - self.busy_ns)


def is_asynchronous(run: Run) -> bool:
    """Whether the host's times say when work was enqueued, not when it was done."""
    return run.device is not None and run.device.split(":")[0] != "cpu"


def device_step(run: Run, rank: int | None = None) -> DeviceStep | None:
    """Return what the device of ``rank`` did, by default those of all; None where no times of one are there.

    Steps of which some are lost are left out.
    """
    ranks = run.ranks if rank is None else [rank]
    rows = np.concatenate([np.zeros(0, np.int64), *(_timed(run, r) for r in ranks)])
    if not len(rows):
        return None
    steps = run.steps
    sums = [(name, int(steps.busy[column][rows].sum())) for name, column in _columns(steps)]
    behind = ends_of_rows(steps)[rows] - steps.end[rows]
    quantiles = Quantiles.of(behind)
    assert quantiles is not None
    return DeviceStep(
        steps=len(rows),
        step_ns=int((steps.end[rows] - steps.start[rows]).sum()),
        busy_ns=sum(ns for _, ns in sums),
        phases=sorted(((name, ns) for name, ns in sums if ns), key=lambda phase: -phase[1]),
        behind=quantiles,
    )


def is_timed(steps: StepTable) -> bool:
    """Whether any of ``steps`` may have times of a device."""
    return bool(_columns(steps))


def _columns(steps: StepTable) -> list[tuple[str, str]]:
    return [(name, column) for name, column in _COLUMNS if column in steps.count]


def _timed(run: Run, rank: int) -> IntArray:
    """The steady rows of ``rank`` of which a device time is there for each phase that the others have."""
    steps, rows = run.steps, steady_rows(run, rank)
    columns = _columns(steps)
    if not columns or not len(rows):
        return rows[:0]
    lost = np.zeros(len(rows), bool)
    some = np.zeros(len(rows), bool)
    for name, column in columns:
        if name == semconv.DATA_TRANSFER:
            continue  # timed as far as there is room
        host = steps.count.get(name, np.zeros(len(steps), np.int64))
        some |= steps.count[column][rows] > 0
        lost |= steps.count[column][rows] < host[rows]
    return rows[some & ~lost]


def ends_of_rows(steps: StepTable) -> IntArray:
    """When the device was done with each row; 0 where nothing is known. Of phases that ran several times only
    their sum is known: then it is the earliest possible end."""
    ends = np.zeros(len(steps), np.int64)
    for _, column in _columns(steps):
        end = np.where(steps.count[column] > 0, steps.first[column] + steps.busy[column], 0)
        ends = np.maximum(ends, end)
    return ends


def ended_once(steps: StepTable) -> IntArray:
    """Whether the phase that began last in a row ran once, so that its end is known exactly."""
    first = np.zeros(len(steps), np.int64)
    once = np.zeros(len(steps), bool)
    for _, column in _columns(steps):
        later = (steps.count[column] > 0) & (steps.first[column] >= first)
        first = np.where(later, steps.first[column], first)
        once = np.where(later, steps.count[column] == 1, once)
    return once
