# SPDX-License-Identifier: Apache-2.0
"""Metrics of real trainings: cumulative, right after a relay's death, equal to the sums of the step table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from grademl_otel import semconv
from tests.support import servers
from tests.support.deaths import Scene
from tests.support.otlp_server import Answer, Receiver, http_receiver
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

PROGRAM = Path(__file__).parents[1] / "support" / "metered_training.py"
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "250"}
Points = dict[tuple[str, str], dict[str, Any]]
"""Points of one export by name of the metric and value of its attribute."""


def start(scene: Scene, *arguments: str) -> subprocess.Popen[str]:
    scene.folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=scene.environ,
        cwd=scene.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(program: subprocess.Popen[str]) -> tuple[dict[str, int], str]:
    """What a program did by its own count, and its stderr."""
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    done: dict[str, int] = json.loads(out)
    return done, err


def exports(path: Path, run: str) -> list[Points]:
    """The exports of ``run`` in a file of OTLP/JSON lines, in their order."""
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # the last one may be half written
        for resource_metrics in json.loads(line)["resourceMetrics"]:
            attributes = {each["key"]: each["value"] for each in resource_metrics["resource"]["attributes"]}
            if attributes.get("grademl.run.id", {}).get("stringValue") == run:  # else of the host
                found.append(points(resource_metrics["scopeMetrics"][0]["metrics"]))
    return found


def points(metrics: Sequence[dict[str, Any]]) -> Points:
    found: Points = {}
    for metric in metrics:
        if metric["name"].startswith(("process.", "grademl.process.")):
            continue  # sampled, by whichever relay there is
        data = metric.get("sum") or metric["histogram"]
        assert data["aggregationTemporality"] == 2
        assert "histogram" in metric or data["isMonotonic"] is True
        for point in data["dataPoints"]:
            attribute = point.get("attributes", [])
            value = attribute[0]["value"]["stringValue"] if attribute else ""
            found[metric["name"], value] = point
    return found


def number(point: dict[str, Any]) -> float:
    return float(point.get("asInt", point.get("asDouble", point.get("count"))))


@dataclass
class Table:
    """The step table of a run, summed up."""

    steps: dict[str, int]
    busy_us: dict[str, int]
    training_us: int


def table(spans: Sequence[RawSpan]) -> Table:
    result = Table({"train": 0, "evaluate": 0, "incomplete": 0}, {}, 0)
    for window in (span for span in spans if span.name == semconv.WINDOW):
        columns = {
            key.removeprefix(semconv.TABLE_PREFIX): value.value
            for key, value in window.attributes.items()
            if key.startswith(semconv.TABLE_PREFIX) and isinstance(value.value, list)
        }
        rows = max(map(len, columns.values()))
        whole = {name: values if len(values) == rows else values * rows for name, values in columns.items()}
        for flags, duration in zip(whole["flags"], whole["dur_us"], strict=True):
            evaluation, incomplete = flags & semconv.FLAG_EVALUATE, flags & semconv.FLAG_INCOMPLETE
            kind = "evaluate" if evaluation else "incomplete" if incomplete else "train"
            result.steps[kind] += 1
            result.training_us += duration if kind == "train" else 0
        for name, values in whole.items():
            if name.endswith(".busy_us"):
                phase = name.removesuffix(".busy_us")
                result.busy_us[phase] = result.busy_us.get(phase, 0) + sum(values)
    return result


def check_last(last: Points, done: dict[str, int], summed: Table) -> None:
    """The last values are those of the program's own count, and of the table."""
    for kind in ("train", "evaluate", "incomplete"):
        assert number(last[semconv.METRIC_STEPS, kind]) == done[kind] == summed.steps[kind]
    assert number(last[semconv.METRIC_SAMPLES, ""]) == done["samples"]
    histogram = last[semconv.METRIC_STEP_DURATION, ""]
    assert int(histogram["count"]) == done["train"] == sum(map(int, histogram["bucketCounts"]))
    rows = sum(summed.steps.values())
    assert histogram["sum"] * 1e6 == pytest.approx(summed.training_us, abs=done["train"])
    busy_us = {phase: busy for phase, busy in summed.busy_us.items() if phase != semconv.GC}  # at any time
    assert set(busy_us) == {"data.wait", "forward", "backward", "optimizer"}
    for phase, busy in busy_us.items():
        # A row's edges are floored to microseconds.
        assert number(last[semconv.METRIC_PHASE_TIME, phase]) * 1e6 == pytest.approx(busy, abs=2 * rows)
    assert number(last[semconv.METRIC_TRACER_LOST, ""]) == 0
    assert (semconv.METRIC_TRACER_COST, "") in last


def check_cumulative(series: Sequence[Points]) -> None:
    """One start, times that advance, and no value that falls."""
    assert len({point["startTimeUnixNano"] for each in series for point in each.values()}) == 1
    times = [int(next(iter(each.values()))["timeUnixNano"]) for each in series]
    assert times == sorted(set(times))
    for earlier, later in pairwise(series):
        assert set(earlier) <= set(later)
        for key, point in earlier.items():
            assert number(later[key]) >= number(point)


@pytest.mark.real
def test_metrics_over_a_collector_and_two_deaths_of_the_relay(
    module_collector: Callable[..., servers.Collector], tmp_path: Path
) -> None:
    collector = module_collector("file.yaml")
    settings = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.otlp_grpc,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        **OFTEN,
    }
    scene = Scene(tmp_path, settings)
    program = start(scene, "1", str(tmp_path / "steps"))
    try:
        for deaths in (1, 2):
            # Not before this relay has told something, too.
            told = lines(scene.store)
            until(lambda told=told: lines(scene.store) > told)  # type: ignore[misc]
            scene.kill_relay()
            until(lambda deaths=deaths: scene.log.read_text().count(" attached ") > deaths)  # type: ignore[misc]
        (tmp_path / "steps.stop").touch()
        done, _ = finished(program)
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()

    (folder,) = scene.store.iterdir()
    run = folder.name.rpartition("-")[2]
    spans = {(span.trace_id, span.span_id): span for span in read_lines(folder / "traces.jsonl")}
    summed = table(list(spans.values()))
    stored = exports(folder / "metrics.jsonl", run)
    check_cumulative(stored)
    check_last(stored[-1], done, summed)
    until(lambda: exports(collector.data / "metrics.jsonl", run)[-1:] == stored[-1:])
    received = exports(collector.data / "metrics.jsonl", run)
    check_cumulative(received)
    assert received[-1] == stored[-1]
    assert len(received) >= 3


def lines(store: Path) -> int:
    """How many exports there are of the run itself."""
    written = [line for path in store.glob("*/metrics.jsonl") for line in path.read_bytes().splitlines()]
    return sum(semconv.METRIC_STEPS.encode() in line for line in written)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as started:
        yield started


@pytest.mark.parametrize("mode", ["0", "1"])
def test_metrics_are_the_same_in_the_process(mode: str, receiver: Receiver, tmp_path: Path) -> None:
    settings = {"GRADEML_EXPORTER": "file,otlp", "GRADEML_IN_PROCESS": mode, **over_http(receiver)}
    scene = Scene(tmp_path, settings)
    try:
        done, _ = finished(start(scene, "5"))
    finally:
        scene.clear()
    (folder,) = scene.store.iterdir()
    series = exports(folder / "metrics.jsonl", folder.name.rpartition("-")[2])
    check_cumulative(series)
    check_last(series[-1], done, table(read_lines(folder / "traces.jsonl")))
    assert len(of_runs(receiver)) == len(series)


def test_killed_training_leaves_its_last_metrics(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    program = start(scene, "1", str(tmp_path / "steps"))
    try:
        until(lambda: scene.spans())
        program.send_signal(signal.SIGKILL)
        program.communicate(timeout=30)
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()
    (folder,) = scene.store.iterdir()
    last = exports(folder / "metrics.jsonl", folder.name.rpartition("-")[2])[-1]
    summed = table(scene.spans())
    (run,) = scene.runs()
    assert number(last[semconv.METRIC_STEPS, "train"]) == summed.steps["train"] == run["grademl.steps"]
    assert int(last[semconv.METRIC_STEP_DURATION, ""]["count"]) == summed.steps["train"]


def test_no_metrics_are_wanted(receiver: Receiver, tmp_path: Path) -> None:
    environ = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_METRICS_EXPORTER": "none",
        **over_http(receiver),
        **OFTEN,
    }
    scene = Scene(tmp_path, environ)
    try:
        finished(start(scene, "3"))
    finally:
        scene.clear()
    assert {path.name for path in scene.store.glob("*/*")} == {"traces.jsonl"}
    assert receiver.traces
    assert receiver.metrics == []


def test_metrics_go_on_where_no_spans_are_wanted(receiver: Receiver, tmp_path: Path) -> None:
    environ = {"GRADEML_EXPORTER": "otlp", "OTEL_TRACES_EXPORTER": "none", **over_http(receiver)}
    scene = Scene(tmp_path, environ)
    try:
        done, _ = finished(start(scene, "3"))
    finally:
        scene.clear()
    assert receiver.traces == []
    (last,) = of_runs(receiver)[-1].resource_metrics[0].scope_metrics
    (steps,) = (metric for metric in last.metrics if metric.name == semconv.METRIC_STEPS)
    assert steps.sum.data_points[0].as_int == done["train"]


def test_last_metrics_tell_what_became_of_the_last_spans(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = lambda signal: Answer(http=400 if signal == "traces" else 200)
    scene = Scene(tmp_path, {"GRADEML_EXPORTER": "otlp", **over_http(receiver)})
    try:
        _, err = finished(start(scene, "3"))
    finally:
        scene.clear()
    metrics = of_runs(receiver)[-1].resource_metrics[0].scope_metrics[0].metrics
    (unsent,) = (metric for metric in metrics if metric.name == semconv.METRIC_TRACER_UNSENT)
    (point,) = unsent.sum.data_points
    assert point.attributes[0].value.string_value == "refused"
    assert f"{point.as_int:,} spans are lost" in err


def of_runs(receiver: Receiver) -> list[ExportMetricsServiceRequest]:
    """What arrived of ranks, and not of the host."""
    return [
        request
        for request in receiver.metrics
        if any(each.key == semconv.RUN_ID for each in request.resource_metrics[0].resource.attributes)
    ]


def over_http(receiver: Receiver) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
