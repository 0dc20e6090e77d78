# SPDX-License-Identifier: Apache-2.0
"""The schedule of an event graph: it reproduces what was observed, and slack and drag are those of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph.event_graph import QUEUE, Edges, EventGraph
from grademl_otel.analyzers.graph.path import GAP, KINDS, UNEXPLAINED, WORK
from grademl_otel.analyzers.graph.schedule import Schedule
from grademl_otel.analyzers.graph.walk import walk

Activity = tuple[int, int, int, bool]
"""Lane, start, end, whether it waits."""
Edge = tuple[int, int, int, bool]
"""Source, moment, target, whether it ends the target."""


def graph_of(activities: Sequence[Activity], edges: Sequence[Edge] = ()) -> EventGraph:
    """Return a graph of ``activities``, sorted by (lane, start); the phase of each is its number."""
    count = len(activities)
    table = np.array([(lane, start, end) for lane, start, end, _ in activities], np.int64).reshape(-1, 3)
    waits = np.array([waits for *_, waits in activities], bool)
    none = np.full(count, -1, np.int64)
    rows = np.array([edge[:3] for edge in edges], np.int64).reshape(-1, 3)
    found = Edges.of(QUEUE, rows[:, 0], rows[:, 1], rows[:, 2])
    return EventGraph(
        lane=table[:, 0], start=table[:, 1], end=table[:, 2], phase=np.arange(count),
        kind=np.where(waits, KINDS.index(UNEXPLAINED), KINDS.index(WORK)), waits=waits,
        step=none, item=none, span_ix=none, holder=none, inferred=np.zeros(count, bool),
        phases=[f"p{number}" for number in range(count)],
        lanes=[(0, f"lane{lane}") for lane in range(1 + int(table[:, 0].max(initial=0)))], items=[],
        edges=replace(found, to_end=np.array([to_end for *_, to_end in edges], bool)),
    )  # fmt: skip


def schedule(activities: Sequence[Activity], edges: Sequence[Edge] = (), low: int = 0) -> Schedule:
    return Schedule.of(graph_of(activities, edges), low, max((end for _, _, end, _ in activities), default=0))


LOADER = (
    # main: step 0, wait for the batch, step 1
    [(0, 0, 10, False), (0, 10, 30, True), (0, 30, 50, False), (1, 0, 28, False)],
    [(3, 28, 1, True)],
)
"""A worker makes a batch until 28; the main lane waits for it from 10 on, and takes it over until 30."""


class TestForward:
    def test_with_the_lengths_as_observed_all_comes_when_it_did(self) -> None:
        assert schedule(*LOADER).forward().tolist() == [10, 30, 50, 28]

    def test_a_wait_ends_when_what_it_waits_for_is_there(self) -> None:
        found = schedule(*LOADER)
        assert found.lengths.tolist() == [10, 2, 20, 28]  # of the wait only the takeover is its own
        assert found.forward(np.array([10, 2, 20, 18])).tolist() == [10, 20, 40, 18]

    def test_to_take_over_what_is_there_already_takes_as_long(self) -> None:
        assert schedule(*LOADER).forward(np.array([10, 2, 20, 1])).tolist() == [10, 12, 32, 1]

    def test_a_wait_that_nothing_explains_keeps_its_length(self) -> None:
        found = schedule([(0, 0, 10, False), (0, 10, 30, True)])
        assert found.unexplained.tolist() == [False, True]
        assert found.forward(np.array([4, 20])).tolist() == [4, 24]

    def test_a_wait_for_what_came_before_it_began_keeps_its_length_too(self) -> None:
        found = schedule([(0, 0, 10, False), (0, 10, 30, True), (1, 0, 5, False)], [(2, 5, 1, True)])
        assert found.forward(np.array([10, 20, 5])).tolist() == [10, 30, 5]
        assert found.forward(np.array([10, 20, 45])).tolist() == [10, 65, 45]

    def test_a_moment_of_an_activity_moves_in_proportion(self) -> None:
        found = schedule([(0, 0, 40, False), (1, 0, 20, True), (1, 20, 30, False)], [(0, 20, 1, True)])
        assert found.forward(np.array([10, 0, 10])).tolist() == [10, 5, 15]

    def test_time_between_activities_of_a_lane_stays(self) -> None:
        assert schedule([(0, 0, 10, False), (0, 15, 20, False)]).forward(np.array([2, 5])).tolist() == [2, 12]

    def test_what_waited_for_nothing_stays_where_it_was(self) -> None:
        found = schedule([(0, 0, 10, False), (1, 7, 9, False)])
        assert found.forward(np.array([1, 1])).tolist() == [1, 8]

    def test_lengths_whose_product_exceeds_64_bits(self) -> None:
        big = 1 << 61
        found = schedule([(0, 0, big, False), (1, 0, big // 2, True)], [(0, big // 2, 1, True)])
        assert found.forward(np.array([big - 1, 0])).tolist() == [big - 1, (big // 2) * (big - 1) // big]

    def test_edges_that_contradict_the_times_do_not_count(self) -> None:
        activities = [(0, 0, 10, False), (1, 0, 5, True)]
        assert schedule(activities, [(0, 10, 1, True)]).forward().tolist() == [10, 5]

    def test_edges_of_one_instant_in_a_circle_do_not_count(self) -> None:
        activities = [(0, 0, 10, True), (1, 0, 10, True), (2, 0, 10, False)]
        found = schedule(activities, [(0, 10, 1, True), (1, 10, 0, True), (2, 10, 0, True)])
        assert found.forward().tolist() == [10, 10, 10]
        assert found.unexplained.tolist() == [False, True, False]

    def test_only_the_window_counts(self) -> None:
        found = Schedule.of(graph_of(*LOADER), 20, 40)
        assert found.kept.tolist() == [1, 2, 3]
        assert found.forward().tolist() == [30, 40, 28]
        assert Schedule.of(graph_of(*LOADER), 60, 70).forward().tolist() == []


def test_idle_time_after_the_end_of_a_process_is_an_outcome() -> None:
    activities = [(0, 0, 40, False), (1, 0, 10, False), (1, 10, 40, False)]
    graph = replace(graph_of(activities), phases=["work", "work", "idle"])
    found = Schedule.of(graph, 0, 40)
    assert found.kept.tolist() == [0, 1]
    assert found.slack().tolist() == [0, 30]
    assert found.drag(np.array([True, False])) == 30


class TestSlackAndDrag:
    def test_slack_is_none_on_the_path_and_what_others_may_take_beside_it(self) -> None:
        assert schedule(*LOADER).slack().tolist() == [18, 0, 0, 0]

    def test_slack_counts_the_moments_that_others_wait_for(self) -> None:
        found = schedule([(0, 0, 40, False), (1, 0, 20, True), (1, 20, 60, False)], [(0, 20, 1, True)])
        assert found.slack().tolist() == [0, 0, 0]  # its first half is on the path

    def test_drag_ends_where_something_else_binds(self) -> None:
        found = schedule(*LOADER)
        assert [found.drag(np.arange(4) == number) for number in range(4)] == [0, 2, 20, 18]
        assert found.drag(np.array([False, False, False, False])) == 0
        assert found.drag(np.array([True, False, False, True])) == 28

    def test_nothing_has_no_slack_and_no_drag(self) -> None:
        found = schedule([])
        assert found.slack().tolist() == []
        assert found.drag(np.zeros(0, bool)) == 0
        assert found.end == 0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Activity], list[Edge]]:
    """Activities in one to four lanes, and edges that mostly fit their times."""
    activities: list[Activity] = []
    for lane in range(draw(st.integers(1, 4))):
        moment = draw(st.integers(0, 3))
        for _ in range(draw(st.integers(0, 5))):
            moment += draw(st.sampled_from((0, 0, 0, 1, 3)))
            end = moment + draw(st.integers(1, 8))
            activities.append((lane, moment, end, draw(st.booleans())))
            moment = end
    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 10)) if activities else 0):
        source = draw(st.integers(0, len(activities) - 1))
        moment = draw(st.integers(activities[source][1], activities[source][2]))
        edges.append((source, moment, draw(st.integers(0, len(activities) - 1)), draw(st.booleans())))
    return activities, edges


def by_hand(found: Schedule, lengths: Sequence[int]) -> list[int]:
    """Return when each activity ends by relaxing the rules of the module until nothing changes."""
    graph, edges = found.graph, found.graph.edges
    start, end, lane = graph.start.tolist(), graph.end.tolist(), graph.lane.tolist()
    every = [
        tuple(map(int, row)) for row in zip(edges.source, edges.at, edges.target, edges.to_end, strict=True)
    ]
    moments = {number: {start[number], end[number]} for number in range(len(graph))}
    for source, at, _, _ in every:
        moments[source].add(at)
    came = {(number, at): -(10**9) for number, ats in moments.items() for at in ats}

    def after(edge: tuple[int, ...], bound: int, moment: int) -> int:
        source, at, _, _ = edge
        return came[source, at] + (moment - at if at == bound else 0)

    for _ in range(2 * len(came) + 2):
        for number, at in sorted(came, key=lambda event: event[1]):
            if at == start[number]:
                lets = [edge for edge in every if edge[2] == number and not edge[3]]
                follows = number > 0 and lane[number - 1] == lane[number]
                binding = max([edge[1] for edge in lets] + ([end[number - 1]] if follows else []), default=0)
                waited = [after(edge, binding, at) for edge in lets]
                if follows:
                    gap = at - end[number - 1] if end[number - 1] == binding else 0
                    waited.append(came[number - 1, end[number - 1]] + gap)
                came[number, at] = max(waited, default=at)
                continue
            ending = [edge for edge in every if edge[2] == number and edge[3]]
            effective = [edge for edge in ending if start[number] < edge[1] <= at]
            latest = max((edge[1] for edge in effective), default=start[number])
            last = max((edge[1] for edge in ending if edge[1] > start[number]), default=start[number])
            own = at - latest
            if latest == last and own:
                own = own * lengths[number] // (end[number] - last)
            before = max(moment for moment in moments[number] if moment < at)
            passed = 0  # of its own, at the moment before
            if before >= latest:
                passed = before - latest
                if latest == last and passed:
                    passed = passed * lengths[number] // (end[number] - last)
            if any(edge[1] > before for edge in effective):
                passed = 0  # its own begins anew
            waited = [came[number, before] + own - passed]
            waited += [came[edge[0], edge[1]] + own for edge in effective if edge[1] > before]
            if at == end[number]:
                waited += [came[edge[0], edge[1]] + own for edge in ending if edge[1] <= start[number]]
            came[number, at] = max(waited)
    return [came[number, end[number]] for number in range(len(graph))]


class TestEveryGraph:
    @given(graphs())
    @settings(max_examples=100, deadline=None)
    def test_the_forward_pass_reproduces_what_was_observed(
        self, drawn: tuple[list[Activity], list[Edge]]
    ) -> None:
        found = schedule(*drawn)
        assert found.forward().tolist() == found.graph.end.tolist()

    @given(graphs(), st.data())
    @settings(max_examples=60, deadline=None)
    def test_with_other_lengths_it_is_what_the_rules_say(
        self, drawn: tuple[list[Activity], list[Edge]], data: st.DataObject
    ) -> None:
        found = schedule(*drawn)
        lengths = [
            data.draw(st.sampled_from((0, length // 2, length, 2 * length + 1))) if length else 0
            for length in found.lengths.tolist()
        ]
        assert found.forward(np.array(lengths, np.int64)).tolist() == by_hand(found, lengths)

    @given(graphs())
    @settings(max_examples=60, deadline=None)
    def test_an_activity_may_take_longer_by_its_slack_and_no_more(
        self, drawn: tuple[list[Activity], list[Edge]]
    ) -> None:
        found = schedule(*drawn)
        has_moments = set(found.graph.edges.source[_inside(found.graph)].tolist())
        for number, slack in enumerate(found.slack().tolist()):
            assert slack >= 0
            if found.lengths[number] == 0 or number in has_moments:
                continue
            for more in (slack, slack + 1):
                lengths = found.lengths.copy()
                lengths[number] += more
                assert (int(found.forward(lengths).max()) > found.end) == (more > slack)

    @given(graphs())
    @settings(max_examples=60, deadline=None)
    def test_what_is_on_the_path_has_no_slack(self, drawn: tuple[list[Activity], list[Edge]]) -> None:
        activities, _ = drawn
        if not activities:
            return
        graph = graph_of(*drawn)
        high = max(end for _, _, end, _ in activities)
        lane = min(lane for lane, _, end, _ in activities if end == high)
        path = walk(graph, lane, 0, high)
        found = Schedule.of(graph, 0, high)
        slack = found.slack()
        for section, lane in zip(path.sections, path.sections.lane.tolist(), strict=True):
            for number, (of, start, end, _) in enumerate(activities):
                if section.kind != GAP and of == lane and start <= section.start < end:
                    assert slack[number] == 0

    @given(graphs(), st.randoms(use_true_random=False))
    @settings(max_examples=100, deadline=None)
    def test_the_order_of_edges_and_a_shift_in_time_change_nothing(
        self, drawn: tuple[list[Activity], list[Edge]], random: st.random.Random
    ) -> None:
        activities, edges = drawn
        shuffled = random.sample(edges, len(edges))
        moved = [(lane, start + 10**18, end + 10**18, waits) for lane, start, end, waits in activities]
        one = schedule(activities, edges)
        other = schedule(moved, [(s, at + 10**18, t, e) for s, at, t, e in shuffled], 10**18)
        assert one.slack().tolist() == other.slack().tolist()
        for number in range(len(activities)):
            mask = np.arange(len(activities)) == number
            assert one.drag(mask) == other.drag(mask)


def _inside(graph: EventGraph) -> np.ndarray:
    edges = graph.edges
    return (edges.at > graph.start[edges.source]) & (edges.at < graph.end[edges.source])


@pytest.mark.parametrize("steps", [20_000])
def test_a_long_run_is_done_in_one_pass(steps: int) -> None:
    activities: list[Activity] = []
    edges: list[Edge] = []
    for step in range(steps):
        activities += [(0, 30 * step, 30 * step + 10, True), (0, 30 * step + 10, 30 * step + 30, False)]
    for step in range(steps):
        activities.append((1, 30 * step, 30 * step + 8, False))
        edges.append((2 * steps + step, 30 * step + 8, 2 * step, True))
    found = schedule(activities, edges)
    assert found.end == 30 * steps
    assert found.drag(found.graph.waits) == 2  # all takeovers but the last are hidden by the worker's pace
