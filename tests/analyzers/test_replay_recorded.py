# SPDX-License-Identifier: Apache-2.0
"""What was recorded runs again as it ran; and with other durations no faster than it could have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.execution import BESIDE, DERIVED, INFERRED, SELF, Dependencies, ExecutionModel
from grademl_otel.analyzers.execution import execution_model as model_of_spans
from grademl_otel.analyzers.execution.dependencies import inferred
from grademl_otel.analyzers.execution.meetings import Meetings
from grademl_otel.analyzers.execution.repeatability import repeatability
from grademl_otel.analyzers.graph.path import OBSERVED
from grademl_otel.analyzers.replay.phases import Limit
from grademl_otel.analyzers.replay.recorded import Recorded, limits, recorded

from ..support import losses
from ..support.build import run_of
from ..support.synthetic import MS, Training, simulate
from .test_execution_tree import P, tree


def model_of(
    *given_: P, told: tuple[tuple[int, int], ...] = (), met: Sequence[tuple[int, int, int]] = ()
) -> tuple[ExecutionModel, list[int]]:
    """Return the model of phases, with ``told`` dependencies between places, and the node of each place.

    ``met``: places of an arrival, of the leaf that is held there, and the number of their meeting.
    """
    phases, types, places = tree(*given_)
    known = Dependencies.of([(places[a], places[b]) for a, b in told], OBSERVED)
    every = Dependencies.join([known, inferred(phases, known)])
    arrival, held, number = np.array(met, np.int64).reshape(-1, 3).T
    at = np.array(places, np.int64)
    meetings = Meetings(at[arrival], at[held], number)
    repeats = repeatability(phases, types, known)
    return ExecutionModel(phases, types, every, repeats, [], meetings=meetings), places


def own(model: ExecutionModel, parent: int) -> int:
    """Return the self time of ``parent``."""
    phases = model.phases
    (found,) = np.flatnonzero(phases.has(SELF) & (phases.parent == parent)).tolist()
    return int(found)


def ends(run: Recorded, **changed: int) -> dict[str, int]:
    """Return the ends, by name, with the durations of phases of these names changed."""
    phases, durations = run.phases, run.busy.copy()
    for node in range(len(phases)):
        durations[node] = changed.get(phases.name(node), durations[node])
    ran = run.replay(durations)
    return {phases.name(node): int(ran.end[node]) for node in range(len(phases))}


def runs_as_it_did(run: Recorded) -> bool:
    ran, phases = run.replay(), run.phases
    same = (ran.start + run.origin == phases.start).all()
    return bool(same and (ran.end + run.origin == np.maximum(phases.end, phases.start)).all())


# --- As it was ----------------------------------------------------------------------------------------------

STRAGGLING = Training(
    ranks=3, workers=0, epochs=1, steps_per_epoch=4, explicit=True, compute_scale={1: 1.5},
    more_ns={(2, sc.OPTIMIZER): 2 * MS}, eval_batches=0,
)  # fmt: skip
TRAINING = Training(ranks=2, epochs=2, steps_per_epoch=4, eval_batches=2, checkpoint_ns=5 * MS, explicit=True)


@pytest.mark.parametrize("known_only", [False, True])
@pytest.mark.parametrize(
    "training",
    [TRAINING, replace(TRAINING, workers=0, ranks=1, explicit=False, micro=2), STRAGGLING],
    ids=["two", "micro", "straggling"],
)
def test_a_run_runs_again_as_it_ran(training: Training, known_only: bool) -> None:
    trained = run_of(training)
    run = recorded(model_of_spans(trained.spans, [trained]), not known_only)
    assert run.contradicted == 0
    assert (run.inferred == 0) == known_only
    assert runs_as_it_did(run)
    assert run.waits.any() == (training.workers > 0), "without workers what is waited for is in the wait"


@st.composite
def phases_of_others(draw: st.DrawFn) -> list[P]:
    given_: list[P] = []
    for number in range(draw(st.integers(1, 9))):
        parent = draw(st.integers(-1, number - 1))
        low, high = (0, 30) if parent < 0 else (given_[parent].start, given_[parent].end)
        start = draw(st.integers(low, high))
        end = draw(st.integers(start, high + draw(st.sampled_from([0, 0, 5]))))
        flags = draw(st.sampled_from([0, 0, 0, BESIDE, INFERRED])) if parent >= 0 else 0
        given_.append(P(parent, draw(st.sampled_from("abc")), start, end, flags=flags))
    return given_


@given(phases_of_others(), st.booleans())
@settings(deadline=None, max_examples=100)
def test_anything_that_is_possible_runs_again_as_it_ran(given_: list[P], use_inferred: bool) -> None:
    model, _ = model_of(*given_)
    run = recorded(model, use_inferred)
    assert run.contradicted == 0
    assert runs_as_it_did(run)


@given(phases_of_others(), st.data())
@settings(deadline=None, max_examples=60)
def test_shorter_leaves_never_make_a_phase_longer(given_: list[P], data: st.DataObject) -> None:
    model, _ = model_of(*given_)
    run = recorded(model)
    less = data.draw(st.lists(st.integers(0, 9), min_size=len(run.busy), max_size=len(run.busy)))
    shorter = np.where(run.phases.inner, run.busy, np.maximum(run.busy - np.array(less), 0))
    before, now = run.replay(), run.replay(shorter)
    assert ((now.end - now.start)[run.phases.inner] <= (before.end - before.start)[run.phases.inner]).all()


# --- With other durations -----------------------------------------------------------------------------------

ROW = (P(-1, "all", 0, 100), P(0, "a", 0, 40), P(0, "b", 50, 80))
"""a, 10 of self time, b, 20 of self time."""


def test_self_time_is_no_concurrent_leaf() -> None:
    model, (everything, *_) = model_of(*ROW)
    run = recorded(model)
    assert ends(run)["all"] == 100
    assert ends(run, a=10)["all"] == 70
    assert ends(run, a=0, b=0)["all"] == 30
    assert run.busy[own(model, everything)] == 30


def test_self_time_shrinks_in_all_of_its_pieces() -> None:
    model, _ = model_of(*ROW)
    run = recorded(model)
    assert ends(run, self=15) == {"": 85, "all": 85, "a": 40, "b": 75, "self": 85}
    assert ends(run, self=0)["all"] == 70


def test_without_what_times_tell_nothing_moves_up() -> None:
    """Defect 20: a simulator without dependencies makes phases concurrent that were not."""
    model, _ = model_of(*ROW)
    run = recorded(model, inferred=False)
    assert run.inferred == 0
    assert ends(run, a=0)["all"] == 100
    assert ends(run, b=10)["all"] == 100, "nobody told that the last piece of self time comes after b"
    assert ends(run, self=0)["all"] == 80


def test_what_is_told_is_waited_for_and_what_else_is_between_stays() -> None:
    beside = (P(-1, "all", 0, 30), P(0, "a", 0, 10), P(0, "b", 12, 20), P(0, "c", 0, 30))
    model, _ = model_of(*beside, told=((1, 2),))
    run = recorded(model)
    assert (run.known, run.inferred) == (1, 0)
    assert ends(run, c=0) == {"": 20, "all": 20, "a": 10, "b": 20, "c": 0}
    assert ends(run, a=4, c=0)["b"] == 14


def test_a_phase_that_began_late_beside_others_is_not_moved_up() -> None:
    model, _ = model_of(P(-1, "all", 0, 20), P(0, "a", 0, 15), P(0, "b", 5, 20))
    run = recorded(model)
    assert ends(run, a=0)["b"] == 20


def test_sums_without_a_place_stand_in_a_row() -> None:
    model, _ = model_of(
        P(-1, "all", 0, 60), P(0, "a", 0, 20), P(0, "sum", 20, 50, flags=INFERRED), P(0, "b", 50, 60)
    )
    run = recorded(model)
    assert ends(run, sum=10)["all"] == 40
    assert ends(run, a=0)["all"] == 40


def test_other_lanes_take_no_time_of_their_parent() -> None:
    model, _ = model_of(
        P(-1, "rank", 0, 50),
        P(0, "step", 0, 50),
        P(0, "worker", flags=BESIDE | DERIVED),
        P(2, "fetch", 10, 45),
    )
    run = recorded(model)
    assert ends(run, step=5) == {"": 5, "rank": 5, "step": 5, "worker": 45, "fetch": 45}
    assert ends(run, fetch=0)["rank"] == 50


def test_what_is_launched_into_another_lane_holds_nobody_up() -> None:
    model, _ = model_of(
        P(-1, "all", 0, 10),
        P(0, "launch", 0, 4),
        P(0, "next", 6, 10),
        P(0, "kernel", 5, 9, flags=BESIDE),
        told=((1, 3),),
    )
    run = recorded(model)
    assert ends(run, launch=1) == {"": 7, "all": 7, "launch": 1, "next": 7, "kernel": 6, "self": 3}


def test_what_has_only_other_lanes_is_as_long_as_they_are() -> None:
    model, _ = model_of(
        P(-1, "rank", flags=DERIVED), P(0, "worker", flags=BESIDE | DERIVED), P(1, "fetch", 0, 45)
    )
    assert ends(recorded(model), fetch=5) == {"": 5, "rank": 5, "worker": 5, "fetch": 5}


def test_a_child_that_outlived_its_parent_does_not_hold_it() -> None:
    model, _ = model_of(P(-1, "request", 0, 10), P(0, "call", 0, 8), P(0, "log", 9, 30))
    run = recorded(model)
    assert ends(run)["request"] == 10
    assert ends(run, call=3)["request"] == 5


def test_phases_that_contradict_what_they_depend_on_replay_later() -> None:
    model, _ = model_of(P(-1, "all", 0, 20), P(0, "a", 0, 10), P(0, "b", 5, 20), told=((1, 2),))
    run = recorded(model)
    assert run.contradicted == 1
    assert ends(run)["b"] == 25


def test_a_phase_with_nothing_in_its_own_lane_is_self_time() -> None:
    model, (step, _) = model_of(P(-1, "step", 0, 10), P(0, "kernel", 2, 30, flags=BESIDE))
    run = recorded(model)
    assert ends(run, self=4)["step"] == 4
    assert run.busy[own(model, step)] == 10


def test_limits_are_of_each_phase_of_a_type() -> None:
    jobs = [P(-1, "job", 0, 10), P(-1, "job", 0, 10)]
    tasks = [P(at % 2, "task", 0, 10) for at in range(8)]
    model, places = model_of(*jobs, *tasks)
    job, task = (int(model.phases.type[places[at]]) for at in (0, 2))
    found = limits(model, job, task, 2)
    assert [len(one.phases) for one in found] == [4, 4]
    ran = recorded(model).replay(None, found)
    assert ran.end[places[0]] == ran.end[places[1]] == 20
    whole = recorded(model).replay(None, [Limit(np.array(places[2:]), 2)])
    assert whole.end[0] == 40


def test_a_phase_with_a_duration_stands_for_what_is_in_it() -> None:
    model, places = model_of(*ROW, P(1, "inner", 0, 30))
    run = recorded(model)
    durations = run.busy.copy()
    durations[places[1]] = 15
    ran = run.replay(durations)
    assert ran.end[places[0]] == 75
    assert ran.end[places[3]] == -1


def test_waits_can_be_held_to_when_they_ended() -> None:
    model, places = model_of(P(-1, "step", 0, 30), P(0, "forward", 0, 10), P(0, "data.wait", 10, 30))
    run = recorded(model)
    assert np.flatnonzero(run.waits).tolist() == [places[2]]
    durations = np.where(run.waits, 0, run.busy)
    durations[places[1]] = 2
    until = np.zeros(len(durations), np.int64)
    assert run.replay(durations).end[0] == 2
    until[places[2]] = 30
    assert run.replay(durations, earliest=until).end[0] == 30


# --- Meetings of ranks --------------------------------------------------------------------------------------


def programs(*works: Sequence[tuple[int, int]]) -> tuple[list[P], list[tuple[int, int, int]]]:
    """Return the phases of a run whose ranks work, meet, and transfer, in rounds; and where they meet.

    ``works``: of each round each rank's work and its transfer. The ranks stand behind the run, then all else.
    """
    ranks = len(works[0])
    now, placed, met = [0] * ranks, [], []
    for number, each in enumerate(works):
        arrived = [at + work for at, (work, _) in zip(now, each, strict=True)]
        last = max(arrived)
        for rank, (_, transfer) in enumerate(each):
            collective = 1 + ranks + len(placed) + 1
            placed += [
                P(1 + rank, "work", now[rank], arrived[rank]),
                P(1 + rank, "collective", arrived[rank], last + transfer),
            ]
            if arrived[rank] < last:
                placed.append(P(collective, "ranks.wait", arrived[rank], last))
            if transfer:
                placed.append(P(collective, "collective.transfer", last, last + transfer))
            met.append((collective, collective + (arrived[rank] < last or transfer > 0), number))
            now[rank] = last + transfer
    whole = [P(-1, "run", 0, max(now)), *(P(0, "rank", 0, end, step=rank) for rank, end in enumerate(now))]
    return whole + placed, met


ROUNDS = ([(10, 2), (4, 1), (7, 2)], [(3, 0), (9, 4), (3, 2)])


def test_a_wait_for_ranks_ends_when_the_last_has_come() -> None:
    phases, met = programs(*ROUNDS)
    model, places = model_of(*phases, met=met)
    run = recorded(model)
    assert runs_as_it_did(run)
    assert not run.waits.any()
    assert np.count_nonzero(run.meets) == 6
    nodes = [places[ix] for ix, one in enumerate(phases) if one.name == "work"]
    durations = run.busy.copy()
    durations[nodes[0]] = 5
    ran = run.replay(durations)
    # 7 is the last now, that was 10; then 8 + 9, and the transfers.
    assert (ran.end + run.origin)[nodes].tolist() == [5, 4, 7, 12, 17, 12]
    assert ran.end[places[:4]].tolist() == [21, 17, 21, 19]


def test_who_had_nothing_to_wait_for_waits_for_those_that_are_later_now() -> None:
    phases, met = programs([(10, 2), (4, 1)], [(10, 1), (2, 1)])
    model, places = model_of(*phases, met=met)
    run = recorded(model)
    nodes = [places[ix] for ix, one in enumerate(phases) if one.name == "work"]
    durations = run.busy.copy()
    durations[nodes[0]] = 0
    # The first rank begins its second work at 4 + 2, not at 0 + 2.
    assert run.replay(durations).end[places[0]] == 4 + 2 + 10 + 1


@given(
    st.integers(1, 3).flatmap(
        lambda ranks: st.lists(
            st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=ranks, max_size=ranks),
            min_size=1,
            max_size=4,
        )
    ),
    st.data(),
)
@settings(deadline=None, max_examples=100)
def test_ranks_with_other_work_are_as_if_they_had_been_recorded(
    rounds: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    phases, met = programs(*rounds)
    model, places = model_of(*phases, met=met)
    run = recorded(model)
    assert runs_as_it_did(run)
    other = [[(data.draw(st.integers(0, 9)), transfer) for _, transfer in each] for each in rounds]
    nodes = [places[ix] for ix, one in enumerate(phases) if one.name == "work"]
    durations = run.busy.copy()
    durations[nodes] = [work for each in other for work, _ in each]
    expected = [one.end for one in programs(*other)[0] if one.name == "work"]
    ran = run.replay(durations)
    assert ran.end[nodes].tolist() == expected


@pytest.mark.parametrize(
    ("wait", "meets"),
    [
        pytest.param(10, True, id="until the last has come"),
        pytest.param(9, False, id="gone before"),
        pytest.param(10 + 2 * MS, False, id="long after"),
        pytest.param(10 + MS // 2, True, id="a little after"),
    ],
)
def test_times_that_contradict_a_meeting_make_it_none(wait: int, meets: bool) -> None:
    phases = [
        P(-1, "rank", 0, 5 * MS),
        P(-1, "rank", 0, 5 * MS),
        P(0, "collective", 4, wait),
        P(2, "ranks.wait", 4, wait),
        P(1, "collective", 10, 12),
        P(4, "collective.transfer", 10, 12),
    ]
    model, places = model_of(*phases, met=[(2, 3, 0), (4, 5, 0)])
    run = recorded(model)
    assert runs_as_it_did(run)
    assert run.meets[places[3]] == run.meets[places[5]] == meets
    assert run.waits[places[3]] != meets
    assert (run.graph.arrives_in >= 0).any() == meets
    assert run.busy[places[3]] == (wait - 10 if meets else wait - 4)


def test_of_two_meetings_the_one_that_times_contradict_is_none() -> None:
    phases, met = programs(*ROUNDS)
    early = [replace(one, end=9) if (one.name, one.end) == ("ranks.wait", 10) else one for one in phases]
    model, _ = model_of(*early, met=met)
    run, meetings = recorded(model), model.meetings
    second = meetings.number == 1
    assert sorted(np.flatnonzero(run.meets)) == sorted(meetings.held[second])
    assert sorted(np.flatnonzero(run.graph.arrives_in >= 0)) == sorted(meetings.arrival[second])
    assert runs_as_it_did(run)


def test_meetings_in_a_circle_are_none() -> None:
    """Two meetings at one moment, to which the ranks come in different orders."""
    phases = [
        P(-1, "rank", 0, 9),
        P(-1, "rank", 0, 9),
        *(P(rank, "collective", 5, 5) for rank in (0, 0, 1, 1)),
    ]
    model, _ = model_of(*phases, met=[(2, 2, 0), (3, 3, 1), (4, 4, 1), (5, 5, 0)])
    run = recorded(model)
    assert not run.meets.any()
    assert runs_as_it_did(run)


@pytest.mark.parametrize("by", [-30 * MS, 7200 * 1000 * MS])
def test_what_a_clock_shows_takes_no_meeting_away(by: int, tmp_path: Path) -> None:
    training = replace(STRAGGLING, steps_per_epoch=40)
    true = losses.on_hosts(simulate(training).otlp_lines(), {2: "node-1"})
    lengths = []
    for lines in (true, losses.shifted(true, "node-1", by)):
        (tmp_path / "traces.jsonl").write_bytes(lines)
        run = recorded(analyzers.execution_model(tmp_path / "traces.jsonl"))
        assert np.count_nonzero(run.meets) == training.ranks * training.steps_per_epoch
        assert runs_as_it_did(run)
        lengths.append(int(run.replay().end[0]))
    assert abs(lengths[1] - lengths[0]) <= 2 * MS, "as well as clocks are known"


def test_a_straggler_that_is_none_any_more() -> None:
    """The run without it, by another simulator, is what the replay says."""
    even = replace(STRAGGLING, compute_scale={})
    trained, truth = run_of(STRAGGLING), run_of(even)
    model = model_of_spans(trained.spans, [trained])
    run, phases = recorded(model), model.phases
    assert np.count_nonzero(run.meets) == STRAGGLING.ranks * STRAGGLING.steps_per_epoch
    durations = run.busy.copy()
    slow = model.select("**/rank[rank=1]/**")
    for name, took in ((sc.FORWARD, even.forward_ns), (sc.BACKWARD, even.backward_ns)):
        nodes = [node for node in slow.tolist() if phases.name(node) == name]
        assert len(nodes) == STRAGGLING.steps_per_epoch
        durations[nodes] = took
    ran = run.replay(durations)
    steps = model.select("**/step*")
    model_of_truth = model_of_spans(truth.spans, [truth])
    expected = model_of_truth.phases.end[model_of_truth.select("**/step*")] - even.start
    assert (ran.end[steps] + run.origin - STRAGGLING.start).tolist() == expected.tolist()
    assert expected.max() < (phases.end[steps] - STRAGGLING.start).max()
