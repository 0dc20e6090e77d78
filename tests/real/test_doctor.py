# SPDX-License-Identifier: Apache-2.0
"""`grademl doctor` of a real Jaeger that holds a run."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import pytest

from ..support import servers, training
from ..support.synthetic import S, Training, simulate

pytestmark = pytest.mark.real


def test_it_tells_what_the_server_is_and_holds(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    sim = simulate(Training(run_id=secrets.token_hex(16), start=time.time_ns() - 60 * S))
    sim.write_store(tmp_path / "grademl-runs")
    training.grademl(["push", "--to", jaeger.otlp_http, "--verify", jaeger.source], tmp_path).ok()

    found = training.grademl(["doctor", jaeger.source, "--run", sim.training.run_id, "--json"], tmp_path).ok()
    document = json.loads(found.out)
    assert document["problems"] == []
    assert document["source"]["kind"] == "Jaeger"
    assert "v3" in document["source"]["api"]
    assert sim.training.run_id in [run["run"] for run in document["runs"]]
    assert document["spans"]["count"] == len(sim.spans)
    assert (document["run"]["run"], document["verdict"]) == (sim.training.run_id, "complete")
    if (clock := document["source"]["clock"]) is not None:
        assert abs(clock["offset_ns"]) <= clock["error_ns"], "both run here"

    there = training.grademl(["doctor", jaeger.source.replace("jaeger:", "tempo:"), "--json"], tmp_path)
    assert there.code == 3
    assert "Tempo" in there.err
