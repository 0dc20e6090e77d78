# SPDX-License-Identifier: Apache-2.0
"""Telemetry as the recorder writes it (docs/telemetry.md), from what a simulated training did.

A simulator says what happened (`RankRecord`: rows with their phases, passes, scopes) and under which names
(`Recording`); `SpanWriter` turns that into the spans of each rank, in the order in which a relay sends them,
and `lines` into the requests of a file store. Nothing here knows the analyzer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from grademl_otel import semconv as sc

US = 1_000
MS = 1_000_000
S = 1_000_000_000

EPOCH_UNIX_NS = 1_796_113_322_763_869_123
"""Start of every simulated run unless told otherwise; odd on purpose, so that rounding shows."""

Span = dict[str, Any]

WORK_SCOPES = (sc.CHECKPOINT_SAVE, sc.CHECKPOINT_LOAD, sc.COMPILE)
"""Phases whose spans are scopes of the run, also in steps."""
_OF_DEVICES = tuple(sc.DEVICE_PREFIX + phase for phase in sc.DEVICE_PHASES)


@dataclass(frozen=True)
class Recording:
    """What a recording says of itself, whatever was trained."""

    run_id: str = "0123456789abcdef0123456789abcdef"
    attempt: int = 0
    start: int = EPOCH_UNIX_NS
    service: str = "trainer"
    script: str = "train.py"
    torch: str = "2.15.0"
    device: str = "cpu"
    ranks: int = 1
    workers: int = 2
    prefetch: int = 2
    batch_size: int = 32
    persistent: bool = False
    checkpoint_bytes: int = 4096
    skew_ns: dict[int, int] = field(default_factory=dict)
    """Rank -> what its clock, another host's, shows more than that of the others."""
    hosts: dict[int, int] = field(default_factory=dict)
    """Rank -> number of its host; one with a clock of its own has one of its own unless told here."""
    rows_per_part: int = sc.MAX_ROWS_PER_PART
    detail_level: int = 0
    """Steps whose hash has fewer trailing zeros have no detail; 0 keeps all. Steps of 100 ms: always."""
    tracer_cost_fraction: float = 0.004
    tracer_dropped: int = 0

    def host(self, rank: int) -> int:
        return self.hosts.get(rank, rank if rank in self.skew_ns else 0)


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
    host: Activity | None = None
    """Of what a device did: the phase that enqueued it."""


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
    """One pass over a loader, a checkpoint, or a compilation."""

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
    inside: Pass | None = None
    """The pass that it lies in; None for the run."""
    said: dict[str, Any] = field(default_factory=dict)
    """Further attributes."""


@dataclass
class RankRecord:
    """What the process of one rank did."""

    rank: int
    now: int
    """Its end, once it has ended."""
    step: int = 0
    """Training steps that it made."""
    eval_step: int = 0
    rows: list[Row] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    ended: str = "exit"
    open_phase: str | None = None


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


def resource(training: Recording, rank: int) -> dict[str, Any]:
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
                sc.CLOCK_ID: f"5f0c7a52-0000-4000-8000-00000000000{1 + training.host(rank)}",
                "host.name": f"node-{training.host(rank)}",
                "process.pid": 4000 + rank,
                sc.FRAMEWORK_NAME: "torch",
                sc.FRAMEWORK_VERSION: training.torch,
            }
        )
    }


class SpanWriter:
    """Turns the truth of one rank into spans, in the order in which a relay sends them."""

    def __init__(self, training: Recording, rank: RankRecord) -> None:
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
        error: str | None = None, links: Iterable[tuple[int, int, str]] = (),
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
        if links:
            span["links"] = [
                {
                    "traceId": f"{of:032x}",
                    "spanId": f"{to:016x}",
                    "attributes": attributes({sc.LINK_KIND: kind}),
                }
                for of, to, kind in links
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

    def _to_run(self) -> tuple[int, int, str]:
        """Return the link that steps and windows have."""
        return self._trace(sc.TRACE_RUN), self._run_span(), "run"

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
        yield self._span(trace, window_span, 0, sc.WINDOW, start, end, attrs, links=[self._to_run()])

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
            if a.name in WORK_SCOPES:
                continue  # its span is a scope of the run's
            attrs: dict[str, Any] = {sc.LANE: a.lane, sc.STEP_NUMBER: row.step, sc.ITEM: a.item, **a.said}
            if a.lane.startswith("loader"):
                yield self._span(window_trace, ids[id(a)], window_span, a.name, a.start, a.end, attrs)
                continue
            parent = ids[id(a.inside)] if a.inside else step_span
            links = [(trace, ids[id(a.host)], "host")] if a.host else []
            yield self._span(trace, ids[id(a)], parent, a.name, a.start, a.end, attrs, links=links)
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
            links=[self._to_run()],
        )  # fmt: skip

    def _passes(self) -> Iterator[Span]:
        ids = {id(scope): self._random_id() for scope in self.r.passes}
        for scope in self.r.passes:
            attrs: dict[str, Any] = {sc.LANE: "main", **scope.said}
            if scope.name == sc.CHECKPOINT_SAVE:
                attrs[sc.BYTES] = self.t.checkpoint_bytes
            elif scope.name not in WORK_SCOPES:
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
            parent = ids[id(scope.inside)] if scope.inside else self._run_span()
            yield self._span(
                self._trace(sc.TRACE_RUN), ids[id(scope)], parent, scope.name,
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
    for phase in (*sc.PHASES, *_OF_DEVICES):
        found = [[a for a in row.phases if a.name == phase] for row in rows]
        if any(found):
            columns[f"{phase}.first_us"] = [min((us(a.start) for a in some), default=-1) for some in found]
            columns[f"{phase}.busy_us"] = [sum(us(a.end) - us(a.start) for a in some) for some in found]
            columns[f"{phase}.count"] = [len(some) for some in found]
    folded = {k: v[:1] if len(set(v)) == 1 else v for k, v in columns.items()}
    for whole in ("step", "start_us", "dur_us"):
        folded[whole] = columns[whole]
    return {sc.TABLE_VERSION: 1} | {sc.TABLE_PREFIX + k: v for k, v in folded.items()}


def lines(training: Recording, spans: Iterable[tuple[int, Span]], batch: int = 512) -> bytes:
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
