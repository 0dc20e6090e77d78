# SPDX-License-Identifier: Apache-2.0
"""Waits for other ranks on the path of a run of which nothing tells for whom: how much, and why."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph import activities
from grademl_otel.analyzers.graph.path import KINDS, WAIT, Path
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import percent

RULE: Final = "path.collectives"
_SHARE: Final = 0.01
"""Part of the path from which on it is worth a line."""
_PHASES: Final = (semconv.COLLECTIVE, semconv.COLLECTIVE_WAIT)


def untold_waits(run: Run, path: Path) -> list[Abstained]:
    """Return that the path goes through collectives without telling who came last; nothing if it does not."""
    sections = path.sections
    phases = [at for at, phase in enumerate(sections.phases) if phase in _PHASES]
    waits = np.isin(sections.phase, phases) & (sections.kind == KINDS.index(WAIT))
    ns = int(sections.duration[waits].sum())
    if ns < _SHARE * path.total_ns or not ns:
        return []
    text = (
        f"{percent(ns / path.total_ns)} of the path is in collectives of which it is not told who came last"
    )
    return [
        Abstained(
            RULE, f"{text}: {_why(run)}", "record and analyze all ranks of the run, some steps in detail"
        )
    ]


def _why(run: Run) -> str:
    found = activities(run).collectives
    if not len(found):
        return "only step tables tell of them"
    reasons = (
        (~found.whole, "lack members here"),
        (found.whole & ~found.completed, "have no recorded end"),
        (
            found.apart & ~np.isin(found.arriver, run.ranks),
            "ended by a rank left out, or that no clock tells",
        ),
    )
    told = [f"{int(some.sum()):,} {words}" for some, words in reasons if some.any()]
    return f"of {len(found):,} that were recorded {', '.join(told)}" if told else "not all were recorded"
