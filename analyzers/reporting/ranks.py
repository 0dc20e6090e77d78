# SPDX-License-Identifier: Apache-2.0
"""Ranks side by side in an answer: as data, and as the rows of a table, those that come latest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from grademl_otel.analyzers.diagnosis.finding import Finding
from grademl_otel.analyzers.diagnosis.lateness import behind_others, last_in_steps
from grademl_otel.analyzers.graph.ranks import COLLECTIVES, compare_ranks
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting.canvas import Table, table
from grademl_otel.analyzers.reporting.document import PhaseTime, RankEntry, RanksInfo
from grademl_otel.analyzers.units import count, milliseconds

RANK_COLUMNS: Final = ["rank", "step", "own work", "waits", "transfer", "overlapped", "late by", "last in"]
_LISTED: Final = 8
_RULES: Final = ("ranks.", "communication.")


def ranks_info(run: Run, inferred: bool = True) -> RanksInfo | None:
    """Return the ranks of ``run`` side by side; None where they cannot be compared, see `compare_ranks`."""
    compared = compare_ranks(run, inferred)
    if not compared:
        return None
    found, behind, last = compared[0], behind_others(compared[0]), last_in_steps(compared[0])
    n = len(found)
    told = (
        not found.by_one_clock
        or run.clocks is None
        or run.clocks.tell(found.ranks, round(float(np.median(found.length))))
    )
    entries = []
    for column, rank in enumerate(found.ranks):
        own = [PhaseTime(phase, round(int(ns[:, column].sum()) / n)) for phase, ns in found.own.items()]
        entries.append(
            RankEntry(
                rank=rank,
                step_ns=round(int(found.length[:, column].sum()) / n),
                late_ns=round(float(behind[:, column].mean())) if told else None,
                last_steps=int(last[column]) if told else None,
                wait_ns=None if found.wait is None else round(int(found.wait[:, column].sum()) / n),
                transfer_ns=(
                    None if found.transfer is None else round(int(found.transfer[:, column].sum()) / n)
                ),
                overlapped_ns=None if found.overlapped is None else round(int(found.overlapped[column]) / n),
                own=sorted((one for one in own if one.ns), key=lambda one: (-one.ns, one.phase)),
            )
        )
    return RanksInfo(found.source, found.evidence, n, entries)


def about_ranks(findings: Iterable[Finding]) -> bool:
    """Whether a finding is about what ranks do to each other."""
    return any(finding.id.startswith(_RULES) for finding in findings)


def of_steps(info: RanksInfo) -> str:
    """Return what the numbers are of, in words."""
    if info.source == COLLECTIVES:
        return f"means of {count(info.steps, 'step')}"
    place = "at the first collective" if info.source != "backward" else "at the start of backward"
    return f"means of {count(info.steps, 'step')}, late {place}"


def rank_rows(info: RanksInfo, top: int | None = None) -> list[list[str]]:
    """Return the cells of `RANK_COLUMNS` for each rank, or the ``top`` latest of them."""
    return [
        [
            f"{entry.rank}",
            milliseconds(entry.step_ns),
            milliseconds(sum(one.ns for one in entry.own)),
            *(_time(ns) for ns in (entry.wait_ns, entry.transfer_ns, entry.overlapped_ns, entry.late_ns)),
            "?" if entry.last_steps is None else f"{entry.last_steps:,}",
        ]
        for entry in latest_first(info)[:top]
    ]


def latest_first(info: RanksInfo) -> list[RankEntry]:
    """Return the ranks, those that come latest first, as far as that is known."""
    return sorted(info.ranks, key=lambda entry: (-(entry.late_ns or 0), entry.rank))


def exact_rows(info: RanksInfo | None) -> tuple[list[str], list[list[str | int | float | None]]]:
    """Return heading and rows for programs, in ns and in the order of ranks; what is not known is empty."""
    exact = ("step_ns", "own_ns", "wait_ns", "transfer_ns", "overlapped_ns", "late_ns", "last_steps")
    rows: list[list[str | int | float | None]] = []
    for entry in info.ranks if info is not None else []:
        known = {**vars(entry), "own_ns": sum(one.ns for one in entry.own)}
        rows.append([entry.rank, *(known[name] for name in exact)])
    return ["rank", *exact], rows


def ranks_table(info: RanksInfo, top: int | None = _LISTED) -> Table:
    """Return the ``top`` latest ranks as a table; all by None."""
    rows = rank_rows(info, top)
    more = f", the {len(rows)} latest of {len(info.ranks):,}" if len(rows) < len(info.ranks) else ""
    columns = [(name, "right") for name in RANK_COLUMNS]
    spare = ("overlapped", "transfer", "last in", "own work")
    return table(f"Ranks ({of_steps(info)}{more})", columns, rows, header=True, spare=spare)


def _time(ns: int | None) -> str:
    if ns is None:
        return "?"
    return f"-{milliseconds(-ns)}" if ns < 0 else milliseconds(ns)
