# SPDX-License-Identifier: Apache-2.0
"""The table ``runs``: every attempt of every run that was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, flag, number, text, word
from grademl_otel.analyzers.tables.steps import TRAIN, kinds
from grademl_otel.analyzers.tables.values import Coded, Makers, Values, distinct, numbers_or_null

_WORST_FIRST: Final = ("killed", "exception", "unknown", "exit")

RUNS: Final = TableSchema(
    "runs",
    "An attempt of a run, of all that were read, by start.",
    (
        word("run", "id of the run"),
        number("attempt", ""),
        flag("subject", "whether steps, budget and path are about this one, or this part of it"),
        text("name", "the user's own name for it; null: none", nullable=True),
        text("script", "null: not told", nullable=True),
        text("service", "of its resource; empty without one"),
        text("device", "null: not told", nullable=True),
        text("parent", "id of the run whose process started this one; null: none", nullable=True),
        number("start_ns", "Unix ns: when the first main lane starts"),
        number("end_ns", "Unix ns: when the last main lane ends"),
        number("duration_ns", "its wall time"),
        number("ranks", "of which anything is here"),
        number("ranks_expected", "null: not told", nullable=True),
        number("steps", "training steps in its step tables, of all ranks"),
        text("ended", "exit, exception, killed, unknown: the worst of its ranks"),
        text("verdict", "complete, incomplete, unverifiable"),
        text("incomplete_because", "what is missing; empty when complete"),
    ),
)


def runs(material: Material) -> Makers:
    from grademl_otel.analyzers.modelled import runs_of  # here, for who asks only for other tables

    subject = material.run
    found = [
        subject if subject is not None and _key(run) == _key(subject) else run
        for run in runs_of(material.about)
    ]

    def whole(of: Callable[[Run], int]) -> Callable[[], Values]:
        return lambda: np.array([of(run) for run in found], np.int64)

    def told(of: Callable[[Run], str | None]) -> Callable[[], Values]:
        return lambda: [of(run) for run in found]

    return {
        "run": lambda: Coded(*distinct([run.run_id for run in found])),
        "attempt": whole(lambda run: run.attempt),
        "subject": lambda: np.array([run is subject for run in found], np.bool_),
        "name": told(lambda run: run.name or None),
        "script": told(lambda run: run.script or None),
        "service": told(lambda run: run.spans.service(int(run.span_ixs[0])) if len(run.span_ixs) else ""),
        "device": told(lambda run: run.device),
        "parent": told(lambda run: run.parent),
        "start_ns": whole(lambda run: run.start),
        "end_ns": whole(lambda run: run.end),
        "duration_ns": whole(lambda run: run.end - run.start),
        "ranks": whole(lambda run: len(run.ranks)),
        "ranks_expected": lambda: numbers_or_null([run.completeness.ranks_expected for run in found]),
        "steps": whole(lambda run: int(np.count_nonzero(kinds(run.steps) == TRAIN))),
        "ended": told(_ended),
        "verdict": told(lambda run: run.completeness.verdict),
        "incomplete_because": told(lambda run: "; ".join(run.completeness.reasons)),
    }


def _key(run: Run) -> tuple[str, int]:
    return run.run_id, run.attempt


def _ended(run: Run) -> str:
    ends = {one.how for one in run.completeness.ended if one.rank in run.ranks}
    return next((how for how in _WORST_FIRST if how in ends), "unknown")
