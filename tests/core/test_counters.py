# SPDX-License-Identifier: Apache-2.0
"""Raw counters as running totals, whatever they do."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grademl_otel.sampling.counters import Running

TOP32, TOP64 = 1 << 32, 1 << 64


def totals(raws: list[int] | list[float], bits: int = 64) -> list[int | float]:
    running = Running(bits)
    return [running.add(raw) for raw in raws]


@pytest.mark.parametrize(
    ("bits", "raws", "expected"),
    [
        pytest.param(64, [7], [0], id="the first reading is where it starts"),
        pytest.param(64, [7, 7, 10], [0, 0, 3], id="grows"),
        pytest.param(64, [0.5, 0.75, 2.0], [0, 0.25, 1.5], id="floats"),
        pytest.param(32, [TOP32 - 10, 5, 6], [0, 15, 16], id="wraps at 2^32"),
        pytest.param(64, [TOP64 - 10, 5, 6], [0, 15, 16], id="wraps at 2^64"),
        pytest.param(32, [TOP32 - 1, 0], [0, 1], id="wraps to 0"),
        pytest.param(64, [TOP32 - 10, 5], [0, 5], id="of 64 bits does not wrap at 2^32"),
        pytest.param(64, [1000, 1500, 20, 30], [0, 500, 520, 530], id="is reset"),
        pytest.param(64, [1000, 0, 0, 2000], [0, 0, 0, 2000], id="is reset to 0 and stays there"),
        pytest.param(64, [1000, 0, 400, 900], [0, 0, 400, 900], id="is reset to 0 and counts on"),
        pytest.param(64, [1000, 0, 1003], [0, 0, 3], id="says 0 once"),
        pytest.param(64, [1000, 0, 1000, 0, 1001], [0, 0, 0, 0, 1], id="says 0 now and then"),
        pytest.param(64, [1000, 995, 998, 1002], [0, 0, 0, 2], id="dips"),
        pytest.param(64, [2, 1, 3], [0, 0, 1], id="a small one dips by one"),
        pytest.param(32, [TOP32 - 2, 3, TOP32 - 1, 4], [0, 5, 5, 6], id="dips back over 0"),
        pytest.param(64, [1000, TOP64 - 1, 1001], [0, 0, 1], id="all ones is not known"),
        pytest.param(32, [0, TOP32 * 3 // 4], [0, TOP32 * 3 // 4], id="grows by three quarters of its range"),
        pytest.param(4, [15, 15, 0, 2], [0, 0, 1, 3], id="of 4 bits"),
    ],
)
def test_a_total_is_what_was_counted(bits: int, raws: list[int], expected: list[int]) -> None:
    assert totals(raws, bits) == expected


@pytest.mark.parametrize("raw", [-1, TOP32, math.nan, math.inf, -math.inf, -0.5])
def test_what_no_counter_says_changes_nothing(raw: float) -> None:
    running = Running(32)
    running.add(10)
    running.add(12)
    with pytest.raises(ValueError, match="a counter cannot say"):
        running.add(raw)
    assert running.add(15) == 5


STEPS = st.lists(st.integers(0, TOP32 // 8), min_size=1, max_size=60)


@given(st.sampled_from([32, 64]), st.integers(0, TOP64 - 1), STEPS)
def test_nothing_is_lost_where_it_wraps(bits: int, start: int, steps: list[int]) -> None:
    """Exact whatever the start, while less than a quarter of the range passes between two readings and what
    passes is more than a dip could be.
    """
    modulus = 1 << bits
    raws = [value % modulus for value in accumulate(steps, initial=start % modulus)]
    assert totals(raws, bits) == list(accumulate(steps, initial=0))


@given(st.integers(1 << 20, 1 << 50), st.lists(st.lists(st.integers(1, 1 << 16), max_size=20), max_size=6))
def test_nothing_is_lost_after_a_reset(start: int, lives: list[list[int]]) -> None:
    """A driver that starts again counts from 0; what it counts before it is first read belongs to the total.

    Decidable while what it says first is clearly below what it said last.
    """
    raws, expected, total, said = [start], [0], 0, start
    for life in lives:
        for number, step in enumerate(life):
            raw = step if number == 0 else said + step
            assume(number or raw < 0.98 * said - 2)
            said, total = raw, total + step
            raws.append(raw)
            expected.append(total)
    assert totals(raws) == expected


@given(st.lists(st.integers(0, TOP64 - 1), min_size=1, max_size=40))
def test_a_total_never_falls(raws: list[int]) -> None:
    assert all(a <= b for a, b in pairwise(totals(raws)))


@given(st.lists(st.integers(0, 1 << 61), min_size=2, max_size=40))
def test_a_total_is_at_most_what_the_readings_allow(raws: list[int]) -> None:
    """Each reading adds at most what it says, or what is between it and the one before."""
    values = totals(raws)
    assert values[0] == 0
    for (_, raw), (before, after) in zip(pairwise(raws), pairwise(values), strict=True):
        assert after - before <= raw


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=40), st.data())
def test_dips_do_not_count(steps: list[int], data: st.DataObject) -> None:
    """A reading that is up to 1 % below the one before changes nothing, wherever it comes."""
    raws = list(accumulate(steps, initial=1 << 20))
    at = data.draw(st.integers(1, len(raws) - 1))
    dipped = data.draw(st.integers(math.ceil(raws[at] * 0.99), raws[at]))
    assert totals([*raws[: at + 1], dipped, *raws[at + 1 :]])[-1] == totals(raws)[-1] == sum(steps)
