# SPDX-License-Identifier: Apache-2.0
"""Metrics of every kind as OTLP, written by nothing of ours; and points as what they say."""

from __future__ import annotations

import json
from typing import Any, Final

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from grademl_otel import semconv
from grademl_otel.analyzers.model.metrics import CUMULATIVE, DELTA, MetricPoints

T0: Final = 1_796_000_000_000_000_000
TRACE: Final = bytes(range(16))
POINTS: Final = 6
"""In one request of `request`."""


def request(run: str, at: int = 0, points: int = 1, attempt: int = 1) -> ExportMetricsServiceRequest:
    """Metrics of all kinds of a process of ``run``, ``at`` s later; so many points of its gauge."""
    made = ExportMetricsServiceRequest()
    group = made.resource_metrics.add(schema_url="https://example.test/1")
    for key, value in (("service.name", "trainer"), (semconv.RUN_ID, run)):
        group.resource.attributes.add(key=key).value.string_value = value
    group.resource.attributes.add(key=semconv.ATTEMPT).value.int_value = attempt
    scope = group.scope_metrics.add()
    scope.scope.name, scope.scope.version = "meter", "1.0"
    time = T0 + at * 10**9
    total = scope.metrics.add(name="steps", unit="{step}", description="how many\nso far").sum
    total.aggregation_temporality, total.is_monotonic = CUMULATIVE, True
    point = total.data_points.add(time_unix_nano=time, start_time_unix_nano=T0 - 5, as_int=2**60 + at)
    exemplar = point.exemplars.add(time_unix_nano=time, as_int=1, trace_id=TRACE, span_id=TRACE[:8])
    exemplar.filtered_attributes.add(key="k").value.bytes_value = b"\x00\xff"
    gauge = scope.metrics.add(name="load").gauge
    for number in range(points):
        gauge.data_points.add(time_unix_nano=time + number, as_double=0.25 + number)
    latency = scope.metrics.add(name="latency", unit="s").histogram
    latency.aggregation_temporality = DELTA
    inside = latency.data_points.add(
        time_unix_nano=time, count=3, sum=1.5, explicit_bounds=[0.5, 1], bucket_counts=[2, 0, 1]
    )
    inside.attributes.add(key="phase").value.string_value = "forward \u2028 <b>"
    of_powers = scope.metrics.add(name="sizes").exponential_histogram
    of_powers.aggregation_temporality = DELTA
    of_powers.data_points.add(time_unix_nano=time, count=2, scale=1, zero_count=2).positive.offset = 3
    quantiles = scope.metrics.add(name="old").summary.data_points.add(time_unix_nano=time, count=4, sum=9)
    quantiles.quantile_values.add(quantile=0.5, value=float("nan"))
    scope.metrics.add(name="nothing recorded").gauge.data_points.add(time_unix_nano=time, flags=1)
    return made


def as_line(made: ExportMetricsServiceRequest) -> bytes:
    """OTLP/JSON as the Collector writes it: ids are hexadecimal."""
    document = json_format.MessageToDict(made, use_integers_for_enums=True)
    for group in document["resourceMetrics"]:
        for metric in group["scopeMetrics"][0]["metrics"]:
            for point in next(value for value in metric.values() if isinstance(value, dict))["dataPoints"]:
                for exemplar in point.get("exemplars", ()):
                    exemplar["traceId"], exemplar["spanId"] = TRACE.hex(), TRACE[:8].hex()
    return json.dumps(document).encode() + b"\n"


def told(points: MetricPoints) -> list[tuple[Any, ...]]:
    """Return for each point all that is known of it, in order; what is no number is its word."""
    return [
        (
            points.name(ix),
            points.unit(ix),
            *(
                repr(getattr(points, column)[ix].item())
                for column in ("time", "start", "kind", "temporality", "monotonic", "value", "whole", "count")
            ),
            repr(points.attributes(ix)),
            repr(points.buckets(ix)),
            repr(points.resource(ix)),
            repr(None if points.scope_ix[ix] < 0 else points.scopes[int(points.scope_ix[ix])]),
        )
        for ix in range(len(points))
    ]
