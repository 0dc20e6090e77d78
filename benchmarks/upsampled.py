# SPDX-License-Identifier: Apache-2.0
"""A truth on a grid of 10 ms, what a monitor would have seen of it, and what is made of that again."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.spanfiles import HOST
from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.answer import Found, find
from grademl_otel.analyzers.attribution.question import Question
from grademl_otel.analyzers.subject import Subject

CELL: Final = 10_000_000
"""ns of one value of a truth."""
METRIC: Final = "cpu.busy"
INTERVALS_S: Final = (0.1, 0.5, 1.0, 4.0)
"""Of monitors."""
_COLUMNS: Final = ("time", "start", "host", "resource", "metric", "value", "unit", "capacity")


@dataclass(frozen=True, eq=False)
class Truth:
    """How much was used."""

    start: int
    """Unix ns."""
    value: FloatArray
    """Mean of each cell, in cores."""
    capacity: float
    host: str = HOST
    """As the phases call it; empty for whichever it is."""

    @property
    def edges(self) -> IntArray:
        return self.start + CELL * np.arange(len(self.value) + 1, dtype=np.int64)

    def within_whole(self, seconds: float) -> Truth:
        """Return as much of it as intervals of so many seconds fit into."""
        cells = _cells(seconds)
        return Truth(self.start, self.value[: len(self.value) // cells * cells], self.capacity, self.host)

    def averages(self, seconds: float) -> FloatArray:
        """Return the mean of each interval of so many seconds."""
        return np.asarray(self.value.reshape(-1, _cells(seconds)).mean(axis=1))

    def held(self, seconds: float) -> FloatArray:
        """Return on the grid what is known without phases: the mean of each interval, all of the time."""
        return np.repeat(self.averages(seconds), _cells(seconds))

    def write(self, path: Path, seconds: float) -> None:
        """Write what a monitor would have seen, for ``--csv``."""
        every = _cells(seconds) * CELL
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(_COLUMNS)
            for ix, value in enumerate(self.averages(seconds).tolist()):
                start = self.start + ix * every
                rows.writerow((start + every, start, self.host, "cpu", "busy", value, "{cpu}", self.capacity))

    def error(self, estimate: FloatArray) -> float:
        """Return the sum of what ``estimate`` is off, over the sum of the truth."""
        return float(np.abs(estimate - self.value).sum() / self.value.sum())


def _cells(seconds: float) -> int:
    return round(seconds * 1e9) // CELL


def truth_of(readings: IntArray, capacity: float, host: str) -> Truth:
    """Return what readings (n, 2: Unix ns, ns of CPU time until then) tell, evenly between two of them."""
    at, used = readings[:, 0], readings[:, 1]
    edges = np.arange(at[0], at[-1] + 1, CELL)
    value = np.diff(np.interp(edges - at[0], at - at[0], used - used[0])) / CELL
    return Truth(int(at[0]), value, capacity, host)


def attributed(about: Subject, csv_file: Path, rules: Path | None) -> Found:
    """Return what the product makes of it."""
    return find(about, Question(csv=(csv_file,), rules=rules))


def on_grid(found: Found, truth: Truth) -> FloatArray:
    """Return the upsampled metric on the grid of ``truth``."""
    upsampled = found.attributed.attribution(metric_of(found)).upsampled
    timeline = upsampled.demand.timeline
    sums = np.zeros(len(timeline.edges))
    np.cumsum(np.nan_to_num(upsampled.value) * timeline.length, out=sums[1:])
    value: FloatArray = (
        np.diff(np.interp(truth.edges - truth.start, timeline.edges - truth.start, sums)) / CELL
    )
    return value


def metric_of(found: Found) -> int:
    """Return the metric that was written."""
    (metric,) = (ix for ix, one in enumerate(found.resources.metrics) if one.type == METRIC)
    return metric
