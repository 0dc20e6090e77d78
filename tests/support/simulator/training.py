# SPDX-License-Identifier: Apache-2.0
"""The simulation: ranks that train together, one step after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from grademl_otel import semconv as sc

from ..telemetry import Activity, Pass, Recording, Row, S, Span, SpanWriter, lines
from .job import Dice, Job
from .loader import Loader
from .rank import Rank
from .tasks import MAIN, NETWORK, Task, first, then
from .truth import Truth, path_of

TRANSFER = "collective.transfer"
RANKS_WAIT = "ranks.wait"
IDLE = "idle"
STREAM = "stream-0.0"
_STEADY = 3
"""Steps before are no part of the means."""


@dataclass(frozen=True)
class Simulation:
    """A simulated training: what was recorded of it, and the truth."""

    job: Job
    ranks: list[Rank]
    truth: Truth

    @property
    def recording(self) -> Recording:
        """What the recording says of itself."""
        job = self.job
        return Recording(
            run_id=run_id(job),
            start=job.start,
            torch="2.15.0" if job.hooks else "2.6.0",
            device="cuda" if job.device else "cpu",
            ranks=job.ranks,
            workers=job.workers,
            prefetch=job.prefetch,
            skew_ns={rank: job.offsets.get(job.host(rank), 0) for rank in range(job.ranks)},
            hosts={rank: job.host(rank) for rank in range(job.ranks)},
            detail_level=job.detail_level,
        )

    def slowed(self, times: int) -> Simulation:
        """Return what would have been recorded if everything had taken so many times as long."""

        def slowed(at: int) -> int:
            return self.job.start + (at - self.job.start) * times

        slow = copy.deepcopy(self.ranks)
        for rank in slow:
            timed: list[Row | Pass | Activity] = [
                *rank.rows,
                *rank.passes,
                *(phase for row in rank.rows for phase in row.phases),
            ]
            for one in timed:
                one.start, one.end = slowed(one.start), slowed(one.end)
            rank.now = slowed(rank.now)
        return Simulation(self.job, slow, self.truth)

    def spans(self) -> list[tuple[int, Span]]:
        """Return (rank, OTLP/JSON span) in the order in which relays send them."""
        recording = self.recording
        return [(rank.rank, span) for rank in self.ranks for span in SpanWriter(recording, rank).spans()]

    def write_store(self, folder: Path, spans: Iterable[tuple[int, Span]] | None = None) -> Path:
        """Write a file store below ``folder``, of these ``spans`` or of all; return its file of traces."""
        started = datetime.fromtimestamp(self.job.start // S, tz=timezone.utc)
        path = folder / f"{started:%Y%m%dT%H%M%SZ}-{run_id(self.job)}" / "traces.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(lines(self.recording, self.spans() if spans is None else spans))
        return path


def run_id(job: Job) -> str:
    """Return the id of the run, by its name and seed."""
    return sha256(f"run {job.name}/{job.seed}".encode()).hexdigest()[:32]


def simulate(job: Job) -> Simulation:
    """Train; the same job always does the same."""
    return _World(job).train()


def _wait_share(rows: list[Row]) -> float:
    """Return the part of ``rows`` that is waiting for data, without the first of each pass."""
    later = [row for row in rows if row.batch]
    return sum(row.total(sc.DATA_WAIT) for row in later) / max(1, sum(row.duration for row in later))


class _World:
    """All ranks and what lies between them."""

    def __init__(self, job: Job) -> None:
        self.job, self.dice = job, Dice(job)
        self.ranks = [Rank(job, rank, self.dice) for rank in range(job.ranks)]
        self.channel: Task = first(NETWORK, job.start)
        self.streams: list[Task] = [first((rank, STREAM), job.start) for rank in range(job.ranks)]

    def train(self) -> Simulation:
        job = self.job
        for rank in self.ranks:
            rank.work("start-up", job.startup)
        for epoch in range(job.epochs):
            self._epoch(epoch)
            for rank in self.ranks:
                self._evaluate(rank)
                if epoch < job.epochs - 1:
                    rank.work("epoch gap", job.epoch_gap)
        for rank in self.ranks:
            # Rank 0 also writes what was trained: no other one ends last, so that paths begin on it.
            rank.work("teardown", job.teardown if rank.rank else 4 * job.teardown)
        return Simulation(job, self.ranks, self._truth())

    def _epoch(self, epoch: int) -> None:
        with ExitStack() as passes:
            scopes = [passes.enter_context(rank.pass_over(0, sc.EPOCH, epoch)) for rank in self.ranks]
            loaders = [Loader(rank, 0) for rank in self.ranks]
            for step in range(self.job.steps):
                self._step(scopes, loaders, step * self.job.micro)

    def _evaluate(self, rank: Rank) -> None:
        if not self.job.eval_batches:
            return
        with rank.pass_over(1, sc.EVALUATE, None) as scope:
            loader = Loader(rank, 1)
            for batch in range(self.job.eval_batches):
                row = rank.open_row(scope, batch)
                loader.take(row, batch)
                with rank.phase(row, sc.FORWARD):
                    rank.work(sc.FORWARD, self.job.forward)
                rank.close_row(row, scope, run_id(self.job))

    def _step(self, scopes: list[Pass], loaders: list[Loader], batch: int) -> None:
        """One training step of all ranks, which begins with ``batch``."""
        job = self.job
        rows = [rank.open_row(scope, batch) for rank, scope in zip(self.ranks, scopes, strict=True)]
        for micro in range(job.micro):
            for rank, row, loader in zip(self.ranks, rows, loaders, strict=True):
                loader.take(row, batch + micro)
                if job.device:
                    self._enqueue(rank, row, sc.FORWARD, job.forward)
                    self._enqueue(rank, row, sc.BACKWARD, job.backward)
                    continue
                self._forward(rank, row, micro)
                if micro < job.micro - 1 or job.ranks == 1 or job.blocking:
                    with rank.phase(row, sc.BACKWARD):
                        rank.work(sc.BACKWARD, job.backward)
        if job.ranks > 1 and job.blocking:
            self._all_reduce(rows)
        elif job.ranks > 1:
            self._backward(rows)
        for rank, row, scope in zip(self.ranks, rows, scopes, strict=True):
            if job.device:
                self._enqueue(rank, row, sc.OPTIMIZER, job.optimizer)
                self._synchronize(rank, row)
            else:
                with rank.phase(row, sc.OPTIMIZER):
                    rank.work(sc.OPTIMIZER, job.optimizer)
            if job.saves is not None and job.saves.due(rank.rank, row.step):
                with rank.phase(row, sc.CHECKPOINT_SAVE):
                    rank.work(sc.CHECKPOINT_SAVE, job.saves.takes)
            rank.close_row(row, scope, run_id(job))

    def _forward(self, rank: Rank, row: Row, micro: int) -> None:
        job, takes = self.job, rank.takes(sc.FORWARD, self.job.forward)
        with rank.phase(row, sc.FORWARD):
            rank.go(takes // 2)
            if job.compile and row.step == micro == 0:
                said = {"grademl.compile.trigger": "frame", "grademl.compile.function": "forward"}
                with rank.phase(row, sc.COMPILE, **said, **{"grademl.compile.id": "0/0"}):
                    rank.work(sc.COMPILE, job.compile)
            if job.collections is not None and micro == 0 and job.collections.due(rank.rank, row.step):
                with rank.phase(row, sc.GC):
                    rank.work(sc.GC, job.collections.takes)
            rank.go(takes - takes // 2)

    # --- ranks together -----------------------------------------------------------------------------------

    def _backward(self, rows: list[Row]) -> None:
        """Backward, which issues an all-reduce after each of its parts and ends when all are through."""
        job, count = self.job, self.job.buckets
        takes = [rank.takes(sc.BACKWARD, job.backward) for rank in self.ranks]
        with ExitStack() as phases:
            for rank, row in zip(self.ranks, rows, strict=True):
                phases.enter_context(rank.phase(row, sc.BACKWARD))
            for bucket in range(count):
                parts = [time * (bucket + 1) // count - time * bucket // count for time in takes]
                issued = [rank.go(part) for rank, part in zip(self.ranks, parts, strict=True)]
                moves = job.takes(TRANSFER, job.transfer // count, self.dice, -1)
                self.channel = then(NETWORK, TRANSFER, moves, *issued, self.channel)
                if job.hooks:
                    self._record(rows, issued, "comm")
            self._come_together(sc.BACKWARD, issued)

    def _all_reduce(self, rows: list[Row]) -> None:
        """An all-reduce by a call that blocks."""
        issued = [rank.at for rank in self.ranks]
        moves = self.job.takes(TRANSFER, self.job.transfer, self.dice, -1)
        self.channel = then(NETWORK, TRANSFER, moves, *issued, self.channel)
        self._record(rows, issued, MAIN)
        self._come_together(sc.COLLECTIVE, issued)

    def _come_together(self, phase: str, issued: list[Task]) -> None:
        """Have all main lanes wait, within ``phase``, for what they ``issued`` last."""
        arrived = max(task.end for task in issued)
        for rank in self.ranks:
            before = rank.now
            rank.go(0, self.channel, phase=phase)
            if self.job.hooks:
                waited = min(arrived, rank.now) - before
                rank.inside[phase, RANKS_WAIT] += waited
                rank.inside[phase, TRANSFER] += rank.now - before - waited

    def _record(self, rows: list[Row], issued: list[Task], lane: str) -> None:
        """Have all ranks record the all-reduce that the channel is through with."""
        for rank, row, task in zip(self.ranks, rows, issued, strict=True):
            said = {
                sc.COLLECTIVE_KEY: f"0123456789abcdef:{rank.collectives}",
                sc.COLLECTIVE_OP: "all_reduce",
                sc.COLLECTIVE_SIZE: self.job.ranks,
                sc.COLLECTIVE_BLOCKING: lane == MAIN,
                sc.COLLECTIVE_COMPLETED: True,
                sc.BYTES: 1_000_000,
            }
            rank.collectives += 1
            late = round(self.job.heard * self.dice.uniform("heard", rank.rank)) if lane != MAIN else 0
            row.phases.append(Activity(sc.COLLECTIVE, lane, task.end, self.channel.end + late, said=said))

    # --- a device -----------------------------------------------------------------------------------------

    def _enqueue(self, rank: Rank, row: Row, phase: str, mean: int) -> None:
        """Give ``mean`` ns of work to the device, which begins with it when it is through with all before."""
        before = rank.at
        with rank.phase(row, phase):
            rank.go(self.job.takes("launch", self.job.launch, self.dice, rank.rank))
        name = sc.DEVICE_PREFIX + phase
        begun = then((rank.rank, STREAM), name, rank.takes(phase, mean), self.streams[rank.rank], before)
        # The event behind it is reached when the host has recorded that.
        self.streams[rank.rank] = done = then((rank.rank, STREAM), name, 0, begun, rank.at)
        row.phases.append(Activity(name, STREAM, begun.start, done.end, host=row.phases[-1]))

    def _synchronize(self, rank: Rank, row: Row) -> None:
        if (row.step + 1) % self.job.sync_every == 0:
            with rank.phase(row, sc.DEVICE_SYNC):
                rank.go(0, self.streams[rank.rank])

    # --- the truth ----------------------------------------------------------------------------------------

    def _truth(self) -> Truth:
        last = max(self.ranks, key=lambda rank: (rank.now, -rank.rank))
        wall = last.now - self.job.start
        for rank in self.ranks:
            rank.budget[IDLE] += last.now - rank.now
        steady = {
            rank.rank: [row for row in rank.rows if row.kind == "train" and row.step >= _STEADY]
            for rank in self.ranks
        }
        return Truth(
            path=path_of(last.at),
            budget={rank.rank: +rank.budget for rank in self.ranks},
            inside={rank.rank: +rank.inside for rank in self.ranks},
            wall=wall,
            step=max(fmean([row.duration for row in rows] or [0]) for rows in steady.values()),
            wait_share={rank: _wait_share(rows) for rank, rows in steady.items()},
        )
