# SPDX-License-Identifier: Apache-2.0
"""The line with which a report ends, on how to see a stored run in Jaeger, does what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support import servers, training
from tests.support.rawspans import read_jaeger, read_lines
from tests.support.synthetic import Training, simulate

LEAD = "This run in Jaeger: "
DEFAULT_ADDRESS = "http://localhost:4318"


@pytest.mark.real
def test_the_run_arrives_unchanged(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    traces = simulate(Training(run_id="5e0d" * 8)).write_store(tmp_path / "grademl-runs")
    report = training.grademl([], tmp_path).ok().out
    (command,) = (line.removeprefix(LEAD) for line in report.splitlines() if line.startswith(LEAD))
    assert DEFAULT_ADDRESS in command

    name, *arguments = shlex.split(command.replace(DEFAULT_ADDRESS, jaeger.otlp_http))
    assert name == "grademl"
    training.grademl(arguments, tmp_path).ok()

    sent = sorted(read_lines(traces), key=lambda span: span.span_id)
    ids = sorted({span.trace_id for span in sent})
    servers.wait_until(lambda: len(read_jaeger(jaeger.query_url, ids)) == len(sent), "arriving of all spans")
    assert sorted(read_jaeger(jaeger.query_url, ids), key=lambda span: span.span_id) == sent
