# SPDX-License-Identifier: Apache-2.0
"""Edges learned from repeated steps: what is planted is found, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, QUEUE, Edges, EventGraph
from grademl_otel.analyzers.graph.inferences.estimates import resistant_slope, wilson
from grademl_otel.analyzers.graph.inferences.learned import FEWEST, learn, learned_edges
from grademl_otel.analyzers.graph.path import EVIDENCE, KINDS, UNEXPLAINED, WAIT, WORK
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Loader
from tests.support.build import R, run_from

US, MS = 1_000, 1_000_000
STEP = 100 * MS
Act = tuple[str, str, int, int, int, str]
"""(lane, phase, start, end, step, kind)."""


def graph_of(acts: Sequence[Act], edges: Edges | None = None) -> EventGraph:
    lanes = sorted({act[0] for act in acts})
    phases = sorted({act[1] for act in acts})
    acts = sorted(acts, key=lambda act: (lanes.index(act[0]), act[2]))
    n = len(acts)
    none, no = np.full(n, -1), np.zeros(n, np.bool_)

    def ints(values: Sequence[int]) -> IntArray:
        return np.array(values, np.int64)

    return EventGraph(
        lane=ints([lanes.index(act[0]) for act in acts]),
        start=ints([act[2] for act in acts]),
        end=ints([act[3] for act in acts]),
        phase=ints([phases.index(act[1]) for act in acts]),
        kind=ints([KINDS.index(act[5]) for act in acts]),
        waits=np.array([act[5] in (WAIT, UNEXPLAINED) for act in acts], np.bool_),
        step=ints([act[4] for act in acts]),
        item=none,
        span_ix=none,
        holder=none,
        inferred=no,
        phases=phases,
        lanes=[(0, lane) for lane in lanes],
        items=[],
        edges=Edges.join([]) if edges is None else edges,
    )


def described(graph: EventGraph, edges: Edges) -> set[tuple[str, str, bool]]:
    """Return the kinds of edges as (source, target, whether to its end)."""
    name = [
        f"{graph.lanes[lane][1]}.{graph.phases[phase]}"
        for lane, phase in zip(graph.lane, graph.phase, strict=True)
    ]
    return {
        (name[source], name[target], bool(to_end))
        for source, target, to_end in zip(edges.source, edges.target, edges.to_end, strict=True)
    }


def handing_over(
    seed: int, steps: int = 60, *, varies: int = 5 * MS, handoff: int = 20 * US, ahead: bool = False
) -> list[Act]:
    """A main lane that waits for what another thread makes: in its step, or ``ahead`` of it."""
    random = np.random.default_rng(seed)
    acts: list[Act] = []
    ready = 0
    for step in range(steps):
        at = step * STEP
        begun, length = at + 2 * MS, 30 * MS + min(50 * MS, int(abs(random.normal()) * varies))
        if ahead:
            begun, length = at + 40 * MS, length + 40 * MS
        made = begun + length
        until = max(at + 1 * MS, ready if ahead else made) + handoff + int(random.exponential(handoff))
        ready = made
        acts += [
            ("maker", "make", begun, made, step, WORK),
            ("main", "prepare", at, at + 1 * MS, step, WORK),
            ("main", "queue_wait", at + 1 * MS, until, step, UNEXPLAINED),
            ("main", "compute", until, at + STEP, step, WORK),
        ]
    return acts


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(30, 200), st.integers(1 * MS, 10 * MS))
def test_a_wait_for_another_thread_is_found(seed: int, steps: int, varies: int) -> None:
    graph = graph_of(handing_over(seed, steps, varies=varies))
    edges = learned_edges(graph)
    assert described(graph, edges) == {("maker.make", "main.queue_wait", True)}
    assert len(edges) == steps
    assert (edges.at == graph.end[edges.source]).all()
    assert (graph.step[edges.source] == graph.step[edges.target]).all()
    assert {EDGE_KINDS[kind] for kind in edges.kind} == {"learned"}
    assert {EVIDENCE[one] for one in edges.evidence} == {"inferred"}
    assert edges.confidence == pytest.approx(wilson(steps, steps))
    assert 0.8 < edges.confidence[0] < 1


@pytest.mark.parametrize("ahead", [False, True])
def test_of_the_step_before(ahead: bool) -> None:
    """What is made ahead in one step ends a wait of the next."""
    graph = graph_of(handing_over(1, 80, ahead=ahead))
    edges = learned_edges(graph)
    assert described(graph, edges) == {("maker.make", "main.queue_wait", True)}
    apart = graph.step[edges.target] - graph.step[edges.source]
    assert set(apart.tolist()) == {1 if ahead else 0}


def test_a_start_after_a_hole_is_found() -> None:
    """A thread writes what the main lane gave it when it was done computing."""
    random = np.random.default_rng(2)
    acts: list[Act] = []
    for step in range(50):
        at, middle = step * STEP, step * STEP + 40 * MS + int(random.integers(10 * MS))
        begun = middle + int(random.integers(10 * US, 60 * US))
        acts += [
            ("main", "compute", at, middle, step, WORK),
            ("main", "rest", middle, at + STEP, step, WORK),
            ("writer", "write", begun, begun + 20 * MS, step, WORK),
        ]
    graph = graph_of(acts)
    assert described(graph, learned_edges(graph)) == {("main.compute", "writer.write", False)}


def test_in_a_run_the_path_goes_where_it_leads() -> None:
    """Rank 0 waits for batches that rank 1 makes in its forward, by ways that nobody recorded."""
    random, rows = np.random.default_rng(13), []
    for step in range(60):
        at = step * STEP
        made = at + 40 * MS + int(random.integers(20 * MS))
        until = made + int(random.integers(10 * US, 60 * US))
        waits = {"data.wait": (at, until - at, 1), "optimizer": (until, at + STEP - until, 1)}
        rows.append(R(at, at + STEP, step, 0, item=(1, step), worker=0, phases=waits))
        makes = {"forward": (at, made - at, 1), "optimizer": (made, at + STEP - made, 1)}
        rows.append(R(at, at + STEP, step, 1, phases=makes))
    run = run_from(rows, 0, 60 * STEP, loaders=[Loader(0, 1, None, 1, False)])
    path = run_path(run)
    assert sum(section.duration for section in path.sections) == path.total_ns
    entered = [section for section in path.sections if section.entered_by.edge == "learned"]
    assert {(s.rank, s.phase, s.entered_by.evidence) for s in entered} == {(1, "forward", "inferred")}
    assert {s.entered_by.confidence for s in entered} == {wilson(60, 60)}
    assert not [s for s in path.sections if s.kind == "unexplained"]
    alone = run_path(run, inferred=False)
    assert {section.rank for section in alone.sections} == {0}
    assert [s.kind for s in alone.sections if s.phase == "data.wait"] == ["unexplained"] * 60


# --- What is no dependency --------------------------------------------------------------------------------


def apart(seed: int, lanes: int = 3, steps: int = 80, jitter: float = 0.1) -> EventGraph:
    """Lanes that do what they do, at about the same time in each step, and wait for nothing of each other."""
    random = np.random.default_rng(seed)
    begins = random.integers(0, 60 * MS, lanes)
    lengths = random.integers(1 * MS, 20 * MS, lanes)
    acts: list[Act] = []
    for step in range(steps):
        for lane, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            at = step * STEP + begin + int(random.normal(0, jitter * MS))
            until = at + int(length * random.uniform(1, 1 + jitter))
            acts.append((f"lane-{lane}", "work", at, until, step, WORK))
            acts.append(
                (f"lane-{lane}", "wait", until, until + int(random.exponential(MS)) + 1, step, UNEXPLAINED)
            )
    return graph_of(acts)


@pytest.mark.parametrize("jitter", [0.001, 0.05, 0.5])
def test_lanes_beside_each_other_give_no_edges(jitter: float) -> None:
    """At most one of 200 seeds may; none of these 70 does."""
    assert [seed for seed in range(70) if len(learned_edges(apart(seed, jitter=jitter)))] == []


def test_a_fixed_order_proves_nothing() -> None:
    """Everything is always at the same place in the step: program order, perhaps."""
    graph = graph_of(handing_over(3, varies=0, handoff=1))
    assert len(learned_edges(graph)) == 0


def test_a_common_cause_is_no_dependency() -> None:
    """When the main lane is ready varies, and moves both others: they keep their distance."""
    random = np.random.default_rng(4)
    acts: list[Act] = []
    for step in range(200):
        at, ready = step * STEP, step * STEP + 10 * MS + int(random.integers(20 * MS))
        begun = [ready + int(random.integers(5 * US, 40 * US)) for _ in range(2)]
        length = 5 * MS + int(random.normal(0, 10 * US))
        acts += [
            ("main", "prepare", at, ready, step, WORK),
            ("main", "rest", ready, at + STEP, step, WORK),
            ("one", "work", begun[0], begun[0] + length, step, WORK),
            ("other", "late", begun[1] + 5 * MS + 50 * US, begun[1] + 9 * MS, step, WORK),
        ]
    graph = graph_of(acts)
    assert described(graph, learned_edges(graph)) == {("main.prepare", "one.work", False)}


def test_a_few_pauses_of_the_whole_host_prove_nothing() -> None:
    """Each twentieth step all threads stand still for 200 ms, wherever they are."""
    random = np.random.default_rng(5)
    acts: list[Act] = []
    now = 0
    for step in range(100):
        pause = 200 * MS if step % 20 == 7 else 0
        made = now + 30 * MS + pause + int(random.integers(2 * US))
        until = made + int(random.integers(10 * US, 90 * US))
        acts += [
            ("main", "wait", now, until, step, UNEXPLAINED),
            ("main", "compute", until, now + STEP + pause, step, WORK),
            ("other", "work", now, made, step, WORK),
            ("other", "rest", made, now + STEP + pause, step, WORK),
        ]
        now += STEP + pause
    assert len(learned_edges(graph_of(acts))) == 0


def test_a_wait_causes_nothing() -> None:
    """Two threads wait for a third that nobody saw: the ends of their waits are outcomes, both of them."""
    random = np.random.default_rng(6)
    acts: list[Act] = []
    for step in range(60):
        at = step * STEP
        came = at + 30 * MS + int(random.integers(20 * MS))
        for lane in ("one", "other"):
            until = came + int(random.integers(5 * US, 50 * US))
            acts += [
                (lane, "get_wait", at, until, step, UNEXPLAINED),
                (lane, "compute", until, at + STEP, step, WORK),
            ]
    assert len(learned_edges(graph_of(acts))) == 0


def test_who_once_comes_before_it_does_not_wait_for_it() -> None:
    acts = handing_over(7)
    at = next(place for place, act in enumerate(acts) if act[:2] == ("main", "queue_wait") and act[4] == 33)
    lane, phase, start, _, step, kind = acts[at]
    made = next(act[3] for act in acts if act[:2] == ("maker", "make") and act[4] == step)
    early = [*acts]
    early[at] = (lane, phase, start, made - 30 * US, step, kind)
    early[at + 1] = (lane, "compute", made - 30 * US, *acts[at + 1][3:])
    assert len(learned_edges(graph_of(early))) == 0
    assert len(learned_edges(graph_of(early), error_ns=30 * US)) == 60  # that much the clocks may be off
    (edge,) = np.flatnonzero(learned_edges(graph_of(early), 30 * US).at == made - 30 * US)
    assert edge >= 0  # a source is no later than what it allows


def test_too_few_steps_prove_nothing() -> None:
    assert len(learned_edges(graph_of(handing_over(8, FEWEST - 1)))) == 0
    assert len(learned_edges(graph_of(handing_over(8, FEWEST)))) == FEWEST
    assert len(learned_edges(graph_of([]))) == 0
    assert len(learned_edges(graph_of([("main", "start-up", 0, 10, -1, WORK)]))) == 0


def test_what_is_recorded_is_not_learned() -> None:
    graph = graph_of(handing_over(9))
    edges = learned_edges(graph)
    known = Edges.of(QUEUE, edges.source[:30], edges.at[:30], edges.target[:30], to_end=True)
    assert len(learned_edges(replace(graph, edges=known))) == 30


def test_an_edge_stands_only_where_it_explains() -> None:
    """In three of 80 steps the main lane waits 20 ms more, for something else."""
    acts = handing_over(10, 80)
    more = []
    for lane, phase, start, end, step, kind in acts:
        late = 20 * MS if step in (20, 40, 60) else 0
        start += late if phase == "compute" else 0
        end += late if phase == "queue_wait" else 0
        more.append((lane, phase, start, end, step, kind))
    graph = graph_of(more)
    edges = learned_edges(graph)
    assert set(range(80)) - set(graph.step[edges.target].tolist()) == {20, 40, 60}
    assert edges.confidence == pytest.approx(wilson(77, 80))


# --- The order of things ----------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.permutations(["main", "maker", "third"]), st.integers(-(2**40), 2**40))
def test_order_and_origin_decide_nothing(seed: int, order: list[str], shift: int) -> None:
    acts = handing_over(seed)
    acts += [("third", "count", at + 5 * MS, at + 6 * MS + seed % MS, step, WORK)
             for step in range(60) for at in [step * STEP]]  # fmt: skip
    graph = graph_of(acts)
    place = {order.index(lane): graph.lanes.index((0, lane)) for lane in order}
    turned = np.concatenate([np.arange(len(graph))[graph.of_lane(place[ix])] for ix in range(3)])
    other = replace(
        graph,
        lane=np.repeat(np.arange(3), [len(graph.start[graph.of_lane(place[ix])]) for ix in range(3)]),
        start=graph.start[turned] + shift, end=graph.end[turned] + shift, phase=graph.phase[turned],
        kind=graph.kind[turned], waits=graph.waits[turned], step=graph.step[turned],
        lanes=[(0, lane) for lane in order],
    )  # fmt: skip
    one, same = learned_edges(graph), learned_edges(other)
    assert described(graph, one) == described(other, same) != set()
    assert sorted(turned[same.source].tolist()) == sorted(one.source.tolist())
    assert sorted((same.at - shift).tolist()) == sorted(one.at.tolist())


def test_pieces_of_one_activity_are_one() -> None:
    """A pause cuts what is made in two, in some steps: it still ends where it ends."""
    acts: list[Act] = []
    pieces = 0
    for lane, phase, start, end, step, kind in handing_over(11):
        if phase == "make" and step % 3 == 0:
            cut = start + 10 * MS
            acts += [(lane, phase, start, cut, step, kind), (lane, "gc", cut, cut + MS, step, kind)]
            start, pieces = cut + MS, pieces + 1
        acts.append((lane, phase, start, end, step, kind))
    graph = graph_of(acts)
    maker = graph.lane == graph.lanes.index((0, "maker"))
    holder = np.where(maker, graph.step, -1)
    edges = learned_edges(replace(graph, holder=holder))
    assert described(graph, edges) == {("maker.make", "main.queue_wait", True)}
    assert len(edges) == 60
    assert pieces == 20


def test_what_is_too_much_is_counted_and_the_own_rank_goes_first() -> None:
    random = np.random.default_rng(12)
    acts = [("z-maker" if lane == "maker" else lane, *rest) for lane, *rest in handing_over(12, 30)]
    for lane in range(300):
        for step in range(30):
            at = step * STEP + int(random.integers(MS))
            acts.append((f"lane-{lane}", "work", at, at + 1, step, WORK))
    graph = graph_of(acts)  # type: ignore[arg-type]
    graph = replace(graph, lanes=[(int(name.startswith("lane")), name) for _, name in graph.lanes])
    found = learn(graph)
    assert described(graph, found.edges) == {("z-maker.make", "main.queue_wait", True)}
    assert found.left_out > 0
    assert learn(graph_of(handing_over(12, 30))).left_out == 0


# --- The numbers ------------------------------------------------------------------------------------------


def test_the_resistant_line_by_hand() -> None:
    """Thirds of nine: medians 2 and 8 of x, 5 and 17 of y = 2 x + 1; y - x deviates by 1 from its median."""
    x = np.arange(1, 10, dtype=np.float64)
    slope, error = resistant_slope(x, 2 * x + 1)
    assert slope == 2.0
    assert error == pytest.approx(1.2533 * np.sqrt(2 * (1.4826**2) / 3) / 6)
    assert resistant_slope(np.ones(9), x) == (0.0, float("inf"))


def test_the_bound_of_wilson_by_hand() -> None:
    """For all of 20: 20 / (20 + 1.96 ** 2); for 8 of 10 the textbook's 0.490."""
    assert wilson(20, 20) == pytest.approx(20 / (20 + 1.96**2))
    assert wilson(8, 10) == pytest.approx(0.490, abs=5e-4)
    assert wilson(0, 10) == pytest.approx(0.0, abs=1e-12)
    assert wilson(0, 0) == 0.0
