# SPDX-License-Identifier: Apache-2.0
"""The user's OpenTelemetry settings are obeyed: one program each, from the command line to what arrives."""

from __future__ import annotations

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from tests.support import repositories, training
from tests.support.overlays import neighbours
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

SHAPES = Path(__file__).resolve().parents[1] / "support" / "step_shapes.py"

RUN_ID = "0123456789abcdef0123456789abcdef"
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


ADDED_LATER = """
import sys, torch
from torch import nn
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

class Printed(SpanProcessor):
    def __init__(self, who):
        self.who = who
        self.started = set()
    def on_start(self, span, parent_context=None):
        span.set_attribute("seen.by", self.who)
        self.started.add(span.get_span_context().span_id)
    def on_end(self, span):
        assert span.context.span_id in self.started
        print(self.who, span.name, span.attributes["seen.by"], flush=True)

provider = trace.get_tracer_provider()
if "first" in sys.argv:
    provider.add_span_processor(Printed("first"))
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(6):
    if step == 3:
        provider.add_span_processor(Printed("second"))
    optimizer.zero_grad()
    net(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""

NO_PROVIDER = """
import time, torch
from torch import nn
from opentelemetry import trace
import grademl_otel

grademl_otel.instrument()
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)

def train(inside):
    while True:
        for x in data:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            if inside(trace.get_current_span()):
                return

def look(span):
    print("without:", span is trace.INVALID_SPAN)
    return True

train(look)

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
end = time.monotonic() + 60

def nest(current):
    if current.get_span_context().is_valid:
        with provider.get_tracer("mine").start_as_current_span("mine"):
            return True
    return time.monotonic() > end

train(nest)
(span,) = (span for span in exporter.get_finished_spans() if span.name == "mine")
print("parent:", f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}")
printed = ConsoleSpanExporter(formatter=lambda span: f"late: {span.name}\\n")
provider._active_span_processor._span_processors = (BatchSpanProcessor(printed),)  # all are replaced
train(lambda _: True)
"""

CONSOLE_ONLY = """
file_format: "1.0"
resource:
  attributes:
    - {name: service.name, value: configured}
tracer_provider:
  processors:
    - simple: {exporter: {console: {}}}
"""

NO_SPANS = """
file_format: "1.0"
propagator:
  composite:
    - {tracecontext: {}}
"""


def _printed(text: str) -> list[dict[str, Any]]:
    """Spans of the console exporter."""
    decoder, spans, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        span, end = decoder.raw_decode(rest)
        spans.append(span)
        rest = rest[end:].lstrip()
    return spans


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
    done = training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    assert _stored(tmp_path) == ["metrics.jsonl"]
    assert "report: grademl" not in done.err
    assert "metrics only, so there is no report: OTEL_TRACES_EXPORTER=none" in done.err


def test_no_metrics_leaves_traces(tmp_path: Path) -> None:
    settings = {"OTEL_METRICS_EXPORTER": "none", "GRADEML_EXPORTER": "file"}
    training.train(SHAPES, ["plain"], tmp_path, settings).ok()
    assert _stored(tmp_path) == ["traces.jsonl"]


def test_the_console_exporter_gets_our_spans(tmp_path: Path) -> None:
    done = training.train(SHAPES, ["plain"], tmp_path, {"OTEL_TRACES_EXPORTER": "console"}).ok()
    names = Counter(span["name"] for span in _printed(done.out))
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
        "OTEL_RESOURCE_ATTRIBUTES": "team=red,vcs.ref.head.name=lab",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "grademl_job",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "SLURM_JOB_ID": "7",
    }
    source = repositories.committed(tmp_path / "source", train_py=SHAPES.read_text())
    training.train(source / "train.py", ["plain"], tmp_path, settings).ok()
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    for span in read_lines(path):
        resource = {key: value.value for key, value in span.resource.items()}
        assert resource["service.name"] == "vision"
        assert resource["team"] == "red"
        assert resource["grademl.job.launcher"] == "torch"
        # Nobody has asked for these facts.
        assert resource["grademl.job.platform"] == "slurm"
        assert resource["vcs.ref.head.revision"] == repositories.git(source, "rev-parse", "HEAD").strip()
        assert resource["vcs.ref.head.name"] == "lab"
        assert resource.get("grademl.source.dirty") is not True  # absent where the time was up
        assert any(one.startswith(f"torch=={version('torch')}") for one in resource["grademl.frameworks"])
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


def test_processors_added_in_code_get_our_spans_also_those_added_later(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ADDED_LATER)
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"}
    done = training.train(script, ["first"], tmp_path, settings).ok()
    seen = Counter(done.out.splitlines())
    assert seen[f"first {semconv.RUN} second"] == seen[f"second {semconv.RUN} second"] == 1
    first = sum(count for line, count in seen.items() if line.startswith(f"first {semconv.STEP} "))
    assert first == 6
    assert seen[f"second {semconv.STEP} second"] >= 1
    assert not (tmp_path / "runs").exists()


def test_processors_added_after_the_run_began_get_our_spans_beside_the_store(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ADDED_LATER)
    done = training.train(script, [], tmp_path, {}).ok()
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    stored = Counter(span.name for span in read_lines(path))
    seen = Counter(line.split()[1] for line in done.out.splitlines() if line.startswith("second "))
    assert stored[semconv.RUN] == seen[semconv.RUN] == 1
    assert stored[semconv.STEP] == 6
    assert seen[semconv.STEP] >= 1
    assert seen[semconv.WINDOW] >= 1


def test_without_a_provider_nothing_is_attached_and_one_may_come_late(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NO_PROVIDER)
    # Nobody acts upon the console exporter here, so that it takes no spans.
    done = training.train_untraced(script, [], tmp_path, {"OTEL_TRACES_EXPORTER": "console"}).ok()
    without, parent, *late = done.out.splitlines()
    assert without == "without: True"
    assert late.count(f"late: {semconv.RUN}") == 1  # before the end of a provider that came after us
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    steps = {(span.trace_id, span.span_id) for span in read_lines(path) if span.name == semconv.STEP}
    assert tuple(parent.split()[1:]) in steps
    assert [line for line in done.err.splitlines() if line.startswith("grademl: recording run")] == [
        line for line in done.err.splitlines() if line
    ]


@pytest.mark.parametrize(("sampler", "argument"), [("traceidratio", "0.4"), ("always_off", "")])
def test_the_sampler_decides_which_steps_have_spans(sampler: str, argument: str, tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_RUN_ID": RUN_ID,
        "OTEL_TRACES_SAMPLER": sampler,
        "OTEL_TRACES_SAMPLER_ARG": argument,
    }
    training.train(SHAPES, ["train_eval"], tmp_path, settings).ok()
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    spans = read_lines(path)
    (run,) = [span for span in spans if span.name == semconv.RUN]
    derived = {f"{semconv.trace_id(RUN_ID, 0, semconv.TRACE_STEP, n):032x}" for n in range(16)}
    derived |= {f"{semconv.trace_id(RUN_ID, 0, semconv.TRACE_EVAL_STEP, n):032x}" for n in range(8)}
    bound = round(float(argument or 0) * 2**64)
    wanted = {trace for trace in derived if int(trace, 16) & 2**64 - 1 < bound}
    assert len(wanted) == (9 if argument else 0)
    found = {span.trace_id for span in spans if span.name in (semconv.STEP, semconv.FORWARD)}
    assert found <= wanted  # such short steps are not all kept
    assert bool(found) == bool(wanted)
    # The table and the spans of the workflow are a census.
    assert (run[semconv.STEPS_TOTAL], run[semconv.EVAL_STEPS_TOTAL]) == (16, 8)
    windows = [span for span in spans if span.name == semconv.WINDOW]
    assert sum(len(span.column("start_us")) for span in windows) == 24
    assert sum(span.name == semconv.EPOCH for span in spans) == 2


def test_a_configuration_file_takes_our_spans_where_it_takes_any(tmp_path: Path) -> None:
    overlay = neighbours("configuration")
    for name, text in (("console", CONSOLE_ONLY), ("none", NO_SPANS)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "otel.yaml").write_text(text)
        settings = {"OTEL_CONFIG_FILE": str(folder / "otel.yaml"), "PYTHONPATH": overlay}
        done = training.train(SHAPES, ["plain"], folder, settings).ok()
        assert not (folder / "runs").exists()
        if name == "console":
            spans = _printed(done.out)
            assert Counter(span["name"] for span in spans)[semconv.RUN] == 1
            resources = [span["resource"]["attributes"] for span in spans]
            assert {resource["service.name"] for resource in resources} == {"configured"}
            assert {resource[semconv.RANK] for resource in resources} == {0}
        else:
            assert done.out == ""
            (line,) = (line for line in done.err.splitlines() if "grademl" in line)
            assert line.startswith("grademl: nothing is recorded: OTEL_CONFIG_FILE sets no span processor up")
