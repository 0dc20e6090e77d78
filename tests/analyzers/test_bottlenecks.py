# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of phases: the vectors of the algorithm, groups, what is full, what is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grademl_otel.analyzers.attribution.bottlenecks import (
    GLOBAL,
    LOCAL,
    NOT_FULL,
    Part,
    Utilizations,
    impacts,
    statuses,
    utilizations,
)
from grademl_otel.analyzers.attribution.demand import Demand, Timeline, estimate
from grademl_otel.analyzers.attribution.observations import EXACT, VARIABLE, Observations, Users
from grademl_otel.analyzers.attribution.upsampling import upsample
from grademl_otel.analyzers.attribution.usage import Attribution

SECOND = 1_000_000_000


def constant(*u: float, seconds: int = 1) -> Utilizations:
    """Return metrics that are ``u`` full all the time."""
    rows = np.array([[each] for each in u])
    return Utilizations(np.array([0, seconds * SECOND]), rows, rows * 0)


def one(seconds: float = 1) -> tuple[np.ndarray, np.ndarray]:
    return np.array([0]), np.array([round(seconds * SECOND)])


@pytest.mark.parametrize(
    ("u", "explained", "gain"),
    [
        pytest.param((1, 0.5, 0), 1, (0.5, 0, 0), id="B1"),
        pytest.param((0.6, 0.3, 0), 0.9, (0.6, 0.3, 0), id="B2"),
        pytest.param((1, 1), 1, (0, 0), id="both full"),
        pytest.param((0.4,), 0.4, (0.4,), id="alone"),
    ],
)
def test_the_vectors(u: tuple[float, ...], explained: float, gain: tuple[float, ...]) -> None:
    found = impacts(*one(), constant(*u), range(len(u)))
    assert found.without_overhead == pytest.approx([explained])
    assert found.gain[:, 0] == pytest.approx(gain)
    without_both = found.without_overhead - found.gain[:, 0]
    assert without_both == pytest.approx([explained - each for each in gain])


def test_a_group_is_as_full_as_its_fullest_metric() -> None:
    found = impacts(*one(), constant(0.2, 0.7, 0.5), [0, 0, 1])
    assert found.without_overhead == pytest.approx([1])
    assert found.gain[:, 0] == pytest.approx([0.5, 0.3])


def test_impacts_are_of_the_time_of_each_phase() -> None:
    found = Utilizations(np.array([0, 1, 2, 4]) * SECOND, np.array([[1.0, 0.0, 0.5]]), np.zeros((1, 3)))
    start = np.array([0, 0.5, 1, 3.5, -1, 2]) * SECOND
    end = np.array([4, 1.5, 2, 9, 0, 1]) * SECOND
    seen = impacts(start.astype(np.int64), end.astype(np.int64), found, [0])
    assert seen.gain[0] == pytest.approx([2, 0.5, 0, 0.25, 0, 0])
    assert seen.known == pytest.approx([4, 1, 1, 0.5, 0, 0])


def test_what_is_full() -> None:
    found = Utilizations(
        np.array([0, 1, 2, 3, 4]) * SECOND,
        np.array([[1.0, 0.96, 0.94, math.nan], [0.97, 0.1, 0.2, 0.3]]),
        np.array([[0.95, 0.5, 0.94, math.nan], [0.5, 0.1, 0.2, 0.3]]),
    )
    assert statuses(found).tolist() == [
        [GLOBAL, LOCAL, NOT_FULL, NOT_FULL],
        [LOCAL, NOT_FULL, NOT_FULL, NOT_FULL],
    ]
    seen = impacts(*one(4), found, [0, 1])
    assert seen.full[:, 0] == pytest.approx([2, 1])
    assert seen.full_globally[:, 0] == pytest.approx([1, 0])
    assert seen.uniquely_full[:, 0] == pytest.approx([1, 0])
    assert seen.never_full == pytest.approx([2])


def demand_on(seen: Observations, phases: Users) -> Demand:
    return estimate(Timeline.of(seen, phases.start, phases.end), phases)


def attributed(value: float, capacity: float, *rows: tuple[int, float]) -> Attribution:
    phases = Users(
        np.zeros(len(rows), np.int64),
        np.full(len(rows), SECOND),
        np.array([rule for rule, _ in rows], np.int8),
        np.array([amount for _, amount in rows]),
    )
    seen = Observations(np.array([0]), np.array([SECOND]), np.array([value]), capacity)
    return Attribution(upsample(seen, demand_on(seen, phases)), phases)


@pytest.mark.parametrize(
    ("value", "capacity", "rows", "rule", "own"),
    [
        pytest.param(7, 10, [(EXACT, 4), (VARIABLE, 3)], EXACT, 1, id="exact, served"),
        pytest.param(7, 10, [(EXACT, 4), (VARIABLE, 3)], VARIABLE, 0.5, id="variable, half of the rest"),
        pytest.param(3, 10, [(EXACT, 4)], EXACT, 0.75, id="exact, not served"),
        pytest.param(8, 10, [(EXACT, 16)], EXACT, 0.8, id="exact, more than there is"),
        pytest.param(10, 10, [(EXACT, 16), (VARIABLE, 1)], VARIABLE, 1, id="nothing is left"),
    ],
)
def test_own_utilization_is_usage_over_what_could_be_used(
    value: float, capacity: float, rows: list[tuple[int, float]], rule: int, own: float
) -> None:
    attribution = attributed(value, capacity, *rows)
    found = utilizations([Part(attribution, rule)])
    assert found.own[0] == pytest.approx([own])
    assert found.whole[0] == pytest.approx([value / capacity])
    phase = next(ix for ix, row in enumerate(rows) if row[0] == rule)
    usage, could = attribution.usage()[phase], attribution.capacity()[phase]
    assert (usage / could if could else 1) == pytest.approx(own)


def test_of_a_metric_without_capacity_nothing_is_said() -> None:
    found = utilizations([Part(attributed(7, math.inf, (VARIABLE, 1)), VARIABLE)])
    assert np.isnan(found.own).all()
    seen = impacts(*one(), found, [0])
    assert seen.known.tolist() == [0]
    assert seen.never_full.tolist() == [0]


def test_phases_that_want_nothing_of_a_full_resource_are_not_held_up_by_what_they_use() -> None:
    attribution = attributed(10, 10, (VARIABLE, 1), (VARIABLE, 0))
    found = utilizations([Part(attribution, VARIABLE, demands=False)])
    assert found.own[0].tolist() == [0]
    assert found.whole[0].tolist() == [1]
    assert impacts(*one(), found, [0]).gain[0].tolist() == [0]
