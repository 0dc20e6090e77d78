# SPDX-License-Identifier: Apache-2.0
"""What is trained, how, and what is wrong with it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..telemetry import EPOCH_UNIX_NS, MS, US


@dataclass(frozen=True)
class Slow:
    """Something that takes ``factor`` times as long as it should."""

    phase: str
    factor: float
    rank: int | None = None
    """Of this one only; None for all."""
    worker: int | None = None

    def holds(self, phase: str, rank: int, worker: int | None) -> bool:
        return (
            phase == self.phase
            and self.rank in (None, rank)
            and (self.worker is None or self.worker == worker)
        )


@dataclass(frozen=True)
class Delay:
    """One single piece of work that takes longer."""

    phase: str
    rank: int
    worker: int | None
    nth: int
    """Of these, in order of time, from 0."""
    more: int
    """ns"""


@dataclass(frozen=True)
class Pauses:
    """What interrupts a rank after every so many steps."""

    every: int
    takes: int
    """ns"""
    ranks: tuple[int, ...] | None = None
    """None for all."""
    staggered: bool = False
    """Each rank at steps of its own, else all in the same ones."""

    def due(self, rank: int, step: int) -> bool:
        if self.ranks is not None and rank not in self.ranks:
            return False
        shift = rank * max(1, self.every // 4) if self.staggered else 0
        return (step + 1 + shift) % self.every == 0


@dataclass(frozen=True)
class Job:
    """A training; times in ns. Each is a mean: a lognormal factor of mean 1 makes every single one."""

    seed: int = 1
    name: str = ""
    """Another name makes another run id, and so other ids of all traces and spans."""
    start: int = EPOCH_UNIX_NS
    ranks: int = 1
    epochs: int = 2
    steps: int = 30
    """Of each epoch."""
    micro: int = 1
    """Batches of a step."""
    eval_batches: int = 3

    workers: int = 2
    prefetch: int = 2
    fetch: int = 8 * MS
    collate: int = 1 * MS
    handoff: int = 100 * US
    spawn: int = 15 * MS
    """From the start of a pass to the first fetch of its workers."""

    forward: int = 4 * MS
    backward: int = 8 * MS
    optimizer: int = 1 * MS
    tail: int = 50 * US
    """The program's own code at the end of a step."""
    jitter: float = 0.08
    """Standard deviation of the logarithm of each factor."""

    buckets: int = 4
    """All-reduces of a backward of several ranks, one after the other on one channel."""
    transfer: int = 1 * MS
    """All of them together."""
    hooks: bool = True
    """Whether the collectives are recorded."""
    blocking: bool = False
    """One all-reduce, by a call after backward that waits for it, in the place of the buckets."""
    heard: int = 0
    """By how much later than it is through each rank hears of an all-reduce beside it, at most; ns."""

    device: bool = False
    """The phases of the main lane only enqueue work for a device, in ``launch`` each."""
    launch: int = 500 * US
    sync_every: int = 1
    """Steps after which the host waits for the device."""

    startup: int = 150 * MS
    epoch_gap: int = 8 * MS
    teardown: int = 20 * MS

    slow: tuple[Slow, ...] = ()
    delays: tuple[Delay, ...] = ()
    collections: Pauses | None = None
    """Garbage collections, within forward."""
    saves: Pauses | None = None
    """Checkpoints, at the end of a step."""
    compile: int = 0
    """What the first forward compiles."""

    offsets: Mapping[int, int] = field(default_factory=dict)
    """Host -> what its clock shows more than that of host 0, ns; ranks are in blocks on the hosts."""
    detail_level: int = 0
    """As `telemetry.Recording`: 0 keeps the detail of all steps, 64 only that of long ones."""

    def host(self, rank: int) -> int:
        hosts = 1 + max(self.offsets, default=0)
        return rank * hosts // self.ranks

    def takes(self, phase: str, mean: int, dice: Dice, rank: int, worker: int | None = None) -> int:
        """Return how long the next such phase takes."""
        time = mean * dice.factor(phase, rank, worker)
        for slow in self.slow:
            if slow.holds(phase, rank, worker):
                time *= slow.factor
        nth = dice.drawn(phase, rank, worker)
        late = (one for one in self.delays if (one.phase, one.rank, one.worker) == (phase, rank, worker))
        return round(time) + sum(one.more for one in late if one.nth == nth)

    def without_faults(self) -> Job:
        """Return the same training with nothing wrong."""
        return replace(self, slow=(), collections=None, saves=None, compile=0)

    def fed_at_once(self) -> Job:
        """Return the same training with a loader that takes no time."""
        return replace(self, fetch=0, collate=0)


class Dice:
    """The random numbers of a job: of each kind of work on each rank a sequence of its own.

    So a job that is changed in one thing draws the same numbers for all others.
    """

    def __init__(self, job: Job) -> None:
        self._seed, self._sigma = job.seed, job.jitter
        self._of: dict[tuple[object, ...], random.Random] = {}
        self._drawn: dict[tuple[object, ...], int] = {}

    def drawn(self, *key: object) -> int:
        """Return the number of the factor that was drawn last, from 0."""
        return self._drawn[key] - 1

    def factor(self, *key: object) -> float:
        self._drawn[key] = self._drawn.get(key, 0) + 1
        return self._next(key).lognormvariate(-(self._sigma**2) / 2, self._sigma)

    def uniform(self, *key: object) -> float:
        return self._next(key).random()

    def _next(self, key: tuple[object, ...]) -> random.Random:
        if key not in self._of:
            self._of[key] = random.Random(f"{self._seed}/{key}")
        return self._of[key]
