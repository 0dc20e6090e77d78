# SPDX-License-Identifier: Apache-2.0
"""Runs, attempts, ranks and parents, in real processes started by real launchers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers, semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines

torch = pytest.importorskip("torch")
needs_gloo = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")

STEPS = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1)

made = []

def train(steps):
    if not made:
        made.append(nn.Linear(4, 2))
        made.append(torch.optim.SGD(made[0].parameters(), 0.1))
    net, optimizer = made
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 4)).sum().backward()
        optimizer.step()
"""

RANKS = (
    STEPS
    + """
import torch.distributed as dist
train(2)  # before the group in which the ranks agree
rank, size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
# As versions of torch do that keep the attempts in the agents' store apart: without it, restarted workers of
# those that do not may find the addresses of dead ones there.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store = dist.PrefixStore(f"attempt {attempt}", store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
train(3)
dist.barrier()
if attempt == 0 and os.environ.get("FAIL_ONCE") == str(rank):
    sys.exit(3)
dist.barrier()
dist.destroy_process_group()
"""
)


def start(
    folder: Path, arguments: list[str], settings: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    environ = training.clean_environ(folder, {"GRADEML_EXPORTER": "file"})
    kept = {name: value for name, value in environ.items() if not name.startswith(("TORCHELASTIC", "TRACE"))}
    return subprocess.Popen(
        arguments,
        cwd=folder,
        env={**kept, **(settings or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a program that must succeed; return what it wrote to stderr."""
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):  # nothing is left
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-4000:]
    return errors


def runs_in(folder: Path) -> list[RawSpan]:
    """The run spans in the store of ``folder``, in the order of their starts."""
    spans = [span for path in folder.glob("runs/*/traces.jsonl") for span in read_lines(path)]
    return sorted((span for span in spans if span.name == semconv.RUN), key=lambda span: span.start)


def wait_for_runs(folder: Path, number: int) -> list[RawSpan]:
    """The run spans, once there are ``number``: of a rank that was killed the relay has to see it first."""
    deadline = time.monotonic() + 30
    while len(runs_in(folder)) < number and time.monotonic() < deadline:
        time.sleep(0.1)
    return runs_in(folder)


def place(run: RawSpan) -> tuple[str, int, int]:
    return tuple(run.resource[key].value for key in (semconv.RUN_ID, semconv.ATTEMPT, semconv.RANK))  # type: ignore[return-value]


def fact(run: RawSpan, key: str) -> Any:
    value = run.resource.get(key)
    return None if value is None else value.value


def parents(run: RawSpan) -> list[str]:
    """Span ids of what the run came out of."""
    return [span for _, span, attributes in run.links if attributes[semconv.LINK_KIND].value == "parent"]


def instrumented(*arguments: str) -> list[str]:
    return [str(training.BIN / "opentelemetry-instrument"), *arguments]


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# --- Ranks ------------------------------------------------------------------------------------------------


@needs_gloo
def test_a_restart_is_an_attempt_and_a_rendezvous_id_is_no_identity(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "100"]
    restarted = [*torchrun(*rendezvous, "--nproc-per-node", "2", "--max-restarts", "1"), str(script)]
    errors = finish(start(tmp_path, instrumented(*restarted), {"FAIL_ONCE": "1"}))
    runs = wait_for_runs(tmp_path, 4)
    run_id = place(runs[0])[0]
    # Rank 1 ended by its exit; rank 0 by the barrier that failed, or by torchrun.
    assert sorted(place(run) for run in runs) == [(run_id, n, rank) for n in (0, 1) for rank in (0, 1)]
    for run in runs:
        assert fact(run, semconv.WORLD_SIZE) == 2
        assert fact(run, "grademl.job.elastic_id") == "100"
        assert fact(run, "grademl.job.restarts") == fact(run, semconv.ATTEMPT)
        # Those before the group are part of the run. A rank that was killed has not ended its last one.
        assert run[semconv.STEPS_TOTAL] == (5 if run[semconv.ENDED] != "killed" else 4)
    assert len({run.trace_id for run in runs}) == 2
    assert errors.count(f"grademl: recording run {run_id}") == 2  # rank 0 of each attempt

    # The same rendezvous id once more, torchrun outside, and a rank 0 that is not instrumented.
    first = "if [ $RANK = 0 ]; then export OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=grademl_torch; fi"
    launched = f"{first}; exec {' '.join(instrumented(sys.executable, str(script)))}"
    alone = torchrun(*rendezvous, "--nproc-per-node", "3", "--no-python", "sh", "-c", launched)
    finish(start(tmp_path, alone))
    others = [run for run in runs_in(tmp_path) if place(run)[0] != run_id]
    assert sorted(place(run)[1:] for run in others) == [(0, 1), (0, 2)]
    assert len({place(run)[0] for run in others}) == 1
    assert {fact(run, semconv.WORLD_SIZE) for run in others} == {3}


@needs_gloo
def test_two_agents_on_one_host_and_a_name_of_the_users(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    run_id = "0123456789abcdef0123456789abcdef"
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "100"]
    agent = [*torchrun("--nnodes", "2", "--nproc-per-node", "1", *rendezvous), str(script)]
    settings = {"GRADEML_RUN_ID": run_id}
    errors = [finish(each) for each in [start(tmp_path, instrumented(*agent), settings) for _ in range(2)]]
    assert sorted(place(run) for run in runs_in(tmp_path)) == [(run_id, 0, 0), (run_id, 0, 1)]
    assert sum(text.count("grademl: recording run") for text in errors) == 1


# --- Children ---------------------------------------------------------------------------------------------

CHILDREN = (
    STEPS
    + """
import multiprocessing, subprocess, time

if __name__ == "__main__":
    if sys.argv[1:] == ["command"]:
        train(4)
        sys.exit()
    train(1)
    fork, spawn = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
    for context, steps in ((fork, 2), (spawn, 3)):
        child = context.Process(target=train, args=(steps,))
        child.start()
        child.join()
    with fork.Pool(1) as pool:
        pool.apply(train, (5,))
        pool.close()
        pool.join()
    if os.fork() == 0:
        train(7)
        time.sleep(2)  # of a death without a word the last moments are lost, and the last step has no end
        os._exit(0)
    os.wait()
    subprocess.run(["sh", "-c", f"{sys.executable} {sys.argv[0]} command; true"], check=True)
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_inherit_the_run_or_name_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHILDREN)
    launching = {"TRACEPARENT": f"00-{'a' * 32}-{'b' * 16}-01"}
    errors = finish(start(tmp_path, instrumented(sys.executable, str(script)), launching))
    by_steps = {run[semconv.STEPS_TOTAL]: run for run in wait_for_runs(tmp_path, 6)}
    assert sorted(by_steps) == [1, 2, 3, 4, 5, 6]
    parent = by_steps[1]
    run_id, attempt, rank = place(parent)
    assert (attempt, rank, fact(parent, semconv.WORLD_SIZE)) == (0, 0, 1)
    assert ("b" * 16) in parents(parent)  # the pipeline's span
    assert semconv.RUN_PARENT not in parent.attributes
    for steps, number in ((2, 1), (3, 2)):  # processes of multiprocessing: ranks, by their order
        child = by_steps[steps]
        assert place(child) == (run_id, 0, number)
        assert fact(child, semconv.WORLD_SIZE) is None  # nobody knows how many will come
        assert child[semconv.ENDED] == "exit"
    for steps in (4, 5, 6):  # a command, a worker of a pool, a fork by hand: runs of their own
        child = by_steps[steps]
        assert place(child)[0] != run_id
        assert place(child)[1:] == (0, 0)
        assert child[semconv.RUN_PARENT] == run_id
        assert parent.span_id in parents(child)
    assert errors.count("grademl: recording run") == 4
    listed = {run.steps: run for run in analyzers.runs(tmp_path / "runs").runs}
    assert sorted(listed) == [3, 4, 5, 6]  # the parent's run with its two ranks is one
    assert (listed[3].ranks, listed[3].parent) == (3, None)
    assert {listed[steps].parent for steps in (4, 5, 6)} == {run_id}
    report = analyzers.report(tmp_path / "runs", run=run_id)
    assert report.completeness.verdict == "complete", report.incomplete_because


DAEMON = (
    STEPS
    + """
import time
from pathlib import Path

def daemonize(steps):
    done = Path(f"done-{steps}")
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        train(steps)
        done.touch()
        sys.exit()
    os.wait()
    deadline = time.monotonic() + 60
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.05)

daemonize(2)  # before the run began
train(1)
daemonize(3)
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_daemonized_trainer_has_a_run_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DAEMON)
    finish(start(tmp_path, instrumented(sys.executable, str(script))))
    by_steps = {run[semconv.STEPS_TOTAL]: run for run in runs_in(tmp_path)}
    assert sorted(by_steps) == [1, 2, 3]
    assert len({place(run)[0] for run in by_steps.values()}) == 3
    assert semconv.RUN_PARENT not in by_steps[2].attributes
    assert by_steps[3][semconv.RUN_PARENT] == place(by_steps[1])[0]
    assert {run[semconv.ENDED] for run in by_steps.values()} == {"exit"}


# --- Several runs in one process ----------------------------------------------------------------------------

TRIALS = (
    STEPS
    + """
import grademl_otel
grademl_otel.instrument()
for number in (1, 2):
    with grademl_otel.run(name=f"trial {number}"):
        train(number)
with grademl_otel.run("sweep"):
    for number in (3, 4):
        with grademl_otel.run(f"point {number}"):
            train(number)
train(5)
"""
)


def test_trials_of_a_process_are_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRIALS)
    errors = finish(start(tmp_path, [sys.executable, str(script)], {"TRACEPARENT": "00-nonsense-01"}))
    runs = runs_in(tmp_path)
    assert [run[semconv.STEPS_TOTAL] for run in runs] == [1, 2, 7, 5]
    names = [run.attributes.get(semconv.RUN_NAME) for run in runs]
    assert [name and name.value for name in names] == ["trial 1", "trial 2", "sweep", None]
    assert len({place(run)[0] for run in runs}) == 4
    assert all(earlier.end <= later.start for earlier, later in pairwise(runs))
    assert all(run[semconv.ENDED] == "exit" and not run.links for run in runs)
    assert errors.count("grademl: recording run") == 4
    assert [run.name for run in analyzers.runs(tmp_path / "runs").runs] == ["", "sweep", "trial 2", "trial 1"]
    folder = next((tmp_path / "runs").glob(f"*-{place(runs[2])[0]}"))
    trials = [span for span in read_lines(folder / "traces.jsonl") if span.name == semconv.TRIAL]
    assert [span[semconv.RUN_NAME] for span in trials] == ["point 3", "point 4"]
    assert {span.parent_id for span in trials} == {runs[2].span_id}
