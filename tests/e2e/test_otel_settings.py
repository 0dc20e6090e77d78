# SPDX-License-Identifier: Apache-2.0
"""The user's OpenTelemetry settings are obeyed: one program each, from the command line to what arrives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

SHAPES = Path(__file__).resolve().parents[1] / "support" / "step_shapes.py"

OWN_PROVIDER = """
import torch
from torch import nn
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Printed(SpanExporter):
    def export(self, spans):
        for span in spans:
            print(span.name, span.resource.attributes["service.name"], flush=True)
        return SpanExportResult.SUCCESS

provider = TracerProvider(resource=Resource({"service.name": "mine"}))
provider.add_span_processor(SimpleSpanProcessor(Printed()))
trace.set_tracer_provider(provider)

import grademl_otel
grademl_otel.instrument()
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def _stored(folder: Path) -> list[str]:
    """The files of the store, by name."""
    return sorted(path.name for path in (folder / "runs").glob("*/*"))


@pytest.mark.parametrize(
    "settings",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "grademl_torch"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"},
        {"GRADEML_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
    ],
    ids=lambda settings: ",".join(settings.values()),
)
def test_nothing_is_recorded_when_the_user_says_so(settings: dict[str, str], tmp_path: Path) -> None:
    done = training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    assert "grademl" not in done.err
    assert not (tmp_path / "runs").exists()


def test_no_traces_leaves_metrics(tmp_path: Path) -> None:
    settings = {"OTEL_TRACES_EXPORTER": "none", "GRADEML_EXPORTER": "file"}
    training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    assert _stored(tmp_path) == ["metrics.jsonl"]


def test_no_metrics_leaves_traces(tmp_path: Path) -> None:
    settings = {"OTEL_METRICS_EXPORTER": "none", "GRADEML_EXPORTER": "file"}
    training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    assert _stored(tmp_path) == ["traces.jsonl"]


def test_the_console_exporter_gets_our_spans(tmp_path: Path) -> None:
    done = training.train(SHAPES, ["plain"], tmp_path, {"OTEL_TRACES_EXPORTER": "console"}).ok()
    decoder, names, rest = json.JSONDecoder(), Counter[str](), done.out.strip()
    while rest:
        span, end = decoder.raw_decode(rest)
        names[span["name"]] += 1
        rest = rest[end:].lstrip()
    assert names[semconv.RUN] == 1
    assert names[semconv.EPOCH] == 2
    assert names[semconv.STEP] == names[semconv.FORWARD] == 16
    assert not (tmp_path / "runs").exists()


def test_a_provider_of_the_users_own_gets_our_spans(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OWN_PROVIDER)
    done = training.train_untraced(script, [], tmp_path).ok()
    names = Counter(done.out.splitlines())
    assert names[f"{semconv.RUN} mine"] == 1
    assert names[f"{semconv.STEP} mine"] == names[f"{semconv.BACKWARD} mine"] == 5
    assert not (tmp_path / "runs").exists()


def test_the_users_resource_is_ours(tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file",
        "OTEL_SERVICE_NAME": "vision",
        "OTEL_RESOURCE_ATTRIBUTES": "team=red,deployment.environment=lab",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "grademl_job",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    for span in read_lines(path):
        resource = {key: value.value for key, value in span.resource.items()}
        assert resource["service.name"] == "vision"
        assert resource["team"] == "red"
        assert resource["grademl.job.launcher"] == "torch"
        assert span.resource[semconv.RANK].type == "int"
        assert resource[semconv.RUN_ID] in path.parent.name


def test_in_process_mode_needs_no_relay(tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_IN_PROCESS": "1",
        "GRADEML_RELAY_LOG": str(tmp_path / "relay.log"),
    }
    training.train(SHAPES, ["train_eval"], tmp_path, settings).ok()
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    (run,) = [span for span in read_lines(path) if span.name == semconv.RUN]
    assert (run[semconv.STEPS_TOTAL], run[semconv.EVAL_STEPS_TOTAL]) == (16, 8)
    assert not (tmp_path / "relay.log").exists()
