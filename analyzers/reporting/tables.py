# SPDX-License-Identifier: Apache-2.0
"""An answer as one table: CSV for programs (exact numbers in ns), Markdown for people."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.reporting import runs_screen
from grademl_otel.analyzers.reporting.breakdown import COLUMNS, breakdown_rows, worth_telling
from grademl_otel.analyzers.reporting.document import (
    Document,
    PopulationInfo,
    RanksDocument,
    ReportDocument,
    RunsDocument,
)
from grademl_otel.analyzers.reporting.ranks import (
    RANK_COLUMNS,
    about_ranks,
    exact_rows,
    of_steps,
    rank_rows,
)
from grademl_otel.analyzers.units import milliseconds, percent, seconds

Cell = str | int | float | None
Rows = tuple[list[str], list[list[Cell]]]


def write(document: Document, form: str, by: str | None = None) -> str:
    """Return ``document`` as ``csv`` or ``markdown``."""
    if form == "csv":
        return csv_of(*table_of(document, by))
    if isinstance(document, ReportDocument):
        return _report(document)
    if isinstance(document, RanksDocument):
        return markdown_of(RANK_COLUMNS, rank_rows(document.ranks) if document.ranks is not None else [])
    if isinstance(document, RunsDocument):
        return markdown_of(
            [heading for heading, _ in runs_screen.columns(document.runs)], runs_screen.rows(document.runs)
        )
    return markdown_of(*_readable(*table_of(document, by)))


def table_of(document: Document, by: str | None = None) -> Rows:
    """Return the heading and the rows of the document's table."""
    if isinstance(document, RunsDocument):
        heading = [
            "run",
            "attempt",
            "script",
            "service",
            "start_unix_ns",
            "wall_ns",
            "ranks",
            "steps",
            "ended",
            "name",
            "parent",
            "path",
        ]
        return heading, [[getattr(run, name) for name in heading] for run in document.runs]
    if isinstance(document, RanksDocument):
        return exact_rows(document.ranks)
    if isinstance(document.path, PopulationInfo):
        heading = ["service", "operation", "kind", "evidence", "traces", "path_ns", "share"]
        heading += ["p50_ns", "p95_ns", "p99_ns", "tail_minus_median_ns"]
        return heading, [[getattr(entry, name) for name in heading] for entry in document.path.population]
    if by == "section":
        heading = ["start_ns", "end_ns", "phase", "kind", "rank", "lane", "step", "item"]
        return heading, [[getattr(section, name) for name in heading] for section in document.path.sections]
    heading = ["key", "path_ns", "path_share", "blocked_ns", "total_ns", "self_ns", "slack_ns", "drag_ns"]
    return heading, [[getattr(entry, name) for name in heading] for entry in document.summary]


def csv_of(heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return CSV with exact numbers, and text that no spreadsheet takes for a formula."""
    return csv_lines([heading, *rows])


def csv_lines(rows: Iterable[Sequence[Cell]]) -> str:
    """Return the same of ``rows`` alone."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return out.getvalue()


def _harmless(cell: Cell) -> Cell:
    """Return ``cell`` such that neither a spreadsheet nor a terminal takes a name for a command."""
    if not isinstance(cell, str):
        return cell
    return clean(f"'{cell}" if cell[:1] in "=+-@\t\r" and cell else cell)


def _readable(heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Rows:
    """Return a table of exact numbers with times and shares as people read them."""
    times = {name: name.removesuffix("_ns") for name in heading if name.endswith("_ns")}

    def cell(name: str, value: Cell) -> Cell:
        if isinstance(value, int) and name in times:
            return milliseconds(value) if value >= 0 else f"-{milliseconds(-value)}"
        return percent(value) if isinstance(value, float) and name.endswith("share") else value

    named = [times.get(name, name).replace("_", " ") for name in heading]
    return named, [[cell(name, value) for name, value in zip(heading, row, strict=True)] for row in rows]


def markdown_of(heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table of Markdown."""
    lines = [*markdown_heading(heading), *(markdown_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def markdown_heading(heading: Sequence[str]) -> tuple[str, str]:
    """Return the lines above the rows."""
    return markdown_line(heading), "| " + " | ".join(["---"] * len(heading)) + " |"


def markdown_line(cells: Sequence[Cell]) -> str:
    """Return a row, without the end of its line."""
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(cell: Cell) -> str:
    """Return ``cell`` as text that Markdown shows as it is."""
    text = "" if cell is None else str(cell)
    for special in "\\|`*_<>[]":
        text = text.replace(special, "\\" + special)
    return "".join(character if character.isprintable() else " " for character in text)


def _report(document: ReportDocument) -> str:
    parts = [f"# {escaped(document.run.script if document.run else document.source.uri)}\n"]
    parts.append(f"Data: {document.completeness.verdict}.\n")
    parts += [f"- {escaped(note)}\n" for note in document.notes]
    if document.verdict is not None:
        parts.append("\n**" + " ".join(escaped(line) for line in document.verdict.lines) + "**\n")
    for finding in document.findings:
        parts += [f"- {escaped(fix)}\n" for fix in finding.fix]
    if document.lane_budget:
        parts.append(f"\n## Where the time went ({seconds(document.window.wall_ns)})\n\n")
        parts.append(
            markdown_of(
                ["rank", "phase", "time", "share"],
                [[b.rank, b.phase, seconds(b.ns), percent(b.share)] for b in document.lane_budget],
            )
        )
    if document.ranks is not None and about_ranks(document.findings):
        parts.append(f"\n## Ranks ({of_steps(document.ranks)})\n\n")
        parts.append(markdown_of(RANK_COLUMNS, rank_rows(document.ranks)))
    if worth_telling(document.breakdown):
        parts.append("\n## What threads and devices did (of the wall time)\n\n")
        parts.append(markdown_of(COLUMNS, breakdown_rows(document.breakdown)))
    parts.append("\n## Critical path\n\n")
    parts.append(markdown_of(*_readable(*table_of(document))))
    return "".join(parts)
