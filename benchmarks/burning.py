# SPDX-License-Identifier: Apache-2.0
"""Programs that use CPUs and write down how much, for `benchmarks.attribution`.

    python -m benchmarks.burning training|few|many SECONDS SEED FOLDER

``training`` takes steps, told by `grademl_otel.step` and `grademl_otel.phase` and recorded as any run is:
waits, decoding in bursts, computing in one and in two threads, a checkpoint that is written. ``few`` and
``many`` are threads that each go from one piece of work to the next, each a span of the OpenTelemetry SDK:
as many threads as there are cores, each on its own, and three times as many. Without being told to, some
kernels keep two threads on one core until it has been full for a while.

CPU time is read about every 10 ms, into FOLDER/clocks.json: the sum over the clocks of all threads that work.
The clock of the process will not do: of threads that run elsewhere it knows only what they had used at the
last tick of the kernel, 4 ms ago or less. What is measured in 10 ms must not be off by 4.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.spanfiles import SPANS, Spans

CLOCKS: Final = "clocks.json"
TRAINING: Final = "training"
FEW, MANY = "few", "many"
CORES: Final = sorted(os.sched_getaffinity(0))
THREADS: Final = {FEW: len(CORES), MANY: 3 * len(CORES)}
PERIOD_S: Final = 0.01

_HASHED: Final = bytes(1 << 20)
"""Hashing and compressing so much takes milliseconds at most, and holds no lock of Python's meanwhile."""
_SWITCH_S: Final = 0.0005
"""Whoever wants Python's lock gets it after so long: the reader of the clocks is not kept waiting."""
_SAVED: Final = 24 << 20
"""Bytes of a checkpoint."""


class Clocks(threading.Thread):
    """Reads the CPU time that some threads, and this one, have used."""

    def __init__(self, idents: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.readings: list[tuple[int, int]] = []
        """(Unix ns, CPU ns)."""
        self._idents = list(idents)
        self._over = threading.Event()

    def run(self) -> None:
        clocks = [time.pthread_getcpuclockid(ident) for ident in (*self._idents, threading.get_ident())]
        due = time.perf_counter()
        while not self._over.is_set():
            self.readings.append((time.time_ns(), sum(map(time.clock_gettime_ns, clocks))))
            due = max(due + PERIOD_S, time.perf_counter())
            time.sleep(due - time.perf_counter() if due > time.perf_counter() else 0)

    def end(self) -> None:
        """Stop it; the threads must not end before."""
        self._over.set()
        self.join()


def burn(cpu_s: float) -> None:
    """Use so much CPU time of this thread, without Python's lock."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        hashlib.sha256(_HASHED)


def stay(number: int) -> int:
    """Keep this thread on one core, and return which thread it is."""
    os.sched_setaffinity(0, {CORES[number % len(CORES)]})
    return threading.get_ident()


# --- A training -------------------------------------------------------------------------------------------


def training(seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Take steps for so long; return what was read."""
    import grademl_otel

    grademl_otel.instrument()
    chance = random.Random(seed)
    helper = ThreadPoolExecutor(1)
    clocks = Clocks([threading.get_ident(), helper.submit(stay, 1).result()])
    clocks.start()  # before this thread has a core: it may run on any
    stay(0)
    until = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < until:
        with grademl_otel.step():
            with grademl_otel.phase("data.wait"):
                time.sleep(chance.uniform(0.005, 0.06))
            with grademl_otel.phase("decode"):
                for _ in range(chance.randint(2, 8)):
                    burn(0.004)
                    time.sleep(0.004)
            with grademl_otel.phase("forward"):
                burn(chance.uniform(0.02, 0.08))
            with grademl_otel.phase("backward"):
                length = chance.uniform(0.04, 0.15)
                other = helper.submit(burn, length)
                burn(length)
                other.result()
            with grademl_otel.phase("optimizer"):
                burn(chance.uniform(0.005, 0.03))
        number += 1
        if number % 10 == 0:
            with grademl_otel.phase("checkpoint.save"):
                _save(folder / "checkpoint")
    clocks.end()
    helper.shutdown()
    return {"readings": clocks.readings, "steps": number}


def _save(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(_SAVED >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())


# --- Threads ----------------------------------------------------------------------------------------------


def _hash(chance: random.Random) -> None:
    """Burns all the time."""
    burn(chance.uniform(0.05, 0.6))


def _compress(chance: random.Random) -> None:
    """Burns half of the time, where there is a core for it."""
    for _ in range(chance.randint(5, 40)):
        began = time.perf_counter()
        until = time.thread_time() + 0.006
        while time.thread_time() < until:
            zlib.compress(_HASHED)
        time.sleep(time.perf_counter() - began)


def _parse(chance: random.Random) -> None:
    """Burns all the time, with Python's lock."""
    until = time.thread_time() + chance.uniform(0.05, 0.3)
    while time.thread_time() < until:
        json.loads("[" + "1.5," * 200 + "0]")


def _fetch(chance: random.Random) -> None:
    """Sleeps nearly all of the time."""
    for _ in range(chance.randint(5, 40)):
        burn(0.001)
        time.sleep(0.009)


WORK: Final = {"hash": _hash, "compress": _compress, "parse": _parse, "fetch": _fetch}


def threads(number: int, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Have ``number`` threads work for so long; return what was read, and of each span its CPU time."""
    spans = Spans()
    used: list[tuple[str, int, int]] = []
    ready, over = threading.Barrier(number + 1), threading.Event()
    until = time.perf_counter() + seconds

    def work(chance: random.Random, core: int | None) -> None:
        if core is not None:
            stay(core)
        ready.wait()
        while time.perf_counter() < until:
            name = chance.choice(list(WORK))
            with spans.span(name) as start:
                cpu = time.thread_time_ns()
                WORK[name](chance)
                used.append((name, start, time.thread_time_ns() - cpu))
            time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.2))))
        over.wait()  # its clock is read until the end

    have_room = number <= len(CORES)
    workers = [
        threading.Thread(target=work, args=(random.Random(f"{seed} {each}"), each if have_room else None))
        for each in range(number)
    ]
    with spans.span("job", is_root=True):
        for worker in workers:
            worker.start()
        clocks = Clocks([each.ident for each in workers if each.ident is not None])
        clocks.start()
        ready.wait()
        time.sleep(seconds)
        while spans.open > 1:
            time.sleep(PERIOD_S)
        clocks.end()
    over.set()
    for worker in workers:
        worker.join()
    spans.write(folder / SPANS)
    return {"readings": clocks.readings, "used": used}


def main() -> None:
    name, seconds, seed, folder = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    sys.setswitchinterval(_SWITCH_S)
    found = (
        training(seconds, seed, folder) if name == TRAINING else threads(THREADS[name], seconds, seed, folder)
    )
    (folder / CLOCKS).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
