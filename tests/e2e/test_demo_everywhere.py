# SPDX-License-Identifier: Apache-2.0
"""The demo's unchanged script, traced into every destination, and read back from there.

Whatever the way (files, Jaeger over gRPC or HTTP, a Collector in between), the same spans with the same
parents, attributes and types must arrive, and `grademl` must say the same about them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from tests.conftest import StartCollector
from tests.support import servers, training
from tests.support.rawspans import RawSpan, read_jaeger, read_lines

pytestmark = pytest.mark.real

EPOCHS, STEPS, BATCH, WORKERS = 2, 12, 4, 2
DECODE_MS = 150
HELD_OUT_BATCHES = 4  # as the script has it
EVALUATIONS = EPOCHS + 1  # after each epoch, and of the best network at the end
ARGUMENTS = [
    *("--epochs", str(EPOCHS), "--steps", str(STEPS), "--batch-size", str(BATCH), "--workers", str(WORKERS)),
    *("--decode-ms", str(DECODE_MS)),
]
TRAINED = EPOCHS * STEPS
EVALUATED = EVALUATIONS * HELD_OUT_BATCHES

WAYS = ["file", "jaeger-grpc", "jaeger-http", "collector-jaeger", "collector-file"]


@dataclass(frozen=True)
class Recorded:
    """One traced run of the script, and where its telemetry went."""

    way: str
    run_id: str
    source: str
    """As `grademl` takes it."""
    folder: Path
    finished: training.Finished
    spans: list[RawSpan]

    def named(self, name: str) -> list[RawSpan]:
        return [span for span in self.spans if span.name == name]

    def answer(self, command: str, *options: str) -> dict[str, Any]:
        """What `grademl COMMAND SOURCE --json` prints."""
        done = training.grademl([command, self.source, "--json", *options], self.folder).ok()
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    def of_run(self, command: str, *options: str) -> dict[str, Any]:
        return self.answer(command, "--run", self.run_id, *options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> training.Finished:
    return training.train_untraced(training.EXAMPLE, ARGUMENTS, tmp_path_factory.mktemp("plain")).ok()


@pytest.fixture(scope="module", params=WAYS)
def recorded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    module_collector: StartCollector,
) -> Recorded:
    way: str = request.param
    folder = tmp_path_factory.mktemp(way)
    run_id = secrets.token_hex(16)
    settings = {"GRADEML_RUN_ID": run_id, "OTEL_SERVICE_NAME": f"demo-{way}"}

    def trained(**more: str) -> training.Finished:
        return training.train(training.EXAMPLE, ARGUMENTS, folder, {**settings, **more}).ok()

    def otlp(endpoint: str, protocol: str = "grpc") -> training.Finished:
        return trained(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)

    if way == "file":
        finished = trained(GRADEML_EXPORTER="file")
        source = next((folder / "runs").iterdir())
        return Recorded(way, run_id, str(source), folder, finished, read_lines(source / "traces.jsonl"))
    if way == "collector-file":
        to_file = module_collector("file.yaml")
        finished = otlp(to_file.otlp_grpc)
        traces = to_file.data / "traces.jsonl"
        spans = _whole_run(lambda: read_lines(traces), way)
        return Recorded(way, run_id, str(to_file.data), folder, finished, spans)

    jaeger: servers.Jaeger = request.getfixturevalue("jaeger")
    if way == "jaeger-grpc":
        finished = otlp(jaeger.otlp_grpc)
    elif way == "jaeger-http":
        finished = otlp(jaeger.otlp_http, "http/protobuf")
    else:
        agent = module_collector(
            "agent-jaeger.yaml", {"GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://")}
        )
        finished = otlp(agent.otlp_grpc)
    spans = _whole_run(lambda: read_jaeger(jaeger.query_url, _all_traces(run_id)), way)
    return Recorded(way, run_id, jaeger.source, folder, finished, spans)


# --- The script -------------------------------------------------------------------------------------------


def test_the_script_prints_what_it_prints_untraced(recorded: Recorded, plain: training.Finished) -> None:
    assert recorded.finished.out == plain.out  # every digit of the losses


def test_one_line_says_where_the_telemetry_goes(recorded: Recorded) -> None:
    lines = [line for line in recorded.finished.err.splitlines() if line.startswith("grademl: ")]
    assert len(lines) == 1
    assert recorded.run_id[:8] in lines[0]
    assert "Traceback" not in recorded.finished.err


# --- Spans ------------------------------------------------------------------------------------------------


def test_every_span_of_the_workflow_is_there_once(recorded: Recorded) -> None:
    count = Counter(span.name for span in recorded.spans)
    assert count["run"] == 1
    assert count["epoch"] == EPOCHS
    assert count["evaluate"] == EVALUATIONS
    assert count["checkpoint.save"] == _improvements(recorded.finished.out)
    assert count["checkpoint.load"] == 1
    assert len({span.span_id for span in recorded.spans}) == len(recorded.spans)


def test_every_span_is_internal_ours_and_in_order(recorded: Recorded) -> None:
    assert {span.kind for span in recorded.spans} == {1}
    assert {span.scope for span in recorded.spans} == {"grademl_otel"}
    assert {span.status for span in recorded.spans} <= {0, 1}
    assert [span for span in recorded.spans if not 0 < span.start <= span.end] == []


def test_parents(recorded: Recorded) -> None:
    by_id = {span.span_id: span for span in recorded.spans}
    (run,) = recorded.named("run")
    assert run.parent_id == ""
    assert run.span_id == f"{semconv.span_id(recorded.run_id, 0, 'run', 0, 0):016x}"
    # Python collects when it likes to: there may be pauses anywhere.
    others = [span for span in recorded.spans if span.name != semconv.GC]
    parents = {(span.name, by_id[span.parent_id].name if span.parent_id else None) for span in others}
    assert parents == {
        ("run", None),
        ("epoch", "run"),
        ("evaluate", "run"),
        ("checkpoint.save", "run"),
        ("checkpoint.load", "run"),
        ("window", None),
        ("data.fetch", "window"),
        ("data.collate", "window"),
        ("step", None),
        *((phase, "step") for phase in _children_of(recorded.named("step"), others)),
    }
    assert all(by_id[span.parent_id].trace_id == span.trace_id for span in recorded.spans if span.parent_id)


def test_traces_have_the_derived_ids(recorded: Recorded) -> None:
    for span in recorded.spans:
        if span.name in ("run", "epoch", "evaluate", "checkpoint.save", "checkpoint.load"):
            assert span.trace_id == _trace(recorded.run_id, semconv.TRACE_RUN)
        elif span.name == "window":
            shard = semconv.window_shard(0, span["grademl.window.part"], 1)
            assert span.trace_id == _trace(recorded.run_id, "window", span["grademl.window"], shard)
        elif span.name == "step" and span["grademl.step.kind"] == "train":
            assert span.trace_id == _trace(recorded.run_id, "step", span["grademl.step"])


def test_windows_and_steps_link_to_the_run(recorded: Recorded) -> None:
    (run,) = recorded.named("run")
    for span in recorded.named("window") + recorded.named("step"):
        ((trace_id, span_id, attributes),) = span.links
        assert (trace_id, span_id) == (run.trace_id, run.span_id)
        assert attributes["grademl.link.kind"].value == "run"


def test_a_kept_training_step_has_its_phases_inside_it(recorded: Recorded) -> None:
    steps = [s for s in recorded.named("step") if s["grademl.step.kind"] == "train"]
    assert steps
    for step in steps:
        children = [span for span in recorded.spans if span.parent_id == step.span_id]
        names = Counter(child.name for child in children)
        assert {n: names[n] for n in ("data.wait", "forward", "backward", "optimizer")} == {
            "data.wait": 1,
            "forward": 1,
            "backward": 1,
            "optimizer": 1,
        }
        for child in children:
            assert child["grademl.step"] == step["grademl.step"]
            assert child["grademl.lane"] == "main"
            assert child.end <= step.end
        order = [c.name for c in sorted(children, key=lambda c: c.start) if c.name in names]
        assert [n for n in order if n in ("data.wait", "forward", "backward", "optimizer")] == [
            "data.wait",
            "forward",
            "backward",
            "optimizer",
        ]


def test_a_workers_fetch_carries_the_item_of_the_wait_that_it_ends(recorded: Recorded) -> None:
    waits = {span["grademl.item"]: span for span in recorded.named("data.wait")}
    fetches = {span["grademl.item"]: span for span in recorded.named("data.fetch")}
    assert len(fetches) == len(recorded.named("data.fetch")) == len(recorded.named("data.collate"))
    assert set(fetches) == set(waits)
    for item, fetch in fetches.items():
        assert fetch["grademl.lane"] in {f"loader-worker-{k}" for k in range(WORKERS)} | {
            f"loader1-worker-{k}" for k in range(WORKERS)
        }
        assert fetch.end <= waits[item].end
        assert fetch.end - fetch.start >= BATCH * DECODE_MS * 1_000_000  # the script sleeps as long


def test_attributes_keep_their_types(recorded: Recorded) -> None:
    """On the wire and back: an int64 is no double, an array of ints no string."""
    for span in recorded.spans:
        for key, value in {**span.resource, **span.attributes}.items():
            assert value.type == _expected_type(key), (span.name, key, value)
        missing = REQUIRED.get(span.name, frozenset()) - set(span.attributes)
        assert not missing, (span.name, missing)
        assert not IDENTITY - set(span.resource)
        assert span.resource["grademl.run.id"].value == recorded.run_id
        assert span.resource["service.name"].value == f"demo-{recorded.way}"


def test_what_the_run_says_of_itself(recorded: Recorded) -> None:
    (run,) = recorded.named("run")
    assert run["grademl.script"] == "train_cnn.py"
    assert run["grademl.ended"] == "exit"
    assert run["grademl.steps"] == TRAINED
    assert run["grademl.eval_steps"] == EVALUATED
    assert run["grademl.incomplete_steps"] == 0
    assert run["grademl.exporters"] == (["file"] if recorded.way == "file" else ["otlp"])
    assert run["grademl.tracer.dropped"] == 0
    assert 0 <= run["grademl.tracer.cost_fraction"] < 1
    assert run["grademl.spans.emitted"] == len(recorded.spans)


def test_what_the_epochs_say(recorded: Recorded) -> None:
    epochs = sorted(recorded.named("epoch"), key=lambda span: span.start)
    assert [span["grademl.epoch"] for span in epochs] == list(range(EPOCHS))
    for span in epochs:
        assert span["grademl.steps"] == STEPS
        assert span["grademl.loader.workers"] == WORKERS
        assert span["grademl.loader.batch_size"] == BATCH
        assert span["grademl.loader.prefetch"] == 2  # the DataLoader's default
        assert span["grademl.loader.persistent"] is False
        assert span["grademl.loader.in_order"] is True
    evaluations = recorded.named("evaluate")
    assert [span["grademl.eval_steps"] for span in evaluations] == [HELD_OUT_BATCHES] * EVALUATIONS


def test_the_step_table_has_a_row_for_every_step_that_the_script_did(recorded: Recorded) -> None:
    rows = [row for window in recorded.named("window") for row in _rows(window)]
    trained = [row for row in rows if row["flags"] & (semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE) == 0]
    evaluated = [row for row in rows if row["flags"] & semconv.FLAG_EVALUATE]
    assert sorted(row["step"] for row in trained) == list(range(TRAINED))
    # Evaluations stand at the number of updates done before them.
    at = [STEPS * (epoch + 1) for epoch in range(EPOCHS)] + [TRAINED]
    assert sorted(row["step"] for row in evaluated) == sorted(at * HELD_OUT_BATCHES)
    assert {row["micro"] for row in trained} == {1}
    assert {row["data.wait.count"] for row in rows} == {1}
    assert {row["backward.count"] for row in trained} == {1}
    kept = {row["step"] for row in trained if row["flags"] & semconv.FLAG_DETAILED}
    steps = {s["grademl.step"] for s in recorded.named("step") if s["grademl.step.kind"] == "train"}
    assert kept == steps


def test_a_rows_times_are_those_of_its_span(recorded: Recorded) -> None:
    spans = {s["grademl.step"]: s for s in recorded.named("step") if s["grademl.step.kind"] == "train"}
    compared = 0
    for window in recorded.named("window"):
        for row in _rows(window):
            span = spans.get(row["step"])
            if span is None or row["flags"] & semconv.FLAG_EVALUATE:
                continue
            compared += 1
            assert abs(window.start + row["start_us"] * 1000 - span.start) < 1000
            assert abs(window.start + (row["start_us"] + row["dur_us"]) * 1000 - span.end) < 2000
    assert compared == len(spans)


# --- grademl ----------------------------------------------------------------------------------------------


def test_grademl_lists_the_run(recorded: Recorded) -> None:
    entries = [e for e in recorded.answer("runs")["runs"] if e["run"] == recorded.run_id]
    assert len(entries) == 1
    assert entries[0]["script"] == "train_cnn.py"
    assert entries[0]["steps"] == TRAINED
    assert entries[0]["ended"] == "exit"


@pytest.mark.parametrize("command", ["report", "critical-path"])
def test_path_and_budget_sum_to_the_wall_time(recorded: Recorded, command: str) -> None:
    answer = recorded.of_run(command)
    (run,) = recorded.named("run")
    wall = answer["window"]["wall_ns"]
    assert wall == run.end - run.start
    assert int(answer["window"]["origin_unix_ns"]) == run.start
    sections = answer["path"]["sections"]
    assert sum(s["end_ns"] - s["start_ns"] for s in sections) + answer["path"]["omitted"]["ns"] == wall
    assert answer["path"]["total_ns"] == wall
    assert sum(entry["ns"] for entry in answer["lane_budget"]) == wall
    for before, after in pairwise(sections):
        assert before["end_ns"] <= after["start_ns"]


def test_sections_omitted_are_counted(recorded: Recorded) -> None:
    answer = recorded.of_run("critical-path", "--top", "3")
    assert len(answer["path"]["sections"]) == 3
    assert answer["path"]["omitted"]["sections"] > 0
    told = sum(s["end_ns"] - s["start_ns"] for s in answer["path"]["sections"])
    assert told + answer["path"]["omitted"]["ns"] == answer["window"]["wall_ns"]


def test_grademl_finds_the_run_complete(recorded: Recorded) -> None:
    completeness = recorded.of_run("report", "--strict")["completeness"]
    assert completeness["verdict"] == "complete"
    assert completeness["spans"] == {"expected": len(recorded.spans), "received": len(recorded.spans)}
    assert completeness["steps"]["expected"] == completeness["steps"]["measured"] == TRAINED
    assert completeness["ranks"] == {"expected": 1, "present": [0]}
    assert completeness["orphans"] == 0
    assert completeness["windows_missing"] == completeness["conflicts"] == []
    assert completeness["tracer"]["dropped"] == 0


def test_the_verdict_names_the_loader(recorded: Recorded) -> None:
    answer = recorded.of_run("report")
    assert [f["id"] for f in answer["findings"]][:1] == ["input.loader"], answer["abstained"]
    assert answer["findings"][0]["severity"] == "critical"
    # Two workers, each 4 images of 150 ms, make a batch every 300 ms; the network needs a fraction of that.
    by_phase = {entry["phase"]: entry for entry in answer["lane_budget"]}
    assert by_phase["data.wait"]["per_step_ns"]["p50"] > by_phase["forward"]["per_step_ns"]["p50"]
    on_path = {entry["key"]: entry["path_ns"] for entry in answer["summary"]}
    assert on_path["data.fetch"] == max(v for k, v in on_path.items() if k in semconv.PHASES)
    text = training.grademl(["report", recorded.source, "--run", recorded.run_id], recorded.folder).ok().out
    assert re.search(r"VERDICT .*\bdata\b", text)
    assert f"num_workers={WORKERS}" in text


def test_python_says_the_same(recorded: Recorded) -> None:
    from grademl_otel import analyzers

    document = analyzers.report(recorded.source, run=recorded.run_id)
    assert document.source.run == recorded.run_id
    assert document.path.total_ns == document.window.wall_ns
    assert [finding.id for finding in document.findings][:1] == ["input.loader"]
    graph = analyzers.dependency_graph(recorded.source, run=recorded.run_id)
    assert {data["phase"] for _, data in graph.nodes(data=True)} >= {"data.fetch", "forward", "backward"}
    assert any(data["kind"] == "queue" for _, _, data in graph.edges(data=True))


# --- Helpers ----------------------------------------------------------------------------------------------

IDENTITY = {
    *("grademl.run.id", "grademl.attempt", "grademl.rank", "grademl.local_rank", "grademl.world_size"),
    *("grademl.clock.id", "grademl.framework.name", "grademl.framework.version", "host.name", "process.pid"),
}
REQUIRED = {
    "run": {
        *("grademl.lane", "grademl.script", "grademl.device", "grademl.exporters", "grademl.steps"),
        *("grademl.eval_steps", "grademl.incomplete_steps", "grademl.ended", "grademl.tracer.dropped"),
        *("grademl.tracer.cost_fraction", "grademl.spans.emitted"),
    },
    "epoch": {"grademl.lane", "grademl.epoch", "grademl.steps", "grademl.eval_steps", "grademl.loader.id"},
    "evaluate": {"grademl.lane", "grademl.steps", "grademl.eval_steps", "grademl.loader.id"},
    "window": {
        *("grademl.window", "grademl.window.part", "grademl.window.last", "grademl.window.cumulative_steps"),
        *("grademl.window.cumulative_eval_steps", "grademl.window.cumulative_rows"),
        *("grademl.window.detail_level", "grademl.window.record_level", "grademl.spans.emitted"),
        *("grademl.tracer.dropped", "grademl.table.version", "grademl.table.step", "grademl.table.start_us"),
        *("grademl.table.dur_us", "grademl.table.micro", "grademl.table.flags", "grademl.table.item.pass"),
    },
    "step": {
        *("grademl.lane", "grademl.step", "grademl.step.kind", "grademl.step.micro", "grademl.weight"),
        "grademl.evidence",
    },
    "data.wait": {"grademl.lane", "grademl.step", "grademl.item"},
    "data.fetch": {"grademl.lane", "grademl.item"},
    "forward": {"grademl.lane", "grademl.step"},
    "checkpoint.save": {"grademl.lane", "grademl.bytes", "grademl.checkpoint.format"},
}
TYPES = {
    "double": {"grademl.tracer.cost_fraction"},
    "bool": {
        "grademl.recovered",
        "grademl.compile.recompile",
        "grademl.window.last",
        "grademl.loader.persistent",
        "grademl.loader.in_order",
        "grademl.checkpoint.completed",
        *("grademl.collective.blocking", "grademl.collective.completed"),
        *("grademl.source.dirty", "grademl.step.outlier"),
    },
    "int[]": {f"grademl.device.memory.{name}" for name in ("index", "allocated", "reserved", "peak")},
    "str[]": {"grademl.exporters", "grademl.window.lanes", "grademl.frameworks", "grademl.gpu.id"},
    "int": {
        *("grademl.attempt", "grademl.rank", "grademl.local_rank", "grademl.world_size", "process.pid"),
        *("grademl.steps", "grademl.eval_steps", "grademl.incomplete_steps", "grademl.epoch"),
        *("grademl.tracer.dropped", "grademl.spans.emitted", "grademl.bytes", "grademl.weight"),
        *("grademl.step", "grademl.step.micro", "grademl.step.samples", "grademl.step.skipped"),
        "grademl.table.version",
        *("grademl.loader.id", "grademl.loader.workers", "grademl.loader.prefetch"),
        *("grademl.loader.batch_size", "grademl.window", "grademl.window.part"),
        *("grademl.window.cumulative_steps", "grademl.window.cumulative_eval_steps"),
        *("grademl.window.cumulative_rows", "grademl.window.detail_level", "grademl.window.record_level"),
        *("grademl.open_since", "grademl.tracer.unsent"),
        *("grademl.left_out.passes", "grademl.left_out.phases", "grademl.checkpoint"),
        *("grademl.device.dropped", "grademl.collective.size", "grademl.job.nodes"),
        *(f"grademl.accelerator.{name}" for name in ("count", "visible", "memory")),
        *(f"grademl.resources.{name}" for name in ("version", "start_us", "bin_ms", "bins")),
    },
}


def _expected_type(key: str) -> str:
    for kind, keys in TYPES.items():
        if key in keys:
            return kind
    if key.startswith("grademl.resources."):
        return "str[]" if key.endswith(".id") else "int[]"
    return "int[]" if key.startswith("grademl.table.") else "str"


def _rows(window: RawSpan) -> list[dict[str, int]]:
    """The rows of a window's table; a column of one element holds for every row."""
    prefix = "grademl.table."
    columns = {
        key.removeprefix(prefix): value.value
        for key, value in window.attributes.items()
        if key.startswith(prefix) and key != "grademl.table.version"
    }
    count = max(map(len, columns.values()))
    assert {len(column) for column in columns.values()} <= {1, count}
    return [
        {name: column[index if len(column) > 1 else 0] for name, column in columns.items()}
        for index in range(count)
    ]


def _children_of(parents: Iterable[RawSpan], spans: Iterable[RawSpan]) -> set[str]:
    ids = {parent.span_id for parent in parents}
    names = {span.name for span in spans if span.parent_id in ids}
    assert names <= set(semconv.PHASES)
    return names


def _improvements(output: str) -> int:
    """How often the script saved a checkpoint: whenever the accuracy it prints was the best so far."""
    best, count = -1.0, 0
    for accuracy in map(float, re.findall(r"^epoch .*accuracy ([\d.]+)$", output, flags=re.MULTILINE)):
        if accuracy > best:
            best, count = accuracy, count + 1
    return count


def _trace(run_id: str, kind: str, number: int = 0, shard: int = 0) -> str:
    return f"{semconv.trace_id(run_id, 0, kind, number, shard):032x}"


def _all_traces(run_id: str) -> list[str]:
    """Every trace that a run of this length can have."""
    windows = range(semconv.window_of_step(TRAINED) + 1)
    return [
        _trace(run_id, semconv.TRACE_RUN),
        *(_trace(run_id, semconv.TRACE_WINDOW, number) for number in windows),
        *(_trace(run_id, semconv.TRACE_STEP, number) for number in range(TRAINED)),
        *(_trace(run_id, semconv.TRACE_EVAL_STEP, number) for number in range(EVALUATED)),
    ]


def _whole_run(read: Callable[[], list[RawSpan]], way: str) -> list[RawSpan]:
    """What `read` gives once all is there by the run's own count: a Collector passes things on in batches."""
    found: list[RawSpan] = []

    def complete() -> bool:
        found[:] = read()
        return any(s.name == "run" and len(found) >= s["grademl.spans.emitted"] for s in found)

    servers.wait_until(complete, f"arriving of the whole run ({way})")
    return found
