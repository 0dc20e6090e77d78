# SPDX-License-Identifier: Apache-2.0
"""The table ``budget``: where the time of each rank's main lane went."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, fraction, number, word
from grademl_otel.analyzers.tables.values import Coded, Makers, all_alike, distinct, numbers_or_null

BUDGET: Final = TableSchema(
    "budget",
    "The time of one rank's main lane under one name. Per rank the rows without `within` sum to the wall time"
    " of the run exactly.",
    (
        word("run", "id of the run"),
        number("attempt", ""),
        number("rank", ""),
        word("phase", "phase of steps, or what the lane did outside of them"),
        word(
            "within", "the row that this one is a part of, and adds nothing to; null: of none", nullable=True
        ),
        number("total_ns", "how long"),
        fraction("share", "of the wall time of the run"),
        number("step_p50_ns", "median over the steady steps; null: no part of training steps", nullable=True),
        number("step_p95_ns", "the same, 95th percentile", nullable=True),
    ),
)


def budget(material: Material) -> Makers:
    from grademl_otel.analyzers.graph import lane_budget  # here, for who asks only for other tables

    run = material.run
    rows = [] if run is None else lane_budget(run)
    phase, phases = distinct([row.phase for row in rows])
    per_step = [row.per_step for row in rows]
    within, outer = distinct([row.within for row in rows])
    return {
        "run": lambda: all_alike(len(rows), run.run_id if run is not None else None),
        "attempt": lambda: np.full(len(rows), run.attempt if run is not None else 0, np.int64),
        "rank": lambda: np.array([row.rank for row in rows], np.int64),
        "phase": lambda: Coded(phase, phases),
        "within": lambda: Coded(within, outer),
        "total_ns": lambda: np.array([row.ns for row in rows], np.int64),
        "share": lambda: np.array([row.share for row in rows], np.float64),
        "step_p50_ns": lambda: numbers_or_null([None if one is None else one.p50 for one in per_step]),
        "step_p95_ns": lambda: numbers_or_null([None if one is None else one.p95 for one in per_step]),
    }
