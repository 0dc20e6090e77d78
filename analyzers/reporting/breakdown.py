# SPDX-License-Identifier: Apache-2.0
"""The temporal breakdown in an answer: as data, and as a table of shares, those that compute least first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.graph.breakdown import TemporalBreakdown, run_breakdown
from grademl_otel.analyzers.graph.exposed import ExposedWait, exposed_wait
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting.canvas import Table, table
from grademl_otel.analyzers.reporting.document import BreakdownEntry, ExposedInfo, IdleTime
from grademl_otel.analyzers.units import percent

MAIN: Final = "main"
_LISTED: Final = 8
_KINDS: Final = 2
"""Kinds of idleness that are named for each."""
COLUMNS: Final = ("", "compute", "comm.", "both", "copy", "idle", "mostly")


def breakdown_of_run(run: Run) -> list[BreakdownEntry]:
    """Return the breakdown of the main thread of each rank, with its exposed wait."""
    return [
        breakdown_entry(one, None if one.rank is None else _exposed(exposed_wait(run, one.rank)))
        for one in run_breakdown(run)
    ]


def _exposed(found: ExposedWait | None) -> ExposedInfo | None:
    if found is None:
        return None
    return ExposedInfo(found.n, found.wait_ns, found.idle_ns, found.busy_ns, found.unknown_ns)


def breakdown_entry(found: TemporalBreakdown, exposed: ExposedInfo | None = None) -> BreakdownEntry:
    """Return ``found`` as an entry of the answer."""
    return BreakdownEntry(
        rank=found.rank,
        lane=found.lane,
        wall_ns=found.wall_ns,
        compute_ns=found.compute_ns,
        communication_ns=found.communication_ns,
        overlap_ns=found.overlap_ns,
        memory_ns=found.memory_ns,
        idle=[IdleTime(kind, ns) for kind, ns in found.idle.items()],
        overlap_share=found.overlap_share,
        exposed_wait=exposed,
    )


def breakdown_rows(entries: Sequence[BreakdownEntry], top: int | None = None) -> list[list[str]]:
    """Return the cells of `COLUMNS` for each entry, or the ``top`` of them that compute least."""
    least = sorted(entries, key=lambda one: (one.compute_ns + one.overlap_ns, one.rank or 0, one.lane))
    return [_cells(entry) for entry in least[:top]]


def _cells(entry: BreakdownEntry) -> list[str]:
    wall = entry.wall_ns or 1
    parts = (entry.compute_ns, entry.communication_ns, entry.overlap_ns, entry.memory_ns)
    idle = sum(one.ns for one in entry.idle)
    kinds = ", ".join(f"{one.kind} {percent(one.ns / wall)}" for one in entry.idle[:_KINDS])
    return [
        _named(entry),
        *(percent(ns / wall) for ns in (*parts, idle)),
        kinds,
    ]


def _named(entry: BreakdownEntry) -> str:
    rank = [] if entry.rank is None else [f"rank {entry.rank}"]
    return " ".join([*rank, *([] if entry.lane == MAIN and rank else [entry.lane])])


def breakdown_table(entries: Sequence[BreakdownEntry]) -> Table:
    """Return the breakdown as a table; of many the ones that compute least."""
    rows = breakdown_rows(entries, _LISTED)
    what = "main threads" if all(one.lane == MAIN for one in entries) else "devices"
    more = f", {len(rows)} of {len(entries):,}" if len(rows) < len(entries) else ""
    sides = ("fixed", *("right",) * (len(COLUMNS) - 2), "left")
    return table(
        f"What the {what} did (of the wall time{more})",
        list(zip(COLUMNS, sides, strict=True)),
        rows,
        header=True,
        spare=("mostly", "copy", "both"),
    )


def worth_telling(entries: Sequence[BreakdownEntry]) -> bool:
    """Whether it tells more than the lane budget: of several threads or devices, or of communication."""
    return len(entries) > 1 or any(
        one.lane != MAIN or one.communication_ns or one.overlap_ns for one in entries
    )
