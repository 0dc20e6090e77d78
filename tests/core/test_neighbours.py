# SPDX-License-Identifier: Apache-2.0
"""The ties of a run to the tracer provider in place, with the SDK's own providers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from time import perf_counter_ns as now

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grademl_otel import marks, semconv
from grademl_otel.loops import LoaderFacts
from grademl_otel.neighbours import Neighbours, processors_of, provider_in_place
from grademl_otel.recorder import Recorder
from grademl_otel.steps import TRAIN
from tests.support.listwriter import ListTransport, ListWriter
from tests.support.mark_script import INFO, RUN_ID


@pytest.fixture(autouse=True)
def clean_context() -> Iterator[None]:
    token = otel_context.attach(Context())
    yield
    otel_context.detach(token)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(ListWriter(), ListTransport(), count(2))


def in_place(monkeypatch: pytest.MonkeyPatch, provider: object) -> None:
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)


def traced(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def train(recorder: Recorder) -> None:
    """One step of a thread."""
    machine = recorder.here()
    loader = machine.iterator_made(LoaderFacts(0), now())
    at = now()
    machine.begin_wait(loader, at)
    machine.end_wait(loader, at, now(), 8)
    at = now()
    machine.begin_forward(at, 1)
    machine.end_forward(at, now(), True, 1, 0)
    at = now()
    machine.begin_backward(at)
    machine.end_backward(at, now())


@pytest.mark.parametrize("kind", ["synchronous", "concurrent"])
def test_spans_of_a_run_are_tagged_and_those_after_it_are_not(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    active = ConcurrentMultiSpanProcessor() if kind == "concurrent" else None
    provider = TracerProvider(active_span_processor=active, shutdown_on_exit=False)
    exporter = traced(provider)
    before = processors_of(provider)
    in_place(monkeypatch, provider)
    tracer = provider.get_tracer("mine")
    neighbours = Neighbours(recorder, INFO, lambda: True)
    tracer.start_span("during").end()
    assert processors_of(provider) == before != provider._active_span_processor._span_processors
    neighbours.leave()
    tracer.start_span("after").end()
    during, after = exporter.get_finished_spans()
    assert during.attributes == {semconv.RUN_ID: RUN_ID, semconv.RANK: 0}
    assert not after.attributes
    assert provider._active_span_processor._span_processors == before
    if active is not None:
        active._executor.shutdown()


def test_tags_push_out_no_attribute_of_the_users(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=2))
    exporter = traced(provider)
    in_place(monkeypatch, provider)
    Neighbours(recorder, INFO, lambda: True)
    provider.get_tracer("mine").start_span("full", attributes={"a": 1, "b": 2}).end()
    assert exporter.get_finished_spans()[0].attributes == {"a": 1, "b": 2}


def test_a_provider_of_another_make_is_left_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in (trace.NoOpTracerProvider(), trace.ProxyTracerProvider()):
        in_place(monkeypatch, other)
        Neighbours(recorder, INFO, lambda: True)
        assert recorder.context is None
    train(recorder)
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_provider_that_comes_late_is_found(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place(monkeypatch, trace.ProxyTracerProvider())
    neighbours = Neighbours(recorder, INFO, lambda: True)
    provider = TracerProvider()
    exporter = traced(provider)
    in_place(monkeypatch, provider)
    neighbours.look()
    train(recorder)
    provider.get_tracer("mine").start_span("late").end()
    (span,) = exporter.get_finished_spans()
    assert span.parent is not None
    assert span.parent.trace_id == semconv.trace_id(RUN_ID, 0, semconv.TRACE_STEP, 0)


def test_the_sampler_of_the_environment_holds_without_a_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_place(monkeypatch, trace.ProxyTracerProvider())
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    writer = ListWriter()
    recorder = Recorder(writer, ListTransport(), count(2))
    Neighbours(recorder, INFO, lambda: True)
    train(recorder)
    assert trace.get_current_span() is trace.INVALID_SPAN
    recorder.finish()
    assert [marks.unpack_row(mark.y)[0] for mark in writer.rows] == [TRAIN | marks.UNSAMPLED]


def test_to_ask_for_the_provider_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    assert provider_in_place() is None
    assert trace._TRACER_PROVIDER is None
