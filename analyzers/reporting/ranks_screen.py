# SPDX-License-Identifier: Apache-2.0
"""The ranks of a run side by side: who waits for whom, and what each did, the latest first."""

from __future__ import annotations

from grademl_otel.analyzers.reporting import header
from grademl_otel.analyzers.reporting.canvas import Canvas, Table, table
from grademl_otel.analyzers.reporting.document import RankEntry, RanksDocument, RanksInfo
from grademl_otel.analyzers.reporting.ranks import latest_first, ranks_table
from grademl_otel.analyzers.reporting.report_screen import (
    IN_VERDICT,
    draw_abstained,
    draw_verdict,
    in_words,
)
from grademl_otel.analyzers.units import milliseconds

_PHASES = 4
"""Phases that have a column of their own."""


def draw(canvas: Canvas, document: RanksDocument) -> None:
    """Write verdict, tables of all ranks, evidence and clocks."""
    header.draw(canvas, document)
    canvas.blank()
    info = document.ranks
    draw_verdict(canvas, document.verdict, document.findings, None if info is None else _step(info))
    if info is not None:
        if document.verdict is not None:
            canvas.blank()
        canvas.tables([ranks_table(info, None)])
        canvas.blank()
        canvas.tables([_own_work(info)])
    above = info is not None or document.verdict is not None
    if above and (document.findings or document.abstained or document.completeness.clocks):
        canvas.blank()
    for finding in document.findings:
        shown = (one for one in finding.evidence if one.signal not in IN_VERDICT)
        canvas.line(" · ".join(map(in_words, shown)), label=finding.id)
    for clock in document.completeness.clocks[1:]:
        if not clock.applied:
            canvas.line(f"{header.clock_in_words(clock)}, not shifted", label="Clock")
    draw_abstained(canvas, document.abstained)


def _step(info: RanksInfo) -> int:
    return round(sum(entry.step_ns for entry in info.ranks) / len(info.ranks))


def _own_work(info: RanksInfo) -> Table:
    """Return what each rank did itself, by the phases that take most of all ranks' time."""
    total: dict[str, int] = {}
    for entry in info.ranks:
        for one in entry.own:
            total[one.phase] = total.get(one.phase, 0) + one.ns
    phases = sorted(total, key=lambda phase: (-total[phase], phase))[:_PHASES]

    def cells(entry: RankEntry) -> list[str]:
        own = {one.phase: one.ns for one in entry.own}
        return [f"{entry.rank}", *(milliseconds(own.get(phase, 0)) for phase in phases)]

    columns = [(name, "right") for name in ("rank", *phases)]
    rows = [cells(entry) for entry in latest_first(info)]
    return table("Own work, without waiting for others", columns, rows, header=True, spare=phases[:0:-1])
