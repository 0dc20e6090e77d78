# SPDX-License-Identifier: Apache-2.0
"""OTLP protobuf requests, built directly: a few microseconds a span, where the SDK's encoder takes up to a
hundred.

Requests are handed on as bytes, the same for gRPC, HTTP and the spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metric_messages
from opentelemetry.proto.resource.v1 import resource_pb2 as resource_messages
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from grademl_otel import semconv
from grademl_otel.convert.spans import (
    Gauge,
    Histogram,
    Link,
    Metric,
    Point,
    Resource,
    Span,
    Sum,
    UpDown,
    Value,
)
from grademl_otel.export.otlpjson import SPAN_FLAGS
from grademl_otel.version import __version__

MAX_SPANS_PER_REQUEST: Final = 512
MAX_REQUEST_BYTES: Final = 2_000_000
"""Below the 4 MiB that gRPC servers take by default, with room for the frame."""

_SCOPE: Final = common.InstrumentationScope(name=semconv.SCOPE_NAME, version=__version__)
_CUMULATIVE: Final = metric_messages.AGGREGATION_TEMPORALITY_CUMULATIVE


@dataclass(frozen=True, slots=True)
class Request:
    """A serialized export request."""

    signal: str
    """``traces`` or ``metrics``."""
    body: bytes
    count: int
    """Spans, or metrics."""

    def halves(self) -> tuple[Request, ...]:
        """Return two requests with half of it each; empty when there is nothing to divide."""
        if self.signal == "metrics":
            return self._halves_of_metrics()
        if self.count < 2:
            return ()
        try:
            whole = ExportTraceServiceRequest.FromString(self.body)
            (resource_spans,) = whole.resource_spans
            (scope_spans,) = resource_spans.scope_spans
        except (DecodeError, ValueError):  # no request of ours
            return ()
        spans, middle = list(scope_spans.spans), self.count // 2
        resource = resource_spans.resource
        return _trace_request(resource, spans[:middle]), _trace_request(resource, spans[middle:])

    def _halves_of_metrics(self) -> tuple[Request, ...]:
        try:
            whole = ExportMetricsServiceRequest.FromString(self.body)
            (resource_metrics,) = whole.resource_metrics
            (scope_metrics,) = resource_metrics.scope_metrics
        except (DecodeError, ValueError):  # no request of ours
            return ()
        metrics = list(scope_metrics.metrics)
        if len(metrics) == 1:
            metrics = _halves_of_points(metrics[0])
        if len(metrics) < 2:
            return ()
        resource, middle = resource_metrics.resource, len(metrics) // 2
        return _metric_request(resource, metrics[:middle]), _metric_request(resource, metrics[middle:])


def trace_requests(resource: Resource, spans: Iterable[Span]) -> Iterator[Request]:
    """Yield requests of at most `MAX_SPANS_PER_REQUEST` spans and about `MAX_REQUEST_BYTES`.

    A span larger than that travels alone.
    """
    encoded_resource = _resource(resource)
    batch: list[trace.Span] = []
    size = 0
    for span in spans:
        message = _span(span)
        length = message.ByteSize()
        if batch and (len(batch) >= MAX_SPANS_PER_REQUEST or size + length > MAX_REQUEST_BYTES):
            yield _trace_request(encoded_resource, batch)
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield _trace_request(encoded_resource, batch)


def metric_request(resource: Resource, metrics: Iterable[Metric]) -> Request:
    """Return the request that carries ``metrics``."""
    return _metric_request(_resource(resource), [_metric(metric) for metric in metrics])


def rejected(signal: str, answer: bytes) -> tuple[int, str]:
    """Return how many spans (or data points) a server's answer says that it left out, and why.

    Anything that is no such answer says nothing.
    """
    try:
        if signal == "traces":
            traces = ExportTraceServiceResponse.FromString(answer).partial_success
            return max(0, traces.rejected_spans), traces.error_message
        metrics = ExportMetricsServiceResponse.FromString(answer).partial_success
        return max(0, metrics.rejected_data_points), metrics.error_message
    except DecodeError:
        return 0, ""


def _metric_request(resource: resource_messages.Resource, metrics: list[metric_messages.Metric]) -> Request:
    scope_metrics = metric_messages.ScopeMetrics(scope=_SCOPE, metrics=metrics)
    resource_metrics = metric_messages.ResourceMetrics(resource=resource, scope_metrics=[scope_metrics])
    body = ExportMetricsServiceRequest(resource_metrics=[resource_metrics]).SerializeToString()
    return Request("metrics", body, len(metrics))


def _halves_of_points(metric: metric_messages.Metric) -> list[metric_messages.Metric]:
    """Return a metric twice, with half of its points each; empty when there is nothing to divide."""
    kind = metric.WhichOneof("data")
    number = len(getattr(metric, kind).data_points) if kind else 0
    if kind is None or number < 2:
        return []
    first, second = metric_messages.Metric(), metric_messages.Metric()
    for half in (first, second):
        half.CopyFrom(metric)
    del getattr(first, kind).data_points[number // 2 :]
    del getattr(second, kind).data_points[: number // 2]
    return [first, second]


def _trace_request(resource: resource_messages.Resource, spans: list[trace.Span]) -> Request:
    scope_spans = trace.ScopeSpans(scope=_SCOPE, spans=spans)
    resource_spans = trace.ResourceSpans(resource=resource, scope_spans=[scope_spans])
    body = ExportTraceServiceRequest(resource_spans=[resource_spans]).SerializeToString()
    return Request("traces", body, len(spans))


def _resource(resource: Resource) -> resource_messages.Resource:
    return resource_messages.Resource(attributes=_attributes(resource.attributes))


def _span(span: Span) -> trace.Span:
    return trace.Span(
        trace_id=span.trace_id.to_bytes(16, "big"),
        span_id=span.span_id.to_bytes(8, "big"),
        parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
        flags=SPAN_FLAGS,
        name=span.name,
        kind=trace.Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        links=[_link(link) for link in span.links],
        status=trace.Status()
        if span.error is None
        else trace.Status(code=trace.Status.STATUS_CODE_ERROR, message=_text(span.error)),
    )


def _link(link: Link) -> trace.Span.Link:
    return trace.Span.Link(
        trace_id=link.trace_id.to_bytes(16, "big"),
        span_id=link.span_id.to_bytes(8, "big"),
        attributes=_attributes(link.attributes),
    )


def _metric(metric: Metric) -> metric_messages.Metric:
    result = metric_messages.Metric(name=metric.name, unit=metric.unit, description=metric.description)
    if isinstance(metric, Histogram):
        result.histogram.CopyFrom(_histogram(metric))
    elif isinstance(metric, Gauge):
        result.gauge.data_points.extend(_number_point(point, 0, metric.time_ns) for point in metric.points)
    else:
        result.sum.CopyFrom(_sum(metric))
    return result


def _sum(metric: Sum | UpDown) -> metric_messages.Sum:
    return metric_messages.Sum(
        data_points=[_number_point(point, metric.start_ns, metric.time_ns) for point in metric.points],
        aggregation_temporality=_CUMULATIVE,
        is_monotonic=isinstance(metric, Sum),
    )


def _number_point(of: Point, start_ns: int, time_ns: int) -> metric_messages.NumberDataPoint:
    """Encode ``of``, at the times of its metric where it has none of its own; a gauge has no start."""
    point = metric_messages.NumberDataPoint(
        attributes=_attributes(of.attributes),
        start_time_unix_nano=start_ns and (of.start_ns or start_ns),
        time_unix_nano=of.time_ns or time_ns,
    )
    if isinstance(of.value, int):
        point.as_int = of.value
    else:
        point.as_double = of.value
    return point


def _histogram(metric: Histogram) -> metric_messages.Histogram:
    point = metric_messages.HistogramDataPoint(
        start_time_unix_nano=metric.start_ns,
        time_unix_nano=metric.time_ns,
        count=sum(metric.counts),
        sum=metric.total,
        bucket_counts=metric.counts,
        explicit_bounds=metric.bounds,
    )
    return metric_messages.Histogram(data_points=[point], aggregation_temporality=_CUMULATIVE)


def _attributes(attributes: Mapping[str, Value]) -> list[common.KeyValue]:
    return [common.KeyValue(key=_text(key), value=_value(value)) for key, value in attributes.items()]


def _value(value: Value) -> common.AnyValue:
    if isinstance(value, str):
        return common.AnyValue(string_value=_text(value))
    if isinstance(value, bool):  # before int: a bool is one in Python
        return common.AnyValue(bool_value=value)
    if isinstance(value, int):
        return common.AnyValue(int_value=value)
    if isinstance(value, float):
        return common.AnyValue(double_value=value)
    return common.AnyValue(array_value=common.ArrayValue(values=[_value(element) for element in value]))


def _text(text: str) -> str:
    """Return ``text`` as protobuf takes it: environment variables may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
