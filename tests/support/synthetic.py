# SPDX-License-Identifier: Apache-2.0
"""A simulated training whose telemetry follows docs/telemetry.md to the letter and whose answers are known.

Typical use::

    sim = simulate(Training(ranks=1, epochs=2, steps_per_epoch=20, workers=2, fetch_ns=40 * MS))
    path = sim.write_store(tmp_path)            # <tmp_path>/<UTC start>-<run id>/traces.jsonl
    sim.otlp_lines()                            # the same as bytes, one OTLP/JSON request per line
    sim.jaeger_v1()                             # the same as a Jaeger v1 document (`{"data": [...]}`)
    sim.rows, sim.passes, sim.ended, ...        # the truth, in exact nanoseconds

**The loader** is a bounded queue like PyTorch's: batch ``i`` goes to worker ``i % W``; ``W * prefetch``
batches are handed out when the pass starts (after ``spawn_ns``) and one more each time the main lane takes
one. A worker makes its batches one after the other, ``fetch_ns + collate_ns`` each. The main lane's
``data.wait`` ends ``handoff_ns`` after the later of its own start and the end of the batch's collate. With
``workers=0`` the wait holds the fetch and the collate, and ends ``handoff_ns`` after them.

Hence the mean period of a long pass is ``max(handoff + compute, (fetch + collate) / W)``, where ``compute``
is the sum of all phases after the wait plus ``tail_ns``; below ``W`` workers' capacity every wait but the
first few is exactly ``handoff_ns`` long.

**A row** (step) starts with its first wait and ends ``tail_ns`` after its last phase, where the next wait
starts: rows of one pass are adjacent. Per epoch: the pass, then an evaluation of ``eval_batches`` (if any),
then a checkpoint (if ``checkpoint_ns``), then ``epoch_gap_ns`` of nothing. With several ranks the backward
of the step's last micro-batch ends on all ranks at the same instant, ``allreduce_ns`` after the last rank's
own work: the implicit barrier of data-parallel training. With ``buckets`` that barrier is recorded, as so
many all-reduces that run beside backward: bucket ``b`` of ``B`` is issued when ``b / B`` of the rank's own
backward is done, and takes ``allreduce_ns / B`` from when the last rank has issued it and the one before is
through. With ``explicit`` backward is the rank's own work, and a blocking all-reduce follows it.

A run may end in order, by an exception in the forward of step ``raises_at`` (an incomplete row), or killed
in phase ``killed_in`` of step ``killed_at`` (the row never closes; the run span ends at the last phase that
did).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grademl_otel import semconv as sc

from .jaeger_json import jaeger_trace, jaeger_v1
from .telemetry import (
    EPOCH_UNIX_NS,
    MS,
    US,
    Activity,
    Pass,
    RankRecord,
    Recording,
    Row,
    S,
    Span,
    SpanWriter,
    attributes,
    lines,
    resource,
    value,
)

__all__ = [
    "EPOCH_UNIX_NS",
    "MS",
    "US",
    "Activity",
    "Pass",
    "Row",
    "S",
    "Simulated",
    "Span",
    "Training",
    "attributes",
    "jaeger_trace",
    "jaeger_v1",
    "lines",
    "resource",
    "simulate",
    "value",
]


@dataclass(frozen=True)
class Training(Recording):
    """What to simulate; times in ns."""

    epochs: int = 2
    steps_per_epoch: int = 20
    micro: int = 1
    eval_batches: int = 5
    """Batches of the evaluation after each epoch; 0 for none."""

    fetch_ns: int = 3 * MS
    collate_ns: int = 1 * MS
    handoff_ns: int = 100 * US
    spawn_ns: int = 20 * MS

    transfer_ns: int = 0
    forward_ns: int = 3 * MS
    backward_ns: int = 6 * MS
    optimizer_ns: int = 1 * MS
    zero_grad_ns: int = 0
    tail_ns: int = 50 * US
    """Time of a row after its last phase: the user's own code between optimizer and the next batch."""
    allreduce_ns: int = 500 * US
    buckets: int = 0
    explicit: bool = False
    barrier_first: bool = False
    """Backward is a barrier that nobody records, too, where ``explicit``."""
    more_ns: dict[tuple[int, str], int] = field(default_factory=dict)
    """(rank, phase) -> ns that the phase takes that rank longer than the others."""
    compute_scale: dict[int, float] = field(default_factory=dict)
    """Rank -> factor on forward and backward; makes a straggler."""
    fetch_scale: dict[int, float] = field(default_factory=dict)
    """Rank -> factor on fetch."""

    startup_ns: int = 200 * MS
    checkpoint_ns: int = 0
    epoch_gap_ns: int = 10 * MS
    teardown_ns: int = 30 * MS

    raises_at: int | None = None
    killed_at: int | None = None
    killed_in: str = sc.BACKWARD


class _Killed(Exception):
    """The simulated process died."""


class _Raised(Exception):
    """The simulated script raised."""


class _Loader:
    """The bounded queue of one pass; see the module's docstring."""

    def __init__(self, training: Training, rank: int, started: int) -> None:
        self._t = training
        self._fetch = round(training.fetch_ns * training.fetch_scale.get(rank, 1.0))
        self._taken: list[int] = []
        self._free = [started + training.spawn_ns] * training.workers
        self._opened = started + training.spawn_ns

    def take(self, batch: int, now: int, item: str, loader: int) -> list[Activity]:
        """Return the wait for ``batch`` (first), its fetch and its collate."""
        t = self._t
        wait = Activity(sc.DATA_WAIT, "main", now, 0, item)
        if t.workers == 0:
            fetched = now + self._fetch
            wait.end = fetched + t.collate_ns + t.handoff_ns
            inline = [
                Activity(sc.DATA_FETCH, "main", now, fetched, item, inside=wait),
                Activity(sc.DATA_COLLATE, "main", fetched, fetched + t.collate_ns, item, inside=wait),
            ]
            return [wait, *inline]
        worker = batch % t.workers
        ahead = batch - t.workers * t.prefetch
        given = self._opened if ahead < 0 else self._taken[ahead]
        begin = max(self._free[worker], given)
        fetched = begin + self._fetch
        ready = fetched + t.collate_ns
        self._free[worker] = ready
        wait.end = max(now, ready) + t.handoff_ns
        self._taken.append(wait.end)
        lane = f"loader-worker-{worker}" if loader == 0 else f"loader{loader}-worker-{worker}"
        return [
            wait,
            Activity(sc.DATA_FETCH, lane, begin, fetched, item),
            Activity(sc.DATA_COLLATE, lane, fetched, ready, item),
        ]


class _Rank(RankRecord):
    """One simulated process."""

    def __init__(self, training: Training, rank: int) -> None:
        super().__init__(rank, training.start)
        self.t = training
        self.serial = 0
        self.pass_serial = 1  # the run's own scope
        self.collectives = 0
        self.open_passes: list[Pass] = []

    def open_pass(self, name: str, loader: int, epoch: int | None) -> _Loader:
        self.pass_serial += 1
        scope = Pass(self.rank, name, self.now, serial=self.pass_serial, loader=loader, epoch=epoch)
        self.passes.append(scope)
        self.open_passes.append(scope)
        return _Loader(self.t, self.rank, self.now)

    def close_pass(self) -> None:
        self.open_passes.pop().end = self.now

    def open_row(self, kind: str, batch: int) -> Row:
        scope = self.open_passes[-1]
        self.serial += 1
        worker = batch % self.t.workers if self.t.workers else -1
        number = self.step if kind == "train" else self.eval_step
        return Row(
            rank=self.rank,
            serial=self.serial,
            kind=kind,
            step=self.step,
            number=number,
            start=self.now,
            pass_serial=scope.serial,
            batch=batch,
            loader=scope.loader,
            worker=worker,
            epoch=scope.epoch,
        )

    def take(self, row: Row, loader: _Loader, batch: int) -> None:
        activities = loader.take(batch, self.now, f"{row.pass_serial}:{batch}", row.loader)
        row.phases += activities
        self.now = activities[0].end

    def run(self, row: Row, name: str, duration: int) -> None:
        if not duration:
            return
        if row.kind == "train" and self.t.killed_at == row.step and name == self.t.killed_in:
            self.open_phase = name
            raise _Killed
        row.phases.append(Activity(name, "main", self.now, self.now + duration))
        self.now += duration

    def scaled(self, duration: int, phase: str) -> int:
        more = self.t.more_ns.get((self.rank, phase), 0)
        return round(duration * self.t.compute_scale.get(self.rank, 1.0)) + more

    def collective(self, row: Row, start: int, end: int, lane: str) -> None:
        """Record an all-reduce with all other ranks."""
        blocking = lane == "main"
        said = {
            sc.COLLECTIVE_KEY: f"0123456789abcdef:{self.collectives}",
            sc.COLLECTIVE_OP: "all_reduce",
            sc.COLLECTIVE_SIZE: self.t.ranks,
            sc.COLLECTIVE_BLOCKING: blocking,
            sc.COLLECTIVE_COMPLETED: True,
            sc.BYTES: 1_000_000,
        }
        self.collectives += 1
        row.phases.append(Activity(sc.COLLECTIVE, lane, start, end, said=said))

    def close_row(self, row: Row) -> None:
        if row.kind != "incomplete":
            self.now += self.t.tail_ns
        row.end = self.now
        row.detailed = (
            row.duration >= sc.SLOW_STEP_NS
            or row.kind == "incomplete"
            or sc.detail_bits(self.t.run_id, row.step) >= self.t.detail_level
        )
        self.rows.append(row)
        scope = self.open_passes[-1]
        if row.kind == "train":
            self.step += 1
            scope.steps += 1
        elif row.kind == "evaluate":
            self.eval_step += 1
            scope.eval_steps += 1


def _all_reduced(t: Training, begun: list[int], work: list[int]) -> list[int]:
    """Return when the all-reduces of a backward are through, on each rank."""
    if t.buckets:
        return [_bucket_times(t, begun, work)[-1][1]] * len(work)
    return [max(work) + t.allreduce_ns] * len(work)


def _bucket_times(t: Training, begun: list[int], work: list[int]) -> list[tuple[list[int], int]]:
    """Return (when each rank issues it, when it is through) of each bucket."""
    times: list[tuple[list[int], int]] = []
    through = 0
    for b in range(1, t.buckets + 1):
        issued = [low + (high - low) * b // t.buckets for low, high in zip(begun, work, strict=True)]
        through = max(*issued, through) + t.allreduce_ns // t.buckets
        times.append((issued, through))
    return times


def _buckets(t: Training, ranks: list[_Rank], rows: list[Row], begun: list[int], work: list[int]) -> None:
    for issued, through in _bucket_times(t, begun, work):
        for r, row, at in zip(ranks, rows, issued, strict=True):
            r.collective(row, at, through, "comm")


def _train_step(ranks: list[_Rank], loaders: list[_Loader], index: int) -> None:
    """One synchronous training step of all ranks."""
    t = ranks[0].t
    rows = [r.open_row("train", index * t.micro) for r in ranks]
    for micro in range(t.micro):
        for r, row, loader in zip(ranks, rows, loaders, strict=True):
            r.take(row, loader, index * t.micro + micro)
            r.run(row, sc.DATA_TRANSFER, t.transfer_ns)
            if t.raises_at == r.step:
                row.kind, row.number = "incomplete", row.serial
                r.run(row, sc.FORWARD, r.scaled(t.forward_ns, sc.FORWARD) // 2)
                r.close_row(row)
                continue
            r.run(row, sc.FORWARD, r.scaled(t.forward_ns, sc.FORWARD))
            row.micro += 1
        if t.raises_at == ranks[0].step:
            raise _Raised
        begun = [r.now for r in ranks]
        work = [r.now + r.scaled(t.backward_ns, sc.BACKWARD) for r in ranks]
        last = len(ranks) > 1 and micro == t.micro - 1
        through = _all_reduced(t, begun, work) if last else work
        for r, row, own, end in zip(ranks, rows, work, through, strict=True):
            own = max(work) if t.barrier_first else own
            r.run(row, sc.BACKWARD, (own if t.explicit else end) - r.now)
            if last and t.explicit:
                r.collective(row, r.now, end, "main")
                r.now = end
        if last and t.buckets:
            _buckets(t, ranks, rows, begun, work)
    for r, row in zip(ranks, rows, strict=True):
        r.run(row, sc.OPTIMIZER, t.optimizer_ns + t.more_ns.get((r.rank, sc.OPTIMIZER), 0))
        r.run(row, sc.ZERO_GRAD, t.zero_grad_ns)
        r.close_row(row)


def _evaluate(r: _Rank) -> None:
    t = r.t
    loader = r.open_pass(sc.EVALUATE, 1, None)
    for batch in range(t.eval_batches):
        row = r.open_row("evaluate", batch)
        r.take(row, loader, batch)
        r.run(row, sc.FORWARD, r.scaled(t.forward_ns, sc.FORWARD))
        row.micro = 1
        r.close_row(row)
    r.close_pass()


def _life(ranks: list[_Rank]) -> None:
    t = ranks[0].t
    for r in ranks:
        r.now += t.startup_ns
    for epoch in range(t.epochs):
        loaders = [r.open_pass(sc.EPOCH, 0, epoch) for r in ranks]
        for index in range(t.steps_per_epoch):
            _train_step(ranks, loaders, index)
        for r in ranks:
            r.close_pass()
            if t.eval_batches:
                _evaluate(r)
            if t.checkpoint_ns:
                r.passes.append(Pass(r.rank, sc.CHECKPOINT_SAVE, r.now, r.now + t.checkpoint_ns))
                r.now += t.checkpoint_ns
            if epoch < t.epochs - 1:
                r.now += t.epoch_gap_ns
    for r in ranks:
        r.now += t.teardown_ns


@dataclass
class Simulated:
    """The truth of a simulated run and its telemetry."""

    training: Training
    rows: list[Row]
    """Sorted by (rank, start)."""
    passes: list[Pass]
    """Passes and checkpoints, sorted by (rank, start)."""
    bounds: dict[int, tuple[int, int]]
    """Rank -> start and end of its run span."""
    ended: str
    open_phase: str | None
    spans: list[tuple[int, Span]]
    """(rank, OTLP/JSON span), in the order sent. Filter it and call `lines` to lose some."""

    def rows_of(self, rank: int = 0, kind: str | None = None) -> list[Row]:
        return [row for row in self.rows if row.rank == rank and kind in (None, row.kind)]

    def total(self, phase: str, rank: int = 0, kind: str | None = None) -> int:
        """Sum of ``phase`` over the rows of ``rank``, ns."""
        return sum(row.total(phase) for row in self.rows_of(rank, kind))

    @property
    def folder(self) -> str:
        """Name of the run's folder in a file store."""
        started = datetime.fromtimestamp(self.training.start // S, tz=timezone.utc)
        return f"{started:%Y%m%dT%H%M%SZ}-{self.training.run_id}"

    def otlp_lines(self) -> bytes:
        return lines(self.training, self.spans)

    def write_store(self, folder: Path) -> Path:
        """Write a file store below ``folder`` and return the path of its ``traces.jsonl``."""
        path = folder / self.folder / "traces.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(self.otlp_lines())
        return path

    def jaeger_v1(self) -> dict[str, Any]:
        return jaeger_v1(self.training, self.spans)


def simulate(training: Training) -> Simulated:
    """Run the simulation; deterministic."""
    ranks = [_Rank(training, rank) for rank in range(training.ranks)]
    try:
        _life(ranks)
    except _Killed:
        phase = ranks[0].open_phase
        for r in ranks:
            r.ended, r.open_phase = "killed", phase
    except _Raised:
        for r in ranks:
            r.ended = "exception"
    for r in ranks:
        for scope in r.open_passes:
            scope.end = r.now
            scope.terminated = r.ended == "killed"
            scope.error = "RuntimeError" if r.ended == "exception" else None
    spans: list[tuple[int, Span]] = []
    for r in ranks:
        spans += ((r.rank, span) for span in SpanWriter(training, r).spans())
    return Simulated(
        training,
        [row for r in ranks for row in r.rows],
        [scope for r in ranks for scope in r.passes],
        {r.rank: (training.start, r.now) for r in ranks},
        ranks[0].ended,
        ranks[0].open_phase,
        spans,
    )
