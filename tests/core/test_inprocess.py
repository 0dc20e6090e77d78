# SPDX-License-Identifier: Apache-2.0
"""Conversion in the process itself: through the provider in place, to the store, across a fork."""

from __future__ import annotations

# Before any provider: the SDK's fork handler uses an executor, and waits for ever when the executor's own
# handler, which frees a lock, was registered after it.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grademl_otel import marks, semconv
from grademl_otel.config import Settings
from grademl_otel.export.sinks import Sinks
from grademl_otel.inprocess import _keep_our_log_to_ourselves
from grademl_otel.pump import Pump
from grademl_otel.ring.writer import RingWriter
from grademl_otel.transport import Transport, open_transport

from ..support.mark_script import INFO, MS, MarkScript, S
from ..support.relays import spans_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env(
        {"GRADEML_RING_DIR": str(tmp_path / "rings"), "GRADEML_SPOOL_DIR": str(tmp_path / "s")}
    )


@pytest.fixture
def ring(settings: Settings) -> Iterator[RingWriter]:
    writer = RingWriter.create(settings)
    yield writer
    writer.close(unlink=True)


def write(ring: RingWriter, script: MarkScript) -> None:
    """Put a script's marks into a ring, which numbers its strings itself."""
    numbers = [ring.intern(text) for text in script.strings]
    assert numbers == list(range(len(script.strings)))
    for mark in script.marks:
        ring.write(*mark)


def training(folder: Path, steps: int, **changes: object) -> MarkScript:
    script = MarkScript(replace(INFO, store=str(folder)), **changes)
    for step in range(steps):
        script.step(10 + step, step, step * MS, MS)
    return script


def test_spans_go_through_the_processors_of_the_provider(
    ring: RingWriter, settings: Settings, tmp_path: Path
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "mine"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    write(ring, training(tmp_path, 5, exporters=()))

    transport = open_transport(ring, settings, "in-process", provider)

    assert transport.mode == "in-process"
    assert transport.close(10)
    spans = exporter.get_finished_spans()
    assert sorted({span.name for span in spans}) == [
        "backward",
        "data.wait",
        "forward",
        "run",
        "step",
        "window",
    ]
    assert {span.resource.attributes["service.name"] for span in spans} == {"mine"}
    window = next(span for span in spans if span.name == "window")
    assert window.attributes is not None
    assert window.attributes["grademl.table.step"] == (0, 1, 2, 3, 4)
    assert not list(tmp_path.glob("*/traces.jsonl"))


def test_processor_that_raises_hurts_nobody(
    ring: RingWriter, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bad(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("no")

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(Bad())
    write(ring, training(tmp_path, 3))
    transport = open_transport(ring, settings, "in-process", provider)

    assert transport.close(10)
    assert len(exporter.get_finished_spans()) == 3 * 4 + 2
    assert capsys.readouterr().err.count("\n") <= 1


def test_more_marks_than_a_slice(ring: RingWriter, settings: Settings, tmp_path: Path) -> None:
    write(ring, training(tmp_path, 1000))
    transport = open_transport(ring, settings, "in-process")

    assert transport.close(20)
    (path,) = tmp_path.glob("*/traces.jsonl")
    rows = [
        step
        for s in spans_of(path)
        if s["name"] == "window"
        for step in s["attributes"]["grademl.table.step"]
    ]
    assert rows == list(range(1000))


def test_ring_that_only_this_process_sees(settings: Settings, tmp_path: Path) -> None:
    ring = RingWriter.in_memory(settings)
    write(ring, training(tmp_path, 3))
    transport = open_transport(ring, settings, "relay")  # no relay can reach it

    assert transport.mode == "in-process"
    assert transport.close(10)
    assert len(list(tmp_path.glob("*/traces.jsonl"))) == 1


def test_forked_child_neither_exports_nor_waits(ring: RingWriter, settings: Settings, tmp_path: Path) -> None:
    write(ring, training(tmp_path, 3))
    transport = open_transport(ring, settings, "in-process")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            transport.abandon()
            ring.write(1, 1, 1, 2, 3)
            transport.tick(time.perf_counter_ns())
            transport.wake()
            transport.close(10)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert transport.close(10)
    (path,) = tmp_path.glob("*/traces.jsonl")
    assert [span["name"] for span in spans_of(path)].count("run") == 1


def test_disk_that_takes_nothing_is_one_line(
    ring: RingWriter, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    write(ring, training(tmp_path / "file", 40))
    transport = open_transport(ring, settings, "in-process")

    assert transport.close(10)
    err = capsys.readouterr().err
    assert err.startswith("grademl: ")
    assert err.count("\n") == 1


def test_closing_twice_and_ticks_afterwards(ring: RingWriter, settings: Settings, tmp_path: Path) -> None:
    write(ring, training(tmp_path, 1))
    transport: Transport = open_transport(ring, settings, "in-process")
    assert transport.close(10)

    assert transport.close(10)
    transport.tick(time.perf_counter_ns())
    transport.wake()
    ring.write(marks.phase_kind(semconv.FORWARD), 1, 1, 2, 0)


def test_our_log_stays_out_of_the_users(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("grademl_otel")
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(log, "handlers", [])
    _keep_our_log_to_ourselves()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("grademl_otel.export.spool").error("given up")
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_last_mark_is_acknowledged_when_the_run_is_told_and_not_before(
    ring: RingWriter, settings: Settings, tmp_path: Path
) -> None:
    """A process exits at this, and a container's relay dies with it."""
    script = training(tmp_path, 16)  # a whole window: nothing of it waits for more
    script.close_scope(1, semconv.RUN, 20 * MS)
    write(ring, script)
    final = ring.mark_closing()
    acked_before: list[int] = []
    sinks = Sinks(settings, {})
    pump = Pump(ring.reader(), sinks.open, before_last_ack=lambda: acked_before.append(ring.acked))

    assert pump.turn(1000, time.perf_counter_ns()) == final
    assert 0 < ring.acked < final
    pump.finish("exit", time.perf_counter_ns())

    assert pump.delivered
    assert ring.acked == final
    assert len(acked_before) == 1
    assert acked_before[0] < final
    pump.close()


def test_relay_that_is_killed_while_it_catches_up_takes_nothing_back(
    ring: RingWriter, settings: Settings, tmp_path: Path
) -> None:
    """It reads again from the start, and has told all of that; the next one must not tell it once more."""
    write(ring, training(tmp_path, 120))
    sinks = Sinks(settings, {})
    first = Pump(ring.reader(), sinks.open)
    first.turn(4096, S)
    acked = ring.acked
    Pump(ring.reader(), sinks.open).turn(100, S)
    assert ring.acked == acked
    last = Pump(ring.reader(), sinks.open)
    ring.mark_closing()
    last.turn(4096, S)
    last.finish("exit", S)
    last.close()

    (traces,) = tmp_path.glob("*/traces.jsonl")
    spans = spans_of(traces)
    assert len({span["spanId"] for span in spans}) == len(spans)
    steps = [step for span in spans for step in span["attributes"].get("grademl.table.step", ())]
    assert steps == list(range(120))


def test_the_clock_cuts_no_window_whose_marks_are_still_to_be_read(
    ring: RingWriter, settings: Settings, tmp_path: Path
) -> None:
    """A relay that comes late finds marks that are old, and more than it reads at once."""
    write(ring, training(tmp_path, 60))
    pump = Pump(ring.reader(), Sinks(settings, {}).open)
    while pump.turn(50, 20 * S) == 50:
        pass
    pump.close()

    (traces,) = tmp_path.glob("*/traces.jsonl")
    windows = [span["attributes"] for span in spans_of(traces) if span["name"] == semconv.WINDOW]
    assert [(w[semconv.WINDOW_NUMBER], w[semconv.WINDOW_PART]) for w in windows] == [(0, 0), (1, 0), (2, 0)]
