# SPDX-License-Identifier: Apache-2.0
"""What is below the first screen: sections in order, each only where there is something to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grademl_otel.analyzers.html import finding_tables, path_tables, run_tables
from grademl_otel.analyzers.html.parts import Chart, Charts, DataTable
from grademl_otel.analyzers.reporting.breakdown import worth_telling
from grademl_otel.analyzers.reporting.document import ReportDocument
from grademl_otel.analyzers.reporting.report_screen import path_in_words

Shown = TypeVar("Shown", Chart, DataTable)


@dataclass(frozen=True)
class Part:
    """One section of the page."""

    id: str
    title: str
    said: Sequence[str] = ()
    """Paragraphs below the title."""
    charts: Sequence[Chart] = ()
    tables: Sequence[DataTable] = ()
    """Those that are seen at once."""
    folded: Sequence[DataTable] = ()
    """Those that unfold."""
    notes: Sequence[str] = ()
    """What columns of the tables mean."""


def parts(document: ReportDocument, charts: Charts) -> list[Part]:
    """Return the sections of the page that have something to show."""
    run = document.run
    loaders = run_tables.loaders(run.loaders if run is not None else [])
    device = run_tables.on_the_device(document.step.device if document.step is not None else None)
    breakdown = run_tables.threads_and_devices(document.breakdown)
    found = [
        Part(
            "part-time",
            "Where the time went",
            charts=_there(charts.budget),
            tables=_there(run_tables.where_the_time_went(document)),
        ),
        Part(
            "part-path",
            "Critical path",
            said=[line] if (line := path_in_words(document)) else [],
            charts=_there(charts.path),
            tables=_there(path_tables.path_by_phase(document), path_tables.population(document)),
            folded=_there(path_tables.longest_sections(document)),
            notes=path_tables.explained(document),
        ),
        Part(
            "part-steps",
            "Steps" if document.source.run is not None else "Traces",
            charts=_there(charts.steps, charts.distribution),
            tables=_there(run_tables.steady_step(document.step), device),
            folded=_there(loaders),
        ),
        Part("part-ranks", "Ranks", tables=_there(run_tables.ranks_side_by_side(document.ranks))),
        Part(
            "part-threads",
            "Threads and devices",
            tables=_there(
                breakdown if worth_telling(document.breakdown) else None, run_tables.memory(document)
            ),
        ),
        Part(
            "part-findings",
            "Findings",
            tables=_there(finding_tables.findings(document)),
            folded=_there(finding_tables.evidence(document)),
        ),
    ]
    return [part for part in found if part.charts or part.tables]


def _there(*found: Shown | None) -> list[Shown]:
    return [one for one in found if one is not None]
