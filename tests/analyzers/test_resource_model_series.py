# SPDX-License-Identifier: Apache-2.0
"""Readings as averages, several monitors as one, sums: by hand, and against a twin on single time units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.resource_model import units
from grademl_otel.analyzers.resource_model.devices import counted_twice
from grademl_otel.analyzers.resource_model.machines import Machines
from grademl_otel.analyzers.resource_model.merging import disagreement, integral, merged
from grademl_otel.analyzers.resource_model.series import Averages, averages, of_counter, of_samples
from grademl_otel.analyzers.resource_model.sums import difference, sliced, summed, total

S = 1_000_000_000
END = 40
Piece = tuple[int, int, float]
"""Start and end in seconds, value."""


def of(*pieces: Piece) -> Averages:
    start, end, value = zip(*pieces, strict=True) if pieces else ((), (), ())
    return Averages(np.array(start, np.int64) * S, np.array(end, np.int64) * S, np.array(value, np.float64))


def pieces(seen: Averages) -> list[Piece]:
    return [
        (start // S, end // S, value)
        for start, end, value in zip(seen.start.tolist(), seen.end.tolist(), seen.value.tolist(), strict=True)
    ]


def seconds(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.int64) * S


# --- Samples and counters -----------------------------------------------------------------------------------


def test_a_sample_holds_since_the_one_before() -> None:
    seen = of_samples(seconds(10, 11, 12), np.array([1.0, 2.0, 3.0]))
    assert pieces(seen) == [(9, 10, 1), (10, 11, 2), (11, 12, 3)]


def test_after_a_gap_a_sample_holds_for_the_usual_distance() -> None:
    seen = of_samples(seconds(10, 11, 12, 20, 21), np.array([1.0, 2, 3, 4, 5]))
    assert pieces(seen) == [(9, 10, 1), (10, 11, 2), (11, 12, 3), (19, 20, 4), (20, 21, 5)]


def test_what_is_no_number_is_a_gap_and_no_zero() -> None:
    seen = of_samples(seconds(10, 11, 12, 13), np.array([1.0, math.nan, -1.0, 4.0]))
    assert pieces(seen) == [(9, 10, 1), (12, 13, 4)]


def test_one_sample_tells_of_no_time() -> None:
    assert len(of_samples(seconds(10), np.array([1.0]))) == 0
    assert len(of_counter(seconds(10), np.array([1.0]))) == 0


def test_samples_in_any_order_and_twice() -> None:
    seen = of_samples(seconds(12, 10, 11, 11), np.array([3.0, 1.0, 9.0, 2.0]))
    assert pieces(seen) == [(9, 10, 1), (10, 11, 2), (11, 12, 3)]


def test_a_counter_is_a_rate_over_gaps_too() -> None:
    seen = of_counter(seconds(0, 2, 12), np.array([100.0, 110.0, 110.0]))
    assert pieces(seen) == [(0, 2, 5), (2, 12, 0)]


@pytest.mark.parametrize("after", [0.0, 30.0])
def test_a_counter_that_fell_began_anew_from_nothing(after: float) -> None:
    seen = of_counter(seconds(0, 10, 20, 30), np.array([2.0**32 - 10, 2.0**32, after, after + 10]))
    assert pieces(seen) == [(0, 10, 1), (10, 20, after / 10), (20, 30, 1)]


def test_a_reading_of_a_counter_that_is_no_number_is_passed_over() -> None:
    seen = of_counter(seconds(0, 1, 2), np.array([0.0, math.nan, 8.0]))
    assert pieces(seen) == [(0, 2, 4)]


def test_intervals_that_overlap_are_left_out_and_counted() -> None:
    seen, left_out = averages(
        seconds(0, 5, 10, 3, 20), seconds(5, 10, 10, 7, 25), np.array([1.0, 2, 3, 4, 5])
    )
    assert (pieces(seen), left_out) == ([(0, 5, 1), (5, 10, 2), (20, 25, 5)], 2)


# --- Merging ------------------------------------------------------------------------------------------------


def test_the_finer_one_counts_and_the_other_fills_its_gaps() -> None:
    fine = of((10, 11, 1), (11, 12, 2), (15, 16, 3))
    coarse = of((0, 10, 5), (10, 20, 4))
    # Of 40 in all from 10 to 20 the finer one saw 6 in 3 s: 34 are left for the other 7.
    rest = pytest.approx(34 / 7)
    assert pieces(merged([coarse, fine])) == [
        (0, 10, 5), (10, 11, 1), (11, 12, 2), (12, 15, rest), (15, 16, 3), (16, 20, rest)
    ]  # fmt: skip


def test_of_an_interval_that_is_known_but_for_a_little_the_rest_is_not_guessed() -> None:
    fine = of(*((at, at + 1, 1.0) for at in range(19)))
    assert pieces(merged([fine, of((0, 20, 3))])) == pieces(fine)


def test_samples_of_moments_saw_no_sum() -> None:
    fine = of((5, 6, 0.2), (6, 7, 0.2), (7, 8, 0.2), (8, 9, 0.2), (9, 10, 0.2))
    coarse = of((0, 10, 1), (10, 20, 0.5))
    assert pieces(merged([coarse, fine], [True, False])) == [
        (0, 5, 1), *pieces(fine), (10, 20, 0.5)
    ]  # fmt: skip
    assert pieces(merged([coarse, fine], [False, True]))[0] == (0, 5, pytest.approx(1.8))


def test_monitors_of_which_one_saw_other_moments_by_chance_agree() -> None:
    fine = of(*((at, at + 1, float(at % 2)) for at in range(40)))
    chance = of(*((at, at + 2, float(at % 6 == 0) + float(at % 10 == 0)) for at in range(0, 40, 2)))
    assert disagreement(fine, chance, 10, 0.0) is None


def test_what_is_left_is_never_below_nothing() -> None:
    assert pieces(merged([of((0, 1, 9), (1, 2, 9)), of((0, 4, 1))])) == [(0, 1, 9), (1, 2, 9), (2, 4, 0)]


def test_the_same_told_twice_is_told_once() -> None:
    one = of((0, 1, 1), (1, 2, 2), (4, 5, 3))
    assert pieces(merged([one, one, of()])) == pieces(one)


def test_ties_of_ranks_leave_no_slivers() -> None:
    one = of((0, 1, 1), (1, 2, 2))
    off = Averages(one.start + 1_000_000, one.end + 1_000_000, one.value + 7)
    assert pieces(merged([one, off])) == pieces(one)


@st.composite
def monitors(draw: st.DrawFn) -> Averages:
    edges = sorted(draw(st.sets(st.integers(0, END), min_size=2, max_size=12)))
    found = []
    for start, end in pairwise(edges):
        if draw(st.booleans()):
            found.append((start, end, float(draw(st.integers(0, 8)))))
    return of(*found)


def by_second(seen: Averages) -> list[float]:
    found = [math.nan] * END
    for start, end, value in pieces(seen):
        found[start:end] = [value] * (end - start)
    return found


@given(st.lists(monitors(), min_size=1, max_size=4))
def test_merging_invents_nothing_loses_nothing_and_is_in_order(some: list[Averages]) -> None:
    found = merged(some)
    assert (found.start[1:] >= found.end[:-1]).all()
    assert (found.value >= 0).all()
    told = [by_second(one) for one in some]
    for at, value in enumerate(by_second(found)):
        if not math.isnan(value):
            assert any(not math.isnan(one[at]) for one in told)
    # Where the finest knows it is what that says.
    known = [one for one in some if len(one)]
    if known:
        finest = min(known, key=lambda one: (float(np.median(one.length)), -int(one.length.sum())))
        inside = integral(found, finest.start, finest.end)
        assert inside == pytest.approx(finest.value * finest.length / S)


@given(monitors(), monitors())
def test_what_a_coarser_one_saw_of_an_interval_stays_its_sum(one: Averages, other: Averages) -> None:
    if not len(one) or not len(other):
        return
    fine, coarse = sorted((one, other), key=lambda each: (float(np.median(each.length)), -each.length.sum()))
    found = merged([fine, coarse])
    known = integral(fine, coarse.start, coarse.end)
    told = coarse.value * coarse.length / S
    seen = integral(found, coarse.start, coarse.end)
    whole = integral(Averages(found.start, found.end, np.ones(len(found))), coarse.start, coarse.end)
    untouched = integral(Averages(fine.start, fine.end, np.ones(len(fine))), coarse.start, coarse.end)
    for sum_, of_fine, of_coarse, length, seconds_, of_both in zip(
        seen, known, told, coarse.length / S, whole, untouched, strict=True
    ):
        if seconds_ < length - 1e-6 or of_both >= length - 1e-6:
            continue  # too little was left of it, or nothing
        assert sum_ == pytest.approx(max(of_coarse, of_fine))


def test_monitors_that_differ_are_found_and_noise_is_not() -> None:
    fine = of(*((at, at + 1, 1.0) for at in range(40)))
    coarse = of(*((at, at + 2, 1.3) for at in range(0, 40, 2)))
    found = disagreement(coarse, fine, 10, 0.0)
    assert found is not None
    assert (found.fine, found.coarse, found.seconds) == (
        pytest.approx(1.0), pytest.approx(1.3), pytest.approx(40)
    )  # fmt: skip
    assert found.fraction == pytest.approx(0.3 / 1.3)
    assert disagreement(coarse, fine, 10, 0.4) is None
    assert disagreement(coarse, fine, 21, 0.0) is None


# --- Sums ---------------------------------------------------------------------------------------------------


@given(st.lists(monitors(), min_size=1, max_size=4))
def test_a_sum_is_that_of_all_where_all_are_known(some: list[Averages]) -> None:
    told = [by_second(one) for one in some]
    expected = [sum(values) for values in zip(*told, strict=True)]
    found = by_second(summed(some))
    assert [math.isnan(one) for one in found] == [math.isnan(one) for one in expected]
    assert [one for one in found if not math.isnan(one)] == pytest.approx(
        [one for one in expected if not math.isnan(one)]
    )


def test_a_sum_of_metrics_has_the_sum_of_their_capacities() -> None:
    one = Observations(seconds(0, 1), seconds(1, 2), np.array([1.0, 2.0]), 10)
    other = Observations(seconds(0), seconds(2), np.array([5.0]), 20)
    found = total([one, other])
    assert (found.value.tolist(), found.capacity) == ([6, 7], 30)
    assert total([]).capacity == math.inf


def test_a_difference_is_never_below_nothing() -> None:
    assert pieces(difference(of((0, 4, 3)), of((0, 2, 1), (2, 4, 5)))) == [(0, 2, 2), (2, 4, 0)]


def test_a_slice_cuts_at_its_edges() -> None:
    assert pieces(sliced(of((0, 4, 3), (4, 6, 1), (8, 9, 2)), 2 * S, 5 * S)) == [(2, 4, 3), (4, 5, 1)]


# --- Units, devices, hosts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "wanted", "expected"),
    [
        ("%", "1", 0.01),
        ("percent", "1", 0.01),
        ("ms/s", "{cpu}", 1e-3),
        ("{cpu}", "1", 1),
        ("cores", "{cpu}", 1),
        ("MiBy", "By", 2**20),
        ("Gbit/s", "By/s", 125e6),
        ("MB/s", "By/s", 1e6),
        ("By/ms", "By/s", 1e3),
        ("{packet}/s", "1/s", 1),
        ("mW", "W", 1e-3),
        ("MHz", "Hz", 1e6),
        ("By", "By/s", None),
        ("W", "By", None),
        ("furlong", "By", None),
        ("", "1", None),
        ("By//s", "By/s", None),
    ],
)
def test_units(told: str, wanted: str, expected: float | None) -> None:
    found = units.factor(told, wanted)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("kind", "ids", "twice"),
    [
        ("disk", "sda sda1 sda2 nvme0n1 nvme0n1p1 dm-0 md127 loop3", "sda1 sda2 nvme0n1p1 dm-0 md127 loop3"),
        ("disk", "dm-0 dm-1", ""),
        ("disk", "vda", ""),
        ("disk", "xvda1", ""),
        ("network", "eth0 lo veth1a2b docker0 bond0", "veth1a2b docker0 bond0"),
        ("network", "veth1a2b lo", ""),
        ("gpu", "dm-0 sda", ""),
    ],
)
def test_devices_whose_bytes_others_count_too(kind: str, ids: str, twice: str) -> None:
    assert counted_twice(kind, ids.split()) == set(twice.split())


def machines(*resources: dict[str, str], **given: tuple[str, ...]) -> Machines:
    return Machines(resources, {name.replace("_", "-"): others for name, others in given.items()})


def test_a_host_is_known_by_its_boot_its_id_and_without_its_domain() -> None:
    found = machines({"host.name": "node-1", "grademl.clock.id": "boot", "host.id": "42"})
    assert {found.of(name) for name in ("node-1", "boot", "42", "node-1.cluster.local")} == {"node-1"}
    assert [found.of(name) for name in ("node-10", "other")] == ["node-10", "other"]


def test_a_boot_of_two_containers_is_neither() -> None:
    found = machines(
        {"host.name": "pod-a", "grademl.clock.id": "boot"}, {"host.name": "pod-b", "grademl.clock.id": "boot"}
    )
    assert found.of("boot") == "boot"


def test_addresses_are_not_cut_at_their_dots() -> None:
    assert machines({"host.name": "10.0.0.1"}).of("10.0.0.2") == "10.0.0.2"
    assert machines({"host.name": "10"}).of("10.0.0.2") == "10.0.0.2"


@pytest.mark.parametrize("written", ["node-1", "ip-10-0-0-1"])
def test_the_user_says_what_a_host_is_called_elsewhere(written: str) -> None:
    others = tuple({"node-1", "ip-10-0-0-1", "10.0.0.1"} - {written})
    found = Machines([{"host.name": "ip-10-0-0-1"}], {written: others})
    assert {found.of(name) for name in ("node-1", "ip-10-0-0-1", "10.0.0.1")} == {"ip-10-0-0-1"}
    assert found.table()["10.0.0.1"] == "ip-10-0-0-1"


def test_without_phases_hosts_are_as_they_are_called() -> None:
    found = machines(node_1=("a", "b"))
    assert [found.of(name) for name in ("a", "b", "node-1", "c")] == ["node-1", "node-1", "node-1", "c"]


def test_names_of_sequences_are_not_mixed_up() -> None:
    some: Sequence[str] = ("a.x", "a.y")
    found = Machines([{"host.name": name} for name in some], {})
    assert found.of("a") == "a"  # either could be meant
