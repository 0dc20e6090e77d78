# SPDX-License-Identifier: Apache-2.0
"""Intervals of numbers that are made of steps: against closed forms, against the plain way, by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.comparing import Kind, found, passed_on
from grademl_otel.analyzers.comparison import resampling
from grademl_otel.analyzers.comparison.blocks import block_length
from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import NS, Quantity
from grademl_otel.analyzers.comparison.resampling import MEAN, MEDIAN, Sample, Statistic, interval, spread
from grademl_otel.analyzers.comparison.student import two_sided


def sample(values: np.ndarray) -> Sample:
    return Sample(np.asarray(values, np.float64), np.arange(len(values)), len(values))


@pytest.mark.parametrize(
    ("freedom", "of_5_percent", "of_1_percent"),
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (5, 2.571, 4.032), (10, 2.228, 3.169), (30, 2.042, 2.750),
     (120, 1.980, 2.617), (10_000, 1.960, 2.576)],
)  # fmt: skip
def test_quantiles_of_student(freedom: int, of_5_percent: float, of_1_percent: float) -> None:
    """As in any table of them."""
    assert two_sided(0.05, freedom) == pytest.approx(of_5_percent, abs=2e-3)
    assert two_sided(0.01, freedom) == pytest.approx(of_1_percent, abs=2e-3)


def test_blocks_are_as_long_as_steps_depend() -> None:
    dice = np.random.default_rng(7)
    lengths = [
        np.mean([block_length(passed_on(dice, 400, rho)) for _ in range(20)]) for rho in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] < 4 < lengths[1] < lengths[2] <= 60
    # AR(1) of a long series: the closed form of their paper, (2 (2 rho / (1 - rho^2))^2 * 3 / 4 n)^(1 / 3)
    exact = (1.5 * (2 * 0.5 / (1 - 0.5**2)) ** 2 * 20_000) ** (1 / 3)
    assert block_length(passed_on(dice, 20_000, 0.5)) == pytest.approx(exact, rel=0.5)


def test_blocks_hold_whole_turns() -> None:
    dice = np.random.default_rng(8)
    every_fourth = np.where(np.arange(400) % 4 == 0, 50.0, 10.0) + dice.standard_normal(400)
    assert block_length(every_fourth) in (4, 8, 12)
    assert block_length(np.tile([1.0, 9.0], 100)) == 2
    assert block_length(np.full(100, 3.0)) == 1
    assert block_length(np.zeros(0)) == 1


def test_a_median_spreads_as_theory_says() -> None:
    """Of normal noise by sqrt(pi / 2) / sqrt(n), a mean by 1 / sqrt(n)."""
    values = np.random.default_rng(9).standard_normal(2_000)
    median, mean = spread(sample(values), MEDIAN), spread(sample(values), MEAN)
    assert median.deviation.std() == pytest.approx(1.2533 / 2_000**0.5, rel=0.2)
    assert mean.deviation.std() == pytest.approx(1 / 2_000**0.5, rel=0.1)
    assert median.estimate == np.median(values)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_histograms_give_what_laying_out_gives(level: float) -> None:
    """Each replicate is the quantile of the rows that it drew, two of each step."""
    dice = np.random.default_rng(10)
    steps = 100
    both = Sample(dice.exponential(size=2 * steps), np.tile(np.arange(steps), 2), steps)
    drawn = spread(both, Statistic(level))
    length = steps // drawn.blocks
    assert length * drawn.blocks == steps
    weights = resampling._weights(steps, length, drawn.blocks, 0).astype(int)
    assert (weights.sum(axis=1) == steps).all()
    found = drawn.deviation / np.sqrt(drawn.blocks / (drawn.blocks - 1))
    ordered = np.argsort(both.value)
    for number in range(0, len(weights), 97):
        times = weights[number][both.unit[ordered]]
        laid_out = np.repeat(both.value[ordered], times)
        expected = np.quantile(laid_out, level, method="inverted_cdf")
        whole = np.quantile(both.value, level, method="inverted_cdf")
        assert found[number] == pytest.approx(expected - whole, abs=1e-12)


def test_the_same_data_give_the_same_interval() -> None:
    values = np.random.default_rng(11).lognormal(size=300)
    resampling._weights.cache_clear()
    first = interval(spread(sample(values), MEDIAN, 0), spread(sample(values * 1.1), MEDIAN, 1))
    resampling._weights.cache_clear()
    assert interval(spread(sample(values), MEDIAN, 0), spread(sample(values * 1.1), MEDIAN, 1)) == first


def test_more_comparisons_are_wider_intervals() -> None:
    values = np.random.default_rng(12).lognormal(size=300)
    one, other = spread(sample(values), MEDIAN, 0), spread(sample(values[::-1].copy()), MEDIAN, 1)
    widths = [np.diff(interval(one, other, comparisons))[0] for comparisons in (1, 5, 50)]
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]


def test_steps_that_are_all_the_same_have_no_noise() -> None:
    one, other = spread(sample(np.full(50, 7.0)), MEDIAN, 0), spread(sample(np.full(50, 8.0)), MEDIAN, 1)
    assert interval(one, other) == (1.0, 1.0)


def test_a_long_run_is_drawn_by_stretches() -> None:
    values = np.random.default_rng(13).standard_normal(200_000)
    drawn = spread(sample(values), MEDIAN)
    assert drawn.deviation.std() == pytest.approx(1.2533 / 200_000**0.5, rel=0.25)


def test_what_drifts_all_along_is_not_judged() -> None:
    assert not spread(sample(np.linspace(10, 20, 100)), MEDIAN).known


def test_equal_runs_seldom_differ_and_others_do() -> None:
    """The table of docs/comparing.md in small: any false difference in 5 % of the pairs at most."""
    alike = found(Kind(200, 0.5), pairs=12, seed=100)
    assert alike.anything <= 0.05
    assert found(Kind(200, 0.5, 0.1), pairs=3, seed=200).step == 1.0


def test_nothing_is_more_than_all_of_it_less() -> None:
    dice = np.random.default_rng(5)
    wide = sample(1e7 * dice.lognormal(sigma=2.0, size=120))
    none = sample(1e5 * dice.lognormal(sigma=0.1, size=120))
    pair = Pair(
        "p95(step_time)", "step", Quantity(NS, wide, Statistic(0.95)), Quantity(NS, none, Statistic(0.95))
    )
    told = pair.difference(comparisons=12)
    assert told.interval is not None
    assert told.a is not None
    assert told.interval[0] < -told.a, "its noise alone would take more than there is"
    assert told.relative_interval is not None
    assert told.relative_interval[0] == -1.0
