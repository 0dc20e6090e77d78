# SPDX-License-Identifier: Apache-2.0
"""Metrics as OTLP export requests of bounded size: protobuf travels as it was, JSON as the same message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics

from grademl_otel.analyzers.copy import otlp_requests
from grademl_otel.analyzers.copy.otlp_requests import message_field
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup


@dataclass(frozen=True)
class MetricRequest:
    """Metrics that are sent together."""

    groups: Sequence[tuple[bytes, int]]
    """Each a ``ResourceMetrics``, and how many points are in it."""

    @property
    def count(self) -> int:
        """How many points are in it."""
        return sum(points for _, points in self.groups)

    def body(self) -> bytes:
        """Return it as an `ExportMetricsServiceRequest`."""
        return b"".join(message_field(1, message) for message, _ in self.groups)

    def halves(self) -> tuple[MetricRequest, ...]:
        """Return two requests for one that is too large; none where it is of one point."""
        if len(self.groups) > 1:
            middle = len(self.groups) // 2
            return MetricRequest(self.groups[:middle]), MetricRequest(self.groups[middle:])
        return tuple(MetricRequest([half]) for half in _halved(*self.groups[0]))


def _halved(message: bytes, points: int) -> Iterator[tuple[bytes, int]]:
    """Yield a ``ResourceMetrics`` as two, each with half of its metrics; of one metric half of its points."""
    if points < 2:
        return
    whole = ResourceMetrics.FromString(message)
    metrics = sum(len(scope.metrics) for scope in whole.scope_metrics)
    total, middle = (metrics, metrics // 2) if metrics > 1 else (points, points // 2)
    for begin, end in ((0, middle), (middle, total)):
        half, at, held = ResourceMetrics.FromString(message), 0, 0
        for scope in half.scope_metrics:
            kept = []
            for metric in scope.metrics:
                data = _points_of(metric)
                if metrics == 1:
                    del data[end:], data[:begin]
                if metrics == 1 or begin <= at < end:
                    kept.append(metric)
                    held += len(data)
                at += 1
            some = [Metric.FromString(metric.SerializeToString()) for metric in kept]
            del scope.metrics[:]
            scope.metrics.extend(some)
        yield half.SerializeToString(), held


def _points_of(metric: Metric) -> list[object]:
    which = metric.WhichOneof("data")
    return [] if which is None else getattr(metric, which).data_points


@dataclass
class MetricPacker:
    """Gathers metrics and hands each full request to ``send``."""

    send: Callable[[MetricRequest], None]
    _waiting: list[tuple[bytes, int]] = field(default_factory=list)
    _bytes: int = 0

    def add(self, group: MetricGroup) -> None:
        """Take ``group``; raises Unreadable where it is none."""
        message, points = group.protobuf(), group.points()
        if not points:
            return
        if self._waiting and self._bytes + len(message) > otlp_requests.MAX_BYTES:
            self.flush()
        self._waiting.append((message, points))
        self._bytes += len(message)

    def flush(self) -> None:
        """Send what is waiting."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            self._split(MetricRequest(waiting))

    def _split(self, request: MetricRequest) -> None:
        halves = request.halves() if len(request.body()) > otlp_requests.MAX_BYTES else ()
        for half in halves:
            self._split(half)
        if not halves:
            self.send(request)
