# SPDX-License-Identifier: Apache-2.0
"""A worker that trains: a loader, a model of 2 layers, SGD, one number read per step.

    python -m benchmarks.training REPEATS STEPS WAY

``REPEATS`` multiplications per layer set the length of a step; the phases and module calls stay the same.
With WORLD_SIZE in the environment it is one rank of a DDP training of 8 layers, with a bucket for each.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.ways import around, serve

_WIDTH = 64
_DDP_WIDTH = 512
_BATCH = 8
_LAYERS = 2
_DDP_LAYERS = 8


class Layer(nn.Module):  # type: ignore[misc]
    """A linear layer whose forward and backward take ``repeats`` times as long."""

    def __init__(self, width: int, repeats: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.repeats = repeats

    def forward(self, x: Any) -> Any:
        for _ in range(self.repeats):
            x = torch.tanh(self.linear(x))
        return x


def main() -> None:
    repeats, steps, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed = "WORLD_SIZE" in os.environ
    width, layers = (_DDP_WIDTH, _DDP_LAYERS) if distributed else (_WIDTH, _LAYERS)
    net: nn.Module = nn.Sequential(*(Layer(width, repeats) for _ in range(layers)))
    if distributed:
        torch.distributed.init_process_group("gloo")
        # A layer's gradients are 1 MB: a bucket each.
        net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(_BATCH * steps, width))
    loader = DataLoader(data, batch_size=_BATCH)
    span = around(way)

    def block() -> list[float]:
        taken = []
        batches = iter(loader)
        start = time.perf_counter_ns()
        while True:
            with span("step"):
                with span("data.wait"):
                    batch = next(batches, None)
                if batch is None:
                    break
                with span("zero_grad"):
                    optimizer.zero_grad()
                with span("forward"):
                    loss = net(batch[0]).square().mean()
                with span("backward"):
                    loss.backward()
                with span("optimizer"):
                    optimizer.step()
                with span("device.sync"):
                    loss.item()
            now = time.perf_counter_ns()
            taken.append(float(now - start))
            start = now
        return taken

    serve(block, way)
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
