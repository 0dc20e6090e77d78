# SPDX-License-Identifier: Apache-2.0
"""Demand, upsampling and attribution: the vectors of the algorithm, a greedy twin, conservation."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.attribution.demand import Demand, Timeline, estimate
from grademl_otel.analyzers.attribution.filling import fill
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE, Observations, Users
from grademl_otel.analyzers.attribution.upsampling import upsample
from grademl_otel.analyzers.attribution.usage import Attribution

SECOND = 1_000_000_000
Part = tuple[float, float, float]
"""Fraction of the interval, exact demand, variable demand."""


def users(*rows: tuple[int, int, int, float]) -> Users:
    """Return phases of (start, end, rule, amount)."""
    start, end, rule, amount = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Users(
        np.array(start, np.int64), np.array(end, np.int64), np.array(rule, np.int8), np.array(amount, float)
    )


def observed(*values: float, capacity: float = math.inf, every: int = SECOND) -> Observations:
    at = np.arange(len(values), dtype=np.int64) * every
    return Observations(at, at + every, np.array(values, float), capacity)


def demand_on(seen: Observations, phases: Users) -> Demand:
    return estimate(Timeline.of(seen, phases.start, phases.end), phases)


def phases_of(parts: list[Part]) -> Users:
    """Return phases that make the demand of ``parts`` within the first second."""
    rows, at = [], 0
    for fraction, exact, variable in parts:
        end = at + round(fraction * SECOND)
        rows += [(at, end, EXACT, exact), (at, end, VARIABLE, variable)]
        at = end
    return users(*rows)


@pytest.mark.parametrize(
    ("value", "parts", "expected", "unplaced"),
    [
        pytest.param(5, [(0.5, 8, 0), (0.5, 0, 1)], (8, 2), 0, id="U1"),
        pytest.param(5, [(0.25, 2, 1), (0.5, 2, 3), (0.25, 0, 0)], (4, 8, 0), 0, id="U2"),
        pytest.param(8, [(0.5, 0, 1), (0.5, 0, 9)], (6, 10), 0, id="U3; defect 16: by weight"),
        pytest.param(6, [(0.5, 4, 0), (0.5, 0, 0)], (8, 4), 0, id="U4; defect 16: no more than exact"),
        pytest.param(12, [(0.5, 0, 1), (0.5, 0, 1.5)], (10, 10), 2, id="U5, of weights that differ"),
    ],
)
def test_upsampling_of_the_vectors(
    value: float, parts: list[Part], expected: tuple[float, ...], unplaced: float
) -> None:
    seen = observed(value, capacity=10)
    found = upsample(seen, demand_on(seen, phases_of(parts)))
    assert found.value == pytest.approx(expected, abs=1e-9)
    assert found.unplaced == pytest.approx([unplaced], abs=1e-9)


def test_an_interval_without_change_stays_as_it_was_observed() -> None:
    seen = observed(12, 3, capacity=10)
    found = upsample(seen, demand_on(seen, users((0, 2 * SECOND, VARIABLE, 1))))
    assert found.value.tolist() == [12, 3]
    assert found.unplaced.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "rows", "usage", "capacity"),
    [
        pytest.param(7, [(EXACT, 4), (VARIABLE, 1), (VARIABLE, 2)], (4, 1, 2), (4, 2, 4), id="A1"),
        pytest.param(3, [(EXACT, 4), (VARIABLE, 1)], (3, 0), (4, 6), id="A2"),
        pytest.param(3, [(EXACT, 0), (VARIABLE, 0), (VARIABLE, 2)], (0, 0, 3), (10, 10, 10), id="demand 0"),
    ],
)
def test_attribution_of_the_vectors(
    value: float, rows: list[tuple[int, float]], usage: tuple[float, ...], capacity: tuple[float, ...]
) -> None:
    seen = observed(value, capacity=10)
    phases = users(*((0, SECOND, rule, amount) for rule, amount in rows))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert found.usage() == pytest.approx(usage)
    assert found.capacity() == pytest.approx(capacity)
    for phase, (used, could) in enumerate(zip(usage, capacity, strict=True)):
        over_time = found.of_phase(phase)
        assert over_time is not None
        assert over_time.usage == pytest.approx([used])
        assert over_time.capacity == pytest.approx([could])


def test_of_a_phase_without_a_rule_nothing_is_said() -> None:
    seen = observed(1)
    phases = users((0, SECOND, NONE, 0), (0, SECOND, VARIABLE, 1))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert math.isnan(found.usage()[0])
    assert found.of_phase(0) is None
    assert found.usage()[1] == pytest.approx(1)


def test_a_gap_between_observations_is_nobodys_and_said() -> None:
    seen = Observations(np.array([0, 2 * SECOND]), np.array([SECOND, 3 * SECOND]), np.array([4.0, 6.0]), 10)
    phases = users((0, 3 * SECOND, VARIABLE, 1))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert found.usage() == pytest.approx([10])
    assert found.observed() == pytest.approx([2])
    assert found.capacity() == pytest.approx([20])
    over_time = found.of_phase(0)
    assert over_time is not None
    assert over_time.usage == pytest.approx([4, math.nan, 6], nan_ok=True)


def test_without_a_capacity_use_is_attributed_and_what_could_have_been_used_is_not_known() -> None:
    seen = observed(4, 8)
    phases = users((0, SECOND, VARIABLE, 1), (SECOND, 2 * SECOND, EXACT, 5))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert found.usage() == pytest.approx([4, 5])
    assert found.capacity() == pytest.approx([math.inf, 5])
    assert found.unattributed() == pytest.approx([0, 3])


def test_phases_that_began_before_or_end_after_count_with_what_was_observed() -> None:
    seen = observed(4)
    phases = users((-SECOND, SECOND // 2, VARIABLE, 1), (SECOND // 2, 9 * SECOND, VARIABLE, 3))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert found.usage() == pytest.approx([1, 3])


def test_no_length_and_no_observation_are_nothing() -> None:
    seen = observed(4)
    phases = users((5, 5, VARIABLE, 1), (9, 3, EXACT, 2), (7 * SECOND, 8 * SECOND, VARIABLE, 1))
    found = Attribution(upsample(seen, demand_on(seen, phases)), phases)
    assert found.usage().tolist() == [0, 0, 0]
    none = Observations(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    nothing = Attribution(upsample(none, demand_on(none, phases)), phases)
    assert nothing.usage().tolist() == [0, 0, 0]
    assert nothing.observed().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": np.array([math.nan])},
        {"value": np.array([-1.0])},
        {"end": np.array([0])},
        {"capacity": 0.0},
        {"value": np.array([1.0, 2.0])},
    ],
)
def test_what_is_no_observation_is_refused(wrong: dict[str, Any]) -> None:
    right = {"start": np.array([0]), "end": np.array([1]), "value": np.array([1.0]), "capacity": 1.0}
    Observations(**right)
    with pytest.raises(ValueError, match=r"interval|values|capacity"):
        Observations(**{**right, **wrong})


def test_what_sums_lose_is_no_demand_that_is_gone() -> None:
    """A weight beside one that is 1e17 times larger: after that has ended it is all there is."""
    phases = users((0, 2 * SECOND, VARIABLE, 0.1), (0, SECOND, VARIABLE, 1e17))
    found = demand_on(observed(1, 1), phases)
    assert found.variable.tolist() == [1e17, 0.1]


# --- The greedy pass as it was published, one interval at a time -------------------------------------------


def greedy(value: float, parts: list[Part], capacity: float) -> tuple[list[float], float]:
    """Return (use of each part, what is left), in the three steps of GradeML's engine."""
    got = [0.0] * len(parts)
    left = value
    wanted = sum(fraction * exact for fraction, exact, _ in parts)
    for ix in sorted(range(len(parts)), key=lambda ix: -parts[ix][1]):
        fraction, exact, _ = parts[ix]
        if wanted <= 0 or exact <= 0:
            break
        got[ix] = min(left / wanted * exact, exact, capacity)
        left = max(0.0, left - got[ix] * fraction)
        wanted -= exact * fraction
    wanted = sum(fraction * variable for fraction, _, variable in parts)
    for ix in sorted(range(len(parts)), key=lambda ix: -_urgency(parts[ix][2], capacity - got[ix])):
        fraction, _, variable = parts[ix]
        if left <= 0 or wanted <= 1e-15 or variable <= 0:
            break
        more = min(left / wanted * variable, capacity - got[ix])
        got[ix] += more
        left = max(0.0, left - more * fraction)
        wanted -= variable * fraction
    length = 1.0
    for ix in sorted(range(len(parts)), key=lambda ix: -got[ix]):
        if left <= 0 or length <= 1e-12:
            break
        more = min(left / length, capacity - got[ix])
        got[ix] += more
        left = max(0.0, left - more * parts[ix][0])
        length -= parts[ix][0]
    return got, left


def _urgency(weight: float, room: float) -> float:
    return math.inf if room <= 0 < weight else weight / room if room > 0 else 0.0


AMOUNTS = st.one_of(st.just(0.0), st.floats(0.01, 100))
INTERVALS = st.lists(
    st.tuples(
        st.floats(0, 60), st.lists(st.tuples(st.integers(1, 50), AMOUNTS, AMOUNTS), min_size=2, max_size=8)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(INTERVALS, st.floats(0.5, 50))
def test_upsampling_is_that_of_the_greedy_pass(
    intervals: list[tuple[float, list[Part]]], capacity: float
) -> None:
    rows: list[tuple[int, int, int, float]] = []
    expected: list[float] = []
    left: list[float] = []
    for number, (value, units) in enumerate(intervals):
        whole = sum(length for length, _, _ in units)
        edges = [
            number * SECOND + round(SECOND * at / whole) for at in np.cumsum([0, *(u[0] for u in units)])
        ]
        parts = [((b - a) / SECOND, units[ix][1], units[ix][2]) for ix, (a, b) in enumerate(pairwise(edges))]
        for (a, b), (_, exact, variable) in zip(pairwise(edges), parts, strict=True):
            rows += [(a, b, EXACT, exact), (a, b, VARIABLE, variable)]
        if len({part[1:] for part in parts}) == 1:
            expected += [value] * len(parts)
            left.append(0.0)
            continue
        got, rest = greedy(value, parts, capacity)
        expected += got
        left.append(rest)
    seen = observed(*(value for value, _ in intervals), capacity=capacity)
    phases = users(*rows)
    found = upsample(seen, demand_on(seen, phases))
    middle = [(a + b) // 2 for a, b, rule, _ in rows if rule == EXACT]
    at = np.searchsorted(found.demand.timeline.edges, middle, "right") - 1
    assert found.value[at] == pytest.approx(expected, abs=1e-6, rel=1e-6)
    assert found.unplaced == pytest.approx(left, abs=1e-6, rel=1e-6)


PHASES = st.lists(
    st.tuples(
        st.integers(-1000, 6000),
        st.integers(0, 5000),
        st.sampled_from((NONE, EXACT, VARIABLE)),
        st.one_of(st.just(0.0), st.floats(0.001, 20)),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    PHASES, st.lists(st.floats(0, 30), min_size=1, max_size=5), st.one_of(st.just(math.inf), st.floats(1, 40))
)
def test_what_is_used_is_conserved(
    rows: list[tuple[int, int, int, float]], values: list[float], capacity: float
) -> None:
    phases = users(
        *((start * 10**6, (start + length) * 10**6, rule, amount) for start, length, rule, amount in rows)
    )
    seen = observed(*values, capacity=capacity)
    upsampled = upsample(seen, demand_on(seen, phases))
    found = Attribution(upsampled, phases)
    seconds = upsampled.demand.timeline.length / SECOND
    total = math.fsum(values)
    placed = math.fsum(upsampled.value * seconds) + math.fsum(upsampled.unplaced)
    assert placed == pytest.approx(total, rel=1e-9, abs=1e-300)
    used, nobodys = found.usage(), found.unattributed()
    assert np.nansum(used) + math.fsum(nobodys * seconds) == pytest.approx(
        math.fsum(upsampled.value * seconds), rel=1e-9, abs=1e-300
    )
    assert (nobodys >= -1e-9).all()
    assert (upsampled.value <= np.maximum(capacity, np.repeat(values, 1).max()) + 1e-9).all()
    could = found.capacity()
    kept = ~np.isnan(used) & (upsampled.value.max() <= capacity)
    assert (used[kept] <= could[kept] + 1e-6).all()
    for phase in range(len(phases)):
        over_time = found.of_phase(phase)
        if over_time is None:
            assert math.isnan(used[phase])
            continue
        of_phase = np.sum(over_time.usage * np.diff(over_time.edges) / SECOND)
        if phases.amount[phase] > 0:
            assert of_phase == pytest.approx(used[phase], abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(1e-6, 1e6), AMOUNTS), min_size=1, max_size=6), min_size=1, max_size=5
    ),
    st.data(),
)
def test_filling_many_is_filling_each(amounts: list[list[tuple[float, float]]], data: Any) -> None:
    total = [data.draw(st.one_of(st.just(0.0), st.floats(1e-9, 1e9))) for _ in amounts]
    parts = [part for each in amounts for part in each]
    first = np.cumsum([0, *(len(each) for each in amounts[:-1])])
    fraction = np.concatenate([np.full(len(each), 1 / len(each)) for each in amounts])
    weight = np.array([part[1] for part in parts])
    limit = np.array([part[0] for part in parts])
    got, left = fill(first, fraction, weight, limit, np.array(total))
    at = 0
    for ix, each in enumerate(amounts):
        own = slice(at, at + len(each))
        at += len(each)
        one, rest = fill(np.array([0]), fraction[own], weight[own], limit[own], np.array([total[ix]]))
        assert got[own] == pytest.approx(one, rel=1e-9)
        assert left[ix] == pytest.approx(rest[0], rel=1e-9)
        assert math.fsum(fraction[own] * got[own]) + left[ix] == pytest.approx(total[ix], rel=1e-9)
        assert (got[own] <= limit[own] * (1 + 1e-12)).all()
        # One level for all that are not full.
        open_ones = (weight[own] > 0) & (got[own] < limit[own] * (1 - 1e-9))
        levels = got[own][open_ones] / weight[own][open_ones]
        assert len(levels) == 0 or np.ptp(levels) <= 1e-9 * max(1e-300, levels.max())
        if len(levels):
            assert left[ix] == 0
