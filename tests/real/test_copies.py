# SPDX-License-Identifier: Apache-2.0
"""A real Jaeger between a file store and a copy: pushed, found to be there, pulled, the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grademl_otel.analyzers.sources import Selection, open_source
from tests.support import servers, training
from tests.support.copied import same, told
from tests.support.synthetic import Training, simulate

RUN = "c0b1" * 8


@pytest.mark.real
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_there_and_back(over: str, jaeger: servers.Jaeger, tmp_path: Path) -> None:
    run = RUN if over == "http" else RUN[::-1]
    traces = simulate(Training(run_id=run, workers=2, epochs=1, steps_per_epoch=12)).write_store(
        tmp_path / "grademl-runs"
    )
    to = jaeger.otlp_http if over == "http" else jaeger.otlp_grpc.replace("http://", "grpc://")
    sent = training.grademl(["push", "--to", to, "--verify", jaeger.source, "--json"], tmp_path).ok()
    done = json.loads(sent.out)
    assert done["sent"] == done["accepted"] == done["verified"]
    assert done["missing"] == 0

    pull = ["pull", jaeger.source, "--run", run, "-o", "copy", "--json"]
    copied = json.loads(training.grademl(pull, tmp_path).ok().out)
    assert copied["spans"] == done["sent"]
    copy = open_source(str(tmp_path / "copy")).read(Selection())
    there = open_source(jaeger.source).read(Selection(run=run))
    same(there, copy, ordered=False)
    stored = open_source(str(traces)).read(Selection())
    assert sorted(told(copy.spans)) == sorted(told(stored.spans))
