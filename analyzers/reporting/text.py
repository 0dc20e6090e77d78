# SPDX-License-Identifier: Apache-2.0
"""An answer as text for people: which screen shows which document."""

from __future__ import annotations

from grademl_otel.analyzers.reporting import path_screen, ranks_screen, report_screen, runs_screen
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.reporting.document import Document, RanksDocument, ReportDocument, RunsDocument


def render(
    document: Document,
    *,
    by: str | None = None,
    top: int | None = None,
    color: bool | None = None,
    width: int | None = None,
) -> str:
    """Return ``document`` as text that ends with a newline.

    ``by`` names the key of a critical path's table, ``top`` how much of it is shown. ``color`` and ``width``
    default to what standard output is: plain and 110 columns when it is not a terminal.
    """
    canvas = Canvas(color, width)
    if isinstance(document, RunsDocument):
        runs_screen.draw(canvas, document)
    elif isinstance(document, RanksDocument):
        ranks_screen.draw(canvas, document)
    elif isinstance(document, ReportDocument):
        report_screen.draw(canvas, document)
    else:
        path_screen.draw(canvas, document, by or "phase", top)
    return canvas.text()
