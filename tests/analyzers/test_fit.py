# SPDX-License-Identifier: Apache-2.0
"""Weights of types of phases by non-negative least squares: the vectors, a slow twin, what is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from grademl_otel.analyzers.attribution import fit as module
from grademl_otel.analyzers.attribution import fitted
from grademl_otel.analyzers.attribution.fit import Fit, active_instances, best_fit
from grademl_otel.analyzers.attribution.observations import Observations

SECOND = 1_000_000_000


def observed(*values: float) -> Observations:
    at = np.arange(len(values), dtype=np.int64) * SECOND
    return Observations(at, at + SECOND, np.array(values, float))


def instances(*rows: tuple[float, float, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start, end, column = zip(*rows, strict=True) if rows else ((), (), ())
    times = (np.round(np.array(each) * SECOND).astype(np.int64) for each in (start, end))
    return (*times, np.array(column, np.int64))


N = instances((0, 2, 0), (2, 2.5, 0), (1, 4, 1), (4, 4.5, 1))
"""The instances of the vectors N1 and N2: A = [[1,0],[1,1],[.5,1],[0,1],[0,.5]]."""


def test_the_matrix_of_the_vectors() -> None:
    found = active_instances(observed(0, 0, 0, 0, 0), *N, 2).toarray()
    assert found.tolist() == [[1, 0], [1, 1], [0.5, 1], [0, 1], [0, 0.5]]


@pytest.mark.parametrize(
    ("values", "weight"),
    [
        pytest.param((2, 5, 4, 3, 1.5), (2, 3), id="N1"),
        pytest.param((2, 1, 0, 0, 0), (4 / 3, 0), id="N2"),
    ],
)
def test_the_vectors(values: tuple[float, ...], weight: tuple[float, ...]) -> None:
    found = best_fit(observed(*values), *N, 2)
    assert found.weight == pytest.approx(weight, abs=1e-9)
    assert found.background == pytest.approx(0, abs=1e-9)
    assert found.ambiguous == ()


def test_background_is_not_given_to_who_is_active() -> None:
    found = best_fit(observed(1, 1, 4, 4, 1, 1), *instances((2, 4, 0)), 1)
    assert found.weight == pytest.approx([3])
    assert found.background == pytest.approx(1)
    assert found.explained == pytest.approx(1)


@pytest.mark.parametrize("slower", [0, 10**9], ids=["sparse", "dense"])
def test_what_exact_rules_took_is_not_explained_again(monkeypatch: pytest.MonkeyPatch, slower: int) -> None:
    monkeypatch.setattr(module, "_SPARSE_IS_SLOWER", slower)
    found = best_fit(observed(5, 5, 1), *instances((0, 2, 0)), 1, np.array([3.0, 3.0, 3.0]))
    assert found.weight == pytest.approx([2])
    assert found.background == pytest.approx(0)


def test_what_exact_rules_wanted_and_did_not_get_is_not_taken_off_others() -> None:
    found = best_fit(observed(1, 5, 0), *instances((0, 2, 0)), 1, np.array([3.0, 3.0, 0.0]))
    assert found.weight == pytest.approx([1])


def test_types_that_are_nearly_always_together_are_told_apart() -> None:
    found = best_fit(observed(5, 5, 5, 4.4, 0), *instances((0, 4, 0), (0, 3.8, 1)), 2)
    assert found.weight == pytest.approx([2, 3])
    assert found.ambiguous == ()


def test_what_the_solver_calls_background_is_theirs_who_are_always_active() -> None:
    """Which of columns that are alike a solver fills is its own affair."""
    of = Fit(np.array([1.0, 0.0, 4.0]), 5.0, math.nan, 1.0, ((0, 1, 3),))
    start, end, column = instances((0, 4, 0), (0, 4, 1), (-9, 4, 1), (1, 2, 2))
    found = fitted._evened(of, observed(8, 12, 8, 8), start, end, column)
    assert found.background == 0
    assert found.weight == pytest.approx([2, 2, 4]), (
        "6 in all, by one active of one type and two of the other"
    )


def test_a_type_that_was_never_active_has_no_weight_and_types_that_always_come_together_are_told() -> None:
    rows = instances((0, 1, 0), (0, 1, 2), (0, 1, 2), (5, 6, 1), (1, 2, 3))
    found = best_fit(observed(6, 1, 0, 0), *rows, 4)
    assert math.isnan(found.weight[1])
    assert found.ambiguous == ((0, 2),)
    assert found.weight[0] + 2 * found.weight[2] == pytest.approx(6)
    assert found.weight[3] == pytest.approx(1)


def test_without_observations_or_phases_nothing_is_explained() -> None:
    nothing = best_fit(observed(), *instances((0, 1, 0)), 1)
    assert math.isnan(nothing.weight[0])
    assert nothing.background == 0
    assert math.isnan(nothing.explained)
    always = best_fit(observed(2, 4), *instances((0, 9, 0)), 1)
    assert always.ambiguous == ((0, 1),)
    alone = best_fit(observed(2, 4), *instances(), 0)
    assert alone.background == pytest.approx(3)
    assert alone.explained == pytest.approx(0)
    assert math.isnan(best_fit(observed(3, 3), *instances(), 0).explained)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2000, 9000), st.integers(1, 6000), st.integers(0, 3)), min_size=1, max_size=15
    ),
    st.lists(st.floats(0, 50), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_no_other_weights_explain_more(
    rows: list[tuple[int, int, int]], values: list[float], chunk: int
) -> None:
    start = np.array([row[0] for row in rows]) * 10**6
    end = start + np.array([row[1] for row in rows]) * 10**6
    column = np.array([row[2] for row in rows])
    seen = observed(*values)
    before, module._INTERVALS = module._INTERVALS, chunk  # type: ignore[misc]
    try:
        found = best_fit(seen, start, end, column, 4)
    finally:
        module._INTERVALS = before  # type: ignore[misc]
    whole = np.hstack((active_instances(seen, start, end, column, 4).toarray(), np.ones((len(values), 1))))
    slow = np.array(
        [
            [
                sum(
                    max(0, min(e, b) - max(s, a)) / (b - a)
                    for s, e, c in zip(start, end, column, strict=True)
                    if c == j
                )
                for j in range(4)
            ]
            for a, b in zip(seen.start, seen.end, strict=True)
        ]
    )
    assert whole[:, :4] == pytest.approx(slow)
    best = lsq_linear(whole, seen.value, (0, np.inf), method="bvls", tol=1e-14)
    solution = np.nan_to_num(np.append(found.weight, found.background))
    cost = np.sum((whole @ solution - seen.value) ** 2)
    assert cost <= 2 * best.cost + 1e-6 * max(1.0, float(np.sum(seen.value**2)))
    assert (solution >= 0).all()
