# SPDX-License-Identifier: Apache-2.0
"""The tables of a page about its findings, and about the data that they rest on."""

from __future__ import annotations

from typing import Final

from grademl_otel.analyzers.diagnosis.finding import Evidence, Finding
from grademl_otel.analyzers.html import cells
from grademl_otel.analyzers.html.front import ranks_in_words
from grademl_otel.analyzers.html.parts import Cell, DataTable
from grademl_otel.analyzers.reporting.document import CompletenessInfo, ReportDocument
from grademl_otel.analyzers.reporting.report_screen import in_words
from grademl_otel.analyzers.units import milliseconds, percent

HOSTS: Final = 256
"""Clocks that are shown."""


def findings(document: ReportDocument) -> DataTable | None:
    """Return one row a finding, with what to do and what that gains."""
    if not document.findings:
        return None
    return DataTable(
        "findings",
        "Findings, the gravest first",
        [
            cells.text("id", "Finding"),
            cells.text("severity", "Severity"),
            cells.text("ranks", "Ranks"),
            cells.prose("fix", "What to do"),
            cells.number("gain", "Gain, at most"),
            cells.text("next_limit", "Then the limit is"),
        ],
        [
            [
                cells.words(one.id),
                cells.words(one.severity),
                cells.words(ranks_in_words(one.where.ranks)),
                cells.words("; ".join(one.fix)),
                *_gain(one),
            ]
            for one in document.findings
        ],
    )


def _gain(finding: Finding) -> list[Cell]:
    if finding.gain is None:
        return [cells.NOTHING, cells.NOTHING]
    fraction = finding.gain.fraction
    return [
        Cell(f"{percent(fraction)} of the step", fraction),
        cells.phase(finding.gain.next_limit),
    ]


def evidence(document: ReportDocument) -> DataTable | None:
    """Return every signal of every finding beside the limit that it is held against."""
    rows = [(finding.id, one) for finding in document.findings for one in finding.evidence]
    if not rows:
        return None
    return DataTable(
        "evidence",
        "Evidence: each signal beside the limit that it is held against",
        [
            cells.text("finding", "Finding"),
            cells.text("signal", "Signal"),
            cells.number("value", "Value"),
            cells.number("limit", "Limit"),
            cells.text("unit", "Unit"),
            cells.number("n", "Of steps"),
            cells.prose("in_words", "In words"),
        ],
        [
            [
                cells.words(finding),
                cells.words(one.signal),
                _value(one, one.value),
                cells.NOTHING if one.limit is None else _value(one, one.limit),
                cells.words(one.unit),
                cells.count(one.n),
                cells.words(in_words(one)),
            ]
            for finding, one in rows
        ],
    )


def _value(one: Evidence, value: float) -> Cell:
    if one.unit == "ns":
        return Cell(milliseconds(value), value)
    return Cell(percent(value) if one.unit == "1" else f"{value:g}", value)


def data_in_numbers(complete: CompletenessInfo) -> DataTable:
    """Return every count that the verdict on the data goes by."""
    rows: list[tuple[str, str, int | None, int | None]] = [
        ("spans", "Spans", complete.spans.received, complete.spans.expected),
        ("ranks", "Ranks", len(complete.ranks.present), complete.ranks.expected),
        ("steps", "Training steps", complete.steps.measured, complete.steps.expected),
        ("steps_detailed", "of them in detail on all ranks", complete.steps.detailed_all_ranks, None),
        ("roots", "Roots", complete.roots, None),
        ("orphans", "Spans whose parent is not here", complete.orphans, None),
        ("windows_missing", "Windows that are missing", len(complete.windows_missing), None),
        ("partial_traces", "Traces that are there in part", len(complete.partial_traces), None),
        ("marks_dropped", "Marks that the recorder dropped", complete.tracer.dropped, None),
    ]
    found = [[Cell(title, name), cells.count(here), _expected(there)] for name, title, here, there in rows]
    cost = complete.tracer.cost_fraction
    found.append(
        [
            Cell("Cost of recording, of the run", "tracer_cost_fraction"),
            cells.UNKNOWN if cost is None else cells.part(cost),
            cells.NOTHING,
        ]
    )
    for name, title, ns in (
        ("clipped_ns", "Time of children outside of their parents, cut", complete.clipped_ns),
        ("overlap_ns", "Overlap of siblings in one lane, cut", complete.overlap_ns),
    ):
        found.append([Cell(title, name), cells.time(ns), cells.NOTHING])
    return DataTable(
        "data",
        "What the verdict on the data goes by",
        [cells.text("what", "What"), cells.number("here", "Here"), cells.number("expected", "Expected")],
        found,
    )


def _expected(number: int | None) -> Cell:
    return cells.NOTHING if number is None else Cell(f"{number:,}", number)


def clocks(complete: CompletenessInfo) -> DataTable | None:
    """Return the clocks of hosts against that of the first one."""
    if len(complete.clocks) < 2:
        return None
    return DataTable(
        "clocks",
        "Clocks of hosts against the first one's",
        [
            cells.text("host", "Host"),
            cells.number("offset_ns", "Shows more by"),
            cells.number("error_ns", "Give or take"),
            cells.number("pairs", "Pairs that tell it"),
            cells.text("applied", "Times shifted"),
        ],
        [
            [
                cells.words(one.host),
                cells.time(one.offset_ns),
                cells.time(one.error_ns),
                cells.count(one.pairs),
                Cell("yes" if one.applied else "no", "true" if one.applied else "false"),
            ]
            for one in complete.clocks[:HOSTS]
        ],
        "" if len(complete.clocks) <= HOSTS else f"{HOSTS:,} of {len(complete.clocks):,} hosts.",
    )
