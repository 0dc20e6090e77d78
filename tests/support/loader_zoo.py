# SPDX-License-Identifier: Apache-2.0
"""Every shape of data loading, one after the other in one training process; run as a script.

``loader_zoo.py SHAPE...`` trains with each shape and prints its losses and the state of all random streams,
so that two runs can be compared. Loaders live to the end: the recorder then numbers them in order of use.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)

random.seed(1)
numpy.random.seed(2)
torch.manual_seed(3)
loaders: list[Any] = []
network = nn.Linear(4, 1)
optimizer = torch.optim.SGD(network.parameters(), 0.01)


def loader(data: Any, kind: Any = DataLoader, **options: Any) -> Any:
    loaders.append(kind(data, **options))
    return loaders[-1]


def step(x: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = network(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())


def passes(over: Any, times: int = 1) -> None:
    for _ in range(times):
        for x in over:
            step(x)


class Rows(Dataset[torch.Tensor]):
    """Rows that depend on every random stream of the process that makes them."""

    def __init__(self, number: int, seconds: float = 0.0) -> None:
        self.number = number
        self.seconds = seconds

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        noise = random.random() + float(numpy.random.rand()) + float(torch.rand(()))
        return torch.full((4,), index / self.number) + noise


class Plain(Rows):
    """Rows that depend on nothing else."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Stream(IterableDataset[torch.Tensor]):
    """Sharded by worker, unevenly: the last worker ends first."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, self.number, workers):
            yield torch.full((4,), float(index))


class SizedStream(Stream):
    """One that says a wrong length: torch warns."""

    def __len__(self) -> int:
        return 4


class Threaded(Rows):
    """Makes each row in a thread, with a pool of its own."""

    def __getitem__(self, index: int) -> torch.Tensor:
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(super(Threaded, self).__getitem__(index)))
        thread.start()
        thread.join()
        return made[0]


class Piped(Rows):
    """Asks another program for each row."""

    def __getitem__(self, index: int) -> torch.Tensor:
        said = subprocess.run(["echo", str(index)], capture_output=True, check=True)
        return torch.full((4,), float(said.stdout))


class Nested(Rows):
    """Reads from a loader and a model of its own, inside the dataset."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([nn.Identity()(x)[0] for x in DataLoader(Rows(4), batch_size=4)])


class Failing(Rows):
    """A worker that ends as it is told at row 5."""

    def __init__(self, how: str) -> None:
        super().__init__(12)
        self.how = how

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            time.sleep(0.5)  # the first batch is used by now
            if self.how == "raises":
                raise LookupError("row 5 is missing")
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(7)
        return torch.full((4,), float(index))


class Seeded:
    """A `worker_init_fn` that can be pickled."""

    def __call__(self, worker: int) -> None:
        random.seed(worker)
        numpy.random.seed(worker)
        torch.manual_seed(worker)


def stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows) + 1


def workers(**options: Any) -> None:
    passes(loader(Rows(20), batch_size=4, num_workers=2, **options))


def unordered() -> None:
    """Batches come as they are made, by whichever worker: sums are sorted. Torch < 2.6 cannot do it."""
    alone = nn.Linear(4, 1)
    update = torch.optim.SGD(alone.parameters(), 0.01)
    known = "in_order" in inspect.signature(DataLoader).parameters
    data = loader(Plain(20), batch_size=4, num_workers=2, **({"in_order": False} if known else {}))
    sums = [x.sum().item().hex() for x in data if [alone(x).sum().backward(), update.step()]]
    print(sorted(sums))


def pinned() -> None:
    """The thread that pins runs only where there is an accelerator: one is pretended, pinning is a copy."""
    pretended = {
        "is_available": lambda: True,
        "current_accelerator": lambda *_: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda *_: None,
    }
    with ExitStack() as pretending:
        for name, value in pretended.items() if hasattr(torch, "accelerator") else ():
            pretending.enter_context(mock.patch.object(torch.accelerator, name, value))
        pretending.enter_context(mock.patch.object(torch.Tensor, "pin_memory", torch.Tensor.clone))
        workers(pin_memory=True)


def in_mid_epoch() -> None:
    data = loader(Rows(40), batch_size=4, num_workers=2)
    for number, x in enumerate(data):
        step(x)
        if number == 2:
            break


def fails(how: str) -> None:
    """Batches of 4, so that one step is done; the other worker has the second batch."""
    try:
        passes(loader(Failing(how), batch_size=4, num_workers=2))
    except (LookupError, RuntimeError) as error:
        print(type(error).__name__, str(error).partition("pid")[0].splitlines()[0])


def in_turn() -> None:
    for x, _ in zip(
        loader(Rows(20), batch_size=4), loader(Rows(20), batch_size=4, num_workers=2), strict=True
    ):
        step(x)


def side_by_side() -> None:
    """No workers next to two: training, with an evaluation after it."""
    passes(loader(Rows(12), batch_size=4, num_workers=2))
    with torch.no_grad():
        for x in loader(Rows(8), batch_size=4):
            print(network(x).sum().item().hex())


def stateful(count: int, **options: Any) -> None:
    """Stop after two batches, go on from the state in a new loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    first = loader(Rows(20), StatefulDataLoader, batch_size=4, num_workers=count, **options)
    for number, x in enumerate(first):
        step(x)
        if number == 1:
            state = first.state_dict()
            break
    second = loader(Rows(20), StatefulDataLoader, batch_size=4, num_workers=count, **options)
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    passes(second)
    print(len(pickle.dumps(state)), sorted(second.state_dict()))


def pickled() -> None:
    """A loader that was used goes through pickle."""
    used = loader(Rows(8), batch_size=4)
    passes(used)
    passes(loader(pickle.loads(pickle.dumps(used.dataset)), batch_size=4))
    loaders.append(pickle.loads(pickle.dumps(used)))
    passes(loaders[-1])


def accelerated() -> None:
    """Accelerate reads one batch ahead."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    data, prepared = accelerator.prepare(DataLoader(Rows(20), batch_size=4, num_workers=2), optimizer)
    loaders.append(data)
    for _ in range(2):
        for x in data:
            prepared.zero_grad()
            loss = network(x).square().mean()
            accelerator.backward(loss)
            prepared.step()
            print(loss.item().hex())


SHAPES: dict[str, Any] = {
    "inline": lambda: passes(loader(Rows(20), batch_size=4, shuffle=True)),
    "fork": lambda: workers(shuffle=True),
    "spawn": lambda: passes(loader(Rows(8), batch_size=4, num_workers=1, multiprocessing_context="spawn")),
    "forkserver": lambda: passes(
        loader(Rows(8), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    ),
    "persistent": lambda: passes(loader(Rows(12), batch_size=4, num_workers=2, persistent_workers=True), 3),
    "iterable": lambda: passes(loader(Stream(18), batch_size=4, num_workers=2)),
    "iterable_inline": lambda: passes(loader(Stream(18), batch_size=4)),
    "iterable_persistent": lambda: passes(
        loader(Stream(9), batch_size=4, num_workers=2, persistent_workers=True), 2
    ),
    "wrong_length": lambda: [len(loader(SizedStream(24), batch_size=4)), passes(loaders[-1])],
    "no_batching": lambda: passes(loader(Rows(6), batch_size=None, num_workers=2)),
    "no_batching_inline": lambda: passes(loader(Rows(6), batch_size=None)),
    "batch_sampler": lambda: passes(
        loader(Rows(20), batch_sampler=BatchSampler(SequentialSampler(range(20)), 4, False), num_workers=2)
    ),
    "collate": lambda: workers(collate_fn=stacked),
    "lambda": lambda: workers(collate_fn=lambda rows: torch.stack(rows)),
    "unordered": unordered,
    "pinned": pinned,
    "timeout": lambda: workers(timeout=60),
    "seeded": lambda: workers(
        worker_init_fn=Seeded(), generator=torch.Generator().manual_seed(5), shuffle=True
    ),
    "threaded": lambda: passes(loader(Threaded(20), batch_size=4, num_workers=2)),
    "piped": lambda: passes(loader(Piped(8), batch_size=4, num_workers=2)),
    "nested": lambda: passes(loader(Nested(8), batch_size=4, num_workers=2)),
    "nested_inline": lambda: passes(loader(Nested(8), batch_size=4)),
    "zip": in_turn,
    "side_by_side": side_by_side,
    "break": in_mid_epoch,
    "raises": lambda: fails("raises"),
    "killed": lambda: fails("killed"),
    "exits": lambda: fails("exits"),
    "pickled": pickled,
    "stateful": lambda: stateful(2),
    "stateful_persistent": lambda: stateful(2, persistent_workers=True),
    "stateful_inline": lambda: stateful(0),
    "accelerated": accelerated,
}


def main(names: list[str]) -> None:
    for name in names:
        print(name, flush=True)
        SHAPES[name]()
        for each in loaders:
            each._iterator = None  # ends persistent workers
        gc.collect()  # here: torch complains of an iterator that a forked worker collects
    print(random.random().hex(), numpy.random.rand().hex(), torch.rand(()).item().hex())


if __name__ == "__main__":
    main(sys.argv[1:])
