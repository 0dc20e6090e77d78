# SPDX-License-Identifier: Apache-2.0
"""Spans of the OpenTelemetry SDK, as any program makes them, in a file of OTLP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS: Final = "spans.binpb"
HOST: Final = "node-1"


class Spans:
    """One trace: a root, and spans in it. Any thread may add one."""

    def __init__(self) -> None:
        self.open = 0
        """Spans that have begun and not ended."""
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource.create({"service.name": "job", "host.name": HOST}))
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self._tracer = provider.get_tracer("benchmarks")
        self._root: trace.Span | None = None
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, *, is_root: bool = False) -> Iterator[int]:
        """A span of what is done within; gives its start in Unix ns."""
        start = time.time_ns()
        self._count(1)
        one = self._begin(name, start, is_root)
        try:
            yield start
        finally:
            one.end()
            self._count(-1)

    def add(self, name: str, start: int, end: int, *, is_root: bool = False) -> None:
        """Add a span of these times, in Unix ns; the root goes first."""
        self._begin(name, start, is_root).end(end)

    def write(self, path: Path) -> None:
        """Write all that has ended."""
        path.write_bytes(encode_spans(self._kept.get_finished_spans()).SerializeToString())

    def _begin(self, name: str, start: int, is_root: bool) -> trace.Span:
        context = None if self._root is None else trace.set_span_in_context(self._root)
        one = self._tracer.start_span(name, context, start_time=start)
        if is_root:
            self._root = one
        return one

    def _count(self, change: int) -> None:
        with self._lock:
            self.open += change
