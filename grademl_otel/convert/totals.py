# SPDX-License-Identifier: Apache-2.0
"""The ring's accumulators as cumulative metrics: exact whatever marks were lost, the same from a restarted
relay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.catalog import training
from grademl_otel.catalog.metric import Metric as Row
from grademl_otel.convert.spans import Histogram, Metric, Point, Sum
from grademl_otel.export.ledger import REASONS, Counts

_KINDS: Final = (
    ("train", marks.ACC_STEPS),
    ("evaluate", marks.ACC_EVAL_STEPS),
    ("incomplete", marks.ACC_INCOMPLETE),
)


def metrics_of(
    totals: Sequence[int],
    lost: int,
    unsent: Counts,
    start_ns: int,
    now_ns: int,
    name_of: Callable[[int], str],
) -> list[Metric]:
    """Return the metrics of one process since its run's start, all of them cumulative.

    ``totals`` has `marks.ACC_SLOTS` elements; ``lost`` are all marks missed so far, ``unsent`` the spans that
    did not simply arrive; times are Unix ns; ``name_of`` tells the name of a kind of
    phase. What never happened has no point.
    """
    result: list[Metric] = []

    def add(row: Row, points: list[Point]) -> None:
        if points:
            result.append(Sum(row.name, row.unit, row.description, start_ns, now_ns, points))

    buckets = list(
        totals[marks.ACC_HISTOGRAM : marks.ACC_HISTOGRAM + len(semconv.STEP_DURATION_BOUNDS_S) + 1]
    )
    if any(buckets):
        result.append(
            Histogram(
                training.STEP_DURATION.name,
                training.STEP_DURATION.unit,
                training.STEP_DURATION.description,
                start_ns,
                now_ns,
                semconv.STEP_DURATION_BOUNDS_S,
                buckets,
                totals[marks.ACC_STEP_SUM_NS] / 1e9,
            )
        )
    phases = [
        Point(
            totals[marks.ACC_PHASE_SUM_NS + index] / 1e9, {semconv.PHASE: name_of(marks.PHASE_BASE + index)}
        )
        for index in (*range(len(semconv.PHASES)), *(kind - marks.PHASE_BASE for kind in marks.USER_KINDS))
        if totals[marks.ACC_PHASE_COUNT + index]
    ]
    add(training.PHASE_TIME, phases)
    steps = [Point(totals[slot], {semconv.STEP_KIND: kind}) for kind, slot in _KINDS if totals[slot]]
    add(training.STEPS, steps)
    samples = totals[marks.ACC_SAMPLES]
    add(training.SAMPLES, [Point(samples)] if samples else [])
    cost = totals[marks.ACC_COST_NS] / 1e9
    add(training.TRACER_COST, [Point(cost)])
    add(training.TRACER_LOST, [Point(lost)])
    points = [
        Point(spans, {semconv.REASON: reason}) for reason, spans in zip(REASONS, unsent, strict=True) if spans
    ]
    add(training.TRACER_UNSENT, points)
    return result
