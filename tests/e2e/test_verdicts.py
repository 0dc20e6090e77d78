# SPDX-License-Identifier: Apache-2.0
"""Trainings that are held up by other things: a loader without workers, and the network itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import training


def report_of(script: Path, folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Trace `script` into the file store; its report as text and as data."""
    training.train(script, arguments, folder, {"GRADEML_EXPORTER": "file"}).ok()
    source = str(folder / "runs")
    document: dict[str, Any] = json.loads(training.grademl([source, "--json"], folder).ok().out)
    assert document["path"]["total_ns"] == document["window"]["wall_ns"]
    assert sum(entry["ns"] for entry in document["lane_budget"]) == document["window"]["wall_ns"]
    assert document["completeness"]["verdict"] == "complete"
    return training.grademl([source], folder).ok().out, document


def test_without_workers_the_trainer_makes_its_batches_itself(tmp_path: Path) -> None:
    text, document = report_of(
        training.EXAMPLE,
        tmp_path,
        *("--epochs", "2", "--steps", "12", "--batch-size", "4", "--workers", "0", "--decode-ms", "40"),
    )
    assert document["findings"][0]["id"] == "input.loader"
    assert "num_workers=0" in text
    phases = {phase["phase"]: phase for phase in document["step"]["phases"]}
    assert phases["data.fetch"]["within"] == "data.wait"
    assert phases["data.fetch"]["p50_ns"] >= 4 * 40_000_000  # the script sleeps that long
    assert phases["data.fetch"]["p50_ns"] <= phases["data.wait"]["p50_ns"]
    fetched = [s for s in document["path"]["sections"] if s["phase"] == "data.fetch"]
    assert {section["lane"] for section in fetched} == {"main"}


HEAVY = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

width = 512
network = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(6)))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(30 * 128, width))
for (batch,) in DataLoader(data, batch_size=128):
    optimizer.zero_grad()
    network(batch).square().mean().backward()
    optimizer.step()
"""


def test_with_a_fast_loader_the_network_is_the_limit(tmp_path: Path) -> None:
    script = tmp_path / "heavy.py"
    script.write_text(HEAVY)
    text, document = report_of(script, tmp_path)
    assert [finding["id"] for finding in document["findings"]] == ["compute.bound"]
    assert document["verdict"]["id"] == "compute.bound"
    assert "VERDICT" in text
    shares = {phase["phase"]: phase["share"] for phase in document["step"]["phases"]}
    assert shares["forward"] + shares["backward"] + shares["optimizer"] > shares["data.wait"]
