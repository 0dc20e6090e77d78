# SPDX-License-Identifier: Apache-2.0
"""Shapes of a training process: threads, coroutines, forks, children. Run as a script.

``process_zoo.py SHAPE...`` trains in each shape, in a run of its own, and prints what must not depend on
recording. `STEPS` says how many steps each has.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grademl_otel

FORKS = 24
THREADS = 4
TRAINING_CHILDREN = 2


class Trainer:
    """A model and its optimizer."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.network = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.1)

    def step(self, x: torch.Tensor | None = None) -> str:
        self.optimizer.zero_grad()
        loss = self.network(torch.ones(8, 4) if x is None else x).square().mean()
        loss.backward()
        self.optimizer.step()
        return str(loss.item().hex())

    def steps(self, number: int) -> str:
        return [self.step() for _ in range(number)][-1]

    def epoch(self, number: int) -> str:
        loader = DataLoader(TensorDataset(torch.ones(8 * number, 4)), batch_size=8)
        return [self.step(x) for (x,) in loader][-1]


def threads() -> list[str]:
    """Threads that train side by side, each with a loader and models of its own."""
    lasts = [""] * THREADS
    trainers = [Trainer(seed) for seed in range(THREADS)]
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        together.wait()
        lasts[number] = trainers[number].epoch(25 + number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return lasts


def pool() -> list[str]:
    """Many short trainings in the threads of a pool."""
    trainers = [Trainer(seed) for seed in range(10)]
    with ThreadPoolExecutor(2) as executor:
        return list(executor.map(lambda trainer: trainer.steps(3), trainers))


def coroutines() -> list[str]:
    """Training in a coroutine, with others running meanwhile, and in threads that it waits for."""

    async def work() -> list[str]:
        trainer, lasts = Trainer(), []
        for _ in range(5):
            lasts.append(trainer.step())
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        lasts.append(await loop.run_in_executor(None, Trainer(1).steps, 5))
        lasts.append(await asyncio.to_thread(Trainer(2).steps, 5))
        return lasts

    async def beside() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def main() -> list[str]:
        lasts, _ = await asyncio.gather(work(), beside())
        return lasts

    return asyncio.run(main())


def generator() -> list[str]:
    """A loop whose body is in a generator."""
    trainer = Trainer()

    def losses() -> Iterator[str]:
        for (x,) in DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=8):
            yield trainer.step(x)

    return list(losses())


def forks() -> list[str]:
    """Children forked from a second thread while the first one trains; some of them train.

    Those are forked between two steps: torch's own locks do not survive a fork inside it.
    """
    trainer = Trainer()
    statuses: list[int] = []
    stepping = threading.Lock()

    def fork_one(status: int, trains: bool) -> int:
        child = os.fork()
        if child == 0:
            try:
                if trains:
                    trainer.step()
                else:
                    nn.Identity()(None)
            finally:
                os._exit(status)
        return child

    def fork_all() -> None:
        for number in range(FORKS):
            trains = number % (FORKS // TRAINING_CHILDREN) == 0
            with stepping if trains else nullcontext():
                child = fork_one(number % 100, trains)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    forker = threading.Thread(target=fork_all)
    forker.start()
    done = 0
    while forker.is_alive() or done < 300:
        done += 1
        with stepping:
            last = trainer.step()
        if done == 300:
            kept = last
    assert statuses == [number % 100 for number in range(FORKS)]
    with open("steps", "w") as file:
        file.write(str(done))
    return [kept]


def forks_in_order() -> list[str]:
    """Children forked in the middle of a step, which end as a script does."""
    trainer = Trainer()
    atexit.register(print, "the end of", flush=True)
    for code in (0, 3):
        loss = trainer.network(torch.ones(8, 4)).square().mean()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            if code:
                trainer.step()  # it has a run of its own
            sys.exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        loss.backward()
        trainer.optimizer.step()
    return [trainer.steps(3)]


def c_forks() -> list[str]:
    """Children forked without Python's knowledge, which go on training."""
    trainer = Trainer()
    libc = ctypes.PyDLL(None)  # the lock stays held: the child has no other thread to give it back
    usual = sys.getswitchinterval()
    sys.setswitchinterval(600)  # nor may another thread have asked for it: the child would wait for that one
    for _ in range(3):
        trainer.optimizer.zero_grad()
        loss = trainer.network(torch.ones(8, 4)).square().mean()
        time.sleep(0)  # who has asked gets it
        child = libc.fork()
        if child == 0:
            try:
                loss.backward()
                time.sleep(0.6)  # whatever it has written into its parent's ring is read by now
                trainer.optimizer.step()
                trainer.steps(20)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        loss.backward()
        trainer.optimizer.step()
    sys.setswitchinterval(usual)
    return [trainer.steps(3)]


def children() -> list[str]:
    """Programs started by the training, some of them Python: no part of the run."""
    trainer = Trainer()
    said = []
    for number in range(20):
        trainer.step()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
        said.append(subprocess.run(["echo", str(number)], capture_output=True, text=True, check=True).stdout)
    pythons = [
        subprocess.run([sys.executable, "-c", "import torch.nn; print(2)"], capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [(each.returncode, each.stdout, each.stderr) for each in pythons] == [(0, "2\n", "")] * 2
    return said


SHAPES: dict[str, Callable[[], list[str]]] = {
    "threads": threads,
    "pool": pool,
    "coroutines": coroutines,
    "generator": generator,
    "forks": forks,
    "forks_in_order": forks_in_order,
    "c_forks": c_forks,
    "children": children,
}
STEPS = {
    "threads": sum(25 + number for number in range(THREADS)),
    "pool": 30,
    "coroutines": 15,
    "generator": 5,
    "forks_in_order": 5,
    "c_forks": 6,
    "children": 20,
}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        with grademl_otel.run(name=name):
            print(name, *SHAPES[name](), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
