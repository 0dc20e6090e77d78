# SPDX-License-Identifier: Apache-2.0
"""Single marks and phases, beside a span of OpenTelemetry's SDK; the program's own phases, installed or not.

The span's batch processor is emptied by an exporter that throws everything away: encoding and sending, which
come on top, are not in its figure. A mark has neither in this process. All of it runs hot: inside a training
step, whose kernels flush the caches, the same takes several times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import grademl_otel
from benchmarks.interleaved import compare
from benchmarks.tables import Table, duration, ratio
from benchmarks.ways import SDK, around
from grademl_otel import manual, marks, semconv
from grademl_otel.config import Settings
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.ring.core import COMPILED
from grademl_otel.ring.writer import RingWriter

_CALLS = 2_000
_INSTALLED = 'with grademl_otel.phase("tokenize"), recorded'
_FORWARD = marks.phase_kind(semconv.FORWARD)


class _Keeper:
    def tick(self, now_ns: int) -> None: ...


def measure(rounds: int) -> Table:
    """Return what one call of each kind takes."""
    now = time.perf_counter_ns
    ring = RingWriter.create(Settings.from_env({}))
    recorder = Recorder(ring, _Keeper(), count(2))
    recorder.measuring = False
    machine, lane = recorder.here(), ring.intern("main")
    machine.optimizer_made(1)  # else each forward is an evaluation, and a step
    session.recorder = recorder
    phase, began, ended = recorder.phase, recorder.began, recorder.ended
    span = around(SDK)
    tokenize = manual.phase("tokenize")

    def nothing() -> None:
        now()
        now()

    def mark() -> None:
        phase(_FORWARD, lane, now(), now(), 7, -1, 0, 0)

    def shown() -> None:
        start = now()
        began(lane, _FORWARD, start)
        ended(lane)
        phase(_FORWARD, lane, start, now(), 7, -1, 0, 0)

    def forward() -> None:
        start = now()
        machine.begin_forward(start, 1)
        machine.end_forward(start, now(), True, 1, 0)

    def sdk_span() -> None:
        with span("forward"):
            pass

    def unused_phase() -> None:
        with grademl_otel.phase("tokenize"):
            pass

    def unused_step() -> None:
        with grademl_otel.step():
            pass

    def unused_object() -> None:
        with tokenize:
            pass

    ways = {
        "two readings of the clock": nothing,
        "a mark, with them": mark,
        "a mark, its phase shown while it runs": shown,
        "a forward, with step inference": forward,
        "a span of OpenTelemetry's SDK": sdk_span,
        'with grademl_otel.phase("tokenize"), nothing installed': unused_phase,
        "with grademl_otel.step(), nothing installed": unused_step,
        "the same with an object that is kept": unused_object,
    }
    calls = {name: _per_call(call) for name, call in {"": _empty, **ways}.items()}
    results = compare({**calls, _INSTALLED: _installed(_per_call(unused_phase))}, rounds)
    session.recorder = None
    ring.close(unlink=True)
    empty = results.pop("").typical_ns
    base = results["a mark, its phase shown while it runs"]
    rows = [
        [name, duration(way.typical_ns - empty), ratio(way.ratio_to(base))] for name, way in results.items()
    ]
    core = "the hot path in C" if COMPILED else "the hot path in Python: none in C was compiled"
    return Table(
        "(a), (h) One mark, one phase, the manual API where nothing is installed",
        ("", "takes", "ratio to a mark, its phase shown"),
        rows,
        f"Hot loops; {core}. The call of an empty function is taken off.",
    )


def _installed(way: Callable[[], list[float]]) -> Callable[[], list[float]]:
    def installed() -> list[float]:
        manual.switch(True)
        try:
            return way()
        finally:
            manual.switch(False)

    return installed


def _empty() -> None:
    pass


def _per_call(call: Callable[[], None]) -> Callable[[], list[float]]:
    def way() -> list[float]:
        start = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        return [(time.perf_counter_ns() - start) / _CALLS]

    return way
