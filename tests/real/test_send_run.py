# SPDX-License-Identifier: Apache-2.0
"""tools/send_run.py puts a recorded run into a Jaeger as it is: the line that `make demo` ends with."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers, training
from tests.support.rawspans import read_jaeger, read_lines
from tests.support.synthetic import Training, simulate

SEND_RUN = training.ROOT / "tools" / "send_run.py"


@pytest.mark.real
def test_a_run_arrives_unchanged(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    run = simulate(Training(run_id="5e0d" * 8)).write_store(tmp_path / "grademl-runs").parent
    done = _send([str(run), jaeger.otlp_http], tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = sorted(read_lines(run / "traces.jsonl"), key=lambda span: span.span_id)
    traces = sorted({span.trace_id for span in wanted})
    servers.wait_until(
        lambda: len(read_jaeger(jaeger.query_url, traces)) == len(wanted), "arriving of all spans"
    )
    assert sorted(read_jaeger(jaeger.query_url, traces), key=lambda span: span.span_id) == wanted


def test_the_latest_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, run_id in ((2, "5e0e" * 8), (3, "5e0f" * 8), (1, "5e10" * 8)):
        start = day * 86_400_000_000_000
        simulate(Training(run_id=run_id, start=start)).write_store(tmp_path / "grademl-runs")
    monkeypatch.syspath_prepend(SEND_RUN.parent)
    monkeypatch.chdir(tmp_path)
    send_run = importlib.import_module("send_run")
    assert send_run.latest_run().name.endswith("5e0f" * 8)


def test_nobody_listens(tmp_path: Path) -> None:
    run = simulate(Training()).write_store(tmp_path).parent
    endpoint = f"http://127.0.0.1:{servers.free_ports(1)[0]}"
    done = _send([str(run), endpoint], tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert endpoint in done.stderr


def test_no_runs(tmp_path: Path) -> None:
    done = _send([], tmp_path)
    assert done.returncode == 1
    assert "make demo" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _send(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SEND_RUN), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
