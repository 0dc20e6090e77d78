# SPDX-License-Identifier: Apache-2.0
"""The current OpenTelemetry context during steps, with the SDK's own tracers, samplers and contexts."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from time import perf_counter_ns as now

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from grademl_otel import marks, semconv
from grademl_otel.context import StepContexts
from grademl_otel.loops import LoaderFacts, Pass
from grademl_otel.recorder import Recorder
from grademl_otel.steps import EVALUATION, TRAIN
from tests.support.listwriter import ListTransport, ListWriter
from tests.support.mark_script import INFO, RUN_ID

NET, SGD = 1, 2


@pytest.fixture(autouse=True)
def clean_context() -> Iterator[None]:
    """Whatever a test leaves attached, the next one does not see."""
    token = otel_context.attach(Context())
    yield
    otel_context.detach(token)


class Program:
    """A training script in miniature, with tracers of its own."""

    def __init__(
        self,
        sampler: Sampler = ParentBased(ALWAYS_ON),  # noqa: B008 - it has no state
        info: marks.RunInfo = INFO,
    ) -> None:
        self.ring = ListWriter()
        self.recorder = Recorder(self.ring, ListTransport(), count(2))
        self.grad = True
        self.contexts = StepContexts(self.recorder, info, sampler, lambda: self.grad)
        self.recorder.context = self.contexts
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("user")

    def loader(self) -> Pass:
        return self.recorder.here().iterator_made(LoaderFacts(0), now())

    def begin_next(self, pass_: Pass) -> int:
        at = now()
        self.recorder.here().begin_wait(pass_, at)
        return at

    def end_next(self, pass_: Pass, at: int) -> None:
        self.recorder.here().end_wait(pass_, at, now(), 8)

    def next(self, pass_: Pass) -> None:
        self.end_next(pass_, self.begin_next(pass_))

    def stop(self, pass_: Pass) -> None:
        self.begin_next(pass_)
        self.recorder.here().exhausted(pass_, now())

    def forward(self) -> None:
        at = now()
        self.recorder.here().begin_forward(at, NET)
        self.recorder.here().end_forward(at, now(), self.grad, NET, 0)

    def update(self) -> None:
        machine = self.recorder.here()
        at = now()
        machine.begin_backward(at)
        machine.end_backward(at, now())
        at = now()
        machine.begin_optimizer(at)
        machine.stepped(SGD, at, now())

    def span(self, name: str) -> ReadableSpan:
        """Make a span as the user would, and return it."""
        with self.tracer.start_as_current_span(name):
            pass
        return self.finished(name)

    def finished(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        """Serial, flags and step number of all rows so far."""
        return [(mark.row, marks.unpack_row(mark.y)[0], mark.x) for mark in self.ring.of_kind(marks.ROW)]


def step_of(kind: str, number: int, serial: int) -> tuple[int, int]:
    """Ids of a step's span, as docs/telemetry.md has them."""
    return semconv.trace_id(RUN_ID, 0, kind, number), semconv.span_id(RUN_ID, 0, "step", serial, 0)


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_spans_nest_in_the_step_from_the_wait_for_its_batch_to_the_next() -> None:
    program = Program()
    loader = program.loader()
    assert parent_of(program.span("before")) is None
    at = program.begin_next(loader)
    fetch = program.span("fetch")
    program.end_next(loader, at)
    program.forward()
    loss = program.span("loss")
    program.update()
    log = program.span("log")
    program.next(loader)
    program.forward()
    program.update()
    following = program.span("following")
    program.stop(loader)
    after = program.span("after")
    assert parent_of(fetch) == parent_of(loss) == parent_of(log) == step_of("step", 0, 1)
    assert parent_of(following) == step_of("step", 1, 2)
    assert parent_of(after) is None
    assert fetch.context.trace_id == step_of("step", 0, 1)[0]


def test_one_mark_keeps_a_step_that_was_asked_and_no_other() -> None:
    program = Program()
    loader = program.loader()
    for number in range(4):
        program.next(loader)
        if number == 2:
            program.span("first")
            program.span("second")
        program.forward()
        program.update()
    program.stop(loader)
    (mark,) = program.ring.of_kind(marks.ROW_CONTEXT)
    assert (mark.row, mark.x, mark.y) == (3, TRAIN, 2)
    kinds = [(mark.kind, mark.row) for mark in program.ring.marks]
    assert kinds.index((marks.ROW_CONTEXT, 3)) < kinds.index((marks.ROW, 3))
    assert program.rows == [(1, TRAIN, 0), (2, TRAIN, 1), (3, TRAIN, 2), (4, TRAIN, 3)]


def test_a_rank_without_room_in_the_trace_of_all_tells_one_of_its_own() -> None:
    program = Program(info=replace(INFO, rank=16_000, world_size=16_384))
    program.next(program.loader())
    span = program.span("asked")
    assert parent_of(span) == (
        semconv.trace_id(RUN_ID, 0, "step", 0, 16_000),
        semconv.span_id(RUN_ID, 0, "step", 1, 16_000),
    )


def test_an_evaluation_is_foreseen_by_what_the_pass_has_done_or_by_gradients_being_off() -> None:
    program = Program()
    training = program.loader()
    program.next(training)
    program.forward()
    program.update()
    program.grad = False
    evaluation = program.loader()
    program.next(evaluation)
    first = program.span("first")
    program.forward()
    program.grad = True  # as in a loop that wraps only its forward in no_grad()
    at = program.begin_next(evaluation)
    second = program.span("second")
    program.end_next(evaluation, at)
    program.grad = False
    program.forward()
    program.stop(evaluation)
    assert [flags for _, flags, _ in program.rows] == [TRAIN, EVALUATION, EVALUATION]
    assert parent_of(first) == step_of("evalstep", 0, 2)
    assert parent_of(second) == step_of("evalstep", 1, 3)


def test_a_step_without_a_loader_ends_with_its_update() -> None:
    program = Program()
    program.recorder.here().optimizer_made(SGD)
    between, inside = [], []
    for number in range(3):
        between.append(program.span(f"between {number}"))
        program.forward()
        inside.append(program.span(f"inside {number}"))
        program.update()
    program.recorder.finish()
    assert [parent_of(span) for span in between] == [None] * 3
    assert [parent_of(span) for span in inside] == [step_of("step", n, n + 1) for n in range(3)]


def test_a_span_of_the_users_around_the_loop_stays_the_parent_and_is_linked() -> None:
    program = Program()
    loader = program.loader()
    with program.tracer.start_as_current_span("mine") as mine:
        program.next(loader)
        program.forward()
        inner = program.span("inner")
        program.update()
        program.stop(loader)
        assert trace.get_current_span() is mine
    context = mine.get_span_context()
    assert parent_of(inner) == (context.trace_id, context.span_id)
    assert not program.ring.of_kind(marks.ROW_CONTEXT)
    links = program.ring.of_kind(marks.ROW_LINK)
    ids = [tuple(map(marks.unpack_half, mark[5:])) for mark in links if mark.row == 1]
    assert ids == [(context.trace_id >> 64, context.trace_id & (1 << 64) - 1, context.span_id)]


def test_the_first_step_after_the_span_is_not_linked_though_it_was_told_inside() -> None:
    program = Program()
    loader, other = program.loader(), program.loader()
    with program.tracer.start_as_current_span("mine"):
        program.next(loader)
        program.forward()
        program.update()
        program.stop(loader)
    program.next(other)
    program.forward()
    program.update()
    program.stop(other)
    assert [mark.row for mark in program.ring.of_kind(marks.ROW_LINK)] == [1]


def test_a_span_that_outlives_its_step_is_neither_ended_nor_replaced() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    program.forward()
    program.update()
    with program.tracer.start_as_current_span("long") as long:
        program.next(loader)
        assert trace.get_current_span() is long
        inner = program.span("inner")
        program.forward()
        program.update()
    # What `with` gives back is the context of a step that is over.
    assert not trace.get_current_span().get_span_context().is_valid
    assert parent_of(program.span("root")) is None
    program.next(loader)
    assert parent_of(program.span("third")) == step_of("step", 2, 3)
    assert parent_of(program.finished("long")) == step_of("step", 0, 1)
    assert parent_of(inner) == (long.get_span_context().trace_id, long.get_span_context().span_id)


def test_values_of_the_users_in_the_context_survive() -> None:
    program = Program()
    loader = program.loader()
    outer = otel_context.attach(otel_context.set_value("who", "me"))
    program.next(loader)
    assert otel_context.get_value("who") == "me"
    inner = otel_context.attach(otel_context.set_value("what", "batch"))
    program.forward()
    program.update()
    program.next(loader)
    assert (otel_context.get_value("who"), otel_context.get_value("what")) == ("me", "batch")
    assert parent_of(program.span("child")) == step_of("step", 1, 2)
    otel_context.detach(inner)
    otel_context.detach(outer)
    program.stop(loader)
    assert otel_context.get_value("who") is None


def test_a_loop_that_is_left_leaves_nothing_of_later_in_its_last_step() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    program.span("asked")
    program.forward()
    program.recorder.here().release(loader, now())  # the iterator is gone: a break, an exception
    assert parent_of(program.span("after")) is None
    program.recorder.finish()
    program.recorder.mute()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_the_batch_of_an_iterator_that_is_gone_makes_a_step() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    program.recorder.here().release(loader, now())  # next(iter(loader))
    inside = program.span("inside")
    program.forward()
    program.update()
    assert parent_of(inside) == step_of("step", 0, 1)
    assert parent_of(program.span("after")) is None


def test_in_a_coroutine_nothing_is_attached() -> None:
    program = Program()
    loader = program.loader()

    async def train() -> ReadableSpan:
        program.next(loader)
        program.forward()
        span = program.span("inside")
        program.update()
        return span

    assert parent_of(asyncio.run(train())) is None
    program.next(loader)
    assert parent_of(program.span("outside")) == step_of("step", 1, 2)


def test_another_thread_that_began_in_the_step_may_end_after_it() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    asked, go = contextvars.copy_context(), threading.Event()
    asked.run(program.span, "early")

    def later() -> None:
        go.wait()
        program.span("late")

    thread = threading.Thread(target=contextvars.copy_context().run, args=(later,))
    thread.start()
    program.forward()
    program.update()
    program.next(loader)
    go.set()
    thread.join()
    assert parent_of(program.finished("late")) == parent_of(program.finished("early"))
    assert parent_of(program.span("here")) == step_of("step", 1, 2)


def test_threads_that_train_side_by_side_have_steps_of_their_own() -> None:
    program = Program()
    barrier = threading.Barrier(2)

    def train(name: str) -> None:
        loader = program.loader()
        program.next(loader)
        barrier.wait()
        program.span(name)
        barrier.wait()
        program.forward()
        program.update()

    threads = [threading.Thread(target=train, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parents = {parent_of(program.finished(name)) for name in ("one", "two")}
    assert parents == {step_of("step", 0, 1), step_of("step", 0, 2)}
    assert {mark.row for mark in program.ring.of_kind(marks.ROW_CONTEXT)} == {1, 2}


def test_a_step_in_which_another_pass_runs_is_the_same_step_afterwards() -> None:
    program = Program()
    training = program.loader()
    program.next(training)
    program.forward()
    first = program.span("first")
    program.grad = False
    evaluation = program.loader()
    program.next(evaluation)
    between = program.span("between")
    program.forward()
    program.stop(evaluation)
    program.grad = True
    last = program.span("last")
    program.update()
    assert parent_of(first) == parent_of(last) == step_of("step", 0, 1)
    assert parent_of(between) == step_of("evalstep", 0, 2)


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_the_sampler_is_asked_with_the_id_of_the_steps_trace(ratio: float) -> None:
    sampler = ParentBased(TraceIdRatioBased(ratio))
    program = Program(sampler)
    loader = program.loader()
    for number in range(40):
        program.next(loader)
        program.forward()
        if number % 2:
            program.tracer.start_span(f"child {number}").end()
        program.update()
    program.stop(loader)
    wanted = {
        number
        for number in range(40)
        if sampler.should_sample(None, step_of("step", number, 0)[0], "step").decision.is_sampled()
    }
    assert 0 < len(wanted) < 40
    assert {step for _, flags, step in program.rows if not flags & marks.UNSAMPLED} == wanted
    # A child has the decision of its parent, so only sampled steps are referred to.
    assert {span.name for span in program.exporter.get_finished_spans()} == {
        f"child {number}" for number in wanted if number % 2
    }
    assert {mark.y for mark in program.ring.of_kind(marks.ROW_CONTEXT)} == {n for n in wanted if n % 2}


def test_a_sampler_that_takes_nothing_gets_no_step() -> None:
    program = Program(ALWAYS_OFF)
    loader = program.loader()
    program.next(loader)
    program.forward()
    program.update()
    program.stop(loader)
    assert [flags for _, flags, _ in program.rows] == [TRAIN | marks.UNSAMPLED]


class Recorded(Sampler):
    """A sampler of the user's own, which raises when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, object]] = []
        self.fails = False

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None):  # type: ignore[no-untyped-def]
        if self.fails:
            raise RuntimeError("no idea")
        self.asked.append((trace_id, name, dict(attributes or {})))
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "recorded"


def test_a_sampler_of_the_users_own_decides_and_its_failure_costs_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampler = Recorded()
    program = Program(sampler)
    loader = program.loader()
    for number in range(4):
        sampler.fails = number >= 3
        program.next(loader)
        program.forward()
        program.update()
    program.stop(loader)
    assert sampler.asked == [
        (step_of("step", n, 0)[0], "step", {semconv.STEP_NUMBER: n, semconv.STEP_KIND: "train"})
        for n in range(2)
    ]
    assert [bool(flags & marks.UNSAMPLED) for _, flags, _ in program.rows] == [True, True, False, False]
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_while_another_thread_asks_does_not_wait_for_that_thread() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with program.contexts._naming:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends the child if it hangs
        os._exit(int(trace.get_current_span().get_span_context().is_valid))
    _, status = os.waitpid(child, 0)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_gives_out_no_ids_of_its_parents_steps() -> None:
    program = Program()
    loader = program.loader()
    program.next(loader)
    program.recorder.pid += 1  # as if this were a child of a fork that Python does not know
    assert parent_of(program.span("in the child")) is None
    program.recorder.pid -= 1
    program.recorder.mute()
    assert parent_of(program.span("muted")) is None
    assert not program.ring.of_kind(marks.ROW_CONTEXT)
