# SPDX-License-Identifier: Apache-2.0
"""Where a run's telemetry goes: its folder in the file store, an OTLP collector, the provider in place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grademl_otel import marks, semconv
from grademl_otel.config import FILE, OTLP, Settings
from grademl_otel.convert.spans import Metric, Resource, Span
from grademl_otel.export.filestore import METRICS, TRACES, FileStore, run_folder
from grademl_otel.export.interval import Thinning, metrics_every_ns
from grademl_otel.export.ledger import Counts, Ledger
from grademl_otel.export.otlpjson import metric_line, trace_line
from grademl_otel.pump import Sink

if TYPE_CHECKING:
    from grademl_otel.export.pipeline import Pipeline

_SPANS_PER_LINE = 512


class FileSink:
    """Writes at once; what the disk does not take is lost, counted, and said once."""

    def __init__(self, store: FileStore, resource: Resource):
        self._store = store
        self._resource = resource
        self._ledger = Ledger()
        self._thinning = Thinning()
        self.taken = 0
        self.delivered = 0

    @property
    def problem(self) -> str | None:
        if self._store.problem is None:
            return None
        lost = f"{self._ledger.lost:,} spans are dropped"
        return f"{self._store.problem}; {lost}; GRADEML_STORE names another folder"

    @property
    def unsent(self) -> Counts:
        return self._ledger.counts

    def take_spans(self, spans: Sequence[Span]) -> None:
        for start in range(0, len(spans), _SPANS_PER_LINE):
            group = spans[start : start + _SPANS_PER_LINE]
            if not self._store.append(TRACES, trace_line(self._resource, group)):
                self._ledger.add(semconv.UNSENT_DROPPED, len(group))

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        if self._thinning.takes(time.perf_counter_ns()) or final:
            self._store.append(METRICS, metric_line(self._resource, metrics))

    def close(self) -> None:
        self._store.close()


class OtlpSink:
    """Hands requests to the pipeline that all runs of this relay share."""

    def __init__(self, pipeline: Pipeline, resource: Resource):
        self._pipeline = pipeline
        self._resource = resource
        self._ledger = Ledger()
        self.taken = 0

    @property
    def delivered(self) -> int:
        return self._pipeline.delivered

    @property
    def problem(self) -> str | None:
        return self._pipeline.problem_of(self._ledger)

    @property
    def unsent(self) -> Counts:
        return self._ledger.counts

    def take_spans(self, spans: Sequence[Span]) -> None:
        from grademl_otel.export.otlp import trace_requests

        # Spans of one priority travel together, so that a spool that must drop something can choose.
        by_priority: dict[int, list[Span]] = {}
        for span in spans:
            by_priority.setdefault(_priority(span), []).append(span)
        for priority, group in sorted(by_priority.items()):
            for request in trace_requests(self._resource, group):
                self.taken = self._pipeline.submit(request, priority, self._ledger)

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        from grademl_otel.export.otlp import metric_request

        # Cumulative values are superseded by the next ones; only the last must not get lost.
        request = metric_request(self._resource, metrics)
        self.taken = self._pipeline.submit(request, _METRICS_PRIORITY, self._ledger, durable=final)

    def close(self) -> None:
        """The pipeline belongs to all runs."""


class ProviderSink:
    """Gives finished spans to the processors of the OpenTelemetry tracer provider in place."""

    def __init__(self, provider: Any, info: marks.RunInfo):
        from grademl_otel.export.sdkspans import sdk_resource

        self._provider = provider
        self._resource = sdk_resource(provider, info.resource)
        self._ledger = Ledger()
        self.problem: str | None = None
        self.taken = 0
        self.delivered = 0

    @property
    def unsent(self) -> Counts:
        return self._ledger.counts

    def take_spans(self, spans: Sequence[Span]) -> None:
        from grademl_otel.export.sdkspans import hand_on

        for span in spans:
            try:
                hand_on(span, self._provider, self._resource)
            except Exception as error:  # a user's processor may raise anything
                self._ledger.add(semconv.UNSENT_DROPPED, 1)
                if self.problem is None:
                    self.problem = f"a span processor raised {type(error).__name__}: {error}; spans are lost"

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        """Metrics have no such way in: readers pull, and an instrument of ours would delay the exit."""

    def close(self) -> None:
        """The provider is the user's."""


class NoSink:
    """Stands for a destination that cannot be had; everything is lost, and said once."""

    def __init__(self, problem: str):
        self.problem: str | None = problem
        self._ledger = Ledger()
        self.taken = 0
        self.delivered = 0

    @property
    def unsent(self) -> Counts:
        return self._ledger.counts

    def take_spans(self, spans: Sequence[Span]) -> None:
        self._ledger.add(semconv.UNSENT_DROPPED, len(spans))

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None: ...

    def close(self) -> None: ...


class Sinks:
    """Opens the sinks of the runs of this process, which share one OTLP pipeline."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]):
        self._settings = settings
        self._environ = environ
        self._pipeline: Pipeline | None = None
        self.metrics_every_ns = metrics_every_ns(environ)

    def open(self, info: marks.RunInfo, start_unix_ns: int) -> list[Sink]:
        """Return the sinks that ``info`` names."""
        resource = Resource(info.resource)
        sinks: list[Sink] = []
        if FILE in info.exporters:
            sinks.append(_open_file(info, resource, start_unix_ns))
        if OTLP in info.exporters:
            sinks.append(self.open_otlp(resource))
        return sinks

    def relieve(self, urgent: bool = False) -> None:
        """See to it that a collector that hangs keeps nothing waiting; to be called now and then.

        ``urgent``: what a collector has not taken yet is spooled at once.
        """
        if self._pipeline is not None:
            self._pipeline.relieve(urgent)

    def close(self, wait_s: float) -> None:
        """Send or spool what is on its way, within ``wait_s`` seconds."""
        if self._pipeline is not None:
            self._pipeline.close(wait_s)

    def open_otlp(self, resource: Resource) -> Sink:
        """Return the way to the collector for telemetry of ``resource``."""
        # gRPC, requests and protobuf are imported only where something is exported.
        from grademl_otel.export.pipeline import open_pipeline
        from grademl_otel.export.settings import OtlpSettingsError

        try:
            if self._pipeline is None:
                self._pipeline = open_pipeline(self._settings, self._environ)
        except (OtlpSettingsError, ImportError) as error:
            return NoSink(f"nothing is exported by OTLP: {error}")
        return OtlpSink(self._pipeline, resource)


def _open_file(info: marks.RunInfo, resource: Resource, start_unix_ns: int) -> Sink:
    try:
        folder = run_folder(Path(info.store), info.run_id, start_unix_ns)
    except OSError as error:
        return NoSink(f"nothing is written to {info.store}: {error.strerror}")
    return FileSink(FileStore(folder), resource)


_METRICS_PRIORITY = 3
"""They push no span out of the spool: they tell how many were."""


def _priority(span: Span) -> int:
    """Return 0 for spans of the run's trace, 1 for windows, 2 for detail."""
    if span.name == semconv.WINDOW:
        return 1
    return 0 if span.name in marks.SCOPES or span.name.startswith("checkpoint.") else 2
