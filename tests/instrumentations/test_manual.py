# SPDX-License-Identifier: Apache-2.0
"""What a program says itself: its own phases and steps, beside what is inferred."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import grademl_otel  # noqa: E402
from grademl_otel import graphs, manual, marks, semconv  # noqa: E402
from grademl_otel.lifecycle import session  # noqa: E402
from tests.instrumentations.conftest import Recording  # noqa: E402
from tests.support.listwriter import ListWriter, Mark  # noqa: E402

phase, step = grademl_otel.phase, grademl_otel.step
EPOCH = marks.SCOPE_INDEX[semconv.EPOCH]


def own(writer: ListWriter, name: str) -> list[Mark]:
    """The marks of the program's own phase ``name``."""
    return [mark for mark in writer.marks if mark.kind in marks.USER_KINDS and writer.strings[mark.z] == name]


def kinds(writer: ListWriter) -> list[int]:
    """Of each row: 0 a training step, `FLAG_EVALUATE` or `FLAG_INCOMPLETE`."""
    return [marks.unpack_row(row.y)[0] for row in writer.rows]


def total(writer: ListWriter, name: str) -> tuple[int, int]:
    """Sum in ns and number of the phases ``name`` in the totals."""
    totals = writer.totals
    for place, kind in enumerate(marks.USER_KINDS):
        text = totals[marks.ACC_USER_NAMES + place]
        if text and writer.strings[text] == name:
            at = kind - marks.PHASE_BASE
            return totals[marks.ACC_PHASE_SUM_NS + at], totals[marks.ACC_PHASE_COUNT + at]
    return 0, 0


class Loop:
    """A model, its optimizer and a loader."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.loader = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4)

    def train(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.net(batch).sum().backward()
        self.optimizer.step()


# --- Phases -----------------------------------------------------------------------------------------------


def test_a_phase_lies_in_the_step_around_it_and_in_the_totals(recording: Recording) -> None:
    loop = Loop()
    for batch in loop.loader:
        with phase("augment"):
            batch = batch + 1
            with phase("noise"):
                batch = batch + torch.randn(())
        loop.train(batch)
    written = recording.finish()
    rows = [row.row for row in written.rows]
    assert len(rows) == 3
    for name in ("augment", "noise"):
        found = own(written, name)
        assert [mark.row for mark in found] == rows
        assert total(written, name) == (sum(mark.t1 - mark.t0 for mark in found), 3)
    outer, inner = own(written, "augment"), own(written, "noise")
    assert all(o.t0 <= i.t0 <= i.t1 <= o.t1 for o, i in zip(outer, inner, strict=True))


def test_a_phase_outside_of_steps_or_around_several_lies_in_none(recording: Recording) -> None:
    loop = Loop()
    with phase("prepare"):
        pass
    with phase("everything"):
        for batch in loop.loader:
            loop.train(batch)
    written = recording.finish()
    assert [mark.row for mark in own(written, "prepare")] == [0]
    assert [mark.row for mark in own(written, "everything")] == [0]


def test_without_a_loader_a_phase_belongs_to_the_step_that_follows(recording: Recording) -> None:
    loop = Loop()
    for _ in range(3):
        with phase("sample"):
            batch = torch.randn(4, 4)
        loop.train(batch)
    written = recording.finish()
    _, second, third = written.rows
    assert [mark.row for mark in own(written, "sample")] == [0, second.row, third.row]
    assert [row.t0 for row in (second, third)] == [mark.t0 for mark in own(written, "sample")[1:]]


def test_a_phase_around_a_whole_step_belongs_to_that_step(recording: Recording) -> None:
    loop = Loop()
    for _ in range(3):
        with phase("everything"):
            loop.train(torch.randn(4, 4))
    written = recording.finish()
    assert [mark.row for mark in own(written, "everything")] == [row.row for row in written.rows]


def test_recursion_counts_once(recording: Recording) -> None:
    @phase("walk")
    def walk(depth: int) -> int:
        return 0 if not depth else 1 + walk(depth - 1)

    assert walk(5) == 5
    assert walk(0) == 0
    assert total(recording.finish(), "walk")[1] == 2


def test_a_phase_that_a_hook_sees_is_not_counted_twice(recording: Recording) -> None:
    loop = Loop()
    for batch in loop.loader:
        with phase("forward"):
            loop.net(batch)
        with phase("device.sync"):
            pass
    written = recording.finish()
    assert len(written.phases(semconv.FORWARD)) == 3
    assert len(written.phases(semconv.DEVICE_SYNC)) == 3


def test_names_are_few_and_short(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):
        with phase(f"file {number}"):
            pass
    for odd in (None, 7, b"raw", "", "a\nb", "x" * 500, "step", [], object, float("nan")):
        with grademl_otel.phase(odd) if odd is not object else phase(""):
            pass
    written = recording.finish()
    first = len(marks.USER_KINDS) - 1
    assert total(written, f"file {first - 1}")[1] == 1
    assert total(written, "further phases")[1] == 40 - first + 9 + 1
    assert capsys.readouterr().err.count("names more than") <= 1  # once in the life of a process


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a\n  b", "a b"), ("x" * 500, "x" * 64), ("step", "user.step"), ("other", "user.other"), ("", "phase")],
)
def test_a_name_is_one_short_line_that_nobody_else_has(recording: Recording, given: str, shown: str) -> None:
    with phase(given):
        pass
    assert len(own(recording.finish(), shown)) == 1


def test_names_that_are_shown_alike_are_one(recording: Recording) -> None:
    for name in ("step", "user.step", "step", "further phases", *map(str, range(40))):
        with phase(name):
            pass
    written = recording.finish()
    assert total(written, "user.step")[1] == 3
    first = len(marks.USER_KINDS) - 1
    assert total(written, "further phases")[1] == 1 + 40 - (first - 2)


def test_without_any_name_it_is_a_phase(recording: Recording) -> None:
    with phase():
        pass
    assert len(own(recording.finish(), "phase")) == 1


def test_threads_that_name_phases_at_once_do_not_share_a_kind(recording: Recording) -> None:
    interval = sys.getswitchinterval()
    barrier = threading.Barrier(20)

    def work(name: str) -> None:
        barrier.wait()
        with phase(name):
            pass

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(20)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    written = recording.finish()
    assert {total(written, f"thread {number}")[1] for number in range(20)} == {1}


def test_an_exception_passes_through_and_is_told(recording: Recording) -> None:
    with pytest.raises(KeyError, match="here"), phase("look up"):
        raise KeyError("here")
    with pytest.raises(SystemExit), phase("leave"):
        raise SystemExit
    written = recording.finish()
    assert [written.strings[mark.y] for mark in own(written, "look up")] == ["KeyError"]
    assert [mark.y for mark in own(written, "leave")] == [0]


def test_exits_out_of_order_end_what_they_are_of(recording: Recording) -> None:
    first, second = phase("first"), phase("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)  # once too often
    written = recording.finish()
    (a,), (b,) = own(written, "first"), own(written, "second")
    assert a.t0 <= b.t0 <= a.t1 <= b.t1
    assert not written.running


def test_threads_and_tasks_are_in_the_same_phase_at_once(recording: Recording) -> None:
    shared, barrier = phase("shared"), threading.Barrier(3)

    def work() -> None:
        with shared:
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def task(turns: int) -> None:
        async with phase("awaited"):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*map(task, (5, 3, 1)))

    asyncio.run(tasks())
    written = recording.finish()
    assert len(own(written, "shared")) == 3
    assert len({mark.lane for mark in own(written, "shared")}) == 3
    awaited = own(written, "awaited")
    assert len(awaited) == 3
    starts = [mark.t0 for mark in awaited]
    assert starts == sorted(starts, reverse=True)  # who came last is done first
    assert session.recorder is None


def test_a_generator_that_another_thread_closes_ends_its_phase(recording: Recording) -> None:
    def items() -> Iterator[int]:
        with phase("read"):
            yield 1

    generator = items()
    assert next(generator) == 1
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    with phase("read"):
        pass
    assert len(own(recording.finish(), "read")) == 2


# --- Decorators -------------------------------------------------------------------------------------------


def test_decorators_keep_what_a_function_is(recording: Recording) -> None:
    @phase
    def plain(a: int, *, b: int = 2) -> int:
        "Of the user."
        return a + b

    @phase("named")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 3

    @phase("pieces")
    def generator() -> Iterator[int]:
        got = yield 1
        try:
            yield got
        except ValueError:
            yield -1
        return 7

    @phase("never")
    class Kept:
        @phase("method")
        def method(self) -> str:
            return "m"

        @classmethod
        @phase("class method")
        def of_class(cls) -> type:
            return cls

        @phase("static")
        @staticmethod
        def static() -> int:
            return 5

    assert plain(1, b=4) == 5
    assert (plain.__name__, plain.__doc__) == ("plain", "Of the user.")
    assert str(inspect.signature(plain)) == "(a: 'int', *, b: 'int' = 2) -> 'int'"
    assert inspect.iscoroutinefunction(coroutine)
    assert asyncio.run(coroutine()) == 3
    assert inspect.isgeneratorfunction(generator)
    running: Any = generator()
    assert [next(running), running.send(9), running.throw(ValueError())] == [1, 9, -1]
    with pytest.raises(StopIteration) as end:
        next(running)
    assert end.value.value == 7
    assert isinstance(Kept(), Kept)
    assert (Kept().method(), Kept.of_class(), Kept.static()) == ("m", Kept, 5)
    assert phase("x")(5) == 5  # type: ignore[type-var]
    written = recording.finish()
    counts = {name: len(own(written, name)) for name in ("plain", "named", "pieces", "method", "static")}
    assert counts == {"plain": 1, "named": 1, "pieces": 4, "method": 1, "static": 1}


def test_our_frames_are_not_in_a_traceback(recording: Recording) -> None:
    @phase("fails")
    def fails() -> None:
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user") as caught:
        fails()
    names = [entry.name for entry in caught.traceback]
    assert names == ["test_our_frames_are_not_in_a_traceback", "fails"] or "call" in names[1:2]


# --- Steps ------------------------------------------------------------------------------------------------


def test_what_happens_in_a_step_is_one_step_with_the_batch_before_it(recording: Recording) -> None:
    loop = Loop()
    for batch in loop.loader:
        with step():
            loop.train(batch)
            loop.train(batch)  # two updates, which the program calls one step
    written = recording.finish()
    assert kinds(written) == [0, 0, 0]
    waits = written.phases(semconv.DATA_WAIT)
    assert [row.t0 for row in written.rows] == [wait.t0 for wait in waits[:3]]
    assert [mark.row for mark in written.phases(semconv.OPTIMIZER)] == [
        row.row for row in written.rows for _ in range(2)
    ]
    assert [mark.row for mark in written.of_kind(marks.ROW_SAID)] == [row.row for row in written.rows]
    assert [row.z for row in written.rows] == [4, 4, 4]  # samples, as the loader gave them out
    assert [mark.y for mark in written.of_kind(marks.SCOPE_OPEN)][1:] == [marks.SCOPE_INDEX[semconv.EPOCH]]


def test_loaders_that_are_asked_within_a_step_are_part_of_it(recording: Recording) -> None:
    loop = Loop()
    batches = iter(loop.loader)
    for _ in range(3):
        with step(samples=100):
            loop.train(next(batches))
            for extra in loop.loader:
                with torch.no_grad():
                    loop.net(extra)
    written = recording.finish()
    assert kinds(written) == [0, 0, 0]
    assert [row.z for row in written.rows] == [100, 100, 100]
    inside = {mark.row for mark in written.phases(semconv.FORWARD)}
    assert inside == {row.row for row in written.rows}


def test_kinds_of_steps(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    with step(kind="evaluate"):
        pass
    with step("train"), step(), phase("in both"):  # a step in a step is part of it
        pass
    with pytest.raises(RuntimeError), step():
        raise RuntimeError
    with step(kind="nonsense", samples="many"):
        pass
    with step(array("d", [1.0])), step(torch.ones(2)), step(Unequal()):  # a batch, as it may be
        pass
    written = recording.finish()
    assert kinds(written) == [semconv.FLAG_EVALUATE, 0, semconv.FLAG_INCOMPLETE, 0, 0]
    assert [row.x for row in written.rows] == [0, 0, 1, 1, 2]
    assert capsys.readouterr().err.count("taken for") <= 1  # once in the life of a process
    assert own(written, "in both")[0].row == written.rows[1].row


class Unequal:
    """Compares as NumPy's arrays do."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


def test_a_tensor_as_the_number_of_samples_is_not_kept(recording: Recording) -> None:
    samples = torch.ones(3, requires_grad=True).sum()
    gone = weakref.ref(samples)
    with step(samples=samples):
        pass
    del samples
    gc.collect()
    assert gone() is None
    assert [row.z for row in recording.finish().rows] == [3]


def test_a_batch_whose_iterator_is_gone_belongs_to_the_step(recording: Recording) -> None:
    loop = Loop()
    for _ in range(3):
        batch = next(iter(loop.loader))
        with step():
            loop.train(batch)
    written = recording.finish()
    assert kinds(written) == [0, 0, 0]
    assert [row.z for row in written.rows] == [4, 4, 4]
    assert [mark.row for mark in written.phases(semconv.DATA_WAIT)] == [row.row for row in written.rows]


def test_a_step_that_asks_for_the_batch_of_the_next_one_is_of_its_epoch(recording: Recording) -> None:
    loop = Loop()
    batches = iter(loop.loader)
    batch = next(batches)
    while batch is not None:
        with step(samples=4):
            loop.train(batch)
            batch = next(batches, None)
    written = recording.finish()
    (epoch,) = (mark.row for mark in written.of_kind(marks.SCOPE_OPEN) if mark.y == EPOCH)
    assert [marks.unpack_row(row.y)[2] for row in written.rows] == [epoch] * 3
    assert written.scope_values(epoch)[semconv.STEPS_TOTAL] == 3


def test_gradients_from_a_loop_belong_to_the_step_that_uses_them(recording: Recording) -> None:
    loop = Loop()
    for batch in loop.loader:
        loop.net(batch).sum().backward()
    with step():
        loop.optimizer.step()
    written = recording.finish()
    assert kinds(written) == [0]
    assert len(written.phases(semconv.BACKWARD)) == 3


def test_inferred_steps_go_on_beside_those_that_are_told(recording: Recording) -> None:
    loop = Loop()
    for batch in loop.loader:
        loop.train(batch)
    with step():
        loop.train(torch.randn(4, 4))
    for batch in loop.loader:
        loop.train(batch)
    written = recording.finish()
    assert kinds(written) == [0] * 7
    assert [row.x for row in written.rows] == list(range(7))
    assert len(written.of_kind(marks.ROW_SAID)) == 1
    ordered = sorted(written.rows, key=lambda row: row.t0)
    assert all(before.t1 <= after.t0 for before, after in pairwise(ordered))


def test_where_only_updates_are_counted_steps_are_counted(recording: Recording) -> None:
    with step():
        pass
    recorder = session.recorder
    assert recorder is not None
    recorder.governor.level = 3
    recorder._work_at(3, 0)
    for _ in range(32):
        with step(), phase("inside"):
            pass
    assert recorder.finished_steps() == 33
    written = recording.finish()
    assert not own(written, "inside")
    assert written.totals[marks.ACC_STEPS] == 33


# --- Where nothing is recorded ----------------------------------------------------------------------------


def test_it_works_before_and_after_it_is_installed(recording: Recording) -> None:
    grademl_otel.uninstrument()
    early = phase("early")

    @phase("decorated")
    def decorated() -> int:
        return 1

    with early, step(), phase("in it"):
        assert decorated() == 1
    early.__enter__()  # installed while it runs
    grademl_otel.instrument()
    early.__exit__(None, None, None)
    with early:
        assert decorated() == 1
    early.__enter__()
    grademl_otel.uninstrument()
    early.__exit__(None, None, None)
    with early:
        assert decorated() == 1
    assert asyncio.run(_enter_async(early)) == 1
    written = recording.finish()
    assert len(own(written, "early")) == 1
    assert len(own(written, "decorated")) == 1
    assert not early._uses


async def _enter_async(block: Any) -> int:
    async with block:
        return 1


def test_an_error_of_ours_is_not_the_users(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(manual.Phase, "_guard", type(manual.Phase._guard)("phases"))
    monkeypatch.setattr(manual.Phase, "_begin", broken)
    for _ in range(5):
        with phase("any"):
            pass
    assert not manual.Phase._guard.on


def test_what_is_decorated_again_and_again_does_not_stay(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo  # noqa: F401 - which keeps what it is told of

    monkeypatch.setattr(graphs, "_told", [])
    monkeypatch.setattr(graphs, "_MOST_TOLD", 5)

    def made() -> weakref.ref[Any]:
        @phase("made anew")
        def function() -> None: ...

        return weakref.ref(function)

    gone = [made() for _ in range(20)]
    gc.collect()
    assert sum(reference() is not None for reference in gone) <= 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("block", [lambda: phase("parent"), step], ids=["phase", "step"])
def test_a_fork_inside_a_block_leaves_it_to_the_parent(
    recording: Recording, block: Callable[[], Any]
) -> None:
    with block():
        child = os.fork()
        if not child:
            code = 1
            try:
                with phase("of the child"):
                    code = 0 if session.recorder is None else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    written = recording.finish()
    assert len(written.rows) + len(own(written, "parent")) == 1
    gc.collect()


def test_a_compiled_function_is_one_graph_with_nothing_of_ours_in_it(recording: Recording) -> None:
    whole_graph = hasattr(torch.compiler, "substitute_in_graph")  # before 2.5 the graph breaks at them
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @phase
    def tripled(x: Any) -> Any:
        return x * 3

    def whole(x: Any) -> Any:
        with step(samples=2), phase("inside"):
            y = tripled(x)
        return y + 1

    with phase("around"):
        result = torch.compile(whole, backend=backend, fullgraph=whole_graph)(torch.ones(2))
    assert result.tolist() == [4.0, 4.0]
    assert len(graphs) == 1 or not whole_graph
    assert tripled(torch.ones(1)).item() == 3.0
    written = recording.finish()
    inside = 0 if whole_graph else 1
    assert [len(own(written, name)) for name in ("around", "inside")] == [1, inside]
