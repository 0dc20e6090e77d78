# SPDX-License-Identifier: Apache-2.0
"""Trains on the CPU beside a simulated CUDA that takes 3 ms for each forward; the argument is the steps.

Run under `opentelemetry-instrument`.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import cuda
from grademl_otel.lifecycle import session
from tests.support.fakecuda import MS, FakeCuda

GIB = 1 << 30
UUID = "12345678-9abc-def0-1234-56789abcdef0"


class Net(nn.Module):
    def __init__(self, simulated: FakeCuda) -> None:
        super().__init__()
        self.simulated = simulated
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.simulated.enqueue(3 * MS)
        y: torch.Tensor = self.layer(x)
        return y


def main(steps: int) -> None:
    memory = {0: (GIB, 3 * GIB, 2 * GIB)}
    simulated = FakeCuda(clock=time.perf_counter_ns, allocated=memory, uuids={0: UUID})
    cuda.follow(Patches(), simulated, every=0)
    session.device = lambda: "cuda:0 simulated"
    net = Net(simulated)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for (x,) in DataLoader(TensorDataset(torch.randn(2 * steps, 4)), batch_size=2):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        time.sleep(0.004)


main(int(sys.argv[1]))
