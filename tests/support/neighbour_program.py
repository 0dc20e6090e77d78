# SPDX-License-Identifier: Apache-2.0
"""A training script in a program that uses OpenTelemetry: own spans, HTTP requests, threads, a coroutine.

``python neighbour_program.py URL``; URL answers every GET. It prints what it computed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
import torch
from opentelemetry import trace
from torch import nn
from torch.utils.data import DataLoader, Dataset

URL = sys.argv[1]
STEPS = 4
BATCH = 4
tracer = trace.get_tracer("program")
log = logging.getLogger("program")


class Remote(Dataset[Any]):
    """The first sample of each batch comes over HTTP."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % BATCH == 0:
            requests.get(f"{URL}/fetch", timeout=10)
        return torch.full((8,), index / 16), index % 3


def main() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(Remote(), batch_size=BATCH)

    def loss_of(batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    def update(batch: Any) -> None:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        print(loss.item().hex())

    def upload() -> None:
        requests.post(f"{URL}/upload", data=b"x", timeout=10)

    requests.get(f"{URL}/before", timeout=10)
    with ThreadPoolExecutor(1) as pool:
        for batch in loader:
            with tracer.start_as_current_span("update"):
                update(batch)
                requests.get(f"{URL}/inner", timeout=10)
            requests.get(f"{URL}/log", timeout=10)
            log.warning("trained")
            pool.submit(upload)
    with torch.no_grad():
        for batch in loader:
            requests.get(f"{URL}/evaluate", timeout=10)
            print(loss_of(batch).item().hex())

    with tracer.start_as_current_span("mine"):
        for batch in loader:
            update(batch)
            requests.get(f"{URL}/in-mine", timeout=10)

    async def train() -> None:
        for batch in loader:
            update(batch)
            with tracer.start_as_current_span("in-coroutine"):
                await asyncio.sleep(0)

    asyncio.run(train())

    for batch in loader:
        update(batch)
        requests.get(f"{URL}/break", timeout=10)
        break
    requests.get(f"{URL}/after", timeout=10)
    try:
        for batch in loader:
            update(batch)
            raise ValueError("bad batch")
    except ValueError:
        requests.get(f"{URL}/caught", timeout=10)

    def batches() -> Iterator[Any]:
        yield from loader

    for batch in batches():
        update(batch)
        requests.get(f"{URL}/generator", timeout=10)
        break
    requests.get(f"{URL}/closed", timeout=10)
    current = trace.get_current_span().get_span_context()
    print("current:", current.is_valid)


if __name__ == "__main__":
    main()
