# SPDX-License-Identifier: Apache-2.0
"""From answers to what a command ends with: in the wanted format, with what is to be said of the data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from grademl_otel.analyzers import answers
from grademl_otel.analyzers.answers import Answer
from grademl_otel.analyzers.cli.options import Style
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.errors import GrademlError, IncompleteError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting import tables
from grademl_otel.analyzers.reporting.document import Document, RunsDocument, to_json, to_json_lines
from grademl_otel.analyzers.reporting.text import render


def page(query: Query, top: int | None, style: Style) -> Outcome:
    """Return the report as a page."""
    if query.every_attempt:
        raise UsageError("--attempt all has no html form: a page is of one attempt")
    if style.output in (None, "-") and sys.stdout.isatty():  # before the work is done
        raise UsageError("a page is for a browser: give a file with -o")
    answer = answers.report_page(query, top)
    found = answer.found
    return Outcome(
        lambda file: file.write(found.html.encode()),
        style.output,
        _reservation(answer.broken, [found.document], style),
    )


def each_trace(query: Query, by: str, top: int | None, style: Style) -> Outcome:
    """Return the path of each trace, a line of JSON each."""
    answer = answers.per_trace(query, by=by, top=top)
    text = "\n".join(to_json(document, indent=False) for document in answer.found)
    return Outcome(text, style.output, _reservation(answer.broken, answer.found, style))


def of_attempts(
    ask: Callable[[Query], Answer[Any]],
    query: Query,
    style: Style,
    by: str | None = None,
    top: int | None = None,
) -> Outcome:
    """Return the answers for each attempt that the query asks for, without those of which there is none."""
    chosen, found = answers.each_attempt(query), []
    for one in chosen:
        try:
            found.append(ask(one))
        except NothingFound:
            if one is chosen[-1] and not found:
                raise
    return outcome(found, style, by, top)


def outcome(
    found: Sequence[Answer[Any]], style: Style, by: str | None = None, top: int | None = None
) -> Outcome:
    """Return the answers as text, one after the other; several in JSON are lines, as with --per-trace."""
    documents: list[Document] = [answer.found for answer in found]
    if len(documents) > 1 and style.format == "csv":
        raise UsageError("--attempt all has no csv form; give one attempt")
    form = "jsonl" if len(documents) > 1 and style.format == "json" else style.format
    texts = [_written(document, form, style, by, top) for document in documents]
    broken = next((answer.broken for answer in found if answer.broken is not None), None)
    separator = "\n" if form == "jsonl" else "\n\n"
    text = separator.join(one.rstrip("\n") for one in texts) if len(texts) > 1 else texts[0]
    return Outcome(text, style.output, _reservation(broken, documents, style))


def _written(document: Document, form: str, style: Style, by: str | None, top: int | None) -> str:
    if form == "json":
        return to_json(document)
    if form == "jsonl":
        return to_json_lines(document)
    if form in ("csv", "markdown"):
        return tables.write(document, form, by)
    return render(document, by=by, top=top, color=style.color)


def _reservation(broken: str | None, documents: Sequence[Document], style: Style) -> GrademlError | None:
    """Return the error that the answer is followed by: the source broke off, or data are missing."""
    if broken is not None:
        return SourceError(broken)
    if style.strict and any(_incomplete(document) for document in documents):
        return IncompleteError("the data are incomplete; the report without --strict says what is missing")
    return None


def _incomplete(document: Document) -> bool:
    if isinstance(document, RunsDocument):
        return any(run.verdict == "incomplete" for run in document.runs)
    return document.completeness.verdict == "incomplete"
