# SPDX-License-Identifier: Apache-2.0
"""Two ranks under torchrun: one run, two places in it; the launcher itself leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

torch = pytest.importorskip("torch")

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)  # before the group in which ranks agree
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(net)
for (x,) in DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_ranks_of_a_job_are_one_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [str(training.BIN / "opentelemetry-instrument"), *launcher, str(script)],
        cwd=tmp_path,
        env=training.clean_environ(tmp_path, {"GRADEML_EXPORTER": "file"}),
        capture_output=True,
        text=True,
        timeout=training.TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("grademl: recording run") == 1
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    runs = {span.resource[semconv.RANK].value: span for span in read_lines(path) if span.name == semconv.RUN}
    assert sorted(runs) == [0, 1]
    for rank, run in runs.items():
        resource = {key: value.value for key, value in run.resource.items()}
        assert resource[semconv.WORLD_SIZE] == 2
        assert resource[semconv.LOCAL_RANK] == rank
        assert run[semconv.STEPS_TOTAL] == 12
    assert runs[1].trace_id == runs[0].trace_id
    assert runs[1].parent_id == runs[0].span_id
