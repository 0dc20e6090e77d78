# SPDX-License-Identifier: Apache-2.0
"""Collectives of a group of one rank, in this process: by the groups' hooks, and by their methods where torch
has no such hooks.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from grademl_otel import marks, semconv  # noqa: E402
from grademl_otel.governor import BOUNDARIES, EVERYTHING  # noqa: E402
from grademl_otel.instrumentations.torch import TorchInstrumentor, collectives, operations, works  # noqa: E402
from grademl_otel.instrumentations.torch.groups import Group  # noqa: E402
from grademl_otel.lifecycle import session  # noqa: E402
from tests.support.listwriter import ListWriter, Mark  # noqa: E402

from .conftest import Recording  # noqa: E402

HOOKS = hasattr(dist.ProcessGroup, "register_post_hook")
PLAIN = {name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "send", "recv", "monitored_barrier")}
PLAIN_WAIT = vars(dist.Work)["wait"]
PLAIN_REGISTER = distributed_c10d._register_process_group
PLAIN_BROADCAST = dist._broadcast_coalesced


def open_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def group(no_group: None) -> None:
    open_group()


@pytest.fixture(params=["hooks", "methods"] if HOOKS else ["methods"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How collectives are seen; to be asked for before `recording`."""
    if request.param == "methods":
        monkeypatch.setattr(collectives, "_REGISTRATIONS", ("no such hook",))
    name: str = request.param
    return name


def step() -> None:
    """A step of a training, which begins a run."""
    network = nn.Linear(2, 2)
    network(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(network.parameters(), 0.1).step()


def told(writer: ListWriter) -> list[tuple[str, str, int, bool, bool]]:
    """Lane, operation, bytes, completed and blocking of each collective, in the order of their issue."""
    found = sorted(writer.phases(semconv.COLLECTIVE), key=lambda mark: mark.t0)
    return [
        (writer.strings[mark.lane], writer.strings[mark.z], *marks.unpack_collective(mark.y))
        for mark in found
    ]


def keys(writer: ListWriter) -> list[tuple[str, int]]:
    """Text of the group and number of each."""
    found = sorted(writer.phases(semconv.COLLECTIVE), key=lambda mark: mark.t0)
    items = [marks.unpack_item(mark.x) for mark in found]
    return [(writer.strings[text], number) for text, number in items]


def wait_for(writer: ListWriter, count: int) -> list[Mark]:
    """Marks of collectives, when there are so many: a thread of gloo may write the last of them."""
    deadline = time.monotonic() + 30
    while len(writer.phases(semconv.COLLECTIVE)) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    return writer.phases(semconv.COLLECTIVE)


def test_what_is_told(way: str, recording: Recording, group: None) -> None:
    step()
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3, dtype=torch.float64), 0)
    dist.all_gather_into_tensor(torch.ones(4), torch.ones(4))
    dist.reduce_scatter_tensor(torch.ones(5), torch.ones(5))
    dist.barrier()
    dist.monitored_barrier()
    work = dist.all_reduce(torch.ones(6), async_op=True)
    assert work is not None
    work.wait()
    writer = recording.finish()
    wait_for(writer, 7)
    assert told(writer) == [
        ("main", "all_reduce", 12, True, True),
        ("main", "broadcast", 24, True, True),
        ("main", "all_gather", 16, True, True),
        ("main", "reduce_scatter", 20, True, True),
        ("main", "barrier", 0, True, True),
        ("main", "monitored_barrier", 0, True, True),
        ("comm", "all_reduce", 24, True, False),
    ]
    assert len({text for text, _ in keys(writer)}) == 1
    assert [number for _, number in keys(writer)] == list(range(7))


def test_what_a_process_dies_in(way: str, recording: Recording, group: None) -> None:
    began: list[int] = []
    writer = recording.writer
    tell = writer.began

    def spy(lane: int, kind: int, t0: int) -> None:
        began.append(kind)
        tell(lane, kind, t0)

    writer.began = spy  # type: ignore[method-assign]
    step()
    began.clear()
    dist.all_reduce(torch.ones(1))
    dist.monitored_barrier()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    work.wait()
    assert began == [works.COLLECTIVE, works.COLLECTIVE, marks.phase_kind(semconv.COLLECTIVE_WAIT)]
    assert not writer.running


def test_numbers_of_a_group(way: str, recording: Recording, group: None) -> None:
    dist.all_reduce(torch.ones(1))  # before the run: counted all the same
    step()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    other = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=other)
    (first, _), *_, (last, number) = found = keys(recording.finish())
    assert [number for _, number in found] == [1, 2, 3, 0]
    assert [text for text, _ in found] == [first] * 3 + [last]
    assert first != last
    assert first.endswith("/1")
    assert number == 0


def test_a_group_that_comes_again_is_another(way: str, recording: Recording, group: None) -> None:
    step()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    open_group()
    dist.all_reduce(torch.ones(1))
    (one, first), (two, second) = keys(recording.finish())
    assert one != two
    assert (first, second) == (0, 0)


def test_a_group_that_was_there_before(way: str, group: None, recording: Recording) -> None:
    dist.all_reduce(torch.ones(1))
    step()
    dist.all_reduce(torch.ones(1))
    assert told(recording.finish()) == [("main", "all_reduce", 4, True, True)]


def test_one_that_was_used_before_is_named_by_how_far_it_was(way: str, no_group: None, request: Any) -> None:
    texts = set()
    for before in (0, 1):
        open_group()
        for _ in range(before):
            dist.all_reduce(torch.ones(1))
        collectives.groups._made.clear()  # as in another process
        TorchInstrumentor().uninstrument()
        group = collectives.groups._look(
            dist.group.WORLD, int(dist.group.WORLD._get_sequence_number_for_group())
        )
        texts.add(group.text)
        assert group.collectives == before
        dist.destroy_process_group()
    assert len(texts) == 2


def test_all_is_given_back(recording: Recording, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    step()
    dist.all_reduce(torch.ones(1))
    asked: list[object] = []
    TorchInstrumentor().uninstrument()
    monkeypatch.setattr(operations, "begin", lambda *arguments: asked.append(arguments))
    dist.all_reduce(torch.ones(1))
    assert not asked
    assert {name: vars(dist.ProcessGroup)[name] for name in PLAIN} == PLAIN
    assert vars(dist.Work)["wait"] is PLAIN_WAIT
    assert dist._broadcast_coalesced is PLAIN_BROADCAST
    assert distributed_c10d._register_process_group is PLAIN_REGISTER
    assert len(told(recording.writer)) == 1


def go_to(level: int) -> None:
    recorder = session.recorder
    assert recorder is not None
    recorder.governor.level = level
    recorder._work_at(level, perf_counter_ns())


def test_short_steps_are_counted_only(way: str, recording: Recording, group: None) -> None:
    step()
    dist.all_reduce(torch.ones(1))
    go_to(BOUNDARIES)
    assert vars(dist.Work)["wait"] is PLAIN_WAIT
    dist.all_reduce(torch.ones(1))
    go_to(EVERYTHING)
    dist.all_reduce(torch.ones(1))
    assert [number for _, number in keys(recording.finish())] == [0, 2]


def test_the_program_sees_its_errors(way: str, recording: Recording, group: None) -> None:
    step()
    with pytest.raises(Exception, match="root") as caught:
        dist.broadcast(torch.ones(1), 5)
    if sys.version_info >= (3, 11):  # before, only tracebacks that end the program are without our frames
        files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
        assert not any("grademl" in file or "instrumentations/torch/" in file for file in files)
    dist.all_reduce(torch.ones(1))
    writer = recording.finish()
    assert told(writer) == [("main", "all_reduce", 4, True, True)]
    assert keys(writer)[0][1] == 0  # one that was never issued has no number
    assert not writer.running


def test_an_error_of_ours_stays_with_us(
    way: str, recording: Recording, group: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("ours")

    step()
    monkeypatch.setattr(operations, "begin", fails)
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "is not recorded" in line]
    assert line.endswith("is not recorded: RuntimeError: ours")
    assert not told(recording.finish())


def test_modes_of_the_program_see_nothing_of_it(recording: Recording, group: None) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    def called() -> list[Any]:
        seen.clear()
        with Mode():
            dist.all_reduce(tensor)
        return list(seen)

    seen: list[Any] = []
    tensor = torch.ones(1)
    step()
    recorded = called()
    assert len(told(recording.finish())) == 1
    TorchInstrumentor().uninstrument()
    assert recorded == called()


def test_a_backend_that_has_the_device_wait_gives_no_work(recording: Recording, no_group: None) -> None:
    """As NCCL does: nothing is waited for by a call, so nothing later tells its end."""
    step()
    group = Group("of a device", [0, 1], 0, host=False)
    call = operations.begin(operations.ALL_REDUCE, (), group, -1)
    operations.issued(call, group, None, True, None)
    assert works.here.blocking is None
    assert told(recording.writer) == [("main", "all_reduce", 0, False, True)]


def test_waits_that_are_in_c(recording: Recording, group: None) -> None:
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    world = dist.group.WORLD
    assert world is not None
    step()
    result = functional.all_reduce(torch.ones(3), "sum", world)
    assert not recording.writer.phases(semconv.COLLECTIVE_WAIT)
    assert (result + result).tolist() == [2, 2, 2]  # waited for once
    assert len(recording.writer.phases(semconv.COLLECTIVE_WAIT)) == 1
    functional.all_reduce(torch.ones(3), "sum", world).wait()
    assert len(recording.writer.phases(semconv.COLLECTIVE_WAIT)) == 2
    network = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(2))
    before = len(recording.writer.phases(semconv.COLLECTIVE_WAIT))
    network(torch.ones(2, 2)).sum().backward()
    (forward,) = recording.writer.phases(semconv.FORWARD)[1:]
    (buffers,) = recording.writer.phases(semconv.COLLECTIVE_WAIT)[before:]
    assert forward.t0 <= buffers.t0 <= buffers.t1 <= forward.t1


def test_rows(recording: Recording, group: None) -> None:
    """A collective is part of the row that is open when it is issued, or of that which its forward begins."""

    class Reduces(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            dist.all_reduce(torch.ones(1))
            return super().forward(inputs)

    network = Reduces(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2):
        network(torch.ones(1, 2)).sum().backward()
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        optimizer.step()
    writer = recording.finish()
    wait_for(writer, 4)
    rows = [mark.row for mark in writer.rows]
    assert len(rows) == 2
    found = sorted(writer.phases(semconv.COLLECTIVE), key=lambda mark: mark.t0)
    assert [mark.row for mark in found] == [rows[0], rows[0], rows[1], rows[1]]
    assert [mark.row for mark in writer.phases(semconv.COLLECTIVE_WAIT)] == rows


def test_a_thread_that_does_not_train(recording: Recording, group: None) -> None:
    step()
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
    thread.start()
    thread.join()
    writer = recording.finish()
    assert told(writer) == [("comm", "all_reduce", 4, True, True)]
    assert writer.phases(semconv.COLLECTIVE)[0].row == 0


def test_nobody_waits_for_a_call_between_two(recording: Recording, group: None) -> None:
    class Work:
        pass

    step()
    recorder = session.recorder
    assert recorder is not None
    counts = recorder.goes_on(7)
    works.here.returning = works.Issued(recorder, None, 7, 10, 20, -1, 4, 0, True, False, counts, None)
    work = Work()
    works.returned(work)
    assert counts == [1, 0]
    del work
    gc.collect()
    assert counts == [1, 1]
    (mark,) = recording.finish().phases(semconv.COLLECTIVE)
    assert (mark.t0, mark.t1, mark.row) == (10, 20, 7)
    assert marks.unpack_collective(mark.y) == (4, False, False)


def test_a_step_that_ends_before_a_collective_says_how_many_there_were(recording: Recording) -> None:
    network = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network(torch.ones(1, 2)).sum().backward()
    recorder = session.recorder
    assert recorder is not None
    row = recorder.here().row_of(perf_counter_ns())
    over = recorder.goes_on(row)
    recorder.goes_on(row)
    over[1] += 1
    optimizer.step()
    network(torch.ones(1, 2))
    writer = recording.finish()
    (mark,) = writer.of_kind(marks.ROW_BESIDE)
    assert (mark.row, mark.x) == (row, 2)
    assert row == writer.rows[0].row


class TestNames:
    def group(self, name: str = "0", ranks: tuple[int, ...] = (0, 1), rank: int = 0) -> Any:
        collectives.groups._made.clear()  # each a process of its own
        return collectives.groups.Group(name, list(ranks), rank, host=True)

    def test_members_name_a_group_alike(self) -> None:
        assert self.group(rank=0).text == self.group(ranks=(1, 0), rank=1).text

    def test_other_members_or_another_name_are_another_group(self) -> None:
        texts = [self.group(), self.group("1"), self.group(ranks=(0, 2)), self.group(ranks=(0, 1, 2))]
        assert len({group.text for group in texts}) == 4
        assert [group.text.partition("/")[2] for group in texts] == ["2", "2", "2", "3"]

    def test_both_ends_of_a_call_name_it_alike(self) -> None:
        sender, receiver = self.group(rank=0), self.group(rank=1)
        sent = [sender.count_between(0, 1, tag) for tag in (0, 4, 5, 0)]
        got = [receiver.count_between(0, 1, tag) for tag in (0, 5, 4, 0)]
        assert sorted(sent) == sorted(got)
        assert len(set(sent)) == 4
        assert sender.count_between(1, 0, 0) not in sent

    def test_a_tag_of_its_own_for_each_call_takes_no_memory(self) -> None:
        group = self.group()
        named = {group.count_between(0, 1, tag) for tag in range(10_000)}
        assert len(named) == 10_000
        assert len(group._pairs[0, 1].counts) <= 256
