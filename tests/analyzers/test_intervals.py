# SPDX-License-Identifier: Apache-2.0
"""Intervals on arrays, against the same said plainly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph.intervals import Canvas, cut_overlaps, lay_out, nesting_depths


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_depths_of_nested_and_disjoint_intervals() -> None:
    #  [0 .......... 100) holds [10 .... 50) holds [20, 30); [100, 120) is beside.
    start, end = ints(20, 0, 100, 10), ints(30, 100, 120, 50)
    assert nesting_depths(start, end, ints(0, 0, 0, 0)).tolist() == [2, 0, 0, 1]


def test_at_equal_bounds_the_priority_tells_which_is_outside() -> None:
    assert nesting_depths(ints(0, 0), ints(9, 9), ints(1, 0)).tolist() == [1, 0]
    assert nesting_depths(ints(0, 0), ints(9, 9), ints(0, 1)).tolist() == [0, 1]


def test_an_interval_that_only_overlaps_is_beside_and_the_earlier_is_cut() -> None:
    start, end = ints(0, 8), ints(10, 20)
    assert nesting_depths(start, end, ints(0, 0)).tolist() == [0, 0]
    assert cut_overlaps(start, end).tolist() == [8, 20]
    assert cut_overlaps(ints(), ints()).tolist() == []


def test_phases_in_turn_are_laid_one_after_another_and_moved_no_further_than_they_must() -> None:
    first, busy = ints(0, 10, 90).reshape(1, 3), ints(40, 30, 10).reshape(1, 3)
    start, end = lay_out(first, busy, np.ones((1, 3), bool), ints(0), ints(100))
    assert (start.tolist(), end.tolist()) == ([[0, 40, 90]], [[40, 70, 100]])
    # With 70 in front of it the last, at 60, would not fit: what is before it moves to the left.
    first, busy = ints(20, 30, 60).reshape(1, 3), ints(40, 30, 20).reshape(1, 3)
    start, end = lay_out(first, busy, np.ones((1, 3), bool), ints(0), ints(100))
    assert (start.tolist(), end.tolist()) == ([[10, 50, 80]], [[50, 80, 100]])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_whatever_fits_keeps_its_time(phases: list[tuple[int, int, bool]]) -> None:
    first, busy, valid = (np.array([[phase[k] for phase in phases]]) for k in range(3))
    wanted = int(busy[valid].sum())
    start, end = lay_out(first.astype(np.int64), busy.astype(np.int64), valid, ints(0), ints(40))
    placed = sorted(zip(start[valid].tolist(), end[valid].tolist(), strict=True))
    assert sum(b - a for a, b in placed) == min(wanted, 40)
    cursor = 0
    for a, b in placed:
        assert cursor <= a <= b <= 40
        cursor = b


def test_a_canvas_gives_each_piece_to_who_painted_it_last() -> None:
    canvas = Canvas.over(0, 10, ints(2, 6, 4, 8, -5, 99))
    assert canvas.bounds.tolist() == [0, 2, 4, 6, 8, 10]
    owner = canvas.blank()
    canvas.paint(owner, ints(2, 4), ints(6, 8), ints(0, 1))
    assert owner.tolist() == [-1, 0, 1, 1, -1]
    canvas.paint(owner, ints(-7), ints(3), ints(2))  # times that are no bound of the canvas round up
    assert owner.tolist() == [2, 2, 1, 1, -1]
    assert len(Canvas.over(5, 5)) == 0
