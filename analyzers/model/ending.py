# SPDX-License-Identifier: Apache-2.0
"""How the processes of a run ended: in what, when each was last heard of, and with which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.attempts import Attempt, whole
from grademl_otel.analyzers.model.facts import HowEnded, StepTable
from grademl_otel.analyzers.model.tables import TablePart

_NOT_TRAINING: Final = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
_BADLY: Final = ("killed", "exception")
_LISTED: Final = 8


def how_ended(
    attempt: Attempt,
    rank: int,
    run_span: int | None,
    parts: Sequence[TablePart],
    bounds: Mapping[int, tuple[int, int]],
) -> HowEnded:
    """Return how ``rank`` ended, whose span ``run`` is ``run_span``; without that one it may still go on."""
    mine = [part for part in parts if part.rank == rank]
    trained = [int(part.columns["step"][row]) for part in mine for row in part.training_rows[-1:]]
    last_step = max(trained, default=None)
    last_mark = bounds[rank][1] if rank in bounds else 0
    if run_span is None:
        latest = mine[-1].attributes if mine else {}
        running, since = latest.get(semconv.OPEN_PHASE), whole(latest.get(semconv.OPEN_SINCE), 1 << 63)
        others = [end for other, (_, end) in bounds.items() if other != rank]
        return HowEnded(
            rank,
            "unknown",
            last_step,
            last_mark,
            open_phase=running if isinstance(running, str) else None,
            open_since_unix_ns=None if since is None else attempt.corrected(since, rank),
            silent_ns=max(0, max(others, default=last_mark) - last_mark),
        )
    attributes = attempt.spans.attributes(run_span)
    how = "killed" if semconv.TERMINATED in attributes else str(attributes.get(semconv.ENDED, "unknown"))
    open_phase, error = attributes.get(semconv.OPEN_PHASE), attributes.get("error.type")
    return HowEnded(
        rank=rank,
        how=how,
        last_step=last_step,
        last_mark_unix_ns=last_mark,
        open_phase=None if open_phase is None else str(open_phase),
        error=None if error is None else str(error),
    )


def without_last(steps: StepTable, ended: Sequence[HowEnded]) -> tuple[StepTable, list[str]]:
    """Return ``steps`` with the last one of each rank that ended badly as incomplete, if its update was never
    done, and a line on that: it waited for others that were gone, and counts in no statistics.
    """
    updates = steps.count.get(semconv.OPTIMIZER)
    if updates is None:
        return steps, []
    flags = steps.flags.copy()
    of_step: dict[int, list[int]] = {}
    for one in ended:
        mine = steps.of_rank(one.rank)
        last = mine.stop - 1
        if one.how not in _BADLY or last <= mine.start or flags[last] & _NOT_TRAINING or updates[last]:
            continue
        if np.median(updates[mine.start : last]) > 0:
            flags[last] |= semconv.FLAG_INCOMPLETE
            of_step.setdefault(int(steps.step[last]), []).append(one.rank)
    lines = [
        f"step {step:,} of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_LISTED]))}"
        f"{', ...' if len(ranks) > _LISTED else ''} was never finished: it is in no statistics"
        for step, ranks in sorted(of_step.items())
    ]
    return (replace(steps, flags=flags) if lines else steps), lines
