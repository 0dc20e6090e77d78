# SPDX-License-Identifier: Apache-2.0
"""`grademl check` as text: a line for each expression, as logs of continuous integration like them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.comparison.document import (
    FAILED,
    NOT_KNOWN,
    PASSED,
    CheckDocument,
    Result,
    Side,
)
from grademl_otel.analyzers.comparison.measures import FRACTION
from grademl_otel.analyzers.comparison.words import in_percent, quantity, signed
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.reporting.header import data_in_words

_LISTED: Final = 8
_STYLE: Final = {FAILED: "bold red", NOT_KNOWN: "bold yellow", PASSED: ""}
_INDENT: Final = len("data  ")


def draw(canvas: Canvas, document: CheckDocument) -> None:
    """Write what was checked, how complete it is, and the results."""
    draw_side(canvas, document.subject)
    canvas.blank()
    draw_results(canvas, document.results)


def draw_side(canvas: Canvas, side: Side, label: str = "") -> None:
    """Write what ``side`` is, and how complete."""
    canvas.line(side_in_words(side), label=label)
    incomplete = side.completeness.verdict == "incomplete"
    style = "bold yellow" if incomplete else ""
    canvas.line(data_in_words(side.completeness), label="data", style=style)
    for note in side.notes[:_LISTED]:
        canvas.line(f"- {note}", indent=_INDENT)
    if (more := len(side.notes) - _LISTED) > 0:
        canvas.line(f"- and {more:,} more (--json)", indent=_INDENT)


def side_in_words(side: Side) -> str:
    """Return what ``side`` is, in a line."""
    if side.ranks is None:
        left_out = f", {side.left_out:,} left out: parts are missing" if side.left_out else ""
        return f"{side.title} · {side.traces:,} trace{'s' * (side.traces != 1)}{left_out}"
    ranks = f"{side.ranks:,} rank{'s' * (side.ranks != 1)}"
    return f"{side.title} · {ranks} · {side.steps:,} steps, {side.steady:,} steady ones compared"


def draw_results(canvas: Canvas, results: Sequence[Result], of_difference: bool = False) -> None:
    """Write a line for each result."""
    width = max((len(result.status) for result in results), default=0)
    for result in results:
        canvas.line(
            result_in_words(result, of_difference),
            label=result.status.ljust(width),
            style=_STYLE[result.status],
        )


def result_in_words(result: Result, of_difference: bool = False) -> str:
    """Return an expression, what was measured, and what else is to be known."""
    parts = [result.expression]
    if result.value is not None:
        value = signed if of_difference else quantity
        text = value(result.value, result.unit)
        if result.interval is not None:
            low, high = (value(end, result.unit) for end in result.interval)
            text += f" ({low} .. {high})"
        if of_difference and result.relative is not None and result.unit != FRACTION:
            text += f", {in_percent(result.relative)}"
        if result.measure.startswith("mean(") and not result.expression.lstrip().startswith("mean"):
            text += " on average"
        parts.append(f"is {text}" + ("" if result.n is None else f", n {result.n:,}"))
    if result.reason is not None:
        parts.append(result.reason)
    return " · ".join(parts)
