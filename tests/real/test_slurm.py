# SPDX-License-Identifier: Apache-2.0
"""The example for Slurm is run as it is, with commands in the place of Slurm's that start what is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.pipeline import Pipeline
from tests.support.training import BIN, clean_environ

pytestmark = pytest.mark.real

SCRIPT = servers.COLLECTOR_CONFIGS / "slurm" / "train.sbatch"
PROGRAM = Path(__file__).parents[1] / "support" / "metered_training.py"

SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
TORCHRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec {python} "$@"
"""
COLLECTOR = """\
#!/bin/bash
echo $$ > {pid}
exec {binary} "$@" --config {quiet}
"""


def start(folder: Path, pipeline: Pipeline, service: str, *arguments: str) -> subprocess.Popen[str]:
    """Run the script as sbatch would, with a training of ``arguments``."""
    commands = folder / "commands"
    commands.mkdir()
    (folder / "quiet.yaml").write_text(servers.QUIET)
    collector = COLLECTOR.format(
        binary=servers.binary("collector"), quiet=folder / "quiet.yaml", pid=folder / "agent.pid"
    )
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho node-1\n",
        "torchrun": TORCHRUN.format(python=sys.executable),
        "otelcol-contrib": collector,
    }.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    grpc, http, health = servers.free_ports(3)
    settings = {
        "PATH": f"{commands}:{BIN}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_SUBMIT_DIR": str(servers.ROOT),
        "GRADEML_GATEWAY_ENDPOINT": pipeline.gateway.endpoint,
        "GRADEML_COLLECTOR_DATA": str(folder / "agent"),
        "GRADEML_COLLECTOR_GRPC": f"127.0.0.1:{grpc}",
        "GRADEML_COLLECTOR_HTTP": f"127.0.0.1:{http}",
        "GRADEML_COLLECTOR_HEALTH": f"127.0.0.1:{health}",
        "GRADEML_HAND_OVER": "2",
        "OTEL_SERVICE_NAME": service,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    return subprocess.Popen(
        ["bash", str(SCRIPT), *arguments],
        env={**clean_environ(folder), **settings},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def has_steps(pipeline: Pipeline, service: str) -> bool:
    return (
        pipeline.prometheus.query(f'grademl_steps_total{{job="{service}",grademl_step_kind="train"}}') != []
    )


def agent_is_gone(folder: Path) -> bool:
    return not Path(f"/proc/{(folder / 'agent.pid').read_text().strip()}").exists()


def test_a_training_arrives_and_nothing_is_left_running(pipeline: Pipeline, tmp_path: Path) -> None:
    program = start(tmp_path, pipeline, "slurm-ends", str(PROGRAM), "3")
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    assert '"train"' in out
    servers.wait_until(lambda: has_steps(pipeline, "slurm-ends"), "arriving in Prometheus")
    assert agent_is_gone(tmp_path)


def test_the_job_has_the_exit_code_of_the_training(pipeline: Pipeline, tmp_path: Path) -> None:
    program = start(tmp_path, pipeline, "slurm-fails", "-c", "raise SystemExit(3)")
    _, err = program.communicate(timeout=60)
    assert program.returncode == 3, err
    assert agent_is_gone(tmp_path)


def test_a_job_whose_time_is_up_hands_over_what_it_has(pipeline: Pipeline, tmp_path: Path) -> None:
    program = start(tmp_path, pipeline, "slurm-stopped", str(PROGRAM), "1", str(tmp_path / "never"))
    try:
        servers.wait_until(lambda: has_steps(pipeline, "slurm-stopped"), "arriving of the first steps")
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 128 + signal.SIGTERM
    assert agent_is_gone(tmp_path)


def test_without_a_gateway_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(servers.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "GRADEML_GATEWAY_ENDPOINT: host:port of the gateway" in done.stderr


@pytest.mark.parametrize("whose", ["a link", "nobody's yet"])
def test_the_queue_is_in_no_folder_that_others_have_made(whose: str, tmp_path: Path) -> None:
    """In a place where anybody may make one, of a name that anybody can tell."""
    name = f"test-{os.getpid()}-{tmp_path.name}"
    folder = Path(f"/var/tmp/grademl-agent-{name}")
    commands = tmp_path / "commands"
    commands.mkdir()
    for command, text in {
        "id": f"#!/bin/sh\necho {name}\n",
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho node-1\n",
        "opentelemetry-instrument": "#!/bin/sh\n",
        "otelcol-contrib": f'#!/bin/sh\necho "$GRADEML_COLLECTOR_DATA" > {tmp_path}/started\n',
    }.items():
        (commands / command).write_text(text)
        (commands / command).chmod(0o755)
    if whose == "a link":
        folder.symlink_to(tmp_path)
    try:
        done = subprocess.run(
            ["bash", str(SCRIPT)],
            env={
                "PATH": f"{commands}:{os.environ['PATH']}",
                "SLURM_SUBMIT_DIR": str(servers.ROOT),
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NAME": "train",
                "SLURM_JOB_NODELIST": "node-1",
                "SLURM_NNODES": "1",
                "GRADEML_GATEWAY_ENDPOINT": "nowhere:1",
                "GRADEML_HAND_OVER": "0",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if whose == "a link":
            assert done.returncode != 0
            assert f"{folder} is not this user's own folder" in done.stderr
            assert not (tmp_path / "started").exists()
        else:
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "started").read_text().strip() == str(folder)
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            folder.rmdir()
