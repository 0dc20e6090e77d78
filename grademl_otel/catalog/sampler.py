# SPDX-License-Identifier: Apache-2.0
"""What the sampler says of itself."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog.metric import COUNTER, Metric

FAILURES: Final = Metric(
    "grademl.sampler.failures",
    "{failure}",
    COUNTER,
    "Readings of a source that failed.",
    "a source that failed at least once",
    ("grademl.sampler.source", "error.type"),
)
LATE: Final = Metric(
    "grademl.sampler.late",
    "{sample}",
    COUNTER,
    "Samples that a source did not deliver in time.",
    "a source that was late at least once",
    ("grademl.sampler.source",),
)
COST: Final = Metric(
    "grademl.sampler.cost",
    "s",
    COUNTER,
    "CPU time that sampling took.",
    "always",
)

METRICS: Final = (FAILURES, LATE, COST)
