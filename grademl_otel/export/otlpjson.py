# SPDX-License-Identifier: Apache-2.0
"""OTLP/JSON as the Collector's file exporter writes it: one request a line.

Hex ids, 64-bit integers as strings, enums as integers, zero values left out, a whole double without a point,
NaN and infinities as strings, nothing escaped that JSON does not require. Needs no protobuf.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.convert.spans import Attributes, Link, Metric, Resource, Span, Sum, Value
from grademl_otel.version import __version__

SPAN_FLAGS: Final = 0x101
"""Sampled, and the parent is known to be no remote one."""
KIND_INTERNAL: Final = 1
STATUS_ERROR: Final = 2
CUMULATIVE: Final = 2

_SCOPE: Final = {"name": semconv.SCOPE_NAME, "version": __version__}
_EXACT: Final = 1e21
"""From here on a whole double is written with an exponent, by Go and by Python alike."""


def trace_line(resource: Resource, spans: Iterable[Span]) -> bytes:
    """Return one line of ``traces.jsonl``, line feed included."""
    scope_spans = {"scope": _SCOPE, "spans": [_span(span) for span in spans]}
    return _line({"resourceSpans": [{"resource": _resource(resource), "scopeSpans": [scope_spans]}]})


def metric_line(resource: Resource, metrics: Iterable[Metric]) -> bytes:
    """Return one line of ``metrics.jsonl``, line feed included."""
    scope_metrics = {"scope": _SCOPE, "metrics": [_metric(metric) for metric in metrics]}
    return _line({"resourceMetrics": [{"resource": _resource(resource), "scopeMetrics": [scope_metrics]}]})


def _line(request: dict[str, Any]) -> bytes:
    text = json.dumps(request, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _resource(resource: Resource) -> dict[str, Any]:
    return {"attributes": _attributes(resource.attributes)} if resource.attributes else {}


def _span(span: Span) -> dict[str, Any]:
    result: dict[str, Any] = {"traceId": f"{span.trace_id:032x}", "spanId": f"{span.span_id:016x}"}
    if span.parent_id:
        result["parentSpanId"] = f"{span.parent_id:016x}"
    result["flags"] = SPAN_FLAGS
    result["name"] = span.name
    result["kind"] = KIND_INTERNAL
    result["startTimeUnixNano"] = str(span.start_ns)
    result["endTimeUnixNano"] = str(span.end_ns)
    if span.attributes:
        result["attributes"] = _attributes(span.attributes)
    if span.links:
        result["links"] = [_link(link) for link in span.links]
    status: dict[str, Any] = {}
    if span.error is not None:
        if span.error:
            status["message"] = span.error
        status["code"] = STATUS_ERROR
    result["status"] = status
    return result


def _link(link: Link) -> dict[str, Any]:
    result: dict[str, Any] = {"traceId": f"{link.trace_id:032x}", "spanId": f"{link.span_id:016x}"}
    if link.attributes:
        result["attributes"] = _attributes(link.attributes)
    return result


def _metric(metric: Metric) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(metric.start_ns), "timeUnixNano": str(metric.time_ns)}
    result: dict[str, Any] = {"name": metric.name, "description": metric.description, "unit": metric.unit}
    if isinstance(metric, Sum):
        points = [
            {**_optional_attributes(point.attributes), **times, **_number(point.value)}
            for point in metric.points
        ]
        result["sum"] = {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        return result
    point = {
        **times,
        "count": str(sum(metric.counts)),
        "sum": _double(metric.total),
        "bucketCounts": [str(count) for count in metric.counts],
        "explicitBounds": [_double(bound) for bound in metric.bounds],
    }
    result["histogram"] = {"dataPoints": [point], "aggregationTemporality": CUMULATIVE}
    return result


def _number(value: int | float) -> dict[str, Any]:
    return {"asInt": str(value)} if isinstance(value, int) else {"asDouble": _double(value)}


def _optional_attributes(attributes: Attributes) -> dict[str, Any]:
    return {"attributes": _attributes(attributes)} if attributes else {}


def _attributes(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):  # before int: a bool is one in Python
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    return {"arrayValue": {"values": [_value(element) for element in value]} if value else {}}


def _double(value: float) -> int | float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) < _EXACT else value
