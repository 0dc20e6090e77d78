# SPDX-License-Identifier: Apache-2.0
"""The walk through an event graph, on graphs whose critical path can be told by looking."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.path import EnteredBy, Path
from grademl_otel.analyzers.graph.walk import Walker, walk

from ..support.graphs import A, E, graph_of


def path_of(graph: EventGraph, low: int, high: int, lane: int = 0) -> Path:
    path = walk(graph, lane, low, high)
    cursor = low
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == max(low, high) == path.end
    return path


def brief(path: Path) -> str:
    """Return each section as phase, the first letter of its kind, and its times."""
    return " ".join(f"{s.phase}/{s.kind[0]}{s.start}-{s.end}" for s in path.sections)


def entered(path: Path) -> list[str]:
    return [s.entered_by.edge for s in path.sections]


def test_a_lane_is_walked_from_end_to_start() -> None:
    graph = graph_of([A("a", "main", 0, 10), A("b", "main", 10, 25), A("c", "main", 25, 40)])
    assert brief(path_of(graph, 0, 40)) == "a/w0-10 b/w10-25 c/w25-40"
    assert brief(path_of(graph, 5, 30)) == "a/w5-10 b/w10-25 c/w25-30"
    assert brief(path_of(graph, 12, 13)) == "b/w12-13"
    assert brief(path_of(graph, 10, 25)) == "b/w10-25"
    assert path_of(graph, 7, 7).sections == ()


def test_time_without_activity_is_a_gap_of_what_came_after_it() -> None:
    graph = graph_of([A("a", "main", 10, 20, step=1), A("b", "main", 30, 40, step=2, span_ix=7)])
    path = path_of(graph, 0, 50)
    assert brief(path) == "untraced/g0-10 a/w10-20 b/g20-30 b/w30-40 b/g40-50"
    assert [s.step for s in path.sections] == [None, 1, 2, 2, 2]
    assert [s.span_ix for s in path.sections] == [None, None, None, 7, None]


def test_a_lane_with_nothing_in_it_is_one_gap() -> None:
    graph = graph_of([A("a", "main", 10, 20)], lanes=[(0, "main"), (1, "main")])
    assert [(s.phase, s.kind, s.rank) for s in path_of(graph, 0, 9).sections] == [("untraced", "gap", 0)]
    assert [(s.phase, s.kind, s.rank) for s in path_of(graph, 0, 99, 1).sections] == [("untraced", "gap", 1)]
    assert path_of(graph, 9, 9, 1).sections == ()
    assert brief(path_of(graph_of([], lanes=[(None, "x")]), 3, 5)) == "untraced/g3-5"


QUEUE = [
    A("step", "main", 0, 10),
    A("data.wait", "main", 10, 50, waits=True, item="1:0"),
    A("forward", "main", 50, 60),
    A("data.fetch", "loader-worker-0", 12, 40, item="1:0"),
]


def test_a_wait_leads_to_what_ended_it_and_the_rest_is_the_handoff() -> None:
    graph = graph_of(QUEUE, [E("data.fetch", "data.wait", to_end=True), E("step", "data.fetch")])
    path = path_of(graph, 0, 60)
    assert brief(path) == "step/w0-10 data.fetch/h10-12 data.fetch/w12-40 data.wait/h40-50 forward/w50-60"
    assert entered(path) == ["queue", "queue", "queue", "program", "program"]
    assert [s.lane for s in path.sections] == ["main", "loader-worker-0", "loader-worker-0", "main", "main"]
    assert [s.item for s in path.sections] == [None, "1:0", "1:0", "1:0", None]


def test_what_was_there_before_the_wait_began_makes_all_of_it_a_handoff() -> None:
    activities = [*QUEUE[:3], A("data.fetch", "loader-worker-0", 2, 10)]
    graph = graph_of(activities, [E("data.fetch", "data.wait", to_end=True)])
    assert brief(path_of(graph, 0, 60)) == "step/w0-10 data.wait/h10-50 forward/w50-60"


def test_a_wait_that_nothing_explains_keeps_its_kind() -> None:
    graph = graph_of([replace(QUEUE[0]), replace(QUEUE[1], kind="unexplained"), QUEUE[2]])
    assert brief(path_of(graph, 0, 60)) == "step/w0-10 data.wait/u10-50 forward/w50-60"


def test_what_ends_only_after_the_moment_looked_at_does_not_explain_it() -> None:
    graph = graph_of(QUEUE, [E("data.fetch", "data.wait", to_end=True)])
    assert brief(path_of(graph, 0, 30)) == "step/w0-10 data.wait/w10-30"


def test_of_several_causes_the_latest_binds() -> None:
    graph = graph_of(
        [
            A("wait", "main", 0, 50, waits=True),
            A("x", "one", 0, 20),
            A("y", "two", 0, 45),
            A("z", "three", 0, 30),
        ],
        [E(name, "wait", to_end=True) for name in ("x", "y", "z")],
    )
    assert brief(path_of(graph, 0, 50)) == "y/w0-45 wait/h45-50"


def test_the_lane_before_or_an_edge_whichever_was_later_lets_an_activity_begin() -> None:
    def path(put: int, before: int) -> str:
        graph = graph_of(
            [
                A("wait", "main", 0, 90, waits=True),
                A("first", "worker", 0, before),
                A("second", "worker", 60, 90),
                A("put", "other", 0, 60),
            ],
            [E("second", "wait", to_end=True), E("put", "second", at=put)],
        )
        return brief(path_of(graph, 0, 90))

    assert path(put=30, before=50) == "first/w0-50 second/g50-60 second/w60-90"
    assert path(put=50, before=30) == "put/w0-50 second/h50-60 second/w60-90"
    assert path(put=50, before=50) == "first/w0-50 second/g50-60 second/w60-90"
    assert path(put=60, before=30) == "put/w0-60 second/w60-90"


def test_a_jump_to_a_start_goes_on_with_what_that_start_waited_for() -> None:
    graph = graph_of(
        [
            A("sync", "main", 10, 50, waits=True),
            A("launch", "main", 5, 10),
            A("kernel", "stream", 20, 45),
            A("before", "main", 0, 5),
        ],
        [E("kernel", "sync", "device", to_end=True), E("launch", "kernel", "device", at=5)],
    )
    assert brief(path_of(graph, 0, 50)) == "before/w0-5 kernel/h5-20 kernel/w20-45 sync/h45-50"


def test_time_between_what_one_thread_does_in_two_lanes_is_a_gap() -> None:
    graph = graph_of(
        [A("a", "main", 0, 10), A("b", "other", 15, 20)], [E("a", "b", "program"), E("a", "b", "child", at=8)]
    )
    assert brief(path_of(graph, 0, 20, 1)) == "a/w0-10 b/g10-15 b/w15-20"


def test_the_last_to_arrive_at_a_collective_is_where_the_walk_goes_on() -> None:
    graph = graph_of(
        [
            A("forward", "main", 0, 10),
            A("ranks.wait", "main", 10, 30, waits=True),
            A("collective.transfer", "main", 30, 35),
            A("forward'", "main", 0, 30, rank=1),
            A("transfer'", "main", 30, 35, rank=1),
        ],
        [E("forward'", "ranks.wait", "collective", at=30, to_end=True)],
    )
    path = path_of(graph, 0, 35)
    assert [(s.phase, s.kind, s.rank) for s in path.sections] == [
        ("forward'", "work", 1), ("collective.transfer", "transfer", 0),
    ]  # fmt: skip
    assert entered(path) == ["collective", "program"]


def test_a_moment_in_the_middle_of_an_activity_may_be_what_was_waited_for() -> None:
    graph = graph_of(
        [A("wait", "main", 0, 40, waits=True), A("backward", "main", 0, 100, rank=1)],
        [E("backward", "wait", "collective", at=38, to_end=True)],
    )
    assert brief(path_of(graph, 0, 40)) == "backward/w0-38 wait/h38-40"


def test_pieces_of_one_activity_are_entered_as_parent_and_child() -> None:
    graph = graph_of(
        [
            A("backward", "main", 0, 10, holder=3),
            A("recompute", "main", 10, 20, holder=3),
            A("optimizer", "main", 20, 30, holder=4, inferred=True),
        ]
    )
    by = [s.entered_by for s in path_of(graph, 0, 30).sections]
    assert by == [EnteredBy("child"), EnteredBy("program"), EnteredBy("program", "inferred")]


def test_an_inferred_edge_says_so_and_how_sure_it_is() -> None:
    edge = E("data.fetch", "data.wait", "learned", to_end=True, evidence="inferred", confidence=0.9)
    path = path_of(graph_of(QUEUE, [edge]), 0, 60)
    assert path.sections[1].entered_by == EnteredBy("learned", "inferred", 0.9)
    without = path_of(graph_of(QUEUE, [edge]).observed(), 0, 60)
    assert {s.lane for s in without.sections} == {"main"}


def test_at_one_moment_what_is_observed_goes_first_whatever_the_order_of_edges() -> None:
    activities = [
        A("wait", "main", 0, 50, waits=True),
        *(A(f"x{i}", f"lane-{i}", 0 if i < 4 else 10, 40) for i in range(6)),
    ]
    edges = [
        E("x0", "wait", "queue", to_end=True, evidence="inferred", confidence=0.9),
        E("x1", "wait", "learned", to_end=True, evidence="inferred", confidence=0.99),
        E("x2", "wait", "link", to_end=True),
        E("x3", "wait", "collective", to_end=True),
        E("x4", "wait", "collective", to_end=True),
        E("x5", "wait", "collective", to_end=True),
    ]
    order = ["x3", "x4", "x5", "x2", "x1", "x0"]
    for seed in range(10):
        mixed = random.Random(seed).sample(edges, len(edges))
        for gone in range(len(order)):
            left = [edge for edge in mixed if edge.source in order[gone:]]
            path = path_of(graph_of(activities, left), 0, 50)
            assert path.sections[-2].phase == order[gone]


def test_times_that_contradict_each_other_do_not_loop() -> None:
    """Two waits that each end when the other does, and a start that waits for itself."""
    graph = graph_of(
        [
            A("a", "one", 0, 50, waits=True),
            A("b", "two", 0, 50, waits=True),
            A("c", "three", 20, 60),
        ],
        [
            E("a", "b", "link", to_end=True),
            E("b", "a", "link", to_end=True),
            E("c", "c", "link", at=20),
            E("c", "a", "link", at=50, to_end=True),
        ],
    )
    for lane in range(3):
        for high in (20, 50, 60):
            path_of(graph, 0, high, lane)


def test_an_edge_from_a_moment_that_its_source_does_not_have_is_not_followed() -> None:
    graph = graph_of(QUEUE, [E("data.fetch", "data.wait", at=45, to_end=True)])
    assert {s.lane for s in path_of(graph, 0, 60).sections} == {"main"}


@pytest.mark.parametrize("waiting", [False, True])
def test_a_long_walk_is_neither_deep_nor_slow(waiting: bool) -> None:
    """A million activities; each second step waits for a worker. The bound only catches a quadratic walk."""
    steps = 200_000
    at = np.arange(steps, dtype=np.int64)
    none = np.full(steps, -1, np.int64)
    main = [
        A("wait", "main", 0, 4, waits=True), A("work", "main", 4, 10), A("fetch", "worker", 0, 3),
    ]  # fmt: skip
    small = graph_of(main, [E("fetch", "wait", to_end=True)] if waiting else [])
    big = EventGraph(
        lane=np.repeat([0, 1], [2 * steps, steps]),
        start=np.concatenate([np.stack([10 * at, 10 * at + 4], 1).ravel(), 10 * at]),
        end=np.concatenate([np.stack([10 * at + 4, 10 * at + 10], 1).ravel(), 10 * at + 3]),
        phase=np.concatenate([np.tile([0, 1], steps), 2 + 0 * at]),
        kind=np.concatenate([np.tile(small.kind[:2], steps), small.kind[2] + 0 * at]),
        waits=np.concatenate([np.tile([True, False], steps), np.zeros(steps, bool)]),
        step=np.tile(none, 3),
        item=np.tile(none, 3),
        span_ix=np.tile(none, 3),
        holder=np.tile(none, 3),
        inferred=np.zeros(3 * steps, bool),
        phases=small.phases,
        lanes=small.lanes,
        items=[],
        edges=type(small.edges).join(
            [
                small.edges.of("queue", 2 * steps + at, 10 * at + 3, 2 * at, to_end=True),
                small.edges.of("queue", 2 * at, 10 * at, 2 * steps + at),
            ]
        )
        if waiting
        else small.edges,
    )
    path = walk(big, 0, 0, 10 * steps)
    assert int(path.sections.duration.sum()) == 10 * steps
    by_phase = path.sections.by(path.sections.phase, 3).tolist()
    assert by_phase == ([1 * steps, 6 * steps, 3 * steps] if waiting else [4 * steps, 6 * steps, 0])


def test_one_walker_serves_many_walks() -> None:
    graph = graph_of(QUEUE, [E("data.fetch", "data.wait", to_end=True), E("step", "data.fetch")])
    walker = Walker(graph)
    for high in (10, 30, 60, 60, 10):
        assert walker.path(0, 0, high).sections == walk(graph, 0, 0, high).sections
