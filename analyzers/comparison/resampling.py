# SPDX-License-Identifier: Apache-2.0
"""How far a number that is made of steps may be off: bootstrap intervals that know that steps depend.

Steps of a run are no independent draws: a slow one is followed by a slow one. So blocks of successive steps
are drawn (Künsch 1989), around a circle (Politis and Romano 1992), as long as the data ask for (`blocks`); of
several ranks a step is drawn with all of its ranks. Percentiles of the difference of two such numbers make
the interval. It is widened, as percentiles of few independent parts are too narrow (Hesterberg 2015): by
Student's t for as many degrees of freedom as there are blocks.

All numbers are drawn from a seed, so that the same data always give the same interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.comparison.blocks import block_length
from grademl_otel.analyzers.comparison.student import two_sided

REPLICATES: Final = 1_000
FEWEST_BLOCKS: Final = 8
"""Independent stretches of steps below which nothing is said of the spread."""
CONFIDENCE: Final = 0.95

_SEED: Final = 20_260_101
_MOST_GROUPS: Final = 1_024
"""Of longer runs so many stretches of steps are drawn in place of steps."""
_LONGER: Final = 2
"""Blocks are so many times as long as those that err least: these make intervals a little too narrow."""
_CELLS: Final = 256
_REACH: Final = 8.0
"""Standard errors around a quantile within which it is looked for."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What was measured: ``value`` of each row; rows of one ``unit`` (step, trace) are drawn together."""

    value: FloatArray
    unit: IntArray
    """Number of the step or trace of each row, from 0 in order of time."""
    units: int
    over: FloatArray | None = None
    """What the values are parts of, where the number is the ratio of both sums."""

    def __len__(self) -> int:
        return self.units


@dataclass(frozen=True)
class Statistic:
    """The number that is made of a sample: a quantile, else the ratio of sums (the mean)."""

    quantile: float | None = None

    def of(self, sample: Sample) -> float:
        """Return the number; quantiles are interpolated, as in reports."""
        if self.quantile is not None:
            return float(np.quantile(sample.value, self.quantile))
        below = len(sample.value) if sample.over is None else float(sample.over.sum())
        return float(sample.value.sum()) / below if below else 0.0


MEDIAN: Final = Statistic(0.5)
MEAN: Final = Statistic()


@dataclass(frozen=True, eq=False)
class Spread:
    """A number, and by how much it is off in each replicate."""

    estimate: float
    deviation: FloatArray
    blocks: int
    """Independent stretches it was drawn from."""

    @property
    def known(self) -> bool:
        """Whether there are enough of them."""
        return self.blocks >= FEWEST_BLOCKS

    @property
    def width(self) -> float:
        """How far apart the middle 95 % of the replicates are."""
        low, high = np.quantile(self.deviation, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
        return float(high - low)


def spread(sample: Sample, statistic: Statistic, stream: int = 0) -> Spread:
    """Return how ``statistic`` of ``sample``, of at least one row, spreads; samples of one number that are
    compared need different ``stream``s.
    """
    estimate = statistic.of(sample)
    groups = min(sample.units, _MOST_GROUPS)
    group = sample.unit * groups // sample.units
    in_group = sample.units / groups
    wanted = block_length(_influence(sample, statistic, estimate))
    if statistic.quantile is not None and statistic != MEDIAN:
        # What depends on what came before shows best in the middle; few values are beyond a tail.
        wanted = max(wanted, block_length(_influence(sample, MEDIAN, MEDIAN.of(sample))))
    wanted = wanted if wanted == 1 else wanted * _LONGER
    length = max(1, min(round(wanted / in_group), groups))
    blocks = -(-groups // length)
    weights = _weights(groups, length, blocks, stream)
    if statistic.quantile is None:
        found, centre = _ratios(sample, group, groups, weights)
    else:
        found, centre = _quantiles(sample, statistic.quantile, group, groups, weights, blocks)
    # Whole blocks make samples a little longer than the one there is; and few of them spread too little.
    scale = sqrt(blocks * length / groups) * sqrt(blocks / max(1, blocks - 1))
    return Spread(estimate, (found - centre) * scale, blocks)


def interval(one: Spread, other: Spread | None = None, comparisons: int = 1) -> tuple[float, float]:
    """Return the interval of ``other`` minus ``one``; of ``one`` itself where there is no other.

    All intervals of so many ``comparisons`` hold at once with `CONFIDENCE` (Bonferroni).
    """
    estimate, deviation = one.estimate, one.deviation
    freedom = one.blocks - 1
    if other is not None:
        estimate, deviation = other.estimate - estimate, other.deviation - deviation
        freedom = _freedom(one, other)
    alpha = 1 - CONFIDENCE
    low, high = np.quantile(deviation, (alpha / 2, 1 - alpha / 2))
    wider = two_sided(alpha / comparisons, max(1, freedom)) / two_sided(alpha, 1 << 20)
    return estimate + min(0.0, float(low)) * wider, estimate + max(0.0, float(high)) * wider


def _freedom(one: Spread, other: Spread) -> int:
    """Return the degrees of freedom of a difference (Welch and Satterthwaite)."""
    first, second = float(one.deviation.var()), float(other.deviation.var())
    if not first + second:
        return min(one.blocks, other.blocks) - 1
    parts = first**2 / max(1, one.blocks - 1) + second**2 / max(1, other.blocks - 1)
    return int((first + second) ** 2 / parts)


def _influence(sample: Sample, statistic: Statistic, estimate: float) -> FloatArray:
    """Return for each unit how it moves the number: the series whose dependence decides (Sun and Lahiri 2006
    for quantiles).
    """
    if statistic.quantile is not None:
        moved: FloatArray = (sample.value <= estimate).astype(np.float64)
    else:
        moved = sample.value - estimate * (1.0 if sample.over is None else sample.over)
    rows = np.maximum(np.bincount(sample.unit, minlength=sample.units), 1)
    return np.bincount(sample.unit, moved, sample.units) / rows


@lru_cache(maxsize=8)
def _weights(groups: int, length: int, blocks: int, stream: int) -> FloatArray:
    """Return how often each of ``groups`` is in each replicate of so many ``blocks``; replicates x groups."""
    drawn = np.random.default_rng((_SEED, stream)).integers(0, groups, (REPLICATES, blocks))
    flat = (np.arange(REPLICATES)[:, None] * groups + drawn).ravel()
    begins = np.bincount(flat, minlength=REPLICATES * groups).reshape(REPLICATES, groups)
    total = np.zeros((REPLICATES, groups + length), np.int32)
    np.cumsum(np.concatenate([begins[:, groups - length + 1 :], begins], axis=1), axis=1, out=total[:, 1:])
    weights: FloatArray = (total[:, length:] - total[:, :-length]).astype(np.float32)
    return weights


def _ratios(sample: Sample, group: IntArray, groups: int, weights: FloatArray) -> tuple[FloatArray, float]:
    over = np.ones(len(sample.value)) if sample.over is None else sample.over
    sums = np.stack([np.bincount(group, part, groups) for part in (sample.value, over)], axis=1)
    drawn = weights @ sums
    below = np.where(drawn[:, 1] > 0, drawn[:, 1], 1.0)
    whole = sums.sum(axis=0)
    return drawn[:, 0] / below, float(whole[0] / whole[1]) if whole[1] else 0.0


def _quantiles(
    sample: Sample, level: float, group: IntArray, groups: int, weights: FloatArray, blocks: int
) -> tuple[FloatArray, float]:
    """Return the quantile of each replicate and that of the sample, both on one grid of values.

    No replicate is laid out: it is the sum of the histograms of its groups, in cells that are narrow against
    the spread.
    """
    reach = min(1.0, _REACH * sqrt(level * (1 - level) / blocks))
    levels = np.linspace(max(0.0, level - reach), min(1.0, level + reach), _CELLS)
    grid = np.unique(np.quantile(sample.value, levels, method="inverted_cdf"))
    cell = np.searchsorted(grid, sample.value)
    counts = np.bincount(group * (len(grid) + 1) + cell, minlength=groups * (len(grid) + 1))
    table = counts.reshape(groups, len(grid) + 1).astype(np.float32)
    drawn = np.cumsum(weights @ table, axis=1, dtype=np.float64)
    whole = np.cumsum(table.sum(axis=0), dtype=np.float64)
    return _crossing(drawn, level, grid), float(_crossing(whole[None], level, grid)[0])


def _crossing(below: FloatArray, level: float, grid: FloatArray) -> FloatArray:
    """Return the first value of ``grid`` up to which a part ``level`` lies; ``below`` counts cell by cell."""
    first = (below >= level * below[:, -1:]).argmax(axis=1)
    found: FloatArray = grid[np.minimum(first, len(grid) - 1)]
    return found
