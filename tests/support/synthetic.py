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

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grademl_otel import semconv as sc

US = 1_000
MS = 1_000_000
S = 1_000_000_000

EPOCH_UNIX_NS = 1_796_113_322_763_869_123
"""Start of every simulated run unless told otherwise; odd on purpose, so that rounding shows."""

Span = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """What to simulate; times in ns."""

    run_id: str = "0123456789abcdef0123456789abcdef"
    attempt: int = 0
    start: int = EPOCH_UNIX_NS
    service: str = "trainer"
    script: str = "train.py"
    torch: str = "2.15.0"
    device: str = "cpu"
    ranks: int = 1
    epochs: int = 2
    steps_per_epoch: int = 20
    micro: int = 1
    eval_batches: int = 5
    """Batches of the evaluation after each epoch; 0 for none."""

    workers: int = 2
    prefetch: int = 2
    batch_size: int = 32
    persistent: bool = False
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
    skew_ns: dict[int, int] = field(default_factory=dict)
    """Rank -> what its clock, another host's, shows more than that of the others."""
    compute_scale: dict[int, float] = field(default_factory=dict)
    """Rank -> factor on forward and backward; makes a straggler."""
    fetch_scale: dict[int, float] = field(default_factory=dict)
    """Rank -> factor on fetch."""

    startup_ns: int = 200 * MS
    checkpoint_ns: int = 0
    checkpoint_bytes: int = 4096
    epoch_gap_ns: int = 10 * MS
    teardown_ns: int = 30 * MS

    rows_per_part: int = sc.MAX_ROWS_PER_PART
    detail_level: int = 0
    """Steps whose hash has fewer trailing zeros have no detail; 0 keeps all. Steps of 100 ms: always."""
    raises_at: int | None = None
    killed_at: int | None = None
    killed_in: str = sc.BACKWARD
    tracer_cost_fraction: float = 0.004
    tracer_dropped: int = 0


@dataclass
class Activity:
    """One phase that ran."""

    name: str
    lane: str
    start: int
    end: int
    item: str | None = None
    inside: Activity | None = None
    """The wait that an inline fetch runs in."""
    said: dict[str, Any] = field(default_factory=dict)
    """Further attributes."""


@dataclass
class Row:
    """One row of the step table, in exact ns."""

    rank: int
    serial: int
    kind: str
    """train, evaluate or incomplete."""
    step: int
    number: int
    """Number of the step trace: the step, the number of the evaluation step, or the serial of the row."""
    start: int
    pass_serial: int
    batch: int
    loader: int
    worker: int
    epoch: int | None
    end: int = 0
    micro: int = 0
    phases: list[Activity] = field(default_factory=list)
    window: int = 0
    part: int = 0
    detailed: bool = True

    def total(self, phase: str) -> int:
        """Sum of the durations of ``phase`` in this row."""
        return sum(a.end - a.start for a in self.phases if a.name == phase)

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass
class Pass:
    """One pass over a loader, or a checkpoint."""

    rank: int
    name: str
    start: int
    end: int = 0
    serial: int = 0
    loader: int = 0
    epoch: int | None = None
    steps: int = 0
    eval_steps: int = 0
    terminated: bool = False
    error: str | None = None


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


class _Rank:
    """One simulated process."""

    def __init__(self, training: Training, rank: int) -> None:
        self.t = training
        self.rank = rank
        self.now = training.start
        self.step = 0
        self.eval_step = 0
        self.serial = 0
        self.pass_serial = 1  # the run's own scope
        self.collectives = 0
        self.rows: list[Row] = []
        self.passes: list[Pass] = []
        self.open_passes: list[Pass] = []
        self.ended = "exit"
        self.open_phase: str | None = None

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
        spans += ((r.rank, span) for span in _Writer(training, r).spans())
    return Simulated(
        training,
        [row for r in ranks for row in r.rows],
        [scope for r in ranks for scope in r.passes],
        {r.rank: (training.start, r.now) for r in ranks},
        ranks[0].ended,
        ranks[0].open_phase,
        spans,
    )


# --- Telemetry ---------------------------------------------------------------------------------------------


def value(raw: Any) -> dict[str, Any]:
    """Return the OTLP/JSON AnyValue of ``raw``."""
    if isinstance(raw, bool):
        return {"boolValue": raw}
    if isinstance(raw, int):
        return {"intValue": str(raw)}
    if isinstance(raw, float):
        return {"doubleValue": raw}
    if isinstance(raw, str):
        return {"stringValue": raw}
    return {"arrayValue": {"values": [value(v) for v in raw]}}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the OTLP/JSON attributes of ``values``; None means absent."""
    return [{"key": k, "value": value(v)} for k, v in values.items() if v is not None]


def resource(training: Training, rank: int) -> dict[str, Any]:
    """Return the OTLP/JSON resource of ``rank``."""
    return {
        "attributes": attributes(
            {
                "service.name": training.service,
                sc.RUN_ID: training.run_id,
                sc.ATTEMPT: training.attempt,
                sc.RANK: rank,
                sc.LOCAL_RANK: rank,
                sc.WORLD_SIZE: training.ranks,
                sc.CLOCK_ID: f"5f0c7a52-0000-4000-8000-00000000000{1 + (rank in training.skew_ns) * rank}",
                "host.name": f"node-{rank if rank in training.skew_ns else 0}",
                "process.pid": 4000 + rank,
                sc.FRAMEWORK_NAME: "torch",
                sc.FRAMEWORK_VERSION: training.torch,
            }
        )
    }


class _Writer:
    """Turns the truth of one rank into spans, in the order in which a relay sends them."""

    def __init__(self, training: Training, rank: _Rank) -> None:
        self.t = training
        self.r = rank
        self.emitted = 0
        self._random = random.Random(f"{training.run_id}/{training.attempt}/{rank.rank}")

    def spans(self) -> Iterator[Span]:
        for window, part, rows, last in self._parts():
            yield from self._part(window, part, rows, last)
        yield from self._passes()
        yield self._run()

    # One span; everything optional is left out as the Collector's marshaller does.
    def _span(
        self, trace: int, span_id: int, parent: int, name: str, start: int, end: int, attrs: dict[str, Any],
        error: str | None = None, link_run: bool = False,
    ) -> Span:  # fmt: skip
        self.emitted += 1
        if sc.SPANS_EMITTED in attrs:
            attrs[sc.SPANS_EMITTED] = self.emitted
        span: Span = {"traceId": f"{trace:032x}", "spanId": f"{span_id:016x}"}
        if parent:
            span["parentSpanId"] = f"{parent:016x}"
        skew = self.t.skew_ns.get(self.r.rank, 0)
        span |= {"name": name, "kind": 1}
        span |= {"startTimeUnixNano": str(start + skew), "endTimeUnixNano": str(end + skew)}
        span["attributes"] = attributes(attrs)
        if link_run:
            span["links"] = [
                {
                    "traceId": f"{self._trace(sc.TRACE_RUN):032x}",
                    "spanId": f"{self._run_span():016x}",
                    "attributes": attributes({sc.LINK_KIND: "run"}),
                }
            ]
        span["status"] = {} if error is None else {"message": error, "code": 2}
        return span

    def _trace(self, kind: str, number: int = 0, shard: int = 0) -> int:
        return sc.trace_id(self.t.run_id, self.t.attempt, kind, number, shard)

    def _derived(self, kind: str, number: int, part: int = 0) -> int:
        return sc.span_id(self.t.run_id, self.t.attempt, kind, number, self.r.rank, part)

    def _run_span(self, rank: int | None = None) -> int:
        return sc.span_id(
            self.t.run_id, self.t.attempt, sc.TRACE_RUN, 0, self.r.rank if rank is None else rank
        )

    def _random_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def _parts(self) -> Iterator[tuple[int, int, list[Row], bool]]:
        """Yield (window, part, rows, last); rows know their window and part afterwards."""
        by_window: dict[int, list[Row]] = {}
        for row in self.r.rows:
            row.window = sc.window_of_step(row.step)
            by_window.setdefault(row.window, []).append(row)
        size = self.t.rows_per_part
        for window, rows in by_window.items():
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            final = sc.window_first_step(window + 1) - 1
            ends = rows[-1].kind == "train" and rows[-1].step == final
            whole = ends or self.r.ended != "killed"
            for part, some in enumerate(parts):
                for row in some:
                    row.part = part
                yield window, part, some, whole and part == len(parts) - 1

    def _part(self, window: int, part: int, rows: list[Row], last: bool) -> Iterator[Span]:
        start, end = rows[0].start, rows[-1].end
        trace = self._trace(sc.TRACE_WINDOW, window, sc.window_shard(self.r.rank, part, self.t.ranks))
        window_span = self._derived(sc.TRACE_WINDOW, window, part)
        for row in rows:
            if row.detailed:
                yield from self._detail(row, trace, window_span)
        seen = [row for row in self.r.rows if row.serial <= rows[-1].serial]
        attrs: dict[str, Any] = {
            sc.WINDOW_NUMBER: window,
            sc.WINDOW_PART: part,
            sc.WINDOW_LAST: last,
            sc.WINDOW_STEPS_SO_FAR: sum(row.kind == "train" for row in seen),
            sc.WINDOW_EVAL_SO_FAR: sum(row.kind == "evaluate" for row in seen),
            sc.WINDOW_ROWS_SO_FAR: len(seen),
            sc.WINDOW_DETAIL_LEVEL: self.t.detail_level,
            sc.WINDOW_RECORD_LEVEL: 0,
            sc.SCRIPT: self.t.script,
            sc.DEVICE: self.t.device,
            sc.SPANS_EMITTED: 0,
            sc.TRACER_DROPPED: self.t.tracer_dropped,
        }
        attrs |= _table(rows, start)
        yield self._span(trace, window_span, 0, sc.WINDOW, start, end, attrs, link_run=True)

    def _detail(self, row: Row, window_trace: int, window_span: int) -> Iterator[Span]:
        kind = {
            "train": sc.TRACE_STEP,
            "evaluate": sc.TRACE_EVAL_STEP,
            "incomplete": sc.TRACE_INCOMPLETE_STEP,
        }
        trace = self._trace(kind[row.kind], row.number)
        step_span = self._derived(kind[row.kind], row.number)
        ids = {id(a): self._random_id() for a in row.phases}
        for a in row.phases:
            attrs: dict[str, Any] = {sc.LANE: a.lane, sc.STEP_NUMBER: row.step, sc.ITEM: a.item, **a.said}
            if a.lane in ("main", "comm"):
                parent = ids[id(a.inside)] if a.inside else step_span
                yield self._span(trace, ids[id(a)], parent, a.name, a.start, a.end, attrs)
            else:
                yield self._span(window_trace, ids[id(a)], window_span, a.name, a.start, a.end, attrs)
        slow = row.duration >= sc.SLOW_STEP_NS
        yield self._span(
            trace, step_span, 0, sc.STEP, row.start, row.end,
            {
                sc.LANE: "main",
                sc.STEP_NUMBER: row.step,
                sc.STEP_KIND: row.kind,
                sc.STEP_MICRO: row.micro,
                sc.STEP_SAMPLES: self.t.batch_size * row.micro,
                sc.EPOCH_NUMBER: row.epoch,
                sc.WEIGHT: 1 if slow else 1 << self.t.detail_level,
                sc.EVIDENCE: "inferred",
            },
            link_run=True,
        )  # fmt: skip

    def _passes(self) -> Iterator[Span]:
        for scope in self.r.passes:
            attrs: dict[str, Any] = {sc.LANE: "main"}
            if scope.name == sc.CHECKPOINT_SAVE:
                attrs["grademl.bytes"] = self.t.checkpoint_bytes
            else:
                attrs |= {
                    sc.EPOCH_NUMBER: scope.epoch,
                    sc.STEPS_TOTAL: scope.steps,
                    sc.EVAL_STEPS_TOTAL: scope.eval_steps,
                    sc.LOADER_ID: scope.loader,
                    sc.LOADER_WORKERS: self.t.workers,
                    sc.LOADER_PREFETCH: self.t.prefetch if self.t.workers else None,
                    sc.LOADER_BATCH_SIZE: self.t.batch_size,
                    sc.LOADER_PERSISTENT: self.t.persistent,
                    sc.LOADER_IN_ORDER: True,
                }
            if scope.terminated:
                attrs[sc.TERMINATED] = "killed"
            error = "killed" if scope.terminated else scope.error
            yield self._span(
                self._trace(sc.TRACE_RUN), self._random_id(), self._run_span(), scope.name,
                scope.start, scope.end, attrs, error,
            )  # fmt: skip

    def _run(self) -> Span:
        killed, raised = self.r.ended == "killed", self.r.ended == "exception"
        attrs: dict[str, Any] = {
            sc.LANE: "main",
            sc.SCRIPT: self.t.script,
            sc.DEVICE: self.t.device,
            sc.EXPORTERS: ["file"],
            sc.STEPS_TOTAL: self.r.step,
            sc.EVAL_STEPS_TOTAL: self.r.eval_step,
            sc.INCOMPLETE_STEPS_TOTAL: sum(row.kind == "incomplete" for row in self.r.rows),
            sc.ENDED: self.r.ended,
            sc.TRACER_COST: self.t.tracer_cost_fraction,
            sc.TRACER_DROPPED: self.t.tracer_dropped,
            sc.SPANS_EMITTED: 0,
            sc.TERMINATED: "killed" if killed else None,
            sc.OPEN_PHASE: self.r.open_phase,
            "error.type": "RuntimeError" if raised else None,
        }
        parent = 0 if self.r.rank == 0 else self._run_span(0)
        error = "RuntimeError" if raised else "killed" if killed else None
        return self._span(
            self._trace(sc.TRACE_RUN),
            self._run_span(),
            parent,
            sc.RUN,
            self.t.start,
            self.r.now,
            attrs,
            error,
        )


def _table(rows: list[Row], origin: int) -> dict[str, Any]:
    """Return the step table of ``rows`` as span attributes; times relative to ``origin`` in us."""

    def us(at: int) -> int:
        return (at - origin) // 1000

    flag = {"train": 0, "evaluate": sc.FLAG_EVALUATE, "incomplete": sc.FLAG_INCOMPLETE}
    columns: dict[str, list[int]] = {
        "step": [row.step for row in rows],
        "start_us": [us(row.start) for row in rows],
        "dur_us": [us(row.end) - us(row.start) for row in rows],
        "micro": [row.micro for row in rows],
        "flags": [flag[row.kind] | (sc.FLAG_DETAILED if row.detailed else 0) for row in rows],
        "item.pass": [row.pass_serial for row in rows],
        "item.batch": [row.batch for row in rows],
        "item.loader": [row.loader for row in rows],
        "item.worker": [row.worker for row in rows],
    }
    for phase in sc.PHASES:
        found = [[a for a in row.phases if a.name == phase] for row in rows]
        if any(found):
            columns[f"{phase}.first_us"] = [min((us(a.start) for a in some), default=-1) for some in found]
            columns[f"{phase}.busy_us"] = [sum(us(a.end) - us(a.start) for a in some) for some in found]
            columns[f"{phase}.count"] = [len(some) for some in found]
    folded = {k: v[:1] if len(set(v)) == 1 else v for k, v in columns.items()}
    for whole in ("step", "start_us", "dur_us"):
        folded[whole] = columns[whole]
    return {sc.TABLE_VERSION: 1} | {sc.TABLE_PREFIX + k: v for k, v in folded.items()}


def lines(training: Training, spans: Iterable[tuple[int, Span]], batch: int = 512) -> bytes:
    """Return ``spans`` as OTLP/JSON lines of at most ``batch`` spans, each of one rank."""
    by_rank: dict[int, list[Span]] = {}
    for rank, span in spans:
        by_rank.setdefault(rank, []).append(span)
    out = []
    for rank, some in by_rank.items():
        for at in range(0, len(some), batch):
            scope = {"scope": {"name": sc.SCOPE_NAME}, "spans": some[at : at + batch]}
            request = {"resourceSpans": [{"resource": resource(training, rank), "scopeSpans": [scope]}]}
            out.append(json.dumps(request, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(out).encode()


def _plain(any_value: dict[str, Any]) -> tuple[str, Any]:
    """Return (Jaeger tag type, value) of an OTLP/JSON AnyValue."""
    ((kind, raw),) = any_value.items()
    if kind == "intValue":
        number = int(raw)
        return "int64", number if abs(number) < 2**53 else str(number)
    if kind == "doubleValue":
        return "float64", raw
    if kind == "boolValue":
        return "bool", raw
    if kind == "stringValue":
        return "string", raw
    return "string", json.dumps([_plain(v)[1] for v in raw["values"]], separators=(",", ":"))


def _tags(attrs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"key": a["key"], "type": kind, "value": plain} for a in attrs for kind, plain in [_plain(a["value"])]
    ]


def jaeger_v1(training: Training, spans: Iterable[tuple[int, Span]]) -> dict[str, Any]:
    """Return ``spans`` as Jaeger's v1 API does: microseconds cut off, arrays as JSON strings."""
    traces: dict[str, list[tuple[dict[str, Any], Span]]] = {}
    for rank, span in spans:
        traces.setdefault(span["traceId"], []).append((resource(training, rank), span))
    data = [jaeger_trace(trace) for trace in traces.values()]
    return {"data": data, "total": 0, "limit": 0, "offset": 0, "errors": None}


def jaeger_trace(trace: Iterable[tuple[dict[str, Any], Span]]) -> dict[str, Any]:
    """Return one trace, (OTLP/JSON resource, span) each, as Jaeger's v1 API does."""
    processes: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    spans = []
    trace_id = ""
    for owner, span in trace:
        key = json.dumps(owner)
        process = names.setdefault(key, f"p{len(names) + 1}")
        if process not in processes:
            service = [a for a in owner["attributes"] if a["key"] == "service.name"]
            processes[process] = {
                "serviceName": service[0]["value"]["stringValue"] if service else "",
                "tags": _tags([a for a in owner["attributes"] if a["key"] != "service.name"]),
            }
        trace_id = span["traceId"]
        spans.append(_jaeger_span(span, process))
    return {"traceID": trace_id, "spans": spans, "processes": processes, "warnings": None}


def _jaeger_span(span: Span, process: str) -> dict[str, Any]:
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    references = []
    if "parentSpanId" in span:
        references.append({"refType": "CHILD_OF", "traceID": span["traceId"], "spanID": span["parentSpanId"]})
    references += [
        {"refType": "FOLLOWS_FROM", "traceID": link["traceId"], "spanID": link["spanId"]}
        for link in span.get("links", ())
    ]
    extra: list[dict[str, Any]] = [{"key": "span.kind", "type": "string", "value": "internal"}]
    if span["status"].get("code") == 2:
        extra += [
            {"key": "otel.status_code", "type": "string", "value": "ERROR"},
            {"key": "error", "type": "bool", "value": True},
        ]
    return {
        "traceID": span["traceId"],
        "spanID": span["spanId"],
        "operationName": span["name"],
        "references": references,
        "startTime": start // 1000,
        "duration": (end - start) // 1000,
        "tags": _tags(span["attributes"]) + extra,
        "logs": [],
        "processID": process,
        "warnings": None,
    }
