# SPDX-License-Identifier: Apache-2.0
"""How long each step, or trace, took: over time, and how often.

Up to `MOST_POINTS` are told one by one. Of more there are bins of time with the least, median, 95 % and
longest of those that began in them, at several sizes; and the `LONGEST` of all, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.budget import steady_durations
from grademl_otel.analyzers.graph.trees.trace_paths import TracePaths
from grademl_otel.analyzers.html.series.bins import Spread, edges_of, spread
from grademl_otel.analyzers.model.facts import Run

MOST_POINTS: Final = 2_000
LONGEST: Final = 200
LEVELS: Final = (256, 1_024, 4_096)
"""Bins of each level, the coarsest first."""
_BARS: Final = range(12, 61)
"""How many bars a histogram may have."""
_WIDE: Final = 20
"""Bars are equally long on a logarithmic scale where the longest takes this many times the shortest."""
_TAIL: Final = 0.995
"""Values above this quantile are in one bar, where they would leave the others no room."""
_NOT_TRAINING: Final = sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE

STEADY, OTHER = "steady", "warm-up"


@dataclass(frozen=True)
class Points:
    """Steps or traces one by one, by start."""

    start: IntArray
    """ns from the origin."""
    ns: IntArray
    number: IntArray
    """Of the step, or of the trace from 1."""
    rank: IntArray
    """-1 for none."""
    steady: IntArray
    """1 for a steady step, 0 for one that statistics leave out."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, at: IntArray) -> Points:
        return Points(self.start[at], self.ns[at], self.number[at], self.rank[at], self.steady[at])


@dataclass(frozen=True)
class Binned:
    """Points by the bin of time that they began in."""

    bins: int
    spread: Spread
    first: IntArray
    last: IntArray
    """Numbers of the first and the last point of each bin."""


@dataclass(frozen=True)
class Durations:
    """Of all steps of a run, or of many traces."""

    noun: str
    """``step`` or ``trace``."""
    count: int
    points: Points
    """All, or the longest."""
    levels: list[Binned]
    """Empty where ``points`` are all."""
    ranks: int


@dataclass(frozen=True)
class Distribution:
    """How often what took how long: bar i is of ``[edges[i], edges[i + 1])``, the last one with its end."""

    noun: str
    edges: IntArray
    counts: IntArray
    rows: list[tuple[str, IntArray]]
    """(name, sorted values) of all, and of each rank where there are several."""
    log: bool
    open: bool
    """Whether the last bar is of all that took longer than the edge before."""


def durations_of_run(run: Run, start: int, total_ns: int) -> Durations | None:
    """Return how long the training steps of ``run`` took (evaluation steps, if it has no others).

    Times are from ``start``; of bins over ``total_ns``. None without steps.
    """
    steps = run.steps
    chosen = np.flatnonzero((steps.flags & _NOT_TRAINING) == 0)
    if not len(chosen):
        chosen = np.flatnonzero((steps.flags & sc.FLAG_INCOMPLETE) == 0)
    if not len(chosen):
        return None
    steady = np.zeros(len(steps), np.int64)
    steady[steady_durations(run)[0]] = 1
    order = chosen[np.argsort(steps.start[chosen], kind="stable")]
    points = Points(
        start=steps.start[order] - start,
        ns=steps.end[order] - steps.start[order],
        number=steps.step[order],
        rank=steps.rank[order],
        steady=steady[order],
    )
    return _bounded("step", points, total_ns, len(run.ranks))


def durations_of_traces(paths: TracePaths, start: int, total_ns: int) -> Durations:
    """Return how long each trace took; times from ``start``, and bins over ``total_ns``."""
    order = np.argsort(paths.start, kind="stable")
    count = len(order)
    points = Points(
        start=paths.start[order] - start,
        ns=paths.total_ns[order],
        number=np.arange(1, count + 1),
        rank=np.full(count, -1, np.int64),
        steady=np.ones(count, np.int64),
    )
    return _bounded("trace", points, total_ns, 0)


def _bounded(noun: str, points: Points, total_ns: int, ranks: int) -> Durations:
    if len(points) <= MOST_POINTS:
        return Durations(noun, len(points), points, [], ranks)
    longest = np.sort(np.argsort(-points.ns, kind="stable")[:LONGEST])
    levels = []
    for bins in LEVELS:
        which = np.searchsorted(edges_of(total_ns, bins), points.start, side="right") - 1
        of_bins = spread(np.clip(which, 0, bins - 1), points.ns)
        levels.append(Binned(bins, of_bins, points.number[of_bins.first], points.number[of_bins.last]))
    return Durations(noun, len(points), points.take(longest), levels, ranks)


def distribution_of_run(run: Run) -> Distribution | None:
    """Return how long the steady steps took, without what is no part of them; None without any."""
    rows, ns = steady_durations(run)
    named = [("all", ns)]
    if len(run.ranks) > 1:
        of = run.steps.rank[rows]
        named = [("all ranks", ns), *((f"rank {rank}", ns[of == rank]) for rank in run.ranks)]
    return _distribution("steady step", [(name, np.sort(values)) for name, values in named if len(values)])


def distribution_of_traces(paths: TracePaths) -> Distribution | None:
    """Return how long the traces took; None without any."""
    return _distribution("trace", [("all", np.sort(paths.total_ns))] if len(paths) else [])


def _distribution(noun: str, rows: list[tuple[str, IntArray]]) -> Distribution | None:
    if not rows:
        return None
    values = rows[0][1]
    low, high = int(values[0]), int(values[-1])
    tail = int(values[int((len(values) - 1) * _TAIL)])
    log = high > _WIDE * max(low, 1)
    cut = not log and high - low > 3 * max(1, tail - low)
    top = tail if cut else high
    count = min(max(_bars(values, low, top), _BARS.start), _BARS.stop - 1)
    if log:
        edges = np.geomspace(max(low, 1), max(top, 2), count + 1)
        edges[0] = low
    else:
        edges = np.linspace(low, max(top, low + 1), count + 1)
    whole = np.rint(edges).astype(np.int64)
    whole[-1] = max(top, low + 1)
    whole = np.append(whole, high) if cut and high > whole[-1] else whole
    whole = whole[np.append(True, np.diff(whole) > 0)]
    counts = np.histogram(values, whole)[0].astype(np.int64)
    return Distribution(noun, whole, counts, rows, log, cut)


def _bars(values: IntArray, low: int, high: int) -> int:
    """Return how many bars show ``values`` well: the rule of Freedman and Diaconis."""
    first, third = np.quantile(values, (0.25, 0.75))
    width = 2 * float(third - first) / len(values) ** (1 / 3)
    return round((high - low) / width) if width > 0 else 1
