# SPDX-License-Identifier: Apache-2.0
"""What the Collector's file exporter writes, in each of its formats, is read back as it was sent."""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from grademl_otel.analyzers.model.metrics import CUMULATIVE, DELTA, MetricPoints
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.files.compression import compression
from grademl_otel.analyzers.sources.files.metrics import read_metrics

from ..analyzers.test_every_format import expected, found, lossless, same
from ..conftest import StartCollector
from ..support.every_format import otlp_request
from ..support.foreign_formats import by_trace
from ..support.servers import Collector
from ..support.truth import NOT_JSON, SPANS, T0, Resource, Scope, Span

FORMATS: Final = {
    "json": "format: json",
    "json_zstd": "format: json, compression: zstd",
    "proto": "format: proto",
    "proto_zstd": "format: proto, compression: zstd",
}
ROTATED: Final = "rotated"
_BULK: Final = 2000
"""Spans with which the file that rotates at 1 MiB does so several times."""

CONFIG: Final = """\
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "${{env:GRADEML_COLLECTOR_GRPC}}"}}
      http: {{endpoint: "${{env:GRADEML_COLLECTOR_HTTP}}"}}
exporters:
{exporters}
  file/rotated: {{path: "${{env:GRADEML_COLLECTOR_DATA}}/rotated/spans.json", create_directory: true,
    rotation: {{max_megabytes: 1, max_backups: 100}}}}
extensions:
  health_check: {{endpoint: "${{env:GRADEML_COLLECTOR_HEALTH}}"}}
service:
  extensions: [health_check]
  pipelines:
    traces: {{receivers: [otlp], exporters: [{names}, file/rotated]}}
    metrics: {{receivers: [otlp], exporters: [{names}]}}
"""
EXPORTER: Final = """\
  file/{name}: {{path: "${{env:GRADEML_COLLECTOR_DATA}}/{name}/spans.json", create_directory: true,
    {settings}}}
"""


def bulk() -> list[Span]:
    resource, scope = Resource("bulk"), Scope("many")
    text = {"text": "x" * 1400}
    return [
        Span(
            7,
            number + 1,
            0,
            f"span {number % 10}",
            T0 + number,
            T0 + number + 5,
            resource,
            scope,
            attributes=text,
        )
        for number in range(_BULK)
    ]


@dataclass(frozen=True)
class Written:
    folder: Path
    spans: Sequence[Span]


@pytest.fixture(scope="module")
def written(module_collector: StartCollector, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Files of a Collector that was sent a telemetry and ended."""
    collector = module_collector(str(configured(tmp_path_factory)))
    return sent(collector, [*SPANS, NOT_JSON, *bulk()])


def configured(folders: pytest.TempPathFactory) -> Path:
    exporters = "".join(EXPORTER.format(name=name, settings=settings) for name, settings in FORMATS.items())
    names = ", ".join(f"file/{name}" for name in FORMATS)
    config = folders.mktemp("config") / "files.yaml"
    config.write_text(CONFIG.format(exporters=exporters, names=names))
    return config


def sent(collector: Collector, spans: Sequence[Span]) -> Written:
    """Send metrics and ``spans``, and let the Collector end."""
    send(collector, "metrics", metrics().SerializeToString())
    for trace in by_trace(spans):
        for some in batched(list(trace), 250):
            send(collector, "traces", otlp_request(some))
    collector.stop()
    return Written(collector.data, spans)


def batched(spans: list[Span], size: int) -> Iterator[list[Span]]:
    return (spans[at : at + size] for at in range(0, len(spans), size))


def send(collector: Collector, signal: str, body: bytes) -> None:
    request = urllib.request.Request(
        f"{collector.otlp_http}/v1/{signal}", body, {"Content-Type": "application/x-protobuf"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        assert answer.status == 200


def metrics() -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.scope.name = "meter"
    total = scope.metrics.add(name="steps", unit="{step}").sum
    total.aggregation_temporality, total.is_monotonic = CUMULATIVE, True
    total.data_points.add(time_unix_nano=T0, start_time_unix_nano=T0 - 5, as_int=2**60 + 1)
    scope.metrics.add(name="load").gauge.data_points.add(time_unix_nano=T0, as_double=0.25)
    histogram = scope.metrics.add(name="duration", unit="s").histogram
    histogram.aggregation_temporality = DELTA
    point = histogram.data_points.add(
        time_unix_nano=T0, count=3, sum=1.5, explicit_bounds=[0.5, 1], bucket_counts=[2, 0, 1]
    )
    point.attributes.add(key="phase").value.string_value = "forward"
    return request


def told(points: MetricPoints) -> list[tuple[object, ...]]:
    return [
        (
            *(points.name(ix), points.unit(ix), int(points.kind[ix]), int(points.temporality[ix])),
            *(
                bool(points.monotonic[ix]),
                int(points.time[ix]),
                int(points.start[ix]),
                float(points.value[ix]),
            ),
            int(points.whole[ix]) if points.is_whole[ix] else None,
            *(int(points.count[ix]), points.attributes(ix), points.buckets(ix)),
        )
        for ix in range(len(points))
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_spans_come_back_as_they_were_sent(name: str, written: Written) -> None:
    telemetry = open_source(str(written.folder / name)).read(Selection())
    same(found(telemetry.spans), expected("OTLP protobuf", written.spans))
    lossless(telemetry)
    assert telemetry.ledger.warnings == []


def test_rotated_files_are_one(written: Written) -> None:
    files = sorted((written.folder / ROTATED).iterdir())
    assert len(files) > 2
    for where in (written.folder / ROTATED, written.folder / ROTATED / "spans.json"):
        telemetry = open_source(str(where)).read(Selection())
        same(found(telemetry.spans), expected("OTLP protobuf", written.spans))
        lossless(telemetry)
        assert telemetry.ledger.warnings == []


def test_files_that_are_compressed_as_a_whole(
    collector: StartCollector, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = "--feature-gates=exporter.file.nativeCompression"
    written = sent(collector(str(configured(tmp_path_factory)), flags=[gate]), SPANS)
    for name in ("json_zstd", "proto_zstd"):
        assert compression(next((written.folder / name).iterdir()).read_bytes()) == "zstd"
        telemetry = open_source(str(written.folder / name)).read(Selection())
        same(found(telemetry.spans), expected("OTLP protobuf"))
        lossless(telemetry)


def test_metrics_come_back_from_the_files_that_hold_spans_too(written: Written) -> None:
    given = [told(read_metrics(open_source(str(written.folder / name)))) for name in FORMATS]
    assert all(each == given[0] for each in given)
    buckets = given[0][2][-1]
    assert (buckets.bounds, buckets.counts) == ((0.5, 1.0), (2, 0, 1))  # type: ignore[attr-defined]
    assert [row[:-1] for row in given[0]] == [
        ("steps", "{step}", 1, CUMULATIVE, True, T0, T0 - 5, float(2**60 + 1), 2**60 + 1, 0, {}),
        ("load", "", 0, 0, False, T0, 0, 0.25, None, 0, {}),
        ("duration", "s", 2, DELTA, False, T0, 0, 1.5, None, 3, {"phase": "forward"}),
    ]
    assert list(itertools.chain(given[0][0][-1:], given[0][1][-1:])) == [None, None]
