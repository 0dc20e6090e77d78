# SPDX-License-Identifier: Apache-2.0
"""The simulator: vectors of Grade10, twins by brute force, limits, what must hold whatever is simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.replay.network import NO_POOL, Circular, Network, Pools, Stuck
from grademl_otel.analyzers.replay.phases import DERIVE, Limit, PhaseGraph


def ints(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.int64)


def graph(parents: Sequence[int], pairs: Sequence[tuple[int, int]] = ()) -> PhaseGraph:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return PhaseGraph(ints(*parents), table[:, 0], table[:, 1])


# --- Vectors ------------------------------------------------------------------------------------------------

CHAIN_BESIDE = graph([-1, 0, 0, 0], [(1, 2)])
"""A, then B; beside them C."""


@pytest.mark.parametrize(
    ("a", "end"), [pytest.param(10, 15, id="S1"), pytest.param(2, 12, id="S2, the impact is 3, not 8")]
)
def test_what_is_beside_hides_what_is_shorter(a: int, end: int) -> None:
    ran = CHAIN_BESIDE.replay(ints(DERIVE, a, 5, 12))
    assert ran.end.tolist() == [end, a, a + 5, 12]
    assert ran.start.tolist() == [0, 0, a, 0]


def test_s3_a_limit_is_a_queue() -> None:
    five = graph([-1, 0, 0, 0, 0, 0])
    ran = five.replay(ints(DERIVE, 10, 10, 10, 10, 10), [Limit(ints(1, 2, 3, 4, 5), 2)])
    assert ran.end.tolist() == [30, 10, 10, 20, 20, 30]


def test_s4_work_that_is_spread_evenly() -> None:
    three = graph([-1, 0, 0, 0])
    sets = np.array([[DERIVE, DERIVE], [4, 8], [8, 8], [12, 8]])
    assert three.replay(sets).end[0].tolist() == [12, 8]


# --- Trees --------------------------------------------------------------------------------------------------


def test_a_phase_with_a_duration_hides_what_is_below_it() -> None:
    nested = graph([-1, 0, 1, 2, 0], [(1, 4)])
    ran = nested.replay(ints(DERIVE, 7, 100, 100, 3))
    assert ran.start.tolist() == [0, 0, -1, -1, 7]
    assert ran.end.tolist() == [10, 7, -1, -1, 10]


def test_lags_and_tails_stay() -> None:
    one = PhaseGraph(ints(-1, 0, 0), ints(1), ints(2), lag=ints(0, 2, 3), tail=ints(4, 0, 0))
    assert one.replay(ints(DERIVE, 10, 5)).end.tolist() == [24, 12, 20]
    assert one.replay(ints(DERIVE, 0, 0)).end.tolist() == [9, 2, 5]


def test_a_parent_does_not_wait_for_what_does_not_gate_it() -> None:
    lanes = PhaseGraph(
        ints(-1, 0, 0), ints(), ints(), tail=ints(1, 0, 0), gates=np.array([True, True, False])
    )
    assert lanes.replay(ints(DERIVE, 3, 50)).end.tolist() == [4, 3, 50]
    alone = PhaseGraph(ints(-1, 0), ints(), ints(), tail=ints(9, 0), gates=np.array([True, False]))
    assert alone.replay(ints(DERIVE, 50)).end.tolist() == [9, 50]


def test_several_roots_begin_at_once() -> None:
    assert graph([-1, -1, 0]).replay(ints(DERIVE, 4, 9)).end.tolist() == [9, 4, 9]


def test_no_leaf_begins_before_its_earliest_time() -> None:
    ran = CHAIN_BESIDE.replay(ints(DERIVE, 1, 5, 2), earliest=ints(0, 0, 20, 1))
    assert ran.start.tolist() == [0, 0, 20, 1]
    assert ran.end[0] == 25


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (ints(DERIVE, DERIVE, 5, 12), "without children"),
        (np.array([[DERIVE, 3], [1, 1], [1, 1], [1, 1]]), "the same phases are derived"),
    ],
)
def test_durations_that_say_nothing_are_refused(durations: np.ndarray, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        CHAIN_BESIDE.replay(durations)


def test_dependencies_are_between_siblings_and_parents_first() -> None:
    with pytest.raises(ValueError, match="between siblings"):
        graph([-1, 0, 1], [(1, 2)])
    with pytest.raises(ValueError, match="before its children"):
        graph([1, -1])
    with pytest.raises(Circular):
        graph([-1, 0, 0], [(1, 2), (2, 1)]).replay(ints(DERIVE, 1, 1))


# --- Meetings -----------------------------------------------------------------------------------------------

MEETING = {"waits_in": ints(-1, -1, 0, -1, -1, 0, -1), "arrives_in": ints(-1, -1, 0, -1, -1, 0, -1)}
TWO_RANKS = PhaseGraph(
    ints(-1, 0, 0, 0, 0, 0, 0), ints(1, 2, 4, 5), ints(2, 3, 5, 6), lag=ints(0, 1, 0, 0, 0, 0, 0), **MEETING
)
"""Below the root two rows of three; the second of each is a meeting. The first row begins 1 later."""


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [pytest.param(5, 3, 6, id="the late one"), pytest.param(1, 9, 9, id="the other")],
)
def test_who_meets_goes_on_after_the_last_arrival(first: int, second: int, met: int) -> None:
    ran = TWO_RANKS.replay(ints(DERIVE, first, 4, 2, second, 3, 1))
    assert ran.start.tolist() == [0, 1, 1 + first, met + 4, 0, second, met + 3]
    assert ran.end.tolist() == [met + 6, 1 + first, met + 4, met + 6, second, met + 3, met + 4]


def test_the_earliest_time_is_that_of_an_arrival_too() -> None:
    ran = TWO_RANKS.replay(ints(DERIVE, 1, 4, 2, 3, 3, 1), earliest=ints(0, 0, 8, 0, 0, 0, 0))
    assert ran.start.tolist() == [0, 1, 8, 12, 0, 3, 11]


def test_an_arrival_is_the_start_of_a_phase_whatever_is_in_it() -> None:
    # 1 holds 2; 3 waits until 1 has begun, after its lag.
    one = PhaseGraph(
        ints(-1, 0, 1, 0), ints(), ints(), lag=ints(0, 7, 5, 0),
        waits_in=ints(-1, -1, -1, 0), arrives_in=ints(-1, 0, -1, -1),
    )  # fmt: skip
    assert one.replay(ints(DERIVE, DERIVE, 10, 2)).end.tolist() == [22, 22, 22, 9]
    assert one.replay(ints(DERIVE, 10, 0, 2)).end.tolist() == [17, 17, -1, 9]


def test_a_phase_with_a_duration_must_not_hide_an_arrival_that_others_wait_for() -> None:
    nested = PhaseGraph(
        ints(-1, 0, 1, 0, 3), ints(), ints(),
        waits_in=ints(-1, -1, 0, -1, 0), arrives_in=ints(-1, -1, 0, -1, 0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="hides an arrival"):
        nested.replay(ints(DERIVE, 7, 0, DERIVE, 0))
    assert nested.replay(ints(DERIVE, 7, 0, 5, 0)).end.tolist() == [7, 7, -1, 5, -1], "both are hidden"
    with pytest.raises(ValueError, match="no children"):
        PhaseGraph(ints(-1, 0), ints(), ints(), waits_in=ints(0, -1))


def test_meetings_that_wait_for_each_other_are_a_circle() -> None:
    """Two rows, and two meetings that they come to in different orders."""
    both = PhaseGraph(
        ints(-1, 0, 0, 0, 0), ints(1, 3), ints(2, 4),
        waits_in=ints(-1, 0, 1, 1, 0), arrives_in=ints(-1, 0, 1, 1, 0),
    )  # fmt: skip
    assert both.is_circular
    with pytest.raises(Circular):
        both.replay(ints(DERIVE, 1, 1, 1, 1))
    assert not TWO_RANKS.is_circular


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=3, max_size=3), min_size=1),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=100)
def test_meetings_are_the_maximum_over_ranks(rounds: list[list[tuple[int, int]]], places: int) -> None:
    """Rounds of three ranks: each works, then they meet, then each is through after its transfer."""
    count = len(rounds)
    # Of each round and rank the work and the transfer, below one root.
    work = 1 + 2 * np.arange(3 * count).reshape(count, 3)
    before = np.concatenate([work.ravel(), (work + 1)[:-1].ravel()])
    after = np.concatenate([(work + 1).ravel(), work[1:].ravel()])
    meets = np.full(1 + 6 * count, -1, np.int64)
    meets[work + 1] = np.arange(count)[:, None]
    parent = np.zeros(1 + 6 * count, np.int64)
    parent[0] = -1
    three = PhaseGraph(parent, before, after, waits_in=meets, arrives_in=meets)
    now, ends = [0, 0, 0], []
    for each in rounds:
        last = max(at + took for at, (took, _) in zip(now, each, strict=True))
        now = [last + transfer for _, transfer in each]
        ends.append(now)
    durations = ints(DERIVE, *(took for each in rounds for one in each for took in one))
    ran = three.replay(durations)
    assert ran.end[work + 1].tolist() == ends
    limited = three.replay(durations, [Limit(work[0], places + 2)])
    assert limited.end.tolist() == ran.end.tolist(), "as by the queue of events"


# --- Limits -------------------------------------------------------------------------------------------------


def test_an_inner_phase_holds_its_place_until_its_last_child_has_ended() -> None:
    stages = graph([-1, 0, 0, 1, 1, 2], [(3, 4)])
    ran = stages.replay(ints(DERIVE, DERIVE, DERIVE, 2, 3, 4), [Limit(ints(1, 2), 1)])
    assert ran.start.tolist()[1:3] == [0, 5]
    assert ran.end[0] == 9


def test_who_asked_first_is_first() -> None:
    # 1 holds the place until 10; 3 asks at 2, 2 at 5.
    waiting = graph([-1, 0, 0, 0, 0, 0], [(4, 2), (5, 3)])
    ran = waiting.replay(ints(DERIVE, 10, 1, 1, 5, 2), [Limit(ints(1, 2, 3), 1)])
    assert ran.start.tolist()[1:4] == [0, 11, 10]


def test_limits_of_different_phases_do_not_meet() -> None:
    two = graph([-1, 0, 0, 1, 1, 2, 2])
    durations = ints(DERIVE, DERIVE, DERIVE, 3, 3, 4, 4)
    ran = two.replay(durations, [Limit(ints(3, 4), 1), Limit(ints(5, 6), 1)])
    assert ran.end.tolist()[:3] == [8, 6, 8]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([Limit(ints(1), 0)], "lets nothing run"),
        ([Limit(ints(1), 1), Limit(ints(1, 2), 1)], "one limit"),
        ([Limit(ints(1, 3), 1)], "lies in the other"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits: list[Limit], message: str) -> None:
    nested = graph([-1, 0, 0, 1])
    with pytest.raises(ValueError, match=message):
        nested.replay(ints(DERIVE, DERIVE, 1, 1), limits)


def test_a_phase_with_a_duration_must_not_hide_a_part_of_a_limit() -> None:
    nested = graph([-1, 0, 0, 1, 2])
    with pytest.raises(ValueError, match="hides some"):
        nested.replay(ints(DERIVE, 7, DERIVE, 1, 1), [Limit(ints(3, 4), 1)])
    ran = nested.replay(ints(DERIVE, 7, DERIVE, 1, 1), [Limit(ints(3), 1)])
    assert ran.end.tolist() == [7, 7, 1, -1, 1]


def test_who_asks_for_a_place_does_not_begin_before_its_earliest_time() -> None:
    ran = CHAIN_BESIDE.replay(ints(DERIVE, 1, 5, 2), [Limit(ints(2, 3), 1)], earliest=ints(0, 0, 20, 0))
    assert ran.start.tolist() == [0, 0, 20, 0]


def test_places_that_are_never_given_back_are_told() -> None:
    takes, gives = ints(0, 0), ints(NO_POOL, NO_POOL)
    with pytest.raises(Stuck):
        Network(2, ints(), ints(), pools=Pools([1], takes, gives)).run(ints(1, 1))
    with pytest.raises(Circular):
        Network(2, ints(0, 1), ints(1, 0), pools=Pools([1], takes, takes)).run(ints(1, 1))


# --- Against brute force ------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> tuple[Network, np.ndarray]:  # type: ignore[type-arg]
    count = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=20))
    # In an order that numbers do not tell.
    place = draw(st.permutations(range(count)))
    pairs = [(place[min(pair)], place[max(pair)]) for pair in pairs if pair[0] != pair[1]]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    some = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    delay, earliest = ints(*draw(some)), ints(*draw(some)) * draw(st.integers(0, 2))
    sets = draw(st.integers(1, 3))
    durations = np.array([draw(some) for _ in range(sets)], np.int64).T
    return Network(count, table[:, 0], table[:, 1], delay=delay, earliest=earliest), durations


def by_definition(network: Network, duration: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """Return the ends, by applying the definition until nothing changes."""
    end = [0] * network.count
    for _ in range(network.count + 1):
        for task in range(network.count):
            before = [end[one] for one in network.before[network.after == task].tolist()]
            begin = max(max(before, default=0) + int(network.delay[task]), int(network.earliest[task]))
            end[task] = begin + int(duration[task])
    return end


@given(networks())
@settings(deadline=None, max_examples=100)
def test_a_network_is_its_definition(given_: tuple[Network, np.ndarray]) -> None:  # type: ignore[type-arg]
    network, durations = given_
    ran = network.run(durations)
    for column in range(durations.shape[1]):
        assert ran.end[:, column].tolist() == by_definition(network, durations[:, column])
    assert (ran.end - ran.start == durations).all()


@given(networks())
@settings(deadline=None, max_examples=100)
def test_enough_places_are_no_limit(given_: tuple[Network, np.ndarray]) -> None:  # type: ignore[type-arg]
    network, durations = given_
    everyone = np.zeros(network.count, np.int64)
    limited = Network(
        network.count,
        network.before,
        network.after,
        delay=network.delay,
        earliest=network.earliest,
        pools=Pools([network.count], everyone, everyone),
    )
    assert limited.run(durations).end.tolist() == network.run(durations).end.tolist()


@given(networks(), st.data())
@settings(deadline=None, max_examples=100)
def test_numbers_of_tasks_say_nothing_without_limits(
    given_: tuple[Network, np.ndarray],  # type: ignore[type-arg]
    data: st.DataObject,
) -> None:
    network, durations = given_
    place = np.array(data.draw(st.permutations(range(network.count))), np.int64)
    back = np.argsort(place)
    renamed = Network(
        network.count,
        place[network.before],
        place[network.after],
        delay=network.delay[back],
        earliest=network.earliest[back],
    )
    assert renamed.run(durations[back]).end[place].tolist() == network.run(durations).end.tolist()


@given(networks(), st.data())
@settings(deadline=None, max_examples=100)
def test_shorter_tasks_never_end_anything_later(
    given_: tuple[Network, np.ndarray],  # type: ignore[type-arg]
    data: st.DataObject,
) -> None:
    network, durations = given_
    less = data.draw(st.lists(st.integers(0, 9), min_size=network.count, max_size=network.count))
    shorter = np.maximum(durations[:, 0] - ints(*less), 0)
    before, now = network.run(durations[:, 0]), network.run(shorter)
    assert (now.end <= before.end).all()
    # And nothing is gained that was not taken away.
    assert int((before.end - now.end).max()) <= int((durations[:, 0] - shorter).sum())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=8), st.integers(1, 3))
@settings(deadline=None, max_examples=100)
def test_a_limit_is_what_ticks_of_a_clock_give(tasks: list[tuple[int, int]], places: int) -> None:
    """Tasks (delay, duration) without dependencies, all in one pool."""
    count = len(tasks)
    pool = np.zeros(count, np.int64)
    delay, duration = (ints(*column) for column in zip(*tasks, strict=True))
    network = Network(count, ints(), ints(), delay=delay, pools=Pools([places], pool, pool))
    waiting = sorted(range(count), key=lambda one: (tasks[one][0], one))
    running: dict[int, int] = {}
    start = [0] * count
    for now in range(200):
        running = {one: end for one, end in running.items() if end > now}
        while waiting and tasks[waiting[0]][0] <= now and len(running) < places:
            one = waiting.pop(0)
            start[one] = now
            if tasks[one][1]:
                running[one] = now + tasks[one][1]
    assert network.run(duration).start.tolist() == start


# --- Size ---------------------------------------------------------------------------------------------------


def test_depth_is_no_recursion_and_a_long_chain_no_square() -> None:
    depth = 20_000
    nested = graph(list(range(-1, depth)))
    durations = np.full(depth + 1, DERIVE, np.int64)
    durations[-1] = 5
    ran = nested.replay(durations)
    assert (ran.end == 5).all()
    assert len(nested._network(durations == DERIVE).network._plan[1]) == 1, "one chain, at one level"
    row = graph([-1] + [0] * depth, [(one, one + 1) for one in range(1, depth)])
    durations = np.full(depth + 1, 3, np.int64)
    durations[0] = DERIVE
    assert row.replay(durations).end[0] == 3 * depth
    wide = graph([-1] + [0] * depth)
    assert wide.replay(durations).end[0] == 3


def test_a_deep_tree_may_have_limits() -> None:
    depth = 5_000
    nested = graph(list(range(-1, depth)))
    durations = np.full(depth + 1, DERIVE, np.int64)
    durations[-1] = 5
    assert nested.replay(durations, [Limit(ints(depth), 1)]).end[0] == 5
