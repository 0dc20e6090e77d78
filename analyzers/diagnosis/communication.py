# SPDX-License-Identifier: Apache-2.0
"""Transfers that nothing overlaps: the main lanes stand still although all ranks have arrived.

Waiting for a slow rank is no communication and counts against that rank, see `stragglers`. What runs beside
the computing costs nothing either. So the time is that of the main lanes in collectives after the last
arrival, in steps whose collectives are all here with all members.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel.analyzers.diagnosis.finding import (
    CRITICAL,
    CRITICAL_SHARE,
    WARN_SHARE,
    Evidence,
    Finding,
    Gain,
    Judgement,
    Verdict,
    Where,
    severity_of,
)
from grademl_otel.analyzers.diagnosis.straggler_words import few_steps
from grademl_otel.analyzers.graph import activities
from grademl_otel.analyzers.graph.ranks import COLLECTIVES, Comparison, compare_ranks
from grademl_otel.analyzers.graph.runs.main_lane import OTHER
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import count, milliseconds, percent

RULE: Final = "communication.exposed"
_MB: Final = 1e6


def judge(run: Run) -> Judgement:
    """Conclude that transfers hold the steps up where they take 10 % of them and nothing overlaps them."""
    found = next((one for one in compare_ranks(run) if one.source == COLLECTIVES), None)
    if found is None or found.transfer is None:
        return Judgement([], [])
    moved, whole = int(found.transfer.sum()), int(found.length.sum())
    share = moved / whole if whole else 0.0
    severity = severity_of(share, len(found))
    if severity is None:
        return Judgement([], [])
    per_step = moved / found.length.size
    calls, sent = _traffic(run, found)
    busiest = max(found.own, key=lambda phase: int(found.own[phase].sum()), default=OTHER)
    finding = Finding(
        id=RULE,
        severity=severity,
        where=Where(found.ranks),
        evidence=[
            Evidence(
                "collective.transfer.share",
                share,
                CRITICAL_SHARE if severity == CRITICAL else WARN_SHARE,
                "1",
                len(found),
            ),
            Evidence("collective.transfer", per_step, None, "ns", len(found)),
            Evidence("collectives", calls, None, "{collective}", len(found)),
            *([] if sent is None else [Evidence("collective.bytes", sent, None, "By", len(found))]),
        ],
        fix=[
            "overlap it with computing: DistributedDataParallel with smaller buckets (bucket_cap_mb) begins"
            " earlier; with gradient accumulation, no_sync() sends once an update",
            "send less: a bf16 compression hook for gradients, or fewer and larger collectives",
        ],
        gain=Gain(share, (0.0, share), "bound", busiest),
    )
    what = f"{count(round(calls), 'collective')} a step"
    if sent is not None:
        what += f", {sent / _MB:.3g} MB"
    lines = [
        f"Communication takes {percent(share)} of each step: {milliseconds(per_step)} that nothing overlaps,"
        " with all ranks there.",
        f"That is {what}.",
        *few_steps(len(found)),
    ]
    return Judgement([finding], [], Verdict(RULE, severity, lines))


def _traffic(run: Run, found: Comparison) -> tuple[float, float | None]:
    """Return (collectives, bytes) of a rank in a step, the mean; bytes None where they are not known."""
    of_run = activities(run).collectives
    inside = of_run.row >= 0
    steps = np.where(inside, run.steps.step[of_run.row], -1)
    mine = inside & np.isin(steps, found.step)
    per = len(found) * len(found.ranks)
    known = of_run.bytes[mine & (of_run.bytes >= 0)]
    return int(np.count_nonzero(mine)) / per, (float(known.sum()) / per if len(known) else None)
