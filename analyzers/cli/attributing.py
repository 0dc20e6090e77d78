# SPDX-License-Identifier: Apache-2.0
"""`grademl resources`: what used which resources, and which of them were full."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from grademl_otel.analyzers.cli.completion import files
from grademl_otel.analyzers.cli.options import (
    Style,
    output_options,
    refuse_every_attempt,
    selection_options,
    source_options,
    take_query,
    take_style,
    time_options,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.cli.parse import Choice
from grademl_otel.analyzers.errors import GrademlError, IncompleteError, SourceError, UsageError

if TYPE_CHECKING:
    from grademl_otel.analyzers.answers import Answer
    from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument

# Here as words, so that help and completion load nothing of the analysis.
BY: Final = ("type", "phase", "rank")
_FORMS: Final = ("text", "json", "csv", "markdown", "html")


@click.command(short_help="What used which resources, and which of them were full.")
@source_options
@selection_options
@time_options
@output_options(*_FORMS)
@click.option(
    "--by",
    type=Choice(BY),
    default=BY[0],
    show_default=True,
    help="Add use up by type of phases, by phase, or by rank.",
)
@click.option(
    "--phase",
    metavar="PATTERN",
    help="Only what this path selects, as '**/step/*'; of types, or with --by phase of phases.",
)
@click.option(
    "--metric",
    metavar="PATTERN",
    help="Only metrics of this type, as 'gpu.*'; bottlenecks are told all the same.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Add phases up that lie deeper than N levels below the root, or below --phase.",
)
@click.option(
    "--rules",
    metavar="FILE",
    shell_complete=files,
    help="Rules of use, capacities and names of hosts, in TOML.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="PATH",
    shell_complete=files,
    help="Also OTLP metrics in this file or folder; repeatable.",
)
@click.option(
    "--prometheus",
    multiple=True,
    metavar="URL",
    help="Also what a Prometheus knows of the hosts and the time; repeatable.",
)
@click.option(
    "--prometheus-header",
    "prometheus_headers",
    multiple=True,
    metavar="K=V",
    help="HTTP header to send there; repeatable. Also $GRADEML_PROMETHEUS_HEADERS.",
)
@click.option(
    "--csv",
    multiple=True,
    metavar="FILE",
    shell_complete=files,
    help="Also the samples in this CSV file; repeatable.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="At most N rows of each table.")
def resources(**options: Any) -> Outcome:
    """Say which resources each type of phases used, how full they were, and what was the bottleneck.

    \b
    grademl resources                                       of the latest run of ./grademl-runs
    grademl resources --phase '**/step' --depth 1           the phases of the steps alone
    grademl resources --by rank --metric 'gpu.*'            GPUs, a row a rank
    grademl resources jaeger://jaeger --run 3f2a --prometheus http://prometheus:9090
    grademl resources --csv samples.csv --rules rules.toml -f html -o resources.html
    """
    from grademl_otel.analyzers import answers
    from grademl_otel.analyzers.attribution.question import Question
    from grademl_otel.analyzers.sources.credentials import parse_headers

    style, top = take_style(options), options.pop("top")
    if style.format == "html" and style.output in (None, "-") and sys.stdout.isatty():
        raise UsageError("a page is for a browser: give a file with -o")
    question = Question(
        by=options.pop("by"),
        phase=options.pop("phase"),
        metric=options.pop("metric"),
        depth=options.pop("depth"),
        rules=options.pop("rules"),
        metrics=options.pop("metrics"),
        prometheus=options.pop("prometheus"),
        csv=options.pop("csv"),
        headers=parse_headers(options.pop("prometheus_headers"), "--prometheus-header"),
    )
    query = take_query(options)
    refuse_every_attempt(query)
    answer = answers.resources(query, question)
    document = answer.found
    if style.format == "html":
        page = document.to_html().encode()
        return Outcome(lambda file: file.write(page), style.output, _reservation(answer, style))
    return Outcome(_written(document, style, top), style.output, _reservation(answer, style))


def _written(document: ResourcesDocument, style: Style, top: int | None) -> str:
    if style.format == "json":
        return document.to_json()
    if style.format == "text":
        return document.to_text(color=style.color, top=top)
    from grademl_otel.analyzers.reporting import resources_tables

    return resources_tables.write(document, style.format, top)


def _reservation(answer: Answer[ResourcesDocument], style: Style) -> GrademlError | None:
    """Return the error that the answer is followed by: the source broke off, or data are missing."""
    if answer.broken is not None:
        return SourceError(answer.broken)
    if style.strict and answer.found.completeness.verdict == "incomplete":
        return IncompleteError("the data are incomplete; the answer says what is missing")
    return None
