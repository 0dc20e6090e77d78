# SPDX-License-Identifier: Apache-2.0
"""Device times against a simulated CUDA: what is written, what it means, and what is never done."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from grademl_otel import marks, semconv
from grademl_otel.devicememory import MemorySamples
from grademl_otel.devicetime import DeviceTimes
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.cuda import Captures, Cuda

from ..support.fakecuda import LATENCY, MS, US, FakeCuda, FakeEvent
from ..support.listwriter import ListWriter, Mark

FORWARD, BACKWARD, OPTIMIZER = map(marks.phase_kind, ("forward", "backward", "optimizer"))
TRANSFER = marks.phase_kind(semconv.DATA_TRANSFER)
WAIT, SYNC = marks.phase_kind(semconv.DATA_WAIT), marks.phase_kind(semconv.DEVICE_SYNC)
MAIN = 1
S = 1000 * MS


class Book(ListWriter):
    def lane(self, name: str) -> int:
        return self.intern(name)


@dataclass
class Bench:
    """A host and its devices."""

    cuda: FakeCuda = field(default_factory=FakeCuda)
    events: int = 64
    every: int = 0
    """All rows are timed."""
    captures: Captures = field(default_factory=Captures)
    book: Book = field(default_factory=Book)

    def __post_init__(self) -> None:
        self.guard = Guard("device time")
        device = Cuda(self.cuda, self.captures)
        for number in self.cuda.allocated:
            self.cuda.current = (number, 0)
            assert device.in_use()
        self.cuda.current = (0, 0)
        self.cuda.calls.clear()
        self.samples = MemorySamples(device, self.book, Guard("device memory"), self.cuda.now)
        self.times = DeviceTimes(
            device, self.book, self.guard, self.cuda.now, self.cuda.pause, self.events, self.every
        )

    def phase(self, kind: int, row: int, device_ns: int, host_ns: int = 100 * US, lane: int = MAIN) -> int:
        """The host enqueues work, which takes it ``host_ns``; return when it began."""
        t0 = self.cuda.now()
        self.times.began(lane, kind)
        self.cuda.enqueue(device_ns)
        self.cuda.host(host_ns)
        self.times.ended(lane, kind, t0, row)
        return t0

    def close(self, row: int) -> bool:
        """The row ends: its ROW is written now."""
        later = self.times.row_ends(row)
        self.book.write(marks.ROW, MAIN, 0, 0, row)
        return later

    @property
    def told(self) -> list[Mark]:
        return [mark for mark in self.book.marks if mark.kind >= marks.DEVICE_BASE]

    @property
    def lost(self) -> dict[int, int]:
        """Row -> device times lost, of the rows of which all is told."""
        return {mark.row: mark.x for mark in self.book.of_kind(marks.ROW_DEVICE)}

    def lanes(self) -> set[str]:
        return {self.book.strings[mark.lane] for mark in self.told}


# --- Times ------------------------------------------------------------------------------------------------


def test_of_an_idle_device() -> None:
    bench = Bench()

    t0 = bench.phase(FORWARD, 7, 3 * MS)
    assert bench.told == []
    bench.cuda.host(5 * MS)
    later = bench.close(7)

    assert not later
    (mark,) = bench.told
    assert mark.kind == marks.device_kind("forward")
    assert (mark.row, mark.x, mark.y) == (7, -1, t0)
    assert bench.book.strings[mark.lane] == "stream-0.0"
    assert mark.t1 - mark.t0 == pytest.approx(3 * MS, abs=2 * US)
    # The tie of the clocks is first made before the phase is recorded: a few calls after its start.
    assert t0 <= mark.t0 <= t0 + 20 * US
    assert bench.lost == {7: 0}


def test_of_a_device_that_is_far_behind_its_host() -> None:
    bench = Bench(events=256)
    bench.phase(FORWARD, 1, MS)
    bench.cuda.synchronize()
    bench.close(1)
    first = bench.cuda.now()

    for row in range(2, 12):  # 12 ms of work in each row, enqueued in 0.2 ms
        bench.phase(FORWARD, row, 4 * MS)
        bench.phase(BACKWARD, row, 8 * MS)
        assert bench.close(row), "nothing of it can be over"
    issued = bench.cuda.now()
    bench.cuda.synchronize()
    bench.times.resolve()

    assert issued - first < 12 * MS
    told = bench.told[1:]
    assert [mark.row for mark in told] == [row for row in range(2, 12) for _ in range(2)]
    for position, mark in enumerate(told):
        row, backward = divmod(position, 2)
        start = first + LATENCY + 12 * MS * row + 4 * MS * backward
        assert mark.t0 == pytest.approx(start, abs=30 * US)
        assert mark.t1 - mark.t0 == pytest.approx(8 * MS if backward else 4 * MS, abs=20 * US)
    assert bench.lost == dict.fromkeys(range(1, 12), 0)
    assert [mark.kind for mark in bench.book.marks[-1:]] == [marks.ROW_DEVICE]


def test_of_two_streams_the_later_one_may_be_done_first() -> None:
    bench = Bench()
    bench.phase(FORWARD, 1, 50 * MS)
    bench.cuda.current = (0, 3)
    bench.phase(BACKWARD, 1, MS)
    assert bench.close(1)

    bench.cuda.host(5 * MS)
    bench.times.resolve()
    first = [(mark.kind - marks.DEVICE_BASE, bench.book.strings[mark.lane]) for mark in bench.told]
    bench.cuda.host(50 * MS)
    bench.times.resolve()

    assert first == [(semconv.PHASE_INDEX["backward"], "stream-0.1")]
    assert bench.book.strings[bench.told[1].lane] == "stream-0.0"
    assert bench.lost == {1: 0}


def test_devices_have_lanes_of_their_own() -> None:
    bench = Bench(FakeCuda(devices=2, allocated={0: (1, 2, 3), 1: (1, 2, 3)}))
    for place in ((0, 0), (1, 0), (1, 35), (0, 35), (1, 0)):
        bench.cuda.current = place
        bench.phase(FORWARD, 1, MS)
        bench.cuda.synchronize()
    bench.close(1)

    assert bench.lanes() == {"stream-0.0", "stream-1.0", "stream-1.1", "stream-0.1"}
    assert len(bench.told) == 5


@pytest.mark.parametrize("rate", [1 + 60e-6, 1 - 60e-6])
@pytest.mark.parametrize("behind", [False, True])
def test_clocks_that_drift(rate: float, behind: bool) -> None:
    """60 us a second for 10 minutes are 36 ms, and a float of that many ms is exact to 0.06 ms."""
    bench = Bench(FakeCuda(rate=rate), events=256)
    worst, before = 0, 0
    for row in range(1, 601):
        bench.phase(FORWARD, row, S if behind else 300 * MS, host_ns=10 * MS)
        if behind:
            bench.cuda.host(max(0, bench.cuda.current_stream().free_at - bench.cuda.now() - 200 * MS))
        else:
            bench.cuda.host(S)
        bench.close(row)
        for mark in bench.told[before:]:
            length = S if behind else 300 * MS
            assert mark.t1 - mark.t0 == pytest.approx(length * rate, abs=100 * US)
            if not behind:
                worst = max(worst, abs(mark.t0 - mark.y))
        before = len(bench.told)
    assert len(bench.told) >= 598
    assert worst < 500 * US
    for earlier, later in pairwise(bench.told):
        assert later.t0 >= earlier.t1 - 200 * US, "one stream does one thing after the other"


def test_a_wait_of_the_program_tells_what_is_done() -> None:
    bench = Bench()
    bench.phase(FORWARD, 1, 20 * MS)
    bench.cuda.synchronize()
    bench.times.ended(MAIN, SYNC, 0, 1)

    assert len(bench.told) == 1


def test_of_short_rows_some_are_timed() -> None:
    bench = Bench(every=50 * MS)
    for row in range(100):
        bench.phase(FORWARD, row + 1, MS)
        bench.cuda.host(10 * MS)
        bench.close(row + 1)

    rows = [mark.row for mark in bench.told]
    assert 20 <= len(rows) <= 21
    assert {later - earlier for earlier, later in pairwise(rows[1:])} == {5}
    assert bench.lost == dict.fromkeys(rows, 0), "the others lack nothing"


# --- What has no time ---------------------------------------------------------------------------------------


def test_pool_that_is_empty() -> None:
    bench = Bench(events=5)  # two phases, and the anchor
    for row in (1, 2, 3, 4):
        bench.phase(FORWARD, row, 10 * MS)
        assert bench.close(row) == (row <= 2)
    bench.cuda.synchronize()
    bench.phase(FORWARD, 5, 10 * MS)
    bench.cuda.synchronize()
    bench.close(5)

    assert [mark.row for mark in bench.told] == [1, 2, 5]
    assert bench.lost == {1: 0, 2: 0, 3: 1, 4: 1, 5: 0}


def test_transfers_leave_room_for_the_other_phases() -> None:
    bench = Bench(events=21)
    for _ in range(100):
        bench.phase(TRANSFER, 1, MS)
    bench.phase(FORWARD, 1, MS)
    bench.cuda.synchronize()
    bench.close(1)

    kinds = Counter(marks.phase_of(mark.kind) for mark in bench.told)
    assert kinds["device.forward"] == 1
    assert 3 <= kinds["device.data.transfer"] <= 6
    assert bench.lost == {1: 0}


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    bench = Bench()
    patches = Patches()
    bench.captures.watch(patches, bench.cuda.CUDAGraph)
    graph = bench.cuda.CUDAGraph()
    bench.phase(FORWARD, 1, 10 * MS)
    bench.cuda.host(20 * MS)

    graph.capture_begin()  # from here on the simulation raises at each call
    called = len(bench.cuda.calls)
    bench.phase(FORWARD, 1, MS)
    bench.times.began(MAIN, BACKWARD)
    assert bench.close(1)
    bench.times.resolve()
    assert len(bench.cuda.calls) == called
    graph.capture_end()
    bench.times.ended(MAIN, BACKWARD, 0, 2)
    bench.times.began(MAIN, OPTIMIZER)
    graph.capture_begin()
    bench.times.ended(MAIN, OPTIMIZER, 0, 2)
    graph.capture_end()
    bench.times.resolve()

    assert bench.guard.on
    assert [mark.row for mark in bench.told] == [1], "what is captured is not done"
    assert bench.lost == {1: 0}
    patches.restore()


def test_nothing_is_asked_of_a_device_that_is_not_used() -> None:
    """Nor while it is the current one: most calls would make a context on it, which takes memory."""
    bench = Bench(FakeCuda(devices=2))
    bench.phase(FORWARD, 1, MS)
    assert bench.close(1)
    bench.cuda.synchronize()
    called = len(bench.cuda.calls)

    bench.cuda.current = (1, 0)  # the simulation raises at each call
    bench.phase(FORWARD, 2, MS)
    bench.times.resolve()
    assert not bench.close(2)
    assert len(bench.cuda.calls) == called
    bench.cuda.current = (0, 0)
    bench.times.resolve()

    assert bench.guard.on
    assert [mark.row for mark in bench.told] == [1]
    assert bench.lost == {1: 0}


def test_captures_are_counted_whatever_they_raise() -> None:
    captures, patches = Captures(), Patches()

    class Graph:
        def capture_begin(self, fails: bool = False) -> None:
            if fails:
                raise ValueError("no")

        def capture_end_pre(self) -> None:
            raise ValueError("a capture that failed")

        def capture_end(self) -> None:
            self.capture_end_pre()

    originals = dict(vars(Graph))
    captures.watch(patches, Graph)
    graph = Graph()
    with pytest.raises(ValueError, match="no") as raised:
        graph.capture_begin(fails=True)
    assert len(raised.traceback) <= 3, "our frame is left out"
    assert captures.open == 0
    graph.capture_begin()
    assert captures.open == 1
    with pytest.raises(ValueError, match="failed"):
        graph.capture_end()
    assert captures.open == 0
    patches.restore()
    assert dict(vars(Graph)) == originals


def test_stream_that_changes_in_a_phase() -> None:
    bench = Bench()
    bench.times.began(MAIN, FORWARD)
    bench.cuda.current = (0, 8)
    bench.times.ended(MAIN, FORWARD, 0, 1)
    bench.close(1)

    assert bench.told == []
    assert bench.lost == {1: 1}


def test_phases_that_never_end_give_their_events_back() -> None:
    bench = Bench(events=5)
    for row in range(1, 50):
        bench.times.began(MAIN, FORWARD)  # raised, outside of what is recorded
        bench.phase(BACKWARD, 0, MS)  # outside rows
        bench.phase(OPTIMIZER, row, MS)
        bench.cuda.synchronize()
        bench.close(row)

    assert len(bench.told) == 49
    assert set(bench.lost.values()) == {0}


def test_rows_that_never_come_to_be() -> None:
    bench = Bench()
    for row in range(1, 5000):
        bench.phase(FORWARD, row, US)
        bench.times.resolve()
    bench.cuda.synchronize()

    assert len(bench.times._rows) <= 1024
    assert not bench.close(4999)


def test_more_streams_than_have_a_lane() -> None:
    bench = Bench(events=512)
    for number in range(100):
        bench.cuda.current = (0, number)
        bench.phase(FORWARD, 1, MS)
    bench.cuda.synchronize()
    bench.close(1)

    assert len(bench.told) == 64
    assert bench.lost == {1: 36}


def test_other_phases_are_the_host_s() -> None:
    bench = Bench()
    bench.phase(WAIT, 1, MS)

    assert bench.cuda.calls == []
    assert not bench.close(1)
    assert bench.lost == {}


# --- Ends ---------------------------------------------------------------------------------------------------


def test_the_end_waits_a_little_for_what_is_not_done() -> None:
    bench = Bench()
    bench.phase(FORWARD, 1, 20 * MS)
    assert bench.close(1)

    bench.times.finish()

    assert len(bench.told) == 1
    assert bench.lost == {1: 0}


def test_the_end_does_not_wait_for_a_device_that_hangs() -> None:
    bench = Bench()
    bench.phase(FORWARD, 1, MS)
    bench.phase(BACKWARD, 2, MS)
    assert bench.close(1)
    bench.cuda.current_stream().held = True
    since = bench.cuda.now()

    bench.times.finish()

    assert bench.cuda.now() - since < 100 * MS
    assert bench.told == []
    assert bench.lost == {1: 1}


@pytest.mark.parametrize("call", ["record", "query", "elapsed_time"])
def test_device_that_fails_is_left_alone(call: str, capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    bench.phase(FORWARD, 1, 5 * MS)
    assert bench.close(1)
    bench.cuda.failing = call
    for row in range(2, 5):
        bench.phase(BACKWARD, row, MS)
        bench.cuda.synchronize()
        assert not bench.close(row)
    called = len(bench.cuda.calls)
    bench.phase(FORWARD, 9, MS)
    bench.times.resolve()
    bench.close(9)
    bench.times.finish()

    assert len(bench.cuda.calls) == called
    said = f"grademl: device time is not recorded: CudaError: CUDA error: {call} failed\n"
    assert capfd.readouterr().err == said
    assert 1 in bench.lost, "whoever waits for the times of a row is told that there are no more"


# --- Memory -------------------------------------------------------------------------------------------------


def test_memory_of_the_devices_in_use() -> None:
    bench = Bench(FakeCuda(devices=4, allocated={0: (10, 20, 30), 2: (40, 50, 60)}))
    samples = bench.samples

    samples.measure()
    samples.measure()  # too soon
    bench.cuda.host(S)
    bench.cuda.allocated[2] = (1, 2, 60)
    samples.measure()

    found = [(mark.row, mark.x, mark.y, mark.z) for mark in bench.book.of_kind(marks.DEVICE_MEMORY)]
    assert found == [(1, 10, 20, 30), (3, 40, 50, 60), (1, 10, 20, 30), (3, 1, 2, 60)]
    assert bench.cuda.calls == ["memory_stats"] * 6, "all four are looked at now and then only"


def test_memory_that_cannot_be_had_is_not_asked_for_again(capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    bench.cuda.failing = "memory_stats"
    for _ in range(3):
        bench.samples.measure()
        bench.cuda.host(S)

    assert bench.cuda.calls == ["memory_stats"]
    said = "grademl: device memory is not recorded: CudaError: CUDA error: memory_stats failed\n"
    assert capfd.readouterr().err == said
    assert bench.guard.on, "times are another thing"


# --- Anything that may happen -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_events(seed: int) -> None:
    """No event is used twice at a time, none is lost, times are possible, each row is closed once."""
    chance = random.Random(seed)
    rate = 1 + chance.uniform(-1e-4, 1e-4)
    bench = Bench(FakeCuda(devices=2, rate=rate, allocated={0: (1, 2, 3), 1: (1, 2, 3)}), events=24)
    patches = Patches()
    bench.captures.watch(patches, bench.cuda.CUDAGraph)
    graph = bench.cuda.CUDAGraph()
    ended, closed = Counter[int](), list[int]()
    for row in range(1, 200):
        for _ in range(chance.randrange(4)):
            bench.cuda.current = chance.choice([(0, 0), (0, 0), (0, 0), (1, 0), (0, 5)])
            captures = chance.random() < 0.1
            if captures:
                graph.capture_begin()
            bench.phase(chance.choice([FORWARD, BACKWARD, OPTIMIZER]), row, chance.randrange(9 * MS))
            if captures:
                graph.capture_end()
            else:
                ended[row] += 1
            if chance.random() < 0.2:
                bench.times.began(MAIN, chance.choice([FORWARD, BACKWARD]))
        if chance.random() < 0.3:
            bench.cuda.synchronize()
        if bench.close(row):
            closed.append(row)
    bench.cuda.synchronize()
    bench.times.resolve()

    assert bench.guard.on
    told = Counter(mark.row for mark in bench.told)
    assert {row: told[row] + bench.lost[row] for row in ended} == dict(ended)
    assert len(bench.book.of_kind(marks.ROW_DEVICE)) == len(ended)
    assert all(mark.y <= mark.t0 + 20 * US and mark.t0 <= mark.t1 <= bench.cuda.now() for mark in bench.told)
    for pool in bench.times._pools.values():
        free: list[FakeEvent] = pool.free  # type: ignore[assignment]
        assert len(free) == len(set(map(id, free)))
        assert len(free) >= 24 - 1 - len(bench.times._running)
    patches.restore()
