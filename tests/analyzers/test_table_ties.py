# SPDX-License-Identifier: Apache-2.0
"""Collectives of which only the step table tells: who kept whom waiting, and what tells nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph.budget import lane_budget
from grademl_otel.analyzers.graph.inferences.estimates import wilson
from grademl_otel.analyzers.graph.inferences.table_ties import TableTies, table_ties
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.graph.runs.run_graph import run_graph
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.model.run import Run
from tests.support.build import R, run_from, run_of
from tests.support.synthetic import MS, US, Training

NO_DETAIL = 40
STEPS = 30


def ties_of(run: Run) -> TableTies | None:
    return table_ties(run, activities(run).collectives.clocks)


def steps_of(arrivals: list[int], through: int, count: int = 1, left: list[int] | None = None) -> Run:
    """Return a run whose ranks come to a collective after ``arrivals`` ms of each step, which takes 100 ms.

    It is ``through`` at that time, or when each has ``left``.
    """
    rows = []
    for rank, came in enumerate(arrivals):
        until = through if left is None else left[rank]
        for step in range(STEPS):
            at = step * 100 * MS
            phases = {
                sc.FORWARD: (at, came * MS, 1),
                sc.COLLECTIVE: (at + came * MS, (until - came) * MS, count),
                sc.OPTIMIZER: (at + until * MS, (100 - until) * MS, 1),
            }
            rows.append(R(at, at + 100 * MS, step, rank, phases=phases))
    return run_from(rows, 0, STEPS * 100 * MS)


def parts_of(run: Run) -> dict[tuple[int, str], int]:
    """Return the ns of each rank under each part of its collectives."""
    return {
        (row.rank, row.phase): row.ns
        for row in lane_budget(run)
        if row.phase in (RANKS_WAIT, COLLECTIVE_TRANSFER)
    }


def test_waiting_and_transfer_by_hand() -> None:
    """They come after 20, 70 and 40 ms, it is through after 75: the others wait 50 and 30, 5 are transfer."""
    run = steps_of([20, 70, 40], 75)
    ties = ties_of(run)
    assert ties is not None
    assert ties.rows.shape == (STEPS, 3)
    assert (ties.arriver == 1).all()
    assert ties.confidence == wilson(STEPS, STEPS)
    assert parts_of(run) == {
        (0, RANKS_WAIT): STEPS * 50 * MS, (2, RANKS_WAIT): STEPS * 30 * MS,
        **{(rank, COLLECTIVE_TRANSFER): STEPS * 5 * MS for rank in range(3)},
    }  # fmt: skip
    path = run_path(run)
    times: Counter[tuple[int | None, str, str]] = Counter()
    for section in path.sections:
        times[section.rank, section.phase, section.kind] += section.duration
    assert times == {
        (1, sc.FORWARD, "work"): STEPS * 70 * MS,
        (1, sc.COLLECTIVE, "transfer"): (STEPS - 1) * 5 * MS,
        (0, sc.COLLECTIVE, "transfer"): 5 * MS,  # of the last step, in the lane where the path begins
        (1, sc.OPTIMIZER, "work"): (STEPS - 1) * 25 * MS,
        (0, sc.OPTIMIZER, "work"): 25 * MS,
    }  # fmt: skip
    entered = {s.entered_by.evidence for s in path.sections if s.entered_by.edge == "collective"}
    assert entered == {"inferred"}


def test_without_what_is_inferred_a_wait_is_a_wait() -> None:
    run = steps_of([20, 70, 40], 75)
    path = run_path(run, inferred=False)
    assert {section.rank for section in path.sections} == {0}
    waits = [s.duration for s in path.sections if (s.phase, s.kind) == (sc.COLLECTIVE, "wait")]
    assert waits == [50 * MS] * STEPS


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (steps_of([20, 70], 75, count=2), "a sum of two has no place"),
        (steps_of([20, 70], 0, left=[40, 90]), "they do not leave it together"),
        (steps_of([20], 75), "a single rank"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_tells_nothing(run: Run, why: str) -> None:
    assert ties_of(run) is None, why
    assert parts_of(run) == {}


def test_with_a_rank_missing_nothing_is_told() -> None:
    run = steps_of([20, 70], 75)
    run.completeness.ranks_expected = 3
    assert ties_of(run) is None


def test_only_steps_in_which_all_have_one_are_tied() -> None:
    run = steps_of([20, 70], 75)
    counts = run.steps.count[sc.COLLECTIVE]
    counts[(run.steps.rank == 1) & (run.steps.step % 3 == 0)] = 0
    ties = ties_of(run)
    assert ties is not None
    assert set(run.steps.step[ties.rows].ravel().tolist()) == {step for step in range(STEPS) if step % 3}


def training(**changes: object) -> Training:
    plain = Training(
        ranks=3, epochs=1, eval_batches=0, explicit=True, steps_per_epoch=STEPS, detail_level=NO_DETAIL
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def times_of(run: Run) -> Counter[tuple[int | None, str, str]]:
    times: Counter[tuple[int | None, str, str]] = Counter()
    for section in run_path(run).sections:
        times[section.rank, section.phase, section.kind] += section.duration
    return times


@pytest.mark.parametrize("phase", [sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER])
def test_tables_alone_tell_what_detail_tells(phase: str) -> None:
    slow = training(more_ns={(2, phase): 7 * MS})
    alone, detailed = times_of(run_of(slow)), times_of(run_of(replace(slow, detail_level=0)))
    assert alone.keys() == detailed.keys()
    assert alone == pytest.approx(detailed, abs=3 * US * STEPS)
    assert alone[2, phase, "work"] > 0.9 * STEPS * 7 * MS


def test_where_clocks_do_not_tell_the_shortest_time_in_it_is_the_transfer() -> None:
    """By each rank's own clock, as nothing ties them; and nobody knows where the path would go on."""
    run = run_of(training(more_ns={(2, sc.FORWARD): 7 * MS}, skew_ns={2: 900 * MS}))
    ties = ties_of(run)
    assert ties is not None
    assert (ties.arriver == -1).all()
    parts = parts_of(run)
    assert {rank for rank, name in parts if name == RANKS_WAIT} == {0, 1}
    assert parts[0, RANKS_WAIT] == pytest.approx(STEPS * 7 * MS, abs=2 * US * STEPS)
    graph = run_graph(run)
    assert (graph.rank[graph.edges.source] == graph.rank[graph.edges.target]).all()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=4).flatmap(
        lambda a: st.tuples(st.just(a), st.permutations(a))
    )
)
def test_ranks_are_interchangeable(arrivals: tuple[list[int], list[int]]) -> None:
    edges = []
    for came in arrivals:
        run = steps_of(came, 75)
        parts, last = parts_of(run), max(came)
        for rank, own in enumerate(came):
            assert parts.get((rank, RANKS_WAIT), 0) == STEPS * (last - own) * MS
            assert parts[rank, COLLECTIVE_TRANSFER] == STEPS * (75 - last) * MS
        edges.append(len(run_graph(run).edges))
    assert edges[0] == edges[1]
