# SPDX-License-Identifier: Apache-2.0
"""A program with one phase that something limits, and others beside it, for `benchmarks.injected`.

    python -m benchmarks.bottlenecked PLAN

PLAN is a JSON file of a `Plan`. The program goes around until its time is over, each round a step, told by
`grademl_otel.step` and `grademl_otel.phase`. Without ``limited`` the phase does the same work, and leaves
half of what there is, or more. Who waits for a lock, and who holds it, are spans of the OpenTelemetry SDK in
a file of their own: what `grademl_otel.phase` tells in other threads than that of the steps is no part of
the execution model.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import grademl_otel
from benchmarks.burning import burn
from benchmarks.spanfiles import SPANS, Spans
from benchmarks.throttled import ask_for

CPU, DISK, NETWORK, LOCK = "cpu", "disk", "network", "lock"
KINDS: Final = (CPU, DISK, NETWORK, LOCK)
WAITING, HOLDING = "lock.wait", "locked"
NAMES: Final = ("load", "transform", "exchange", "merge", "publish", "index", "sort", "collect")
"""Of phases: each run has its own, the limited one among them."""

_LOCKS: Final = Spans()
_PIECE_S: Final = 0.02
_BLOCK: Final = 1 << 18
"""Bytes of one write, beside the page cache."""
_FILE: Final = 16 << 20


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    kind: str
    limited: bool
    seed: int
    seconds: float
    phase: str
    """Name of the phase that is limited."""
    threads: int
    """That work in it."""
    rate: float = 0.0
    """Bytes per second that disk or network let through."""
    port: int = 0
    """Of the throttled proxy."""
    group: str = ""
    """Folder of the control group that throttles the disk."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")


def read(path: Path) -> Plan:
    return Plan(**json.loads(path.read_text("utf-8")))


# --- What is limited --------------------------------------------------------------------------------------


def _burning(plan: Plan, chance: random.Random) -> Callable[[float], None]:
    """As many threads as there are cores, or more; else one that burns less than half of its time."""
    share = 1.0 if plan.limited else chance.uniform(0.2, 0.45)

    def one(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            burn(_PIECE_S * share)
            time.sleep(_PIECE_S * (1 - share))

    return _in_threads(plan.threads, one)


def _writing(plan: Plan, chance: random.Random) -> Callable[[float], None]:
    """Writes as fast as the disk lets it; else at less than half of that."""
    Path(plan.group, "cgroup.procs").write_text(f"{os.getpid()}")
    pause = 0.0 if plan.limited else plan.threads * _BLOCK / (plan.rate * chance.uniform(0.2, 0.45))
    block = mmap.mmap(-1, _BLOCK)  # aligned, as writes beside the page cache want it
    block.write(chance.randbytes(_BLOCK))
    files = []
    for number in range(plan.threads):
        files.append(os.open(f"written-{number}", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
        os.posix_fallocate(files[-1], 0, _FILE)

    def one(seconds: float) -> None:
        until = time.perf_counter() + seconds
        file = free.pop()
        at = 0
        while time.perf_counter() < until:
            os.pwrite(file, block, at)
            at = (at + _BLOCK) % _FILE
            time.sleep(pause)
        free.append(file)

    free = files[:]
    return _in_threads(plan.threads, one)


def _fetching(plan: Plan, chance: random.Random) -> Callable[[float], None]:
    """Fetches as fast as the proxy lets it; else at less than half of that."""
    share = 1.0 if plan.limited else chance.uniform(0.2, 0.45)
    connections = [socket.create_connection(("127.0.0.1", plan.port)) for _ in range(plan.threads)]

    def one(seconds: float) -> None:
        connection = free.pop()
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            # Pieces of some 0.1 s, so that it ends in time; between them it does something else.
            piece = min(left, 0.1)
            ask_for(connection, int(plan.rate * piece * share / plan.threads))
            if not plan.limited:
                time.sleep(max(0.0, piece * (1 - share)))
        free.append(connection)

    free = connections[:]
    return _in_threads(plan.threads, one)


def _locking(plan: Plan, chance: random.Random) -> Callable[[float], None]:
    """All threads want one lock for most of what they do; else each has its own."""
    one_lock = threading.Lock()
    locks = [one_lock if plan.limited else threading.Lock() for _ in range(plan.threads)]
    held_s, share = chance.uniform(0.01, 0.06), chance.uniform(0.1, 0.6)

    def one(seconds: float) -> None:
        until = time.perf_counter() + seconds
        lock = free.pop()
        while time.perf_counter() < until:
            with _LOCKS.span(WAITING):
                lock.acquire()
            try:
                with _LOCKS.span(HOLDING):
                    burn(held_s * share)
                    time.sleep(held_s * (1 - share))
            finally:
                lock.release()
            time.sleep(held_s * 0.1)
        free.append(lock)

    free = locks[:]
    return _in_threads(plan.threads, one)


def _in_threads(number: int, one: Callable[[float], None]) -> Callable[[float], None]:
    """Return what has ``number`` threads, always the same, do ``one``, and waits for all of them."""
    helpers = ThreadPoolExecutor(number)

    def work(seconds: float) -> None:
        for each in [helpers.submit(one, seconds) for _ in range(number)]:
            each.result()

    return work


WORK: Final = {CPU: _burning, DISK: _writing, NETWORK: _fetching, LOCK: _locking}


# --- What is beside it ------------------------------------------------------------------------------------


def _nap(chance: random.Random) -> None:
    time.sleep(chance.uniform(0.05, 0.2))


def _think(chance: random.Random) -> None:
    for _ in range(chance.randint(3, 10)):
        burn(0.005)
        time.sleep(0.015)


def _note(chance: random.Random) -> None:
    with open("notes", "ab") as file:
        for _ in range(chance.randint(2, 6)):
            file.write(bytes(chance.randint(1, 1 << 14)))
            time.sleep(0.02)


BESIDE: Final = (_nap, _think, _note)


def run(plan: Plan) -> None:
    """Do what ``plan`` says, in the folder that the process is in."""
    chance = random.Random(plan.seed)
    work = WORK[plan.kind](plan, chance)
    names = [name for name in NAMES if name != plan.phase]
    beside = dict(zip(chance.sample(names, len(BESIDE)), BESIDE, strict=True))
    length = chance.uniform(0.4, 1.0)

    def phase(name: str) -> AbstractContextManager[object]:
        return _LOCKS.span(name) if plan.kind == LOCK else grademl_otel.phase(name)

    with _LOCKS.span("job", is_root=True):
        until = time.perf_counter() + plan.seconds
        while time.perf_counter() < until:
            with grademl_otel.step():
                order = [*beside, plan.phase]
                chance.shuffle(order)
                for name in order:
                    with phase(name):
                        if name == plan.phase:
                            work(length * chance.uniform(0.8, 1.2))
                        else:
                            beside[name](chance)
    _LOCKS.write(Path(SPANS))


if __name__ == "__main__":
    run(read(Path(sys.argv[1])))
