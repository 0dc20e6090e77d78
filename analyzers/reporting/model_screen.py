# SPDX-License-Identifier: Apache-2.0
"""The execution model as text: its types as a tree, how often they occur, and for how long."""

from __future__ import annotations

import re
from typing import Final

from grademl_otel.analyzers.reporting.canvas import Canvas, table
from grademl_otel.analyzers.reporting.model_document import ModelDocument
from grademl_otel.analyzers.units import count, seconds

_TYPES: Final = 60
_LISTED: Final = 8
_INDENT: Final = len("data  ")
_NAME: Final = re.compile(r"/((?:\\.|[^\\/])*)")
"""Of a path; a special character within a name stands behind a backslash."""


def draw(canvas: Canvas, document: ModelDocument, top: int | None = None) -> None:
    """Write what the model is of, and its types: ``top`` of them, in preorder."""
    canvas.line(
        f"execution model · {count(document.phases, 'phase')} of {count(len(document.types), 'type')}"
    )
    if document.verdict is not None:
        bad = document.verdict == "incomplete"
        verdict = document.verdict.upper() if bad else document.verdict
        canvas.line(verdict, label="data", style="bold yellow" if bad else "")
    notes = [*document.incomplete_because, *document.conflicts]
    for note in notes[:_LISTED]:
        canvas.line(f"- {note}", indent=_INDENT)
    if (more := len(notes) - _LISTED) > 0:
        canvas.line(f"- and {more:,} more (to_dict())", indent=_INDENT)
    canvas.blank()
    shown = document.types[: top or _TYPES]
    rows = [
        (
            "  " * max(0, len(names) - 1) + (names[-1] or "/"),
            f"{entry.phases:,}",
            seconds(entry.busy_ns),
            entry.repeats,
        )
        for entry in shown
        for names in [_NAME.findall(entry.path)]
    ]
    columns = [("type", "left"), ("phases", "right"), ("busy", "right"), ("repeats", "left")]
    canvas.tables([table("", columns, rows, header=True, spare=("repeats",))])
    if (more := len(document.types) - len(shown)) > 0:
        canvas.line(f"and {more:,} more (to_pandas())")
