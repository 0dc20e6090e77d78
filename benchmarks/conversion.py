# SPDX-License-Identifier: Apache-2.0
"""What the relay does with marks, by itself, in CPU time: spans and rows made of them, and their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.interleaved import Spread, compare
from benchmarks.tables import Table, spread_duration
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import otlp, otlpjson
from grademl_otel.ring.reader import Mark
from tests.support.mark_script import MarkScript

_MS = 1_000_000
_STEPS = 1_000
_BATCH = 1_024
"""Marks that are converted at a time."""


def measure(rounds: int) -> Table:
    """Return what one span and one step take of the relay's time."""
    kept, short = _script(100 * _MS), _script(_MS // 4)
    spans = _convert(kept.strings, kept.marks)
    resource = Resource({"service.name": "benchmark"})
    results = compare(
        {
            "a span, from marks (all steps kept)": _per(
                len(spans), lambda: _convert(kept.strings, kept.marks)
            ),
            "a span, to OTLP": _per(len(spans), lambda: _use(otlp.trace_requests(resource, spans))),
            "a span, to a line of the file store": _per(
                len(spans), lambda: otlpjson.trace_line(resource, spans)
            ),
            "a step of 0.25 ms, from marks (most only rows)": _per(
                _STEPS, lambda: _convert(short.strings, short.marks)
            ),
        },
        rounds,
    )
    rows = [[name, spread_duration(Spread.of(each.means))] for name, each in results.items()]
    return Table(
        "(f) The relay's work, by itself",
        ("", "takes"),
        rows,
        f"{_STEPS:,} steps with wait, forward and backward: {len(spans):,} spans where all are kept.",
    )


def _script(step_ns: int) -> MarkScript:
    script = MarkScript()
    for number in range(_STEPS):
        script.step(number + 1, number, number * step_ns, step_ns)
    return script


def _convert(strings: Sequence[str], marks: Sequence[Mark]) -> list[Span]:
    converter = Converter(strings)
    spans = []
    for first in range(0, len(marks), _BATCH):
        spans += converter.feed(marks[first : first + _BATCH], first + 1)
    return spans


def _use(requests: Iterable[object]) -> None:
    for _ in requests:
        pass


def _per(number: int, work: Callable[[], object]) -> Callable[[], list[float]]:
    def way() -> list[float]:
        start = time.thread_time_ns()
        work()
        return [(time.thread_time_ns() - start) / number]

    return way
