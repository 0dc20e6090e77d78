# SPDX-License-Identifier: Apache-2.0
"""`grademl resources` as tables: CSV for programs (what was used, exactly), Markdown for people."""

from __future__ import annotations

from dataclasses import fields

from grademl_otel.analyzers.reporting.canvas import Table
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument, UseEntry
from grademl_otel.analyzers.reporting.resources_screen import (
    ALONE,
    METRICS,
    PHASES,
    bottleneck_table,
    issue_table,
    metric_table,
    subject_in_words,
    untold_in_words,
    use_table,
)
from grademl_otel.analyzers.reporting.tables import csv_of, escaped, markdown_of


def write(document: ResourcesDocument, form: str, top: int | None = None) -> str:
    """Return ``document`` as ``csv``, a row for each phase and type of metrics, or ``markdown``."""
    if form == "csv":
        heading = [one.name for one in fields(UseEntry)]
        return csv_of(heading, [[getattr(row, name) for name in heading] for row in document.use])
    return _markdown(document, top)


def _markdown(document: ResourcesDocument, top: int | None) -> str:
    parts = [f"# Resources: {escaped(' · '.join(subject_in_words(document)))}\n"]
    parts.append(f"Data: {document.completeness.verdict}.\n")
    parts += [f"- {escaped(note)}" for note in document.notes]
    parts.append("\n" + "\n".join(f"**{escaped(line)}**  " for line in document.verdict) + "\n")
    phases = document.phases[: top or PHASES]
    shown = {one.key for one in phases}
    if document.bottlenecks:
        parts.append(_section(bottleneck_table(phases, document.bottlenecks)))
    if use := [one for one in document.use if one.key in shown]:
        parts.append(_section(use_table(phases, use)))
    if document.metrics:
        parts.append(_section(metric_table(document.metrics[: top or METRICS])))
    if document.issues:
        parts.append(_section(issue_table(document.issues)))
        parts += [f"{ALONE}\n", *(f"- {escaped(line)}" for line in document.simulation), ""]
    parts += [f"- doubtful: {escaped(line)}" for line in document.problems]
    parts += [f"- not told: {escaped(line)}" for line in untold_in_words(document.abstained)]
    return "\n".join(parts).rstrip() + "\n"


def _section(of: Table) -> str:
    return f"## {escaped(of.title)}\n\n{markdown_of([heading for heading, _ in of.columns], of.rows)}"
