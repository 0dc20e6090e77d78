# SPDX-License-Identifier: Apache-2.0
"""Ranks, however they are started: one run for a job, each rank's steps, one line on stderr."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import rank_program, training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch was built without gloo"
)

PROGRAM = str(training.ROOT / "tests" / "support" / "rank_program.py")
INSTRUMENT = str(training.BIN / "opentelemetry-instrument")
PYTHON = str(training.BIN / "python")
STEPS = 4


def _environ(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    (folder / "rings").mkdir(exist_ok=True)
    ours = {"GRADEML_EXPORTER": "file", "GRADEML_RING_DIR": str(folder / "rings")}
    path = os.pathsep.join([str(training.BIN), os.environ["PATH"]])
    return {**training.clean_environ(folder, ours), "PATH": path, **settings}


def _together(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: Path) -> str:
    """Run the commands at once, each with settings of its own; return what they all wrote to stderr."""
    running = [
        subprocess.Popen(
            command, cwd=folder, env=_environ(folder, settings), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for command, settings in commands
    ]  # fmt: skip
    ends = [(each, *each.communicate(timeout=training.TIMEOUT_S)) for each in running]
    for each, out, err in ends:
        assert each.returncode == 0, f"{each.args}\n{out[-2000:]}\n{err[-4000:]}"
    assert sum(out.count("rank ") for _, out, _ in ends) % rank_program.WORLD == 0
    return "".join(err for _, _, err in ends)


def _jobs(folder: Path, number: int = 1) -> list[dict[int, RawSpan]]:
    """The run spans of each run by their rank, once there are those of all ranks of so many jobs."""
    jobs: list[list[RawSpan]] = []

    def complete() -> bool:
        stored = [read_lines(path) for path in (folder / "runs").glob("*/traces.jsonl")]
        jobs[:] = [[span for span in spans if span.name == semconv.RUN] for spans in stored]
        return sum(map(len, jobs)) >= number * rank_program.WORLD

    until(complete)  # the relay sees to ranks that ended by `os._exit`
    assert len(jobs) == number
    return [{run.resource[semconv.RANK].value: run for run in runs} for runs in jobs]


def _check(job: dict[int, RawSpan]) -> None:
    assert sorted(job) == [0, 1]
    for rank, run in job.items():
        assert run[semconv.STEPS_TOTAL] == STEPS + rank
        assert run.resource[semconv.WORLD_SIZE].value == rank_program.WORLD
    assert job[1].trace_id == job[0].trace_id
    assert job[1].parent_id == job[0].span_id


def _ours(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("grademl:")]


def test_ranks_that_a_program_starts_itself(tmp_path: Path) -> None:
    methods = ["mp.spawn", "forkserver", "fork", "_exit"]
    err = _together([([INSTRUMENT, PYTHON, PROGRAM, str(STEPS), *methods], {})], tmp_path)
    for job in _jobs(tmp_path, len(methods)):  # the program itself has no run
        _check(job)
    assert len(_ours(err)) == len(methods)


TORCHRUN = str(training.BIN / "torchrun")
ACCELERATE = str(training.BIN / "accelerate")
RANK = [INSTRUMENT, PYTHON, PROGRAM, str(STEPS)]
LAUNCHED: dict[str, list[tuple[list[str], dict[str, str]]]] = {
    "torchrun outside": [([TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python", *RANK], {})],
    "accelerate": [
        (
            [INSTRUMENT, ACCELERATE, "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
             "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0", PROGRAM, str(STEPS)],
            {},
        )
    ],
    "slurm": [
        (
            RANK,
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank),
             "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ],
    "mpi": [
        (
            RANK,
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank),
             "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ],
}  # fmt: skip
"""What each launcher is: commands that run at once, each with settings of its own."""


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_ranks_that_a_launcher_starts(launcher: str, tmp_path: Path) -> None:
    if launcher == "accelerate" and find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    port = str(rank_program.free_port())
    commands = [(command, {**settings, "PORT": port}) for command, settings in LAUNCHED[launcher]]
    err = _together(commands, tmp_path)
    (job,) = _jobs(tmp_path)  # neither the launcher nor its agents have a run
    _check(job)
    assert len(_ours(err)) == 1
