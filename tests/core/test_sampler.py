# SPDX-License-Identifier: Apache-2.0
"""The sampler against sources that hang, fail, talk nonsense, go and come back; by events, not by time."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from grademl_otel.catalog.metric import COUNTER, GAUGE, Metric
from grademl_otel.sampling import sampler as module
from grademl_otel.sampling.faults import Faults
from grademl_otel.sampling.sampler import Sample, Sampler
from grademl_otel.sampling.source import Reading, Series, Source, SourceGone

WAIT_S = 60
TEMPERATURE = Metric("test.temperature", "Cel", GAUGE, "How hot.", "a test")
TURNS = Metric("test.turns", "{turn}", COUNTER, "How often.", "a test")
QUICK_S = 0.005


class Fake:
    """A source that does what ``act`` says, which is given the number of the reading, from 0."""

    def __init__(self, name: str, act: Callable[[int], Any] | None = None) -> None:
        self.name = name
        self.heat = Series(TEMPERATURE, {"hw.id": name}, name)
        self.turns = Series(TURNS, {"hw.id": name}, name)
        self.act = act or self.ordinary
        self.reads = 0
        self.closed = 0
        self.closed_in = ""

    def ordinary(self, number: int) -> list[Reading]:
        return [(self.heat, 40.5), (self.turns, number)]

    def read(self) -> Sequence[Reading]:
        self.reads += 1
        found: Sequence[Reading] = self.act(self.reads - 1)
        return found

    def close(self) -> None:
        self.closed += 1
        self.closed_in = threading.current_thread().name


class Shelf:
    """A provider of what lies on it."""

    name = "shelf"

    def __init__(self, *sources: Source) -> None:
        self.here: list[Source] = list(sources)
        self.asked = 0
        self.closed = 0
        self.act: Callable[[], None] = lambda: None

    def sources(self) -> Sequence[Source]:
        self.asked += 1
        self.act()
        return list(self.here)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def make() -> Iterator[Callable[..., tuple[Sampler, list[str]]]]:
    """Return a function that starts a sampler, and gives what it tells."""
    started: list[Sampler] = []

    def start(*providers: Any, interval_s: float = QUICK_S, **options: Any) -> tuple[Sampler, list[str]]:
        told: list[str] = []
        sampler = Sampler(providers, interval_s, told.append, **options)
        started.append(sampler)
        sampler.start()
        return sampler, told

    yield start
    for sampler in started:
        sampler.stop(WAIT_S)


def until(true: Callable[[], Any]) -> Any:
    """Wait until ``true()`` is, and return it."""
    end = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)
    return found


def values(sampler: Sampler, name: str) -> dict[tuple[Any, ...], int | float]:
    return {
        tuple(sample.series.attributes.values()): sample.value
        for sample in sampler.latest()
        if sample.series.metric.name == name
    }


def heats(sampler: Sampler) -> set[Any]:
    return {key[0] for key in values(sampler, "test.temperature")}


def failures(sampler: Sampler) -> dict[tuple[Any, ...], int | float]:
    return values(sampler, "grademl.sampler.failures")


def test_what_sources_say_is_there_with_its_times(make: Any) -> None:
    a, b = Fake("a"), Fake("b")
    before = time.perf_counter_ns()
    sampler, told = make(Shelf(a, b))
    until(lambda: a.reads > 3 and b.reads > 3)
    samples: list[Sample] = sampler.latest()
    now = time.perf_counter_ns()

    by_series = {id(sample.series): sample for sample in samples}
    assert by_series[id(a.heat)].value == 40.5
    turns = by_series[id(a.turns)]
    assert 1 <= turns.value <= a.reads
    for sample in (turns, by_series[id(b.heat)]):
        assert before <= sample.start_ns < sample.time_ns <= now
    assert told == []
    assert sampler.stop(WAIT_S)


def test_ticks_are_at_whole_multiples_of_the_interval(make: Any) -> None:
    times: list[int] = []
    interval = 20_000_000
    source = Fake("a")
    sampler = Sampler([Shelf(source)], interval / 1e9)
    sampler.listen(lambda name, at, readings: times.append(at))
    sampler.start()
    try:
        until(lambda: len(times) > 5)
    finally:
        sampler.stop(WAIT_S)
    ticks = [at // interval for at in times[1:]]  # the first is at once
    assert ticks == sorted(set(ticks)), "two readings for one tick"


def test_it_says_what_it_costs_and_nothing_where_there_is_nothing(make: Any) -> None:
    source = Fake("a")
    busy, _ = make(Shelf(source))
    empty = Shelf()
    idle, _ = make(empty)
    until(lambda: source.reads > 2 and empty.asked)
    (cost,) = values(busy, "grademl.sampler.cost").values()
    assert 0 < cost < 10
    assert idle.latest() == []


def test_one_that_hangs_stops_nobody_and_its_values_are_not_repeated(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_DEADLINE_NS", 100_000_000)
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> Any:
        if number == 2:
            hangs.set()
            release.wait(WAIT_S)
        return slow.ordinary(number)

    slow, other = Fake("slow", act), Fake("other")
    shelf = Shelf(slow, other)
    sampler, told = make(shelf)
    assert hangs.wait(WAIT_S)
    until(lambda: heats(sampler) == {"other"})
    late = until(lambda: values(sampler, "grademl.sampler.late").get(("slow",)))
    until(lambda: values(sampler, "grademl.sampler.late")[("slow",)] > late)
    reads = other.reads
    until(lambda: other.reads > reads + 3)
    assert slow.reads == 3
    assert len([line for line in told if line.startswith("slow: no answer for ")]) == 1

    missed = values(sampler, "grademl.sampler.late")[("slow",)]
    release.set()
    until(lambda: heats(sampler) == {"slow", "other"})
    until(lambda: "slow: works again" in told)
    assert values(sampler, "grademl.sampler.late")[("slow",)] >= missed
    assert len([line for line in told if line.startswith("slow")]) == 2


def test_stop_does_not_wait_for_one_that_hangs(make: Any) -> None:
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> Any:
        hangs.set()
        release.wait(WAIT_S)
        return []

    slow, other = Fake("slow", act), Fake("other")
    shelf = Shelf(slow, other)
    sampler, _ = make(shelf)
    assert hangs.wait(WAIT_S)
    until(lambda: other.reads)
    assert not sampler.stop(0.01)
    until(lambda: other.closed)
    assert sampler.latest() == []
    assert (slow.closed, shelf.closed) == (0, 0)
    release.set()
    until(lambda: shelf.closed)
    assert (slow.closed, other.closed, shelf.closed) == (1, 1, 1)
    assert slow.closed_in == "grademl sampler"


def test_a_provider_that_hangs_stops_nobody(make: Any) -> None:
    hangs, release = threading.Event(), threading.Event()

    def act() -> None:
        hangs.set()
        release.wait(WAIT_S)

    stuck = Shelf()
    stuck.name = "stuck"
    stuck.act = act
    source = Fake("a")
    sampler, told = make(stuck, Shelf(source), rescan_s=0.01)
    assert hangs.wait(WAIT_S)
    until(lambda: source.reads > 2)
    until(lambda: sampler.latest() and any(line.startswith("stuck: no answer") for line in told))
    assert not sampler.stop(0.01)
    release.set()
    until(lambda: stuck.closed)


def test_failures_are_counted_told_once_and_over(make: Any) -> None:
    def act(number: int) -> Any:
        if number in (2, 3, 4, 6):
            raise OSError("no such device")
        if number == 7:
            raise ValueError("odd")
        return source.ordinary(number)

    source = Fake("a", act)
    sampler, told = make(Shelf(source))
    until(lambda: source.reads > 9)
    assert failures(sampler) == {("a", "OSError"): 4, ("a", "ValueError"): 1}
    assert told == [
        "a: cannot be read: OSError: no such device",
        "a: works again",
        "a: cannot be read: ValueError: odd",
        "a: works again",
    ]
    assert heats(sampler) == {"a"}


def test_pauses_grow_while_it_fails(make: Any) -> None:
    times: list[int] = []

    def act(number: int) -> Any:
        times.append(time.perf_counter_ns())
        raise OSError("no")

    source = Fake("a", act)
    sampler, _ = make(Shelf(source))
    until(lambda: len(times) > 7)
    assert times[7] - times[6] >= (1 << 5) * QUICK_S * 1e9
    assert heats(sampler) == set()


@pytest.mark.parametrize("nonsense", [None, 7, "text", [None], [()], [(1, 2)], [("a", 1, 2)]])
def test_nonsense_is_a_failure(make: Any, nonsense: Any) -> None:
    source = Fake("a", lambda number: nonsense)
    other = Fake("b")
    sampler, told = make(Shelf(source, other))
    until(lambda: failures(sampler) and other.reads > 2)
    assert heats(sampler) == {"b"}
    assert len(told) == 1


@pytest.mark.parametrize("value", [None, "7", float("nan"), float("inf"), 1 << 63, -(1 << 64), True, [1]])
def test_impossible_values_do_not_cost_the_others(make: Any, value: Any) -> None:
    source = Fake("a", lambda number: [(source.heat, value), (source.turns, number)])
    sampler, told = make(Shelf(source))
    until(lambda: source.reads > 3 and failures(sampler))
    assert values(sampler, "test.temperature") == {}
    assert values(sampler, "test.turns")
    assert told == [
        line for line in told if line.startswith("a: says nonsense: ValueError: test.temperature")
    ]


def test_one_that_is_gone_is_closed_and_its_provider_asked(make: Any) -> None:
    def act(number: int) -> Any:
        if number == 2:
            shelf.here.remove(first)
            raise SourceGone
        return first.ordinary(number)

    first = Fake("a", act)
    shelf = Shelf(first)
    sampler, told = make(shelf, rescan_s=WAIT_S * 10)
    until(lambda: first.closed and shelf.asked == 2)
    until(lambda: heats(sampler) == set())
    assert (first.reads, first.closed, told) == (3, 1, [])
    assert failures(sampler) == {}


def test_one_that_is_gone_again_and_again_is_no_busy_loop(make: Any) -> None:
    class Flapping(Shelf):
        def sources(self) -> Sequence[Source]:
            self.asked += 1
            return [Fake("a", gone)]

    def gone(number: int) -> Any:
        raise SourceGone

    shelf, other = Flapping(), Fake("b")
    make(shelf, Shelf(other), rescan_s=WAIT_S * 10)
    until(lambda: shelf.asked >= 2)
    until(lambda: other.reads > 50)
    assert shelf.asked == 2


def test_hot_plug(make: Any) -> None:
    first, second = Fake("a"), Fake("b")
    shelf = Shelf(first)
    sampler, told = make(shelf, rescan_s=0.01)
    until(lambda: heats(sampler) == {"a"})
    shelf.here.append(second)
    until(lambda: heats(sampler) == {"a", "b"})
    shelf.here.remove(first)
    until(lambda: first.closed)
    until(lambda: heats(sampler) == {"b"})
    again = Fake("a")
    shelf.here.append(again)
    until(lambda: heats(sampler) == {"a", "b"})
    assert (second.closed, told) == (0, [])


def test_a_name_is_read_once_at_a_time_even_when_its_predecessor_hangs(make: Any) -> None:
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> Any:
        hangs.set()
        release.wait(WAIT_S)
        return []

    stuck, again = Fake("a", act), Fake("a")
    shelf = Shelf(stuck)
    make(shelf, rescan_s=0.01)
    assert hangs.wait(WAIT_S)
    shelf.here[:] = [again]
    asked = shelf.asked
    until(lambda: shelf.asked > asked + 3)
    assert again.reads == 0
    release.set()
    until(lambda: again.reads)
    assert stuck.closed == 1


def test_a_provider_that_fails_is_asked_again(make: Any) -> None:
    def act() -> None:
        if shelf.asked < 3:
            raise RuntimeError("driver not loaded")

    source = Fake("a")
    shelf = Shelf(source)
    shelf.act = act
    sampler, told = make(shelf)
    until(lambda: source.reads > 1)
    assert failures(sampler) == {("shelf", "RuntimeError"): 2}
    assert told == [
        "shelf: cannot tell what there is: RuntimeError: driver not loaded", "shelf: works again"
    ]  # fmt: skip


def test_listeners_hear_each_reading_and_cannot_break_it(make: Any) -> None:
    heard: list[tuple[str, int, int]] = []

    def bad(name: str, at: int, readings: Sequence[Reading]) -> None:
        raise KeyError("mine")

    source = Fake("a")
    told: list[str] = []
    sampler = Sampler([Shelf(source)], QUICK_S, told.append)
    sampler.listen(bad)
    sampler.listen(lambda name, at, readings: heard.append((name, at, len(readings))))
    sampler.start()
    try:
        until(lambda: len(heard) > 3)
        assert heats(sampler) == {"a"}
    finally:
        sampler.stop(WAIT_S)
    assert {(name, count) for name, _, count in heard} == {("a", 2)}
    assert len(told) == 1


def test_a_tell_that_raises_harms_nothing() -> None:
    def tell(line: str) -> None:
        raise RuntimeError(line)

    faults = Faults(tell)
    faults.failed("a", OSError("x"))
    faults.recovered("a")
    assert faults.counts() == [("a", "OSError", 1)]


def test_kinds_of_failures_are_bounded() -> None:
    told: list[str] = []
    faults = Faults(told.append)
    for number in range(1000):
        faults.failed(f"device {number}", OSError("x"))
    assert len(told) <= 256
    assert len(faults.counts()) <= 257
    assert sum(count for _, _, count in faults.counts()) == 1000


def test_a_message_that_is_no_text_is_told_all_the_same() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return b"\xff".decode()

    told: list[str] = []
    Faults(told.append).failed("a", Odd())
    assert told == ["a: cannot be read: Odd: ?"]


def test_sources_that_are_gone_are_not_kept(make: Any) -> None:
    shelf = Shelf(Fake("a"))
    seen = weakref.ref(shelf.here[0])
    sampler, _ = make(shelf, rescan_s=0.01)
    until(lambda: heats(sampler))
    shelf.here.clear()
    until(lambda: (gc.collect(), seen() is None)[1])
    assert sampler.latest() != [], "what the sampler says of itself stays"


def test_counts_of_what_is_gone_stay(make: Any) -> None:
    def act(number: int) -> Any:
        if number:
            raise SourceGone
        raise OSError("x")

    source = Fake("a", act)
    shelf = Shelf(source)
    sampler, _ = make(shelf, rescan_s=WAIT_S * 10)
    until(lambda: source.closed)
    shelf.here.clear()
    assert failures(sampler) == {("a", "OSError"): 1}


def test_no_more_threads_is_told_and_tried_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def starting(thread: threading.Thread) -> None:
        if thread.name == "grademl sampler" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    a, b = Fake("a"), Fake("b")
    sampler, told = make(Shelf(a, b), rescan_s=0.01)
    until(lambda: heats(sampler) == {"a", "b"})
    assert told[0] == "shelf: cannot be sampled: RuntimeError: can't start new thread"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_sources_do_counts_never_fall_and_nothing_is_told_twice(make: Any, seed: int) -> None:
    chance = random.Random(seed)
    free = threading.Event()

    def misbehave(source: Fake) -> Callable[[int], Any]:
        def act(number: int) -> Any:
            what = chance.randrange(12)
            if what == 0:
                raise OSError("no")
            if what == 1:
                raise SourceGone
            if what == 2:
                return [(source.heat, float("nan")), (source.turns, number)]
            if what == 3:
                free.wait(0.03)
            if what == 4:
                return None
            return source.ordinary(number)

        return act

    class Changing(Shelf):
        def sources(self) -> Sequence[Source]:
            self.asked += 1
            if not chance.randrange(4):
                raise RuntimeError("busy")
            for number in range(8):
                name = f"s{number}"
                known = next((each for each in self.here if each.name == name), None)
                if known is None or (isinstance(known, Fake) and known.closed) or not chance.randrange(8):
                    self.here = [each for each in self.here if each.name != name]
                    source = Fake(name)
                    source.act = misbehave(source)
                    self.here.append(source)
            return list(self.here)

    shelf = Changing()
    sampler, told = make(shelf, rescan_s=0.02)
    before: dict[Any, int | float] = {}
    looks = 0
    while shelf.asked < 25:
        looks += 1
        samples = sampler.latest()
        assert len({id(sample.series) for sample in samples}) == len(samples)
        own = {
            (sample.series.metric.name, *sample.series.attributes.values()): sample.value
            for sample in samples
            if sample.series.metric.name.startswith("grademl.sampler.")
        }
        assert all(own[key] >= value for key, value in before.items())
        before = own
        time.sleep(0.002)
    free.set()
    assert sampler.stop(WAIT_S)
    assert shelf.closed == 1
    kinds = [line.partition(" works again")[0] for line in told if not line.endswith("works again")]
    assert len(kinds) == len(set(kinds))
    assert {key[2] for key in before if key[0] == "grademl.sampler.failures"} >= {"OSError", "TypeError"}


def test_a_forked_child_has_no_sampler(make: Any) -> None:
    source = Fake("a")
    sampler, _ = make(Shelf(source))
    until(lambda: heats(sampler))
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            reads = source.reads
            sampler.start()
            told = [sampler.latest() == [], sampler.stop(WAIT_S), source.reads == reads]
            other = Fake("a")
            own = Sampler([Shelf(other)], QUICK_S)
            own.start()
            until(lambda: heats(own))
            told.append(own.stop(WAIT_S))
            os.write(into, b"ok" if all(told) else repr(told).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        assert pipe.read() == b"ok"
    os.waitpid(pid, 0)
    assert heats(sampler) == {"a"}


def test_it_starts_once_and_stops_twice(make: Any) -> None:
    source = Fake("a")
    sampler, _ = make(Shelf(source))
    sampler.start()
    until(lambda: source.reads > 1)
    assert sampler.stop(WAIT_S)
    assert sampler.stop(WAIT_S)
    sampler.start()
    assert sampler.latest() == []
    assert source.closed == 1
    never = Sampler([Shelf(source)], QUICK_S)
    assert never.stop(WAIT_S)
    assert never.latest() == []


def test_paces_of_their_own(make: Any) -> None:
    quick, slow = Fake("quick"), Fake("slow")
    sampler = Sampler([Shelf(quick)], QUICK_S)
    sampler.add([Shelf(slow)], 1000)
    sampler.start()
    try:
        until(lambda: quick.reads > 10)
        assert slow.reads == 1
        assert heats(sampler) == {"quick", "slow"}
    finally:
        assert sampler.stop(WAIT_S)


class InTwo(Fake):
    """A source whose readings come in two parts, the other one as ``rest`` says."""

    def __init__(self, name: str, rest: Callable[[int], Any], after_s: float = 0.001) -> None:
        super().__init__(name)
        self.rest = rest
        self.rests = 0
        self.rest_after_s = 0.0
        self._after_s = after_s

    def read(self) -> Sequence[Reading]:
        self.rest_after_s = self._after_s
        self.reads += 1
        return [(self.heat, 40.5)]

    def read_rest(self) -> Sequence[Reading]:
        self.rests += 1
        found: Sequence[Reading] = self.rest(self.rests - 1)
        self.rest_after_s = 0.0
        return found


def test_both_parts_of_a_reading_are_one_of_the_time_of_the_first(make: Any) -> None:
    source = InTwo("a", lambda number: [(source.turns, number)], after_s=0.02)
    times: list[tuple[int, int, int]] = []
    sampler = Sampler([Shelf(source)], 0.1)
    sampler.listen(lambda name, at, readings: times.append((at, time.perf_counter_ns(), len(readings))))
    sampler.start()
    try:
        until(lambda: len(times) > 3)
        assert {count for _, _, count in times} == {2}
        assert all(heard - at >= 20_000_000 for at, heard, _ in times)
        assert heats(sampler) == set(*values(sampler, "test.turns")) == {"a"}
    finally:
        assert sampler.stop(WAIT_S)
    assert source.closed == 1


@pytest.mark.parametrize("rest", [OSError("no"), None, 7])
def test_the_first_part_stands_by_itself_where_the_rest_fails(make: Any, rest: Any) -> None:
    """Also where the source asks, as here, that the rest be read again, which might go on for ever."""

    def act(number: int) -> Any:
        if isinstance(rest, Exception):
            raise rest
        return rest

    source = InTwo("a", act)
    sampler, told = make(Shelf(source))
    until(lambda: source.reads > 5)
    assert heats(sampler) == {"a"}
    ((name, kind),) = failures(sampler)
    assert (name, kind) == ("a", "OSError" if isinstance(rest, Exception) else "TypeError")
    assert len(told) == 1, "it does not work again"
    assert told[0].startswith(f"a: cannot be read to the end: {kind}")


def test_one_may_be_gone_in_the_rest(make: Any) -> None:
    def act(number: int) -> Any:
        shelf.here.clear()
        raise SourceGone

    source = InTwo("a", act)
    shelf = Shelf(source)
    _, told = make(shelf, rescan_s=WAIT_S * 10)
    until(lambda: source.closed and shelf.asked == 2)
    assert (source.reads, source.rests, told) == (1, 1, [])


def test_a_rest_that_hangs_is_late_and_silent_and_stops_nobody(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_DEADLINE_NS", 100_000_000)
    hangs, release = threading.Event(), threading.Event()

    def act(number: int) -> Any:
        hangs.set()
        release.wait(WAIT_S)
        return [(source.turns, number)]

    source, other = InTwo("a", act), Fake("other")
    sampler, told = make(Shelf(source, other))
    assert hangs.wait(WAIT_S)
    until(lambda: values(sampler, "grademl.sampler.late").get(("a",), 0) > 20)
    until(lambda: sampler.latest() and any(line.startswith("a: no answer for ") for line in told))
    reads = other.reads
    until(lambda: other.reads > reads + 3)
    assert source.reads == 1
    assert not sampler.stop(0.01)
    release.set()
    until(lambda: source.closed)
    assert source.rests == 1


def test_one_that_is_stopped_before_the_rest_is_closed_without_it(make: Any) -> None:
    source = InTwo("a", lambda number: [], after_s=3600)
    sampler, _ = make(Shelf(source))
    until(lambda: source.reads)
    assert sampler.stop(WAIT_S)
    assert (source.rests, source.closed) == (0, 1)


def test_one_whose_failure_cannot_be_counted_is_closed_and_read_anew(make: Any) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def act(number: int) -> Any:
        if number == 1:
            raise Odd
        return source.ordinary(number)

    source = Fake("a", act)
    sampler, _ = make(Shelf(source), rescan_s=0.01)
    until(lambda: source.closed == 1 and source.reads > 4)
    assert sampler.stop(WAIT_S)


def test_a_listener_may_stop_the_sampler(make: Any) -> None:
    sources = [Fake(f"s{number}") for number in range(4)]
    shelf = Shelf(*sources)
    sampler = Sampler([shelf], QUICK_S)
    stopped: list[bool] = []
    before = set(threading.enumerate())  # other tests may have left some

    def listen(name: str, at: int, readings: Sequence[Reading]) -> None:
        if name == "s2" and sources[2].reads == 3:
            stopped.append(sampler.stop(0.01))

    sampler.listen(listen)
    sampler.start()
    until(lambda: shelf.closed)
    assert [source.closed for source in sources] == [1] * 4
    assert stopped == [False]
    until(
        lambda: not [each for each in set(threading.enumerate()) - before if each.name == "grademl sampler"]
    )


def test_where_there_could_be_no_thread_for_others_of_what_hangs_there_is_one_later(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refusing, started = threading.Thread.start, threading.Event(), []

    def starting(thread: threading.Thread) -> None:
        if thread.name == "grademl sampler":
            if refusing.is_set() and len(started) > 1:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    def act(number: int) -> Any:
        if other.reads > 3:
            hanging.append(number)
            release.wait(WAIT_S)
        return []

    hanging: list[int] = []
    release = threading.Event()
    other = Fake("other")
    monkeypatch.setattr(threading.Thread, "start", starting)
    refusing.set()
    make(Shelf(Fake("a", act), Fake("b", act), other), rescan_s=0.01)
    try:
        until(lambda: len(hanging) == 2)
        refusing.clear()
        reads = other.reads
        until(lambda: other.reads > reads + 3)
        assert len(hanging) == 2
    finally:
        release.set()
