# SPDX-License-Identifier: Apache-2.0
"""The recording governor's rule, and what the recorder writes at each level."""

from __future__ import annotations

from itertools import count, pairwise
from time import perf_counter_ns

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks, semconv
from grademl_otel.governor import MAX_RETURNS, STEPS_PER_ROW, UPDATES, Governor, Levels, levels
from grademl_otel.loops import LoaderFacts
from grademl_otel.recorder import Recorder
from tests.support.listwriter import ListTransport, ListWriter

US = 1_000
MS = 1_000_000


def decide(governor: Governor, cost: int, step: int, steps: int = 1000, lowest: int = UPDATES) -> int:
    for _ in range(8):
        governor.sample(cost, step)
    governor.window_ends(steps, lowest)
    return governor.level


def test_steps_that_cost_little_are_recorded_in_full() -> None:
    governor = Governor()
    assert [decide(governor, 20 * US, 2 * MS) for _ in range(5)] == [0] * 5
    assert governor.reason == ""


def test_short_steps_drive_the_level_down_one_at_a_time() -> None:
    governor = Governor()
    assert [decide(governor, 30 * US, MS // 2) for _ in range(4)] == [1, 2, 3, 3]
    assert governor.reason == "own cost 6 % of a 0.5 ms step; budget 1 %"


def test_the_lowest_level_is_a_last_resort() -> None:
    governor = Governor()
    assert [decide(governor, 2 * MS // 100, MS) for _ in range(4)] == [1, 2, 2, 2]


def test_the_first_steps_decide_nothing() -> None:
    governor = Governor()
    assert decide(governor, MS, MS, steps=31) == 0
    assert decide(Governor(), MS, MS, steps=32) == 1


def test_few_samples_decide_nothing() -> None:
    governor = Governor()
    for _ in range(7):
        governor.sample(MS, MS)
    assert not governor.window_ends(1000)


def test_one_interrupted_hook_decides_nothing() -> None:
    governor = Governor()
    for cost in (1000, 90 * MS, 1000, 1000, 80 * MS, 1000, 1000, 70 * MS):
        governor.sample(cost, MS)
    assert not governor.window_ends(1000)


def test_the_level_comes_back_when_steps_are_twice_as_long_and_not_before() -> None:
    governor = Governor()
    assert decide(governor, 15 * US, MS) == 1
    assert decide(governor, 5 * US, MS) == 1
    assert decide(governor, 5 * US, 29 * MS // 10) == 1
    assert decide(governor, 5 * US, 3 * MS) == 0


def test_the_same_steps_never_bring_it_back() -> None:
    governor = Governor()
    levels_seen = [decide(governor, cost * US, MS) for cost in (25, 22, 8, 25, 8, 8, 25, 8)]
    assert levels_seen == sorted(levels_seen)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**9)), max_size=60))
def test_it_moves_by_one_and_returns_few_times(windows: list[tuple[int, int]]) -> None:
    governor = Governor()
    seen = [0, *(decide(governor, cost, step) for cost, step in windows)]
    moves = [after - before for before, after in pairwise(seen)]
    assert set(moves) <= {-1, 0, 1}
    assert moves.count(-1) <= MAX_RETURNS
    assert all(0 <= level <= UPDATES for level in seen)


def test_followers_hear_of_changes_only() -> None:
    heard: list[tuple[int, bool]] = []
    own = Levels()
    leave = own.follow(lambda level, learning: heard.append((level, learning)))
    for level, learning in ((0, False), (1, False), (1, False), (1, True), (1, False)):
        own.set(level, learning)
    leave()
    leave()
    own.set(3)
    assert heard == [(1, False), (1, True), (1, False)]


# --- What the recorder writes -------------------------------------------------------------------------------


class Loop:
    """A training loop whose steps take 1 ms and cost the tracer ``cost`` ns."""

    def __init__(self, cost: int) -> None:
        self.writer = ListWriter()
        self.recorder = Recorder(self.writer, ListTransport(), count(2))
        self.machine = self.recorder.here()
        self.now = MS
        self.cost = cost
        self.pass_ = self.machine.iterator_made(LoaderFacts(0), self.now)
        self.machine.optimizer_made(7)

    def steps(self, number: int) -> None:
        for _ in range(number):
            recorder, machine, now = self.recorder, self.machine, self.now
            self.now += MS
            if recorder.level == UPDATES:
                recorder.updated(7, self.now)
                continue
            machine.begin_wait(self.pass_, now)
            machine.end_wait(self.pass_, now, now + MS // 10, 4)
            machine.begin_forward(now + MS // 10, 1)
            machine.end_forward(now + MS // 10, now + MS // 2, True, 1, 0)
            machine.begin_backward(now + MS // 2)
            machine.end_backward(now + MS // 2, now + 9 * MS // 10)
            if recorder.level == UPDATES:
                recorder.updated(7, self.now)
                continue
            machine.begin_optimizer(now + 9 * MS // 10)
            machine.stepped(7, now + 9 * MS // 10, self.now)
            if recorder.measuring:
                recorder.spent(perf_counter_ns() - self.cost)

    def levels(self) -> list[tuple[int, int]]:
        """(step that begins next, level) of each change."""
        key = self.writer.strings.index(semconv.WINDOW_RECORD_LEVEL)
        changes, steps = [], 0
        for mark in self.writer.marks:
            if mark.kind == marks.ROW:
                steps += mark.z if marks.unpack_row(mark.y)[0] & marks.SEVERAL else 1
            elif mark.kind == marks.SCOPE_INT and mark.x == key:
                changes.append((steps, mark.y))
        return changes


@pytest.fixture
def costly() -> Loop:
    return Loop(MS // 2)


def test_levels_change_where_windows_end(costly: Loop) -> None:
    costly.steps(300)
    assert costly.levels() == [(48, 1), (112, 2), (240, 3)]
    assert levels.level == 3


def test_nothing_changes_within_the_budget() -> None:
    loop = Loop(0)
    loop.recorder.governor.budget = 1.0
    loop.steps(600)
    assert semconv.WINDOW_RECORD_LEVEL not in loop.writer.strings
    assert len(loop.writer.phases(semconv.FORWARD)) == 600


def test_boundaries_have_waits_and_nothing_inside_a_step(costly: Loop) -> None:
    costly.steps(114)
    before = len(costly.writer.marks)
    forwards = costly.writer.totals[marks.ACC_PHASE_COUNT + semconv.PHASE_INDEX[semconv.FORWARD]]
    costly.steps(98)
    kinds = {mark.kind for mark in costly.writer.marks[before:]}
    assert kinds == {marks.ROW, marks.phase_kind(semconv.DATA_WAIT)}
    totals = costly.writer.totals
    assert totals[marks.ACC_PHASE_COUNT + semconv.PHASE_INDEX[semconv.FORWARD]] == forwards
    assert totals[marks.ACC_STEPS] == 211  # the last one ends with the next wait
    assert costly.writer.running == []


def test_rows_of_updates_stand_for_sixteen_steps(costly: Loop) -> None:
    costly.steps(241)
    before = len(costly.writer.rows)
    costly.steps(15 + 10 * STEPS_PER_ROW)
    rows = costly.writer.rows[before:]
    assert {mark.z for mark in rows} == {STEPS_PER_ROW}
    assert [mark.x for mark in rows] == [*range(rows[0].x, rows[-1].x + 1, STEPS_PER_ROW)]
    assert all(mark.x % STEPS_PER_ROW == 0 for mark in rows)
    assert all(a.t1 == b.t0 for a, b in pairwise(rows))
    told = rows[-1].x + STEPS_PER_ROW
    assert costly.recorder.totals.steps - STEPS_PER_ROW < told <= costly.recorder.totals.steps
    assert costly.writer.totals[marks.ACC_STEPS] == told
    assert sum(costly.writer.totals[marks.ACC_HISTOGRAM : marks.ACC_SLOTS]) == told


def test_a_new_pass_is_seen_at_boundaries_again(costly: Loop) -> None:
    costly.steps(245)
    counted = costly.recorder.totals.steps
    costly.pass_ = costly.machine.iterator_made(LoaderFacts(0), costly.now)
    assert costly.recorder.level == 2
    costly.steps(10)
    costly.recorder.finish()
    assert costly.recorder.totals.steps == counted + 10
    assert costly.writer.totals[marks.ACC_STEPS] == counted + 10
    starts = [mark.x for mark in costly.writer.rows]
    assert len(set(starts)) == len(starts)


def test_the_end_of_a_run_writes_what_was_counted(costly: Loop) -> None:
    costly.steps(247)
    costly.recorder.finish()
    told = sum(m.z if marks.unpack_row(m.y)[0] & marks.SEVERAL else 1 for m in costly.writer.rows)
    assert told == costly.recorder.totals.steps == costly.writer.totals[marks.ACC_STEPS] == 247


def test_updates_end_with_the_optimizer_that_ended_the_steps() -> None:
    loop = Loop(MS // 2)
    loop.steps(241)
    before = loop.recorder.totals.steps
    for _ in range(32):
        loop.recorder.updated(99, loop.now)
        loop.steps(1)
    assert loop.recorder.totals.steps == before + 32
    for _ in range(64 + 5):
        loop.recorder.updated(99, loop.now)
    assert loop.recorder.totals.steps == before + 32 + 5


def test_a_later_run_begins_at_the_first_level(costly: Loop) -> None:
    costly.steps(241)
    assert levels.level == 3
    Recorder(ListWriter(), ListTransport(), count(2))
    assert levels.level == 0
