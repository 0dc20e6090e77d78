# SPDX-License-Identifier: Apache-2.0
"""Metrics of the training itself, which each process counts; `convert.totals` makes their points."""

from __future__ import annotations

from typing import Final

from grademl_otel import semconv
from grademl_otel.catalog.metric import COUNTER, HISTOGRAM, Metric

_EVERY: Final = "every recorded run"

STEP_DURATION: Final = Metric(
    semconv.METRIC_STEP_DURATION, "s", HISTOGRAM, "Duration of training steps.", "the first training step"
)
PHASE_TIME: Final = Metric(
    semconv.METRIC_PHASE_TIME,
    "s",
    COUNTER,
    "Time spent in each phase.",
    "phases that are recorded, see docs/levels.md",
    (semconv.PHASE,),
)
STEPS: Final = Metric(
    semconv.METRIC_STEPS, "{step}", COUNTER, "Steps done.", "the first step", (semconv.STEP_KIND,)
)
SAMPLES: Final = Metric(
    semconv.METRIC_SAMPLES,
    "{sample}",
    COUNTER,
    "Samples trained on.",
    "batches from which their number can be told",
)
TRACER_COST: Final = Metric(
    semconv.METRIC_TRACER_COST, "s", COUNTER, "Time that the tracer itself took, estimated.", _EVERY
)
TRACER_LOST: Final = Metric(
    semconv.METRIC_TRACER_LOST, "{mark}", COUNTER, "Marks lost before they were exported.", _EVERY
)
TRACER_UNSENT: Final = Metric(
    semconv.METRIC_TRACER_UNSENT,
    "{span}",
    COUNTER,
    "Spans that did not simply arrive.",
    "there were such",
    (semconv.REASON,),
)

METRICS: Final = (STEP_DURATION, PHASE_TIME, STEPS, SAMPLES, TRACER_COST, TRACER_LOST, TRACER_UNSENT)
