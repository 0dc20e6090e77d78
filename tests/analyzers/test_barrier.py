# SPDX-License-Identifier: Apache-2.0
"""The implicit barrier of data-parallel training: who came last, by hand, and where the path goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.barrier import (
    Barriers,
    barriers_of,
    stages_of,
)
from grademl_otel.analyzers.graph.inferences.barrier_graph import with_barriers
from grademl_otel.analyzers.graph.inferences.common_steps import same_steps, training_rows
from grademl_otel.analyzers.graph.inferences.estimates import wilson
from grademl_otel.analyzers.graph.path import EVIDENCE, GAP, KINDS, Path, kind_of
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.main_lane import GAPS, NAMES, phase_named
from grademl_otel.analyzers.graph.schedule import Schedule
from grademl_otel.analyzers.graph.walk import walk
from grademl_otel.analyzers.model.run import Run
from tests.support.build import R, run_from, run_of
from tests.support.synthetic import MS, Training

STEP = 100
"""ms from barrier to barrier."""
By = dict[str, int]
"""Phase -> ms."""


def ranks_with(work: list[By], steps: int = 30, skew: list[int] | None = None) -> Run:
    """Return a run whose ranks do ``work`` from barrier to barrier, then wait for it in backward.

    From one barrier to the next are 100 ms; the clock of a rank shows ``skew`` ms more.
    """
    rows = []
    for rank, phases in enumerate(work):
        off = (skew or [0] * len(work))[rank]
        for step in range(steps):
            at = start = (step * STEP + 50 + off) * MS
            table = {}
            for phase, ms in phases.items():
                table[phase] = (at, ms * MS, 1)
                at += ms * MS
            until = start + STEP * MS
            table[sc.BACKWARD] = (at, until - at, 1)
            rows.append(R(start, until, step, rank, phases=table))
    room = max(map(abs, skew), default=0) if skew else 0
    return run_from(rows, -room * MS, ((steps + 1) * STEP + room) * MS)


def found_in(run: Run) -> Barriers:
    found = barriers_of(run, *same_steps(run, [training_rows(run, rank) for rank in run.ranks]))
    assert found is not None
    return found


def main_graph(run: Run) -> EventGraph:
    """Return the main lanes of ``run`` as a graph without edges."""
    main = activities(run).main
    names = [phase_named(name) for name in NAMES]
    kinds = [KINDS.index(GAP if name in GAPS else kind_of(phase_named(name))) for name in NAMES]
    none = np.full(len(main), -1, np.int64)
    return EventGraph(
        lane=np.searchsorted(run.ranks, main.rank),
        start=main.start,
        end=main.end,
        phase=main.name,
        kind=np.array(kinds, np.int64)[main.name],
        waits=np.zeros(len(main), np.bool_),
        step=np.where(main.row >= 0, run.steps.step[main.row], -1),
        item=none,
        span_ix=main.span_ix,
        holder=none,
        inferred=main.inferred,
        phases=names,
        lanes=[(rank, "main") for rank in run.ranks],
        items=[],
        edges=Edges.join([]),
    )


def edges_of(run: Run) -> Edges:
    return with_barriers(run, main_graph(run)).edges


def path_with_barriers(run: Run, rank: int = 0) -> Path:
    graph = with_barriers(run, main_graph(run))
    return walk(graph, run.ranks.index(rank), run.start, run.end)


def by_rank(path: Path) -> Counter[int | None]:
    times: Counter[int | None] = Counter()
    for section in path.sections:
        times[section.rank] += section.duration
    return times


# --- The numbers ------------------------------------------------------------------------------------------

DATA, FORWARD = sc.DATA_WAIT, sc.FORWARD


def test_who_came_last_is_who_is_in_backward_for_the_shortest_time() -> None:
    """They begin backward 30, 60 and 20 ms after the barrier: 70, 40 and 80 ms in it, 80 is the longest."""
    found = found_in(ranks_with([{FORWARD: 30}, {FORWARD: 60}, {FORWARD: 20}]))
    assert len(found) == 30
    assert found.late.tolist() == [[10 * MS, 40 * MS, 0]] * 30
    assert found.confidence == wilson(30, 30)
    assert set(found.noticed.tolist()) == {1 * MS}


def test_stages_by_hand() -> None:
    """Waits 10 and 5 ms, forwards 20 and 50: frontiers 10, 55, 100; the stages cost the step 10, 45, 45."""
    run = ranks_with([{DATA: 10, FORWARD: 20}, {DATA: 5, FORWARD: 50}])
    stages = stages_of(run, found_in(run))
    assert stages.names == [DATA, FORWARD, sc.BACKWARD]
    assert stages.step.tolist() == list(range(1, 30))
    assert (stages.offset == np.array([[10, 5], [30, 55], [100, 100]]) * MS).all()
    assert (stages.frontier == np.array([10, 55, 100]) * MS).all()
    assert (stages.exposed == np.array([10, 45, 45]) * MS).all()


def test_a_stage_that_one_rank_does_not_have() -> None:
    run = ranks_with([{DATA: 10, FORWARD: 20}, {FORWARD: 40}])
    stages = stages_of(run, found_in(run))
    assert (stages.offset == np.array([[10, 0], [30, 40], [100, 100]]) * MS).all()
    assert (stages.exposed == np.array([10, 30, 60]) * MS).all()


def test_a_step_that_follows_none_has_no_stages() -> None:
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}])
    kept = run.steps.where(run.steps.step != 7)
    run = replace(run, steps=kept)
    assert stages_of(run, found_in(run)).step.tolist() == [*range(1, 7), *range(9, 30)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=2, max_size=5),
    st.lists(st.integers(-5000, 5000), min_size=5, max_size=5),
)
def test_stages_sum_to_the_time_from_barrier_to_barrier(work: list[tuple[int, int]], skew: list[int]) -> None:
    """On any clocks; and the rank with the longest offset before the barrier is the one that came last."""
    phases = [{DATA: wait, FORWARD: forward} for wait, forward in work]
    run = ranks_with(phases, steps=4)
    stages, found = stages_of(run, found_in(run)), found_in(run)
    assert (stages.exposed >= 0).all()
    assert (stages.exposed.sum(axis=1) == STEP * MS).all()
    before = stages.offset[:, -2, :]
    assert (before - before.min(axis=1, keepdims=True) == found.late[1:]).all()
    moved = ranks_with(phases, steps=4, skew=skew[: len(work)])
    off = np.array(skew[: len(work)]) * MS
    there = replace(found, came=found.came + off, ended=found.ended + off)
    assert (there.late == found.late).all()
    assert (stages_of(moved, there).offset == stages.offset).all()


# --- Where there is one -----------------------------------------------------------------------------------


def test_where_backward_does_not_end_together_there_is_none() -> None:
    rows = []
    for rank, length in ((0, 100 * MS), (1, 130 * MS)):
        for step in range(30):
            start = step * length
            phases = {sc.BACKWARD: (start, length - 10 * MS, 1)}
            rows.append(R(start, start + length, step, rank, phases=phases))
    run = run_from(rows, 0, 3900 * MS)
    assert barriers_of(run, *same_steps(run, [training_rows(run, rank) for rank in run.ranks])) is None
    assert len(edges_of(run)) == 0


def uneven(seed: int, late: int, waits: bool) -> Run:
    """Two ranks; one begins backward ``late`` ms later, and they end it 2 to 4 ms apart if it ``waits``."""
    random, rows = np.random.default_rng(seed), []
    for rank in (0, 1):
        for step in range(40):
            start, begin = step * 50 * MS, step * 50 * MS + (5 + late * rank) * MS
            end = begin + 8 * MS
            if waits:
                end = start + 40 * MS + rank * int(random.integers(2 * MS, 4 * MS))
            phases = {sc.BACKWARD: (begin, end - begin, 1)}
            rows.append(R(start, start + 50 * MS, step, rank, phases=phases))
    return run_from(rows, 0, 40 * 50 * MS)


def test_on_a_busy_host_together_is_what_is_far_less_apart_than_they_came() -> None:
    assert found_in(uneven(1, 20, waits=True)).late[:, 1].min() >= 20 * MS - 4 * MS
    assert len(edges_of(uneven(1, 20, waits=False))) == 0
    assert len(edges_of(uneven(1, 4, waits=True))) == 0


def test_of_one_rank_there_is_none() -> None:
    run = ranks_with([{FORWARD: 30}])
    assert len(edges_of(run)) == 0


def test_with_a_rank_missing_nobody_is_followed() -> None:
    """Who is not here may have come later."""
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}])
    run.completeness.ranks_expected = 3
    assert len(edges_of(run)) == 0


@pytest.mark.parametrize("how", [{"buckets": 5}, {"explicit": True}])
def test_where_collectives_are_recorded_nothing_is_inferred(how: dict[str, object]) -> None:
    run = run_of(Training(ranks=2, epochs=1, more_ns={(1, FORWARD): 9 * MS}, **how))  # type: ignore[arg-type]
    assert len(edges_of(run)) == 0


@pytest.mark.parametrize("detail", [0, 40])
def test_of_micro_batches_the_last_backward_holds_it(detail: int) -> None:
    """Which only detail shows: in the table several backwards are one sum."""
    slow = Training(
        ranks=2, epochs=1, micro=3, workers=0, detail_level=detail, more_ns={(1, FORWARD): 9 * MS}
    )
    run = run_of(slow)
    edges = edges_of(run)
    if detail:
        assert len(edges) == 0
        return
    assert int(edges.to_end.sum()) == slow.steps_per_epoch
    found = found_in(run)
    # Twice 9 ms were waited for nobody: only before its last backward a rank is late for the barrier.
    assert (found.late[:, 1] == 27 * MS).all()
    assert (found.ended - found.came)[0, 1] == slow.backward_ns + slow.allreduce_ns


# --- The path ---------------------------------------------------------------------------------------------


def test_who_waited_for_whom() -> None:
    """They begin backward after 30, 60 and 20 ms. What takes rank 1 the last 40 takes that all of them, so
    they wait from 70, not at all, and from 60. By then each could have gone on, were it not for the others.
    """
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}, {FORWARD: 20}])
    graph = with_barriers(run, main_graph(run))
    waits = np.flatnonzero(graph.waits)
    assert Counter(graph.rank[waits].tolist()) == {0: 30, 2: 30}
    assert {(graph.phases[graph.phase[ix]], KINDS[graph.kind[ix]]) for ix in waits} == {(sc.BACKWARD, "wait")}
    assert graph.inferred[waits].all()
    length = (graph.end - graph.start)[waits]
    assert set(zip(graph.rank[waits].tolist(), length.tolist(), strict=True)) == {(0, 30 * MS), (2, 40 * MS)}
    edges = graph.edges
    assert {EDGE_KINDS[kind] for kind in edges.kind} == {"collective"}
    assert {EVIDENCE[one] for one in edges.evidence} == {"inferred"}
    assert (edges.confidence == wilson(30, 30)).all()
    source, target = graph.rank[edges.source].tolist(), graph.rank[edges.target].tolist()
    at = ((edges.at - 50 * MS) % (STEP * MS) // MS).tolist()  # since the barrier before
    who = Counter(zip(source, target, at, edges.to_end.tolist(), strict=True))
    assert who == {
        (1, 0, 0, True): 30, (2, 0, 60, True): 30, (1, 2, 0, True): 30, (0, 2, 70, True): 30,
        # The rank that came last goes on no earlier than the others, in what follows its backward.
        (0, 1, 70, False): 30, (2, 1, 60, False): 30,
    }  # fmt: skip


def test_the_rest_of_the_graph_stays_as_it_was() -> None:
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}, {FORWARD: 20}])
    plain = main_graph(run)
    known = Edges.of("link", np.arange(0, 60, 2), plain.end[0:60:2], np.arange(1, 61, 2))
    known = Edges.join([known, replace(known, to_end=~known.to_end)])
    graph = with_barriers(run, replace(plain, edges=known))
    kept = graph.edges.where(graph.edges.kind == EDGE_KINDS.index("link"))
    assert (graph.phase[kept.source] == plain.phase[known.source]).all()
    assert (graph.end[kept.source] >= kept.at).all()
    assert (graph.start[kept.source] <= kept.at).all()
    bound = np.where(kept.to_end, graph.end[kept.target], graph.start[kept.target])
    assert (bound == np.where(known.to_end, plain.end[known.target], plain.start[known.target])).all()
    assert (np.diff(graph.lane) >= 0).all()
    same = np.diff(graph.lane) == 0
    assert (graph.start[1:][same] == graph.end[:-1][same]).all()  # main lanes are tiled
    parts = np.flatnonzero(graph.waits)
    assert (graph.holder[parts] >= 0).all()
    assert (graph.holder[parts] == graph.holder[parts - 1]).all()


def test_what_a_faster_rank_would_gain_is_bounded_by_the_second() -> None:
    """Without rank 1's forward the steps wait for rank 0, and take 70 ms instead of 100."""
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}, {FORWARD: 20}])
    graph = with_barriers(run, main_graph(run))
    schedule = Schedule.of(graph, run.start, run.end)
    slow = (schedule.graph.rank == 1) & (schedule.graph.phase == NAMES.index(FORWARD))
    assert schedule.drag(slow) == 30 * 30 * MS


def test_the_path_goes_by_the_rank_that_came_last() -> None:
    run = ranks_with([{FORWARD: 30}, {FORWARD: 60}, {FORWARD: 20}])
    path = path_with_barriers(run, rank=2)
    assert sum(section.duration for section in path.sections) == path.total_ns == run.end - run.start
    # All but what follows the last barrier is the time of rank 1, of it 60 ms a step in forward.
    assert by_rank(path) == {1: run.end - run.start - 50 * MS, 2: 50 * MS}
    times = Counter[str]()
    for section in path.sections:
        times[section.phase] += section.duration
    assert times == {
        FORWARD: 30 * 60 * MS,
        sc.BACKWARD: 30 * 40 * MS,
        "start-up": 50 * MS,
        "teardown": 50 * MS,
    }


def test_ranks_that_come_about_together_are_not_followed() -> None:
    """Below 1 % of the step a lateness is none; who is slow within backward, nothing shows."""
    run = run_of(Training(ranks=3, epochs=1, more_ns={(1, sc.BACKWARD): 50 * MS}))
    assert len(edges_of(run)) == 0


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(4)), st.integers(1, 20))
def test_ranks_are_interchangeable(names: list[int], more: int) -> None:
    work: list[By] = [{FORWARD: 30 + more * (rank == 2)} for rank in range(4)]
    there = [work[names.index(rank)] for rank in range(4)]
    run = ranks_with(there, steps=8)
    graph = with_barriers(run, main_graph(run))
    waits = np.flatnonzero(graph.waits)
    assert len(waits) == (3 * 8 if more > 1 else 0)
    if more > 1:
        last = graph.edges.where(graph.edges.at == graph.end[graph.edges.target])
        assert set(graph.rank[last.source].tolist()) == {names[2]}
        assert set(graph.rank[waits].tolist()) == set(range(4)) - {names[2]}
