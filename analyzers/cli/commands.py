# SPDX-License-Identifier: Apache-2.0
"""The commands: each turns its options into a query, and writes the answer in the wanted format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from grademl_otel.analyzers import answers
from grademl_otel.analyzers.answers import Answer
from grademl_otel.analyzers.cli.copying import pull
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
from grademl_otel.analyzers.errors import GrademlError, IncompleteError, SourceError, UsageError
from grademl_otel.analyzers.reporting import tables
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    Document,
    RanksDocument,
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

    SOURCE is a file, a run's folder, a folder of runs, a glob, - (standard input), jaeger://host[:16686],
    or an http(s) address. Without it: $GRADEML_SOURCE, then ./grademl-runs. Without a command: report.
    """


@grademl.command(short_help="Verdict, and where the time went (the default).")
@source_options
@selection_options
@time_options
@output_options("text", "json", "markdown")
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="At most N sections of the path, the longest."
)
def report(**options: Any) -> Outcome:
    """Verdict, where the time went, findings, critical path (the default command)."""
    style, top = take_style(options), options.pop("top")
    return _outcome(answers.report(take_query(options), top=top), style)


@grademl.command(short_help="Runs and attempts; services of other traces.")
@source_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown")
def runs(**options: Any) -> Outcome:
    """List runs and attempts, and the services of other traces."""
    style = take_style(options)
    return _outcome(answers.runs(take_query(options)), style)


@grademl.command(short_help="Who waits for whom: the ranks of a run side by side.")
@source_options
@selection_options
@time_options
@output_options("text", "json", "csv", "markdown")
def ranks(**options: Any) -> Outcome:
    """Compare the ranks of a run: who arrives last, by how much, with what; waiting, transfer, overlap."""
    style = take_style(options)
    return _outcome(answers.ranks(take_query(options)), style)


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
    """The chain of activities that set the duration (alias: path)."""
    per_trace, by, top = options.pop("per_trace"), options.pop("by"), options.pop("top")
    if per_trace and options["format_"] is None:
        options["format_"] = "json" if options["as_json"] else "jsonl"
    style = take_style(options)
    if per_trace and style.format not in ("json", "jsonl"):
        raise UsageError(f"--per-trace writes JSON lines; it has no {style.format} form")
    query = take_query(options)
    if per_trace:
        answer = answers.per_trace(query, by=by, top=top)
        text = "\n".join(to_json(document, indent=False) for document in answer.found)
        return Outcome(text, style.output, _reservation(answer.broken, answer.found, style))
    return _outcome(answers.critical_path(query, by=by, top=top), style, by)


grademl.add_alias("path", "critical-path")
grademl.add_command(pull)


def _outcome(answer: Answer[Any], style: Style, by: str | None = None) -> Outcome:
    document: Document = answer.found
    if style.format == "json":
        text = to_json(document)
    elif style.format == "jsonl":
        text = to_json_lines(document)
    elif style.format in ("csv", "markdown"):
        text = tables.write(document, style.format, by)
    else:
        text = render(document, by=by, color=None if style.output is None and not style.no_color else False)
    documents = [] if isinstance(document, RunsDocument) else [document]
    return Outcome(text, style.output, _reservation(answer.broken, documents, style))


def _reservation(
    broken: str | None, documents: Sequence[CriticalPathDocument | RanksDocument], style: Style
) -> GrademlError | None:
    """Return the error that the answer is followed by: the source broke off, or data are missing."""
    if broken is not None:
        return SourceError(broken)
    if style.strict and any(document.completeness.verdict == "incomplete" for document in documents):
        return IncompleteError("the data are incomplete; the report without --strict says what is missing")
    return None
