# SPDX-License-Identifier: Apache-2.0
"""What one mark costs in the hot path, beside a span of OpenTelemetry's SDK for the same phase.

    python benchmarks/mark_cost.py

The span's batch processor is emptied by an exporter that throws everything away: encoding and sending, which
come on top, are not in its figure. A mark has neither in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from interleaved import compare, print_table
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from grademl_otel import marks, semconv
from grademl_otel.config import Settings
from grademl_otel.ring.writer import RingWriter

ROUNDS = 30
CALLS = 2_000
FORWARD = marks.phase_kind(semconv.FORWARD)


class Discard(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def per_call(call: Callable[[], None]) -> Callable[[], float]:
    def way() -> float:
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        return (time.perf_counter_ns() - start) / CALLS

    return way


def main() -> None:
    now = time.perf_counter_ns
    ring = RingWriter.create(Settings.from_env({}))
    lane = ring.intern("main")
    write, open_phase, close_phase = ring.write, ring.began, ring.ended
    tracer = TracerProvider()
    tracer.add_span_processor(BatchSpanProcessor(Discard()))
    start_span = tracer.get_tracer("benchmark").start_as_current_span

    def nothing() -> None:
        now()
        now()

    def mark() -> None:
        write(FORWARD, lane, now(), now(), 7)

    def mark_with_open_phase() -> None:
        begin = now()
        open_phase(lane, FORWARD, begin)
        close_phase(lane)
        write(FORWARD, lane, begin, now(), 7)

    def span() -> None:
        with start_span("forward", attributes={"grademl.lane": "main", "grademl.step": 7}):
            pass

    results = compare(
        {
            "two clock readings": per_call(nothing),
            "mark": per_call(mark),
            "mark, open phase shown": per_call(mark_with_open_phase),
            "OpenTelemetry SDK span": per_call(span),
        },
        ROUNDS,
    )
    tracer.shutdown()
    ring.close(unlink=True)
    print_table("one phase, recorded", results, "mark, open phase shown", unit="us")


if __name__ == "__main__":
    main()
