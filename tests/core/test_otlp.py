# SPDX-License-Identifier: Apache-2.0
"""Encoders: the JSON line and the protobuf request say the same, with exact types."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from grademl_otel import marks, semconv
from grademl_otel.convert.spans import Gauge, Link, Metric, Point, Resource, Span, Sum, UpDown
from grademl_otel.convert.totals import metrics_of
from grademl_otel.export import otlp, otlpjson
from grademl_otel.export.sdkspans import hand_on, sdk_resource

RESOURCE = Resource({"service.name": "trainer", "process.pid": 1000, "grademl.world_size": 8})
SPAN = Span(
    name="step",
    trace_id=0x5B8EFFF798038103D269B633813FC60C,
    span_id=0xEEE19B7EC3C1B174,
    parent_id=0x0EE19B7EC3C1B173,
    start_ns=1764570000000000001,
    end_ns=1764570000250000002,
    attributes={
        "int": 7,
        "big": 1 << 60,
        "negative": -1,
        "true": True,
        "false": False,
        "double": 2.5,
        "whole": 3.0,
        "zero": 0.0,
        "nan": math.nan,
        "inf": math.inf,
        "minus": -math.inf,
        "text": 'é <&> "quoted" \u2028',
        "empty": "",
        "ints": [0, 1, -(1 << 62)],
        "texts": ["file", "otlp"],
        "none": [],
    },
    links=[Link(5, 6, {"grademl.link.kind": "run"})],
    error="boom",
)
PLAIN = Span("run", 1, 2, 0, 10, 20)


def parsed(line: bytes) -> Any:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def request(spans: list[Span]) -> ExportTraceServiceRequest:
    (only,) = otlp.trace_requests(RESOURCE, spans)
    assert only.count == len(spans)
    return ExportTraceServiceRequest.FromString(only.body)


def collector_form(message: Any) -> Any:
    """Return a request as the Collector writes it, made by protobuf's own JSON and not by our encoder."""

    def fix(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            result = {name: fix(child, name) for name, child in value.items()}
            if "spanId" in result and "name" in result:
                result.setdefault("status", {})
            if key == "arrayValue" and result == {"values": []}:
                return {}
            return result
        if isinstance(value, list):
            return [fix(child, key) for child in value]
        if key in ("traceId", "spanId", "parentSpanId"):
            return base64.b64decode(value).hex()
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    return fix(json_format.MessageToDict(message, use_integers_for_enums=True))


def test_json_line_and_protobuf_request_agree() -> None:
    assert parsed(otlpjson.trace_line(RESOURCE, [SPAN, PLAIN])) == collector_form(request([SPAN, PLAIN]))


def test_json_has_the_collectors_spelling() -> None:
    span = parsed(otlpjson.trace_line(RESOURCE, [SPAN]))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    values = {attribute["key"]: attribute["value"] for attribute in span["attributes"]}

    assert span["traceId"] == "5b8efff798038103d269b633813fc60c"
    assert span["spanId"] == "eee19b7ec3c1b174"
    assert span["parentSpanId"] == "0ee19b7ec3c1b173"
    assert span["startTimeUnixNano"] == "1764570000000000001"
    assert span["kind"] == 1
    assert span["status"] == {"message": "boom", "code": 2}
    assert values["int"] == {"intValue": "7"}
    assert values["big"] == {"intValue": "1152921504606846976"}
    assert values["true"] == {"boolValue": True}
    assert values["false"] == {"boolValue": False}
    assert values["nan"] == {"doubleValue": "NaN"}
    assert values["inf"] == {"doubleValue": "Infinity"}
    assert values["minus"] == {"doubleValue": "-Infinity"}
    assert values["ints"] == {
        "arrayValue": {"values": [{"intValue": "0"}, {"intValue": "1"}, {"intValue": "-4611686018427387904"}]}
    }
    assert values["texts"] == {"arrayValue": {"values": [{"stringValue": "file"}, {"stringValue": "otlp"}]}}
    line = otlpjson.trace_line(RESOURCE, [SPAN])
    assert b'"doubleValue":3}' in line
    assert 'é <&> \\"quoted\\" \u2028'.encode() in line


def test_zero_values_are_left_out_but_status_is_there() -> None:
    span = parsed(otlpjson.trace_line(RESOURCE, [PLAIN]))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]

    assert "parentSpanId" not in span
    assert "attributes" not in span
    assert "links" not in span
    assert span["status"] == {}


def test_scope_and_resource_are_those_of_the_contract() -> None:
    spans = request([PLAIN]).resource_spans[0]

    assert spans.scope_spans[0].scope.name == semconv.SCOPE_NAME
    assert {a.key: a.value.WhichOneof("value") for a in spans.resource.attributes} == {
        "service.name": "string_value",
        "process.pid": "int_value",
        "grademl.world_size": "int_value",
    }


def test_environment_bytes_that_are_no_utf8() -> None:
    resource = Resource({"service.name": "bad\udcff", "k\udcff": 1})

    (encoded,) = otlp.trace_requests(resource, [PLAIN])
    attributes = ExportTraceServiceRequest.FromString(encoded.body).resource_spans[0].resource.attributes
    assert [(a.key, a.value.string_value) for a in attributes] == [("service.name", "bad?"), ("k?", "")]
    assert b"bad?" in otlpjson.trace_line(resource, [PLAIN])


def test_requests_are_bounded_in_spans_and_bytes() -> None:
    many = [Span("s", 1, number + 1, 0, 1, 2) for number in range(1200)]
    requests = list(otlp.trace_requests(RESOURCE, many))
    assert [request.count for request in requests] == [512, 512, 176]

    large = [Span("s", 1, number + 1, 0, 1, 2, {"a": list(range(200_000))}) for number in range(5)]
    requests = list(otlp.trace_requests(RESOURCE, large))
    assert sum(request.count for request in requests) == 5
    assert all(len(request.body) < 4_000_000 for request in requests)
    assert list(otlp.trace_requests(RESOURCE, [])) == []


def totals() -> list[int]:
    values = [0] * marks.ACC_SLOTS
    values[marks.ACC_STEPS] = 3
    values[marks.ACC_EVAL_STEPS] = 2
    values[marks.ACC_SAMPLES] = 96
    values[marks.ACC_COST_NS] = 5_000_000
    values[marks.ACC_STEP_SUM_NS] = 1_500_000_000
    values[marks.ACC_HISTOGRAM + 8] = 2
    values[marks.ACC_HISTOGRAM + len(semconv.STEP_DURATION_BOUNDS_S)] = 1
    forward = semconv.PHASE_INDEX["forward"]
    values[marks.ACC_PHASE_SUM_NS + forward] = 700_000_000
    values[marks.ACC_PHASE_COUNT + forward] = 3
    return values


def name_of(kind: int) -> str:
    return semconv.PHASES[kind - marks.PHASE_BASE]


def test_metrics_of_accumulators() -> None:
    metrics = metrics_of(totals(), 4, (7, 0, 2), 1000, 2000, name_of)
    message = otlp.metric_request(RESOURCE, metrics)
    encoded = ExportMetricsServiceRequest.FromString(message.body)
    by_name = {metric.name: metric for metric in encoded.resource_metrics[0].scope_metrics[0].metrics}

    assert message.signal == "metrics"
    assert set(by_name) == {
        "grademl.step.duration", "grademl.phase.time", "grademl.steps", "grademl.samples",
        "grademl.tracer.cost", "grademl.tracer.lost", "grademl.tracer.unsent",
    }  # fmt: skip
    duration = by_name["grademl.step.duration"].histogram.data_points[0]
    assert (duration.count, duration.sum) == (3, 1.5)
    assert list(duration.bucket_counts) == [0] * 8 + [2] + [0] * 6 + [1]
    assert tuple(duration.explicit_bounds) == semconv.STEP_DURATION_BOUNDS_S
    steps = {p.attributes[0].value.string_value: p.as_int for p in by_name["grademl.steps"].sum.data_points}
    assert steps == {"train": 3, "evaluate": 2}
    phase = by_name["grademl.phase.time"].sum.data_points[0]
    assert (phase.attributes[0].value.string_value, phase.as_double) == ("forward", 0.7)
    assert by_name["grademl.tracer.lost"].sum.data_points[0].as_int == 4
    unsent = by_name["grademl.tracer.unsent"].sum.data_points
    assert {p.attributes[0].value.string_value: p.as_int for p in unsent} == {"spooled": 7, "refused": 2}
    for metric in by_name.values():
        data = metric.sum if metric.HasField("sum") else metric.histogram
        assert data.aggregation_temporality == 2
        assert all(p.start_time_unix_nano == 1000 and p.time_unix_nano == 2000 for p in data.data_points)


def test_metric_line_and_request_agree() -> None:
    metrics = metrics_of(totals(), 4, (7, 0, 2), 1000, 2000, name_of)
    encoded = ExportMetricsServiceRequest.FromString(otlp.metric_request(RESOURCE, metrics).body)

    assert parsed(otlpjson.metric_line(RESOURCE, metrics)) == collector_form(encoded)


SAMPLED: list[Metric] = [
    Gauge(
        "hw.temperature", "Cel", "How hot.", 3000, [Point(40.5, {"hw.id": "GPU-1"}, 1000, 2900), Point(41)]
    ),
    UpDown("hw.memory", "By", "In use.", 1000, 3000, [Point(1 << 40, {"hw.id": "GPU-1"}), Point(-1)]),
    Sum("hw.energy", "J", "Used.", 1000, 3000, [Point(7, {}, 1200, 2900), Point(2.0, {"hw.id": "GPU-1"})]),
]


def test_gauges_and_amounts_in_both_encodings() -> None:
    encoded = ExportMetricsServiceRequest.FromString(otlp.metric_request(RESOURCE, SAMPLED).body)
    assert parsed(otlpjson.metric_line(RESOURCE, SAMPLED)) == collector_form(encoded)

    gauge, updown, counter = encoded.resource_metrics[0].scope_metrics[0].metrics
    assert [point.start_time_unix_nano for point in gauge.gauge.data_points] == [0, 0]
    assert [point.time_unix_nano for point in gauge.gauge.data_points] == [2900, 3000]
    assert [point.WhichOneof("value") for point in gauge.gauge.data_points] == ["as_double", "as_int"]
    assert (updown.sum.is_monotonic, counter.sum.is_monotonic) == (False, True)
    assert updown.sum.aggregation_temporality == counter.sum.aggregation_temporality == 2
    times = [(point.start_time_unix_nano, point.time_unix_nano) for point in counter.sum.data_points]
    assert times == [(1200, 2900), (1000, 3000)]


class Tagging(SpanProcessor):
    """What a user's processor does at a span's start: put an attribute on it."""

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        assert span.is_recording()
        span.set_attribute("team", "red")
        if parent_context is not None and trace.get_current_span(parent_context) is not trace.INVALID_SPAN:
            span.add_event("has a parent")


def test_spans_go_through_the_processors_of_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=SdkResource({"service.name": "x"}, "https://schema"))
    provider.add_span_processor(Tagging())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    resource = sdk_resource(provider, {semconv.RANK: 3, "list": ["a", "b"]})
    for each in (SPAN, PLAIN):
        hand_on(each, provider, resource)
    span, plain = exporter.get_finished_spans()

    assert span.context.trace_id == SPAN.trace_id
    assert span.parent is not None
    assert span.parent.span_id == SPAN.parent_id
    assert span.attributes is not None
    assert span.attributes["ints"] == (0, 1, -(1 << 62))
    assert span.attributes["true"] is True
    assert span.attributes["team"] == "red"
    assert set(SPAN.attributes) < set(span.attributes)  # limits of the user's do not cut a table
    assert [event.name for event in span.events] == ["has a parent"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "boom")
    assert span.links[0].attributes == {"grademl.link.kind": "run"}
    assert (span.start_time, span.end_time) == (SPAN.start_ns, SPAN.end_ns)
    assert plain.parent is None
    assert not plain.events
    for each in (span, plain):
        assert each.resource.attributes == {"service.name": "x", semconv.RANK: 3, "list": ("a", "b")}
        assert each.resource.schema_url == "https://schema"
        assert each.instrumentation_scope is not None
        assert each.instrumentation_scope.name == semconv.SCOPE_NAME
        json.loads(each.to_json())


@pytest.mark.parametrize("number", [1e21, -1e300, 5e-324, 0.1, 123456789012345680.0])
def test_doubles_survive_json(number: float) -> None:
    span = Span("s", 1, 2, 0, 1, 2, {"x": number})
    line = otlpjson.trace_line(RESOURCE, [span])
    value = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0]["value"]

    assert float(value["doubleValue"]) == number


def test_metrics_are_halved_down_to_single_points() -> None:
    metrics: list[Metric] = [
        Gauge("g", "1", "", 5, [Point(number, {"n": number}) for number in range(5)]),
        Sum("s", "By", "", 1, 5, [Point(7)]),
        UpDown("u", "By", "", 1, 5, [Point(1, {"a": 1}), Point(2, {"a": 2})]),
    ]
    pending, pieces = [otlp.metric_request(RESOURCE, metrics)], []
    while pending:
        request = pending.pop(0)
        halves = request.halves()
        pieces += [] if halves else [request]
        pending += halves
    assert len(pieces) == 8
    found = []
    for piece in pieces:
        (group,) = ExportMetricsServiceRequest.FromString(piece.body).resource_metrics
        assert group.resource.attributes[0].value.string_value == "trainer"
        (metric,) = group.scope_metrics[0].metrics
        data = getattr(metric, metric.WhichOneof("data") or "")
        (point,) = data.data_points
        found.append((metric.name, metric.unit, point.as_int))
        assert metric.WhichOneof("data") == "gauge" or data.aggregation_temporality == 2
    assert sorted(found) == [
        *(("g", "1", number) for number in range(5)), ("s", "By", 7), ("u", "By", 1), ("u", "By", 2),
    ]  # fmt: skip
    assert otlp.Request("metrics", b"no request", 3).halves() == ()
