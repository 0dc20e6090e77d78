# SPDX-License-Identifier: Apache-2.0
"""`grademl diff` and `grademl check` for programs and for comments on pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final
from xml.etree import ElementTree

import msgspec

from grademl_otel.analyzers.comparison.document import (
    FAILED,
    NOT_KNOWN,
    PASSED,
    REFUSED,
    CheckDocument,
    DiffDocument,
    Difference,
    Result,
)
from grademl_otel.analyzers.comparison.words import quantity, signed
from grademl_otel.analyzers.printable import clean, clean_json
from grademl_otel.analyzers.reporting.check_screen import result_in_words, side_in_words
from grademl_otel.analyzers.reporting.diff_screen import (
    COLUMNS,
    cells,
    conditions_in_words,
    reasons_in_words,
)
from grademl_otel.analyzers.reporting.tables import Cell, csv_of, escaped, markdown_of

_MARKS: Final = {PASSED: "passed", FAILED: "**failed**", NOT_KNOWN: "not known"}


def write(document: DiffDocument | CheckDocument, form: str) -> str:
    """Return ``document`` as ``jsonl``, ``csv``, ``markdown`` or, of expressions, ``junit``."""
    if form == "junit":
        return _junit(document)
    rows: Sequence[Difference | Result]
    rows = document.differences if isinstance(document, DiffDocument) else document.results
    if form == "jsonl":
        return "\n".join(clean_json(msgspec.json.encode(row).decode()) for row in rows)
    if form == "csv":
        of = Difference if isinstance(document, DiffDocument) else Result
        return _csv(of, rows)
    return _diff(document) if isinstance(document, DiffDocument) else _check(document)


def _csv(of: type[Difference] | type[Result], rows: Sequence[Difference | Result]) -> str:
    """Return a row each; an interval is two columns."""
    heading: list[str] = []
    for field in fields(of):
        wide = field.name in ("interval", "relative_interval")
        heading += [f"{field.name}_low", f"{field.name}_high"] if wide else [field.name]
    lines: list[list[Cell]] = []
    for row in rows:
        line: list[Cell] = []
        for field in fields(of):
            value = getattr(row, field.name)
            if field.name in ("interval", "relative_interval"):
                line += [None, None] if value is None else value
            else:
                line.append(value)
        lines.append(line)
    return csv_of(heading, lines)


def _diff(document: DiffDocument) -> str:
    parts = ["\n".join(f"**{escaped(line)}**  " for line in document.verdict), ""]
    for name, side in (("A", document.a), ("B", document.b)):
        verdict = side.completeness.verdict
        parts.append(f"- {name}: {escaped(side_in_words(side))} (data {verdict})")
        parts += [f"  - {escaped(note)}" for note in side.notes]
    if document.not_the_same:
        parts.append(f"- not the same: {escaped(conditions_in_words(document.not_the_same))}")
    parts.append("")
    if document.results:
        parts.append(_results(document.results, of_difference=True))
    shown = [one for one in document.differences if one.verdict != REFUSED]
    headings = [heading for heading, _ in COLUMNS]
    headings[0], headings[-1] = "measure", "verdict"
    parts.append(markdown_of(headings, [cells(one) for one in shown]))
    parts += [f"- not judged: {escaped(line)}" for line in reasons_in_words(document.differences)]
    parts += [f"- {escaped(note)}" for note in document.notes]
    return "\n".join(parts).rstrip() + "\n"


def _check(document: CheckDocument) -> str:
    side = document.subject
    parts = [f"{_MARKS[document.status]}: {escaped(side_in_words(side))}", ""]
    parts += [f"- data {side.completeness.verdict}"] + [f"- {escaped(note)}" for note in side.notes] + [""]
    return "\n".join(parts) + "\n" + _results(document.results)


def _results(results: Sequence[Result], of_difference: bool = False) -> str:
    value = signed if of_difference else quantity
    rows: list[list[Cell]] = [
        [
            result.status,
            result.expression,
            value(result.value, result.unit),
            ""
            if result.interval is None
            else " .. ".join(value(end, result.unit) for end in result.interval),
            result.reason,
        ]
        for result in results
    ]
    return markdown_of(["status", "expression", "value", "95 %", "note"], rows)


def _junit(document: DiffDocument | CheckDocument) -> str:
    """Return the expressions as a JUnit report: failed as failures, not known as errors."""
    of_difference = isinstance(document, DiffDocument)
    results = document.results
    counts = {status: sum(result.status == status for result in results) for status in _MARKS}
    name = "grademl diff" if of_difference else "grademl check"
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(results)),
        failures=str(counts[FAILED]),
        errors=str(counts[NOT_KNOWN]),
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=clean(result.expression))
        words = clean(result_in_words(result, of_difference))
        if result.status == FAILED:
            ElementTree.SubElement(case, "failure", message=words)
        elif result.status == NOT_KNOWN:
            ElementTree.SubElement(case, "error", message=words)
        else:
            ElementTree.SubElement(case, "system-out").text = words
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, "unicode", xml_declaration=True) + "\n"
