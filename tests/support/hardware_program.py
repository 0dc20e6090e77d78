# SPDX-License-Identifier: Apache-2.0
"""One rank that computes for some seconds: ``hardware_program.py SECONDS``; RANK and such say which.

Prints the CPU time that it has used, in s. Run under `opentelemetry-instrument`.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    x = torch.ones(64, 256)
    end = time.monotonic() + seconds
    while True:
        for _ in range(20):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
        ended = torch.tensor(float(time.monotonic() > end))
        dist.all_reduce(ended)  # all ranks end in the same step
        if ended.item():
            break
    dist.destroy_process_group()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main(float(sys.argv[1]))
