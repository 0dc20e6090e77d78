# SPDX-License-Identifier: Apache-2.0
"""Exported OTLP is what the Collector takes: JSON by lines, protobuf in one piece; and pushed metrics."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Final

import pytest

from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.files.metrics import read_metrics

from ..conftest import StartCollector
from ..support.copied import told
from ..support.every_format import otlp_lines, otlp_protobuf
from ..support.metric_points import as_line, request
from ..support.metric_points import told as points_told
from ..support.servers import Collector
from ..support.truth import SPANS

CONFIG: Final = """\
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "${env:GRADEML_COLLECTOR_GRPC}"}
      http: {endpoint: "${env:GRADEML_COLLECTOR_HTTP}"}
exporters:
  file: {path: "${env:GRADEML_COLLECTOR_DATA}/out/spans.json", create_directory: true}
extensions:
  health_check: {endpoint: "${env:GRADEML_COLLECTOR_HEALTH}"}
service:
  extensions: [health_check]
  pipelines:
    traces: {receivers: [otlp], exporters: [file]}
    metrics: {receivers: [otlp], exporters: [file]}
"""
RUN: Final = "ab" * 16


@pytest.fixture
def started(collector: StartCollector, tmp_path: Path) -> Collector:
    config = tmp_path / "file.yaml"
    config.write_text(CONFIG)
    return collector(str(config))


def post(collector: Collector, signal: str, body: bytes, kind: str) -> None:
    to = f"{collector.otlp_http}/v1/{signal}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urllib.request.Request(to, body, {"Content-Type": kind}), timeout=30) as answer:
        assert answer.status == 200


def arrived(collector: Collector) -> Path:
    collector.stop()
    return collector.data / "out" / "spans.json"


def test_lines_are_requests(started: Collector, tmp_path: Path) -> None:
    source, out = tmp_path / "all.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(otlp_lines(SPANS) + as_line(request(RUN)))
    assert cli(["export", str(source), "--to", "otlp", "-o", str(out)]) == 0
    for line in out.read_bytes().splitlines():
        signal = "metrics" if line.startswith(b'{"resourceMetrics"') else "traces"
        post(started, signal, line, "application/json")
    path = str(arrived(started))
    assert sorted(told(open_source(path).read(Selection()).spans)) == sorted(
        told(open_source(str(source)).read(Selection()).spans)
    )
    assert points_told(read_metrics(open_source(path))) == points_told(read_metrics(open_source(str(source))))


def test_a_file_of_protobuf_is_one_request(started: Collector, tmp_path: Path) -> None:
    source, out = tmp_path / "spans.pb", tmp_path / "out.pb"
    source.write_bytes(otlp_protobuf(SPANS))
    assert cli(["export", str(source), "--to", "otlp", "-o", str(out)]) == 0
    post(started, "traces", out.read_bytes(), "application/x-protobuf")
    found = open_source(str(arrived(started))).read(Selection()).spans
    assert sorted(told(found)) == sorted(told(open_source(str(source)).read(Selection()).spans))


@pytest.mark.parametrize("how", ["http", "grpc"])
def test_pushed_metrics_arrive(how: str, started: Collector, tmp_path: Path) -> None:
    source = tmp_path / "all.jsonl"
    source.write_bytes(otlp_lines(SPANS) + as_line(request(RUN)) + as_line(request(RUN, 1)))
    to = started.otlp_http if how == "http" else f"grpc://{started.otlp_grpc.rpartition('/')[2]}"
    assert cli(["push", str(source), "--to", to, "--no-verify"]) == 0
    path = str(arrived(started))
    assert points_told(read_metrics(open_source(path))) == points_told(read_metrics(open_source(str(source))))
