# SPDX-License-Identifier: Apache-2.0
"""Phases in the order of time: their starts and ends, and how many run at each moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.execution.model import Phases
from grademl_otel.analyzers.model.arrays import changes


@dataclass(frozen=True)
class Moments:
    """Starts and ends of phases as parallel arrays, in the order of time."""

    time: IntArray
    """Unix ns."""
    phase: IntArray
    is_end: BoolArray

    def __len__(self) -> int:
        return len(self.time)


def moments(phases: Phases, chosen: IntArray | None = None) -> Moments:
    """Return the starts and ends of the ``chosen`` phases (of all).

    At one time ends come before starts, an inner phase ends before the one around it and starts after it. A
    phase that takes no time starts and ends between the ends of others and their starts.
    """
    at = np.arange(len(phases)) if chosen is None else chosen
    start = phases.start[at]
    end = np.maximum(phases.end[at], start)
    empty = start == end
    time = np.concatenate([start, end])
    phase = np.concatenate([at, at])
    is_end = np.repeat([False, True], len(at))
    turn = np.where(np.concatenate([empty, empty]), 1, np.where(is_end, 0, 2))
    # In preorder what is further in stands behind.
    inwards = np.where((turn == 0), -phase, phase)
    order = np.lexsort((is_end, inwards, turn, time))
    return Moments(time[order], phase[order], is_end[order])


def active(phases: Phases, chosen: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """Return (times, counts): how many of the ``chosen`` phases (of all) run from each time to the next.

    Times ascend and each changes the count; the last count is 0. What takes no time never runs.
    """
    at = np.arange(len(phases)) if chosen is None else chosen
    at = at[phases.end[at] > phases.start[at]]
    time = np.concatenate([phases.start[at], phases.end[at]])
    step = np.repeat([1, -1], len(at))
    order = np.argsort(time, kind="stable")
    time, count = time[order], np.cumsum(step[order])
    if not len(time):
        return time, count
    last = np.append(np.flatnonzero(changes(time))[1:], len(time)) - 1
    time, count = time[last], count[last]
    changed = np.ones(len(count), np.bool_)
    changed[1:] = count[1:] != count[:-1]
    return time[changed], count[changed]
