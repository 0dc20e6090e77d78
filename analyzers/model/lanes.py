# SPDX-License-Identifier: Apache-2.0
"""Threads that train side by side in one process: the busiest is analyzed, the others are told of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.facts import Scope, StepTable
from grademl_otel.analyzers.model.tables import TablePart
from grademl_otel.analyzers.units import count

_BACKGROUND: Final = "background"


def busiest_lanes(parts: Sequence[TablePart]) -> tuple[list[TablePart], dict[int, str], list[str]]:
    """Return (the parts with the rows of each rank's busiest lane, rank -> that lane, a note for each rank).

    Parts that lose all rows stay: what they say of the run holds.
    """
    busy: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    rows: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for part in parts:
        lengths = part.columns["end"] - part.columns["start"]
        for number, lane in enumerate(part.lanes):
            of_lane = part.columns["lane"] == number
            busy[part.rank][lane] += int(lengths[of_lane].sum())
            rows[part.rank][lane] += int(np.count_nonzero(of_lane))
    chosen = {rank: max(lanes, key=lambda lane: (lanes[lane], lane)) for rank, lanes in busy.items()}
    notes = [
        f"rank {rank}: {count(len(lanes), 'thread')} trained; the times are those of"
        f" {chosen[rank]}, which was busiest, without {count(sum(others), 'step')} of the others"
        for rank, lanes in rows.items()
        if sum(others := [number for lane, number in lanes.items() if lane != chosen[rank]])
    ]
    return [_only(part, chosen[part.rank]) for part in parts], chosen, notes


def without_others(scopes: Sequence[Scope], lanes: Mapping[int, str], steps: StepTable) -> list[Scope]:
    """Return ``scopes`` without what other threads did while the analyzed one, see `busiest_lanes`, trained.

    A checkpoint that is written beside the training takes none of its time. What lies before its first row
    or after its last one stays, whichever thread it was: the program waited for it then.
    """
    bounds = {}
    for rank in lanes:
        rows = steps.of_rank(rank)
        if rows.stop > rows.start:
            bounds[rank] = int(steps.start[rows][0]), int(steps.end[rows][-1])
    kept = []
    for scope in scopes:
        lane = scope.attributes.get(semconv.LANE)
        if scope.rank in bounds and lane is not None and lane != lanes[scope.rank]:
            first, last = bounds[scope.rank]
            if scope.end > first and scope.start < last:
                if scope.end <= last or scope.attributes.get(semconv.CHECKPOINT_PART) != _BACKGROUND:
                    continue
                scope = replace(scope, start=last)
        kept.append(scope)
    return kept


def _only(part: TablePart, lane: str) -> TablePart:
    if part.lanes == (lane,):
        return part
    kept = part.columns["lane"] == (part.lanes.index(lane) if lane in part.lanes else -1)
    return replace(
        part,
        columns={name: column[kept] for name, column in part.columns.items()},
        phases={
            phase: {name: column[kept] for name, column in columns.items()}
            for phase, columns in part.phases.items()
        },
        lanes=(lane,),
    )
