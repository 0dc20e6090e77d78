# SPDX-License-Identifier: Apache-2.0
"""The crew that does what is due: few threads where nothing takes long, as many as it takes otherwise."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grademl_otel.sampling import crew as module
from grademl_otel.sampling.alarm import Alarm
from grademl_otel.sampling.crew import Crew

WAIT_S = 60
_QUICK_NS = 4_000_000


class Turns:
    """A task that does what ``act`` says, which is given the number of the turn, from 0."""

    def __init__(self, act: Callable[[int], object] = lambda number: None, every_ns: int = _QUICK_NS) -> None:
        self.act = act
        self.every_ns = every_ns
        self.due_ns = time.perf_counter_ns()
        self.count = 0
        self.leaving = False
        self.threads: set[str | int] = set()
        self._busy = threading.Lock()
        self.beside = 0

    def turn(self) -> bool:
        if not self._busy.acquire(blocking=False):
            self.beside += 1
            return True
        try:
            if self.leaving:
                return False
            self.threads.add(threading.get_ident())
            self.act(self.count)
            self.count += 1
            self.due_ns = (time.perf_counter_ns() // self.every_ns + 1) * self.every_ns
            return True
        finally:
            self._busy.release()


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(f"crew {time.perf_counter_ns()}")
    yield made
    made.end()


def threads(crew: Crew) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == crew._name]


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def leave(crew: Crew, *tasks: Turns) -> None:
    for task in tasks:
        task.leaving = True
        crew.hurry(task)


def test_there_are_threads_while_there_are_tasks_and_few_of_them(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOMENT_NS", 3_600_000_000_000)  # nothing is slow, also on a busy machine
    assert threads(crew) == []
    tasks = [Turns() for _ in range(50)]
    for task in tasks:
        crew.add(task)
    until(lambda: all(task.count > 20 for task in tasks))
    assert len(threads(crew)) < 10
    assert crew.cost_ns() > 0
    leave(crew, *tasks)
    crew.end()
    until(lambda: not threads(crew))
    cost = crew.cost_ns()
    assert cost > 0
    assert [task.beside for task in tasks] == [0] * 50


def test_turns_that_hang_stop_nobody(crew: Crew) -> None:
    release = threading.Event()
    hanging = [Turns(lambda number: release.wait(WAIT_S)) for _ in range(6)]
    others = [Turns() for _ in range(10)]
    for task in [*hanging, *others]:
        crew.add(task)
    until(lambda: all(task.count > 10 for task in others))
    assert [task.count for task in hanging] == [0] * 6
    release.set()
    until(lambda: all(task.count > 10 for task in hanging))


def test_what_is_slow_is_done_side_by_side(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for all of them, which ends only where they are at it at the same time."""
    monkeypatch.setattr(module, "_MOMENT_NS", 1_000_000)
    together = threading.Barrier(5)
    tasks = [Turns(lambda number: together.wait(WAIT_S)) for _ in range(5)]
    for task in tasks:
        crew.add(task)
    until(lambda: all(task.count > 5 for task in tasks))
    assert not together.broken
    together.abort()
    leave(crew, *tasks)


def test_a_slow_one_is_handed_on_at_once(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it hangs the other does not wait for the watch, which would not come in this test."""
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> None:
        if number == 0:
            time.sleep(0.05)
        if number == 1:
            monkeypatch.setattr(module, "_MOMENT_NS", 3_600_000_000_000)
            hangs.set()
            release.wait(WAIT_S)

    slow, other = Turns(act, 200_000_000), Turns()
    crew.add(slow)
    crew.add(other)
    assert hangs.wait(WAIT_S)
    count = other.count
    until(lambda: other.count > count + 10)
    release.set()
    leave(crew, slow, other)


def test_one_that_waits_for_long_is_hurried(crew: Crew) -> None:
    task, other = Turns(every_ns=3_600_000_000_000), Turns()
    crew.add(task)
    crew.add(other)
    until(lambda: task.count == 1 and other.count > 3)
    leave(crew, task)
    crew.hurry(Turns())  # of which it knows nothing
    leave(crew, other)
    crew.end()
    until(lambda: not threads(crew))
    assert task.count == 1


def test_nobody_wakes_while_nothing_is_due(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Counting(Alarm):
        __slots__ = ()

        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return super().wait(seconds)

    monkeypatch.setattr(module, "Alarm", Counting)
    chance = random.Random(7)
    tasks = [
        Turns(lambda number: time.sleep(chance.random() * 0.08), 3_600_000_000_000 + number)
        for number in range(12)
    ]
    for task in tasks:
        crew.add(task)
    for _ in range(100):
        crew.hurry(chance.choice(tasks))
        time.sleep(0.001)

    def quiet() -> bool:
        before = len(waits)
        time.sleep(0.3)
        return len(waits) == before

    until(quiet)
    assert all(task.count for task in tasks)
    leave(crew, *tasks)


def test_one_that_is_hurried_in_its_turn_has_another_one_at_once(crew: Crew) -> None:
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> None:
        hangs.set()
        release.wait(WAIT_S)

    task = Turns(act, every_ns=3_600_000_000_000)
    crew.add(task)
    assert hangs.wait(WAIT_S)
    leave(crew, task)
    crew.end()
    release.set()
    until(lambda: not threads(crew))


def test_where_there_can_be_no_thread_it_is_said_and_nothing_is_left(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starting(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", starting)
        refused = Turns()
        with pytest.raises(RuntimeError):
            crew.add(refused)
    task = Turns()
    crew.add(task)
    until(lambda: task.count > 3)
    assert refused.count == 0


def test_one_thread_does_it_all_where_there_can_be_no_more(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, []

    def starting(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    tasks = [Turns(lambda number: time.sleep(0.001)) for _ in range(5)]
    for task in tasks:
        try:
            crew.add(task)
        except RuntimeError:
            tasks = [each for each in tasks if each is not task]
    assert tasks
    until(lambda: all(task.count > 5 for task in tasks))
    assert len(threads(crew)) == 1


def test_who_is_not_needed_for_long_ends(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_NS", 10_000_000)
    release = threading.Event()
    hanging = [Turns(lambda number: release.wait(WAIT_S)) for _ in range(8)]
    other = Turns()
    for task in (*hanging, other):
        crew.add(task)
    until(lambda: other.count > 3 and len(threads(crew)) >= 9)
    release.set()
    until(lambda: len(threads(crew)) <= 3)
    before = crew.cost_ns()
    until(lambda: other.count > 20)
    assert crew.cost_ns() >= before


def test_one_that_raises_against_its_contract_has_no_more_turns(crew: Crew) -> None:
    def act(number: int) -> None:
        raise SystemExit

    bad, other = Turns(act), Turns()
    crew.add(bad)
    crew.add(other)
    until(lambda: other.count > 5)
    leave(crew, other)
    crew.end()
    until(lambda: not threads(crew))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_takes_however_long_all_have_their_turns(crew: Crew, seed: int) -> None:
    chance = random.Random(seed)
    costs: list[int] = []

    def act(number: int) -> None:
        if not chance.randrange(20):
            time.sleep(chance.random() * 0.08)
        costs.append(crew.cost_ns())

    tasks = [Turns(act, chance.choice((2_000_000, 5_000_000, 30_000_000))) for _ in range(12)]
    for task in tasks:
        crew.add(task)
    late = Turns(act)
    until(lambda: all(task.count > 20 for task in tasks))
    crew.add(late)
    until(lambda: late.count > 20)
    assert [task.beside for task in (*tasks, late)] == [0] * 13
    leave(crew, *tasks, late)
    crew.end()
    until(lambda: not threads(crew))
