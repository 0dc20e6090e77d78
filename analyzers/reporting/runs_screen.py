# SPDX-License-Identifier: Apache-2.0
"""`grademl runs` as text."""

from __future__ import annotations

from datetime import datetime, timezone

from grademl_otel.analyzers.reporting.canvas import Canvas, table
from grademl_otel.analyzers.reporting.document import RunEntry, RunsDocument
from grademl_otel.analyzers.units import duration

SHORT_ID = 12
"""Digits of a run's id that are shown; `--run` takes as many as tell it from the others."""

_NO_NAME = "unknown_service"
"""What OpenTelemetry calls a program whose user gave it no name."""

COLUMNS = {
    "run": "fixed",
    "attempt": "right",
    "script": "left",
    "service": "left",
    "started (UTC)": "fixed",
    "took": "right",
    "ranks": "right",
    "steps": "right",
    "ended": "fixed",
}


def draw(canvas: Canvas, document: RunsDocument) -> None:
    """Write the runs, the latest first, then the services of traces that belong to none."""
    if document.runs:
        rows = [(run.run[:SHORT_ID], *cells(run)[1:]) for run in document.runs]
        canvas.tables([table("", list(COLUMNS.items()), rows, header=True)])
    if document.runs and document.services:
        canvas.blank()
    if document.services:
        canvas.line(f"other traces of: {', '.join(document.services)}")
        canvas.line("their critical path: grademl critical-path SOURCE --service NAME")
    for warning in document.warnings:
        canvas.line(f"note: {warning}")


def started(run: RunEntry) -> str:
    """Return the start of ``run`` in UTC, to the second."""
    try:
        moment = datetime.fromtimestamp(int(run.start_unix_ns) // 1_000_000_000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return run.start_unix_ns
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def cells(run: RunEntry) -> tuple[str, ...]:
    """Return ``run`` in the order of `COLUMNS`."""
    return (
        run.run,
        str(run.attempt),
        run.script,
        "" if run.service.startswith(_NO_NAME) else run.service,
        started(run),
        duration(run.wall_ns),
        f"{run.ranks:,}",
        f"{run.steps:,}",
        run.ended,
    )
