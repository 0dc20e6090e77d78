# SPDX-License-Identifier: Apache-2.0
"""The commands: each turns its options into a query, and writes the answer in the wanted format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from grademl_otel.analyzers import answers
from grademl_otel.analyzers.answers import Answer
from grademl_otel.analyzers.cli.copying import pull, push
from grademl_otel.analyzers.cli.examining import doctor
from grademl_otel.analyzers.cli.exporting import export
from grademl_otel.analyzers.cli.groups import DefaultGroup
from grademl_otel.analyzers.cli.options import (
    Style,
    output_options,
    selection_options,
    source_options,
    take_query,
    take_style,
    time_options,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.errors import GrademlError, IncompleteError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.query import Query
from grademl_otel.analyzers.reporting import tables
from grademl_otel.analyzers.reporting.document import (
    Document,
    RunsDocument,
    to_json,
    to_json_lines,
)
from grademl_otel.analyzers.reporting.sections import BY
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.version import __version__


@click.group(cls=DefaultGroup, default="report", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="grademl %(version)s")
def grademl() -> None:
    """Say why a machine-learning job is slow, from its OpenTelemetry traces.

    SOURCE is a file, a run's folder, a folder of runs, a copy, a glob, - (standard input),
    jaeger://host[:16686], tempo://host[:3200], or an http(s) address. Without it: $GRADEML_SOURCE, then
    ./grademl-runs. Without a command: report.

    \b
    grademl                                  the latest run of ./grademl-runs
    grademl run.jsonl --steps last:500       a part of a run in a file
    grademl jaeger://jaeger --run 3f2a       a run in a Jaeger
    """


@grademl.command(short_help="Verdict, and where the time went (the default).")
@source_options
@selection_options
@time_options
@output_options("text", "json", "markdown", "html")
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="At most N sections of the path, the longest."
)
def report(**options: Any) -> Outcome:
    """Verdict, where the time went, findings, critical path (the default command).

    \b
    grademl report                                  of the latest run of ./grademl-runs
    grademl report run.jsonl -f html -o run.html    as a page with charts that works offline
    """
    style, top = take_style(options), options.pop("top")
    if style.format == "html":
        return _page(take_query(options), top, style)
    return _of_attempts(lambda query: answers.report(query, top=top), take_query(options), style)


@grademl.command(short_help="Runs and attempts; services of other traces.")
@source_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown")
def runs(**options: Any) -> Outcome:
    """List runs and attempts, and the services of other traces."""
    style = take_style(options)
    return _outcome([answers.runs(take_query(options))], style)


@grademl.command(short_help="Who waits for whom: the ranks of a run side by side.")
@source_options
@selection_options
@time_options
@output_options("text", "json", "csv", "markdown")
def ranks(**options: Any) -> Outcome:
    """Compare the ranks of a run: who arrives last, by how much, with what; waiting, transfer, overlap.

    \b
    grademl ranks jaeger://jaeger --run 3f2a
    """
    style = take_style(options)
    return _of_attempts(answers.ranks, take_query(options), style)


@grademl.command("critical-path", short_help="What set the duration (alias: path).")
@source_options
@selection_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown")
@click.option(
    "--by", type=click.Choice(BY), default="phase", show_default=True, help="Key to add the path up by."
)
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="At most N keys and sections, the longest."
)
@click.option("--per-trace", is_flag=True, help="One answer for each trace, as JSON lines.")
def critical_path(**options: Any) -> Outcome:
    """The chain of activities that set the duration (alias: path).

    \b
    grademl path --by rank                          of the latest run of ours
    grademl path jaeger://jaeger --service cart     of the traces of a service
    """
    per_trace, by, top = options.pop("per_trace"), options.pop("by"), options.pop("top")
    if per_trace and options["format_"] is None:
        options["format_"] = "json" if options["as_json"] else "jsonl"
    style = take_style(options)
    if per_trace and style.format not in ("json", "jsonl"):
        raise UsageError(f"--per-trace writes JSON lines; it has no {style.format} form")
    query = take_query(options)
    if per_trace and query.every_attempt:
        raise UsageError(
            "--per-trace answers for each trace, --attempt all for each attempt; give one of them"
        )
    if per_trace:
        answer = answers.per_trace(query, by=by, top=top)
        text = "\n".join(to_json(document, indent=False) for document in answer.found)
        return Outcome(text, style.output, _reservation(answer.broken, answer.found, style))
    return _of_attempts(lambda one: answers.critical_path(one, by=by, top=top), query, style, by, top)


grademl.add_alias("path", "critical-path")
grademl.add_command(export)
grademl.add_command(pull)
grademl.add_command(push)
grademl.add_command(doctor)


def _page(query: Query, top: int | None, style: Style) -> Outcome:
    if query.every_attempt:
        raise UsageError("--attempt all has no html form: a page is of one attempt")
    if style.output in (None, "-") and sys.stdout.isatty():  # before the work is done
        raise UsageError("a page is for a browser: give a file with -o")
    answer = answers.report_page(query, top)
    page = answer.found
    return Outcome(
        lambda file: file.write(page.html.encode()),
        style.output,
        _reservation(answer.broken, [page.document], style),
    )


def _of_attempts(
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
    return _outcome(found, style, by, top)


def _outcome(
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
