# SPDX-License-Identifier: Apache-2.0
"""`grademl diff` as text: the answer in words, what is not the same, then the two beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.comparison.document import (
    LESS,
    MORE,
    NOISE,
    ONLY_A,
    ONLY_B,
    REFUSED,
    SAME,
    SLIGHT,
    TOLD,
    Condition,
    DiffDocument,
    Difference,
)
from grademl_otel.analyzers.comparison.words import in_percent, quantity, signed, spread_in_words
from grademl_otel.analyzers.reporting.canvas import Canvas, table
from grademl_otel.analyzers.reporting.check_screen import draw_results, draw_side
from grademl_otel.analyzers.units import milliseconds, percent

VERDICTS: Final = {
    MORE: "more",
    LESS: "less",
    SAME: "same",
    NOISE: "within noise",
    SLIGHT: "negligible",
    TOLD: "not judged",
    REFUSED: "not compared",
    ONLY_A: "only in A",
    ONLY_B: "only in B",
}
COLUMNS: Final = (
    ("", "left"), ("A", "right"), ("B", "right"), ("difference", "right"), ("of A", "right"),
    ("interval", "right"), ("", "fixed"),
)  # fmt: skip
_SPARE: Final = ("difference", "of A", "interval")
"""Columns that a narrow terminal does without."""
_TITLE: Final = "B beside A (the intervals hold all at once, with 95 %)"
_RANKS: Final = 16


def draw(canvas: Canvas, document: DiffDocument) -> None:
    """Write verdict, both sides, tables, limits, and what could not be compared."""
    for number, line in enumerate(document.verdict):
        canvas.line(line, label="DIFF" if not number else "    ", style="bold")
    draw_side(canvas, document.a, "A   ")
    draw_side(canvas, document.b, "B   ")
    if document.not_the_same:
        canvas.line(conditions_in_words(document.not_the_same), label="not the same", style="bold yellow")
    if document.results:
        canvas.blank()
        draw_results(canvas, document.results, of_difference=True)
    canvas.blank()
    shown = [one for one in document.differences if one.verdict != REFUSED]
    rows = [cells(one) for one in shown]
    canvas.tables([table(_TITLE, COLUMNS, rows, header=True, spare=_SPARE)])
    if document.negligible:
        below = f"below {percent(document.threshold)} of the step in both"
        canvas.line(f"not compared, {below}: {', '.join(document.negligible)}")
    if document.ranks:
        canvas.blank()
        canvas.tables([table("Steady step by rank (p50)", _RANK_COLUMNS, _ranks(document), header=True)])
        if len(document.ranks) > _RANKS:
            canvas.line(f"and {len(document.ranks) - _RANKS:,} more ranks (--json)")
    reasons = reasons_in_words(document.differences)
    if reasons or document.notes:
        canvas.blank()
    for line in reasons:
        canvas.line(line, label="Not judged")
    for note in document.notes:
        canvas.line(note, label="Note")


_RANK_COLUMNS: Final = (("rank", "right"), ("A", "right"), ("B", "right"), ("difference", "right"))


def _ranks(document: DiffDocument) -> list[list[str]]:
    rows = []
    for pair in document.ranks[:_RANKS]:
        a, b = (None if ns is None else milliseconds(ns) for ns in (pair.a, pair.b))
        known = pair.a is not None and pair.b is not None and pair.a
        change = in_percent((pair.b - pair.a) / pair.a) if known else "-"  # type: ignore[operator]
        rows.append([f"{pair.rank}", a or "-", b or "-", change])
    return rows


def cells(one: Difference) -> list[str]:
    """Return a row of the table, see `COLUMNS`."""
    return [
        one.measure,
        quantity(one.a, one.unit),
        quantity(one.b, one.unit),
        signed(one.difference, one.unit),
        in_percent(one.relative) if one.unit != "1" else "",
        spread_in_words(one),
        VERDICTS[one.verdict],
    ]


def conditions_in_words(conditions: Sequence[Condition]) -> str:
    """Return what is not the same, as "workers 2 -> 6, batch 32 -> 64"."""
    return ", ".join(f"{one.what} {one.a or 'not told'} -> {one.b or 'not told'}" for one in conditions)


def reasons_in_words(differences: Sequence[Difference]) -> list[str]:
    """Return why what was not compared, or not judged, was not: a line for each reason."""
    of_reason: dict[str, list[str]] = {}
    for one in differences:
        if one.reason is not None and one.verdict in (REFUSED, TOLD):
            of_reason.setdefault(one.reason, []).append(one.measure)
    return [f"{', '.join(measures)}: {reason}" for reason, measures in of_reason.items()]
