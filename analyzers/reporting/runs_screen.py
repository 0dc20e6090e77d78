# SPDX-License-Identifier: Apache-2.0
"""`grademl runs` as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from grademl_otel.analyzers.reporting.canvas import Canvas, Table, table
from grademl_otel.analyzers.reporting.document import RunEntry, RunsDocument
from grademl_otel.analyzers.units import count, duration

SHORT_ID = 12
"""Digits of a run's id that are shown; `--run` takes as many as tell it from the others."""

_NO_NAME = "unknown_service"
"""What OpenTelemetry calls a program whose user gave it no name."""

_NOT_READ: Final = "not read"

_COLUMNS: Final = {
    "run": "fixed",
    "attempt": "right",
    "script": "left",
    "service": "left",
    "started (UTC)": "fixed",
    "took": "right",
    "ranks": "right",
    "steps": "right",
    "ended": "fixed",
    "data": "fixed",
    "name": "left",
    "parent": "fixed",
}
_USUAL: Final = {"attempt": "0", "service": "", "ranks": "1", "name": "", "parent": ""}
"""Columns that are shown only where a run has something else in it: the usual table fits 80 columns."""

_SPARE: Final = ("parent", "service", "ranks", "steps", "started (UTC)", "attempt")


def draw(canvas: Canvas, document: RunsDocument) -> None:
    """Write the runs, the latest first, then the services of traces that belong to none."""
    if document.runs:
        line, style = _verdict(document.runs)
        canvas.line(line, label="data", style=style)
        canvas.blank()
        canvas.tables([runs_table(document.runs)])
    if document.runs and document.services:
        canvas.blank()
    if document.services:
        canvas.line(f"other traces of: {', '.join(document.services)}")
        canvas.line("their critical path: grademl critical-path SOURCE --service NAME")
    for warning in document.warnings:
        canvas.line(f"note: {warning}")


def _verdict(runs: Sequence[RunEntry]) -> tuple[str, str]:
    """Return what is to be said of the data of all runs, and in which style."""
    incomplete = sum(run.verdict == "incomplete" for run in runs)
    unread = sum(run.verdict is None for run in runs)
    if incomplete:
        of_all = f"{incomplete:,} of {count(len(runs), 'run')}"
        return f"INCOMPLETE ({of_all}): `grademl report --run ID` says what is missing", "bold yellow"
    if unread:
        return "not checked: a list reads no more than it needs; `grademl report --run ID` checks a run", ""
    return f"complete ({count(len(runs), 'run')})", ""


def runs_table(runs: Sequence[RunEntry]) -> Table:
    """Return ``runs`` as a table, ids as far as `--run` needs them."""
    return table("", columns(runs), rows(runs, SHORT_ID), header=True, spare=_SPARE)


def started(run: RunEntry) -> str:
    """Return the start of ``run`` in UTC, to the second."""
    try:
        moment = datetime.fromtimestamp(int(run.start_unix_ns) // 1_000_000_000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return run.start_unix_ns
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def columns(runs: Sequence[RunEntry]) -> list[tuple[str, str]]:
    """Return the headings of `rows` and how each column is set, see `canvas.table`."""
    cells = [_cells(run, None) for run in runs]
    hidden = {name for name, usual in _USUAL.items() if all(of_run[name] == usual for of_run in cells)}
    if len({of_run["data"] for of_run in cells}) == 1:
        hidden.add("data")
    return [column for column in _COLUMNS.items() if column[0] not in hidden]


def rows(runs: Sequence[RunEntry], digits: int | None = None) -> list[list[str]]:
    """Return ``runs`` as text, a row each; ids cut to ``digits``."""
    shown = [heading for heading, _ in columns(runs)]
    return [[cells[heading] for heading in shown] for cells in (_cells(run, digits) for run in runs)]


def _cells(run: RunEntry, digits: int | None) -> dict[str, str]:
    return {
        "run": run.run[:digits],
        "attempt": str(run.attempt),
        "script": run.script,
        "service": "" if run.service.startswith(_NO_NAME) else run.service,
        "started (UTC)": started(run),
        "took": duration(run.wall_ns),
        "ranks": f"{run.ranks:,}",
        "steps": f"{run.steps:,}",
        "ended": run.ended,
        "data": run.verdict or _NOT_READ,
        "name": run.name,
        "parent": (run.parent or "")[:digits],
    }
