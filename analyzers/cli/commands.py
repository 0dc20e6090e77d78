# SPDX-License-Identifier: Apache-2.0
"""The commands: each turns its options into a query, and writes the answer in the wanted format."""

from __future__ import annotations

from typing import Any, Final

import click

from grademl_otel.analyzers.cli.attributing import resources
from grademl_otel.analyzers.cli.comparing import check, diff
from grademl_otel.analyzers.cli.completion import completion, words
from grademl_otel.analyzers.cli.copying import pull, push
from grademl_otel.analyzers.cli.examining import doctor
from grademl_otel.analyzers.cli.exporting import export
from grademl_otel.analyzers.cli.groups import DefaultGroup
from grademl_otel.analyzers.cli.options import (
    output_options,
    selection_options,
    source_options,
    take_query,
    take_style,
    time_options,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.cli.parse import Choice
from grademl_otel.analyzers.cli.querying import query
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.suggest import COMMANDS, or_near
from grademl_otel.version import __version__

# Here as words, so that help and completion load nothing of the analysis.
BY: Final = ("phase", "rank", "lane", "operation", "section")


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
    from grademl_otel.analyzers import answers
    from grademl_otel.analyzers.cli.answering import of_attempts, page

    style, top = take_style(options), options.pop("top")
    if style.format == "html":
        return page(take_query(options), top, style)
    return of_attempts(lambda query: answers.report(query, top=top), take_query(options), style)


@grademl.command(short_help="Runs and attempts; services of other traces.")
@source_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown")
def runs(**options: Any) -> Outcome:
    """List runs and attempts, and the services of other traces.

    \b
    grademl runs                                    those of ./grademl-runs, the latest first
    grademl runs jaeger://jaeger --since 1d -f csv  what went on since yesterday, as a table
    """
    from grademl_otel.analyzers import answers
    from grademl_otel.analyzers.cli.answering import outcome

    style = take_style(options)
    return outcome([answers.runs(take_query(options))], style)


@grademl.command(short_help="Who waits for whom: the ranks of a run side by side.")
@source_options
@selection_options
@time_options
@output_options("text", "json", "csv", "markdown")
def ranks(**options: Any) -> Outcome:
    """Compare the ranks of a run: who arrives last, by how much, with what; waiting, transfer, overlap.

    \b
    grademl ranks                                   of the latest run of ./grademl-runs
    grademl ranks jaeger://jaeger --run 3f2a
    """
    from grademl_otel.analyzers import answers
    from grademl_otel.analyzers.cli.answering import of_attempts

    style = take_style(options)
    return of_attempts(answers.ranks, take_query(options), style)


@grademl.command("critical-path", short_help="What set the duration.")
@source_options
@selection_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown")
@click.option("--by", type=Choice(BY), default="phase", show_default=True, help="Key to add the path up by.")
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
    from grademl_otel.analyzers import answers
    from grademl_otel.analyzers.cli.answering import each_trace, of_attempts

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
        return each_trace(query, by, top, style)
    return of_attempts(lambda one: answers.critical_path(one, by=by, top=top), query, style, by, top)


@grademl.command("help", short_help="Help on a command.")
@click.argument("name", metavar="[COMMAND]", required=False, shell_complete=words(*COMMANDS))
@click.pass_context
def help_(context: click.Context, name: str | None) -> None:
    """Print the options of a command, with examples.

    \b
    grademl help path
    """
    root = context.find_root()
    if name is None:
        click.echo(root.get_help())
        return
    command = grademl.get_command(context, name)
    if command is None:
        raise UsageError(f"no command {name}; {or_near(name, grademl.names)}")
    with click.Context(command, parent=root, info_name=name) as about:
        click.echo(command.get_help(about))


grademl.add_alias("path", "critical-path")
grademl.add_command(resources)
grademl.add_command(diff)
grademl.add_command(check)
grademl.add_command(completion)
grademl.add_command(query)
grademl.add_command(export)
grademl.add_command(pull)
grademl.add_command(push)
grademl.add_command(doctor)
