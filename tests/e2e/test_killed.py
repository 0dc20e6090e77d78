# SPDX-License-Identifier: Apache-2.0
"""A training killed with SIGKILL in the middle: its report says how it ended; no finished step is lost."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import servers, training
from tests.support.rawspans import RawSpan, read_jaeger, read_lines

STEPS_BEFORE_THE_KILL = 25

SCRIPT = """\
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(1)

network = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for number, (inputs, targets) in enumerate(DataLoader(Slow(), batch_size=4, num_workers={workers})):
    loss = (network(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number, flush=True)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_into_the_file_store(workers: int, tmp_path: Path) -> None:
    done = _train_and_kill(tmp_path, workers, {"GRADEML_EXPORTER": "file"})
    stored = _stored(tmp_path)
    servers.wait_until(lambda: _run_span(stored()) is not None, "closing of the killed run")
    _check_spans(stored(), done, workers)
    _check_report(str(tmp_path / "runs"), tmp_path, done)


@pytest.mark.real
def test_killed_into_jaeger(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    run_id = secrets.token_hex(16)
    settings = {"GRADEML_RUN_ID": run_id, "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_grpc}
    done = _train_and_kill(tmp_path, 2, {**settings, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    traces = [f"{semconv.trace_id(run_id, 0, 'run'):032x}"]
    traces += [f"{semconv.trace_id(run_id, 0, 'window', n):032x}" for n in range(4)]
    servers.wait_until(
        lambda: _run_span(read_jaeger(jaeger.query_url, traces)) is not None, "closing of the killed run"
    )
    _check_spans(read_jaeger(jaeger.query_url, traces), done, 2)
    _check_report(jaeger.source, tmp_path, done, "--run", run_id)


def _train_and_kill(folder: Path, workers: int, settings: Mapping[str, str]) -> int:
    """Train, and kill the process without warning; the number of steps that it had reported as done."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(workers=workers))
    process = subprocess.Popen(
        training.traced_command(script),
        cwd=folder,
        env=training.clean_environ(folder, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    done = 0
    for line in process.stdout:
        assert line.startswith("step "), line
        done += 1
        if done == STEPS_BEFORE_THE_KILL:
            break
    process.send_signal(signal.SIGKILL)
    done += process.stdout.read().count("step ")  # what it printed until the signal came
    assert process.wait(60) == -signal.SIGKILL
    assert done >= STEPS_BEFORE_THE_KILL
    return done


def _stored(folder: Path) -> Callable[[], list[RawSpan]]:
    """What the store holds so far; it may be made only after the death of the process."""
    return lambda: [s for path in (folder / "runs").glob("*/traces.jsonl") for s in read_lines(path)]


def _run_span(spans: list[RawSpan]) -> RawSpan | None:
    return next((span for span in spans if span.name == "run"), None)


def _check_spans(spans: list[RawSpan], done: int, workers: int) -> None:
    run = _run_span(spans)
    assert run is not None
    assert run["grademl.ended"] == run["grademl.terminated"] == "killed"
    assert run.status == 2  # ERROR
    assert run["grademl.steps"] >= done - 1  # the last one may have had no time to close
    (epoch,) = (span for span in spans if span.name == "epoch")
    assert epoch["grademl.terminated"] == "killed"
    assert epoch.status == 2
    assert epoch.parent_id == run.span_id
    assert epoch["grademl.loader.workers"] == workers
    rows = [step for window in spans if window.name == "window" for step in _unfolded(window)]
    assert sorted(rows)[: done - 1] == list(range(done - 1))


def _unfolded(window: RawSpan) -> list[int]:
    steps: list[int] = window["grademl.table.step"]
    return steps if len(steps) > 1 else steps * len(window["grademl.table.start_us"])


def _check_report(source: str, folder: Path, done: int, *select: str) -> None:
    told = training.grademl(["report", source, *select], folder).ok()
    assert "killed" in told.out
    document = json.loads(training.grademl(["report", source, *select, "--json"], folder).ok().out)
    (ended,) = document["run"]["ended"]
    assert ended["how"] == "killed"
    assert done - 2 <= ended["last_step"] <= done + 1
    wall = document["window"]["wall_ns"]
    assert document["path"]["total_ns"] == wall == sum(entry["ns"] for entry in document["lane_budget"])
    (listed,) = (
        run
        for run in json.loads(training.grademl(["runs", source, "--json"], folder).ok().out)["runs"]
        if run["run"] == document["source"]["run"]
    )
    assert listed["ended"] == "killed"
