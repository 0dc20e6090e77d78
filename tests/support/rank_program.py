# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job, however they are started; run as a script.

``rank_program.py STEPS`` is one rank that a launcher started: its variables say which. ``rank_program.py
STEPS METHOD...`` starts two ranks by each method of multiprocessing, one job after the other: ``mp.spawn``,
``spawn``, ``forkserver``, ``fork``, and ``_exit`` for forked ranks that end by `os._exit`. Rank r makes
STEPS + r steps and prints its last loss.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORLD = 2
OF_LAUNCHERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"),
                ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))  # fmt: skip


def train(rank: int, world: int, port: int, steps: int, end: str = "") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)  # before the group in which ranks agree
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    rows = TensorDataset(torch.ones(4 * (steps + rank), 4))
    for (x,) in DataLoader(rows, batch_size=4):
        optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
    dist.barrier()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")  # in one piece: ranks share the pipe
    sys.stdout.flush()
    dist.destroy_process_group()
    if end == "_exit":
        os._exit(0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(method: str, steps: int) -> None:
    port = free_port()
    print(method, flush=True)
    if method == "mp.spawn":
        mp.spawn(train, (WORLD, port, steps), WORLD)
        return
    context: Any = mp.get_context("fork" if method == "_exit" else method)
    ranks = [context.Process(target=train, args=(rank, WORLD, port, steps, method)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0


def main(steps: int, methods: list[str]) -> None:
    for method in methods:
        start(method, steps)
    if not methods:
        told = next(pair for pair in OF_LAUNCHERS if pair[0] in os.environ)
        rank, world = (int(os.environ[name]) for name in told)
        train(rank, world, int(os.environ["PORT"]), steps)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
