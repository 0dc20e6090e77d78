# SPDX-License-Identifier: Apache-2.0
"""A real Jaeger between a file store and a copy: pushed, found to be there, pulled, the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from grademl_otel.analyzers.cli.app import run as grademl
from grademl_otel.analyzers.copy import otlp_requests, verify
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support import servers, training
from tests.support.copied import same, told
from tests.support.otlp_server import Answer, http_receiver, spans_of
from tests.support.synthetic import Training, simulate

RUN = "c0b1" * 8


@pytest.mark.real
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_there_and_back(over: str, jaeger: servers.Jaeger, tmp_path: Path) -> None:
    run = RUN if over == "http" else RUN[::-1]
    traces = simulate(Training(run_id=run, workers=2, epochs=1, steps_per_epoch=12)).write_store(
        tmp_path / "grademl-runs"
    )
    to = jaeger.otlp_http if over == "http" else jaeger.otlp_grpc.replace("http://", "grpc://")
    sent = training.grademl(["push", "--to", to, "--verify", jaeger.source, "--json"], tmp_path).ok()
    done = json.loads(sent.out)
    assert done["sent"] == done["accepted"] == done["verified"]
    assert done["missing"] == 0

    pull = ["pull", jaeger.source, "--run", run, "-o", "copy", "--json"]
    copied = json.loads(training.grademl(pull, tmp_path).ok().out)
    assert copied["spans"] == done["sent"]
    copy = open_source(str(tmp_path / "copy")).read(Selection())
    there = open_source(jaeger.source).read(Selection(run=run))
    same(there, copy, ordered=False)
    stored = open_source(str(traces)).read(Selection())
    assert sorted(told(copy.spans)) == sorted(told(stored.spans))


@pytest.mark.real
def test_what_is_lost_on_the_way(
    jaeger: servers.Jaeger,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collector that says yes to all and passes on less: the loss is told to the span."""
    monkeypatch.setattr(verify, "_PAUSES_S", (0.2, 0.5))
    monkeypatch.setattr(otlp_requests, "_MAX_SPANS", 40)
    run = "10c7" * 8
    store = tmp_path / "grademl-runs"
    simulate(Training(run_id=run, workers=2, epochs=1, steps_per_epoch=12)).write_store(store)
    lost: set[tuple[bytes, bytes]] = set()

    def pass_on(request: ExportTraceServiceRequest, _: Answer) -> ExportTraceServiceResponse:
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                lost.add((scope_spans.spans[-1].trace_id, scope_spans.spans[-1].span_id))
                del scope_spans.spans[-1]
        if spans_of(request):
            requests.post(
                f"{jaeger.otlp_http}/v1/traces",
                request.SerializeToString(),
                headers={"Content-Type": "application/x-protobuf"},
                timeout=30,
            ).raise_for_status()
        return ExportTraceServiceResponse()

    with http_receiver() as collector:
        collector.take_traces = pass_on  # type: ignore[method-assign]
        to = f"http://127.0.0.1:{collector.port}"
        assert grademl(["push", str(store), "--to", to, "--verify", jaeger.source, "--json"]) == 3
    said = capsys.readouterr()
    done = json.loads(said.out)
    assert done["accepted"] == done["sent"]
    assert (done["missing"], done["verified"]) == (len(lost), done["sent"] - len(lost))
    traces = len({trace for trace, _ in lost})
    assert f"{len(lost)} of {done['sent']:,} spans are not there, in {traces} of" in said.err
