# SPDX-License-Identifier: Apache-2.0
"""Where a run's telemetry goes: its folder in the file store, an OTLP collector, the provider in place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grademl_otel import marks, semconv
from grademl_otel.config import FILE, OTLP
from grademl_otel.filestore import METRICS, TRACES, FileStore, run_folder
from grademl_otel.otlpjson import metric_line, trace_line
from grademl_otel.pump import Sink
from grademl_otel.spans import Metric, Resource, Span

if TYPE_CHECKING:
    from grademl_otel.pipeline import Pipeline

_log = logging.getLogger(__name__)

_SPANS_PER_LINE = 512


class FileSink:
    """Writes at once; what the disk does not take is lost, counted, and said once."""

    def __init__(self, store: FileStore, resource: Resource):
        self._store = store
        self._resource = resource
        self._warned = False
        self.taken = 0
        self.delivered = 0

    def take_spans(self, spans: Sequence[Span]) -> None:
        for start in range(0, len(spans), _SPANS_PER_LINE):
            self._append(TRACES, trace_line(self._resource, spans[start : start + _SPANS_PER_LINE]))

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        self._append(METRICS, metric_line(self._resource, metrics))

    def close(self) -> None:
        self._store.close()

    def _append(self, name: str, line: bytes) -> None:
        self._store.append(name, line)
        if self._store.problem and not self._warned:
            self._warned = True
            _log.warning("%s", self._store.problem)


class OtlpSink:
    """Hands requests to the pipeline that all runs of this relay share."""

    def __init__(self, pipeline: Pipeline, resource: Resource):
        self._pipeline = pipeline
        self._resource = resource
        self.taken = 0

    @property
    def delivered(self) -> int:
        return self._pipeline.delivered

    def take_spans(self, spans: Sequence[Span]) -> None:
        from grademl_otel.otlp import trace_requests

        # Spans of one priority travel together, so that a spool that must drop something can choose.
        by_priority: dict[int, list[Span]] = {}
        for span in spans:
            by_priority.setdefault(_priority(span), []).append(span)
        for priority, group in sorted(by_priority.items()):
            for request in trace_requests(self._resource, group):
                self.taken = self._pipeline.submit(request, priority)

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        from grademl_otel.otlp import metric_request

        # Cumulative values are superseded by the next ones; only the last must not get lost.
        self.taken = self._pipeline.submit(metric_request(self._resource, metrics), 0, durable=final)

    def close(self) -> None:
        """The pipeline belongs to all runs."""


class ProviderSink:
    """Gives finished spans to the processors of the OpenTelemetry tracer provider in place."""

    def __init__(self, provider: Any):
        self._provider = provider
        self._failed = False
        self.taken = 0
        self.delivered = 0

    def take_spans(self, spans: Sequence[Span]) -> None:
        from grademl_otel.sdkspans import readable_span

        processor = getattr(self._provider, "_active_span_processor", None)
        if processor is None:
            return
        for span in spans:
            try:
                readable = readable_span(span, self._provider.resource)
                processor.on_start(readable)
                processor.on_end(readable)
            except Exception:  # a user's processor may raise anything
                if not self._failed:
                    self._failed = True
                    _log.warning("a span processor raised; its spans are lost", exc_info=True)

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        """Metrics have no such way in: readers pull, and an instrument of ours would delay the exit."""

    def close(self) -> None:
        """The provider is the user's."""


def open_sinks(info: marks.RunInfo, start_unix_ns: int, pipeline: Pipeline | None) -> list[Sink]:
    """Return the sinks that ``info`` names; ``pipeline`` is that of the process, None where OTLP is not to be
    had.
    """
    resource = Resource(info.resource)
    sinks: list[Sink] = []
    if FILE in info.exporters:
        sinks.append(FileSink(FileStore(run_folder(Path(info.store), info.run_id, start_unix_ns)), resource))
    if OTLP in info.exporters and pipeline is not None:
        sinks.append(OtlpSink(pipeline, resource))
    return sinks


def _priority(span: Span) -> int:
    """Return 0 for spans of the run's trace, 1 for windows, 2 for detail."""
    if span.name == semconv.WINDOW:
        return 1
    return 0 if span.name in marks.SCOPES or span.name.startswith("checkpoint.") else 2
