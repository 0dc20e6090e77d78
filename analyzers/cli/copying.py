# SPDX-License-Identifier: Apache-2.0
"""`grademl pull` and `grademl push`: telemetry into a copy on disk, and on to a collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from grademl_otel.analyzers.cli.completion import folders
from grademl_otel.analyzers.cli.completion import runs as run_ids
from grademl_otel.analyzers.cli.options import (
    copied_source_options,
    plain_output_options,
    refuse_every_attempt,
    source_argument,
    take_query,
    take_style,
    time_options,
    which_options,
)
from grademl_otel.analyzers.cli.output import Outcome


@click.command(short_help="Copy a source to disk; can be interrupted and resumed.")
@copied_source_options
@which_options
@time_options
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    shell_complete=folders,
    help="Folder of the copy.",
)
@click.option("--refresh", is_flag=True, help="Copy everything anew, also over another copy.")
@plain_output_options
def pull(**options: Any) -> Outcome:
    """Copy telemetry into a folder, which every command then reads like any SOURCE.

    The same command again goes on where it was interrupted, and adds what has come since.

    \b
    grademl pull jaeger://jaeger --run 3f2a -o run-3f2a
    grademl run-3f2a
    """
    from grademl_otel.analyzers.copying import pulled

    style = take_style(options)
    folder, refresh = Path(options.pop("folder")), options.pop("refresh")
    query = take_query(options)
    refuse_every_attempt(query)
    done = pulled(query, folder, refresh)
    text = done.to_json() if style.format == "json" else done.to_text(color=style.color)
    return Outcome(text, error=done.error)


@click.command(short_help="Send a file store or a copy to a collector.")
@source_argument
@click.option(
    "--to",
    "endpoint",
    required=True,
    metavar="ENDPOINT",
    help="OTLP receiver: http://host:4318, grpc://host:4317.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="K=V",
    help="Header to send to ENDPOINT; repeatable. Also $OTEL_EXPORTER_OTLP_HEADERS.",
)
@click.option(
    "--run",
    metavar="ID|latest",
    shell_complete=run_ids,
    help="Only this run: its id or the first digits of it.",
)
@click.option("--attempt", metavar="N", help="Only this attempt.")
@click.option("--verify", metavar="SOURCE", help="Where to look whether all arrived, as jaeger://host.")
@click.option("--no-verify", is_flag=True, help="Do not look.")
@plain_output_options
def push(**options: Any) -> Outcome:
    """Send all spans and metrics of SOURCE to an OTLP receiver, and look whether the spans arrived.

    Without --verify, a Jaeger on ENDPOINT's host and its usual port is asked, if there is one.

    \b
    grademl push grademl-runs --to http://collector:4318 --verify jaeger://jaeger
    """
    from grademl_otel.analyzers.copying import pushed
    from grademl_otel.analyzers.sources.credentials import parse_headers

    style = take_style(options)
    endpoint, verify, look = options.pop("endpoint"), options.pop("verify"), not options.pop("no_verify")
    headers = parse_headers(options.pop("headers"))
    query = take_query({**options, "headers": ()})
    refuse_every_attempt(query)
    done = pushed(query, endpoint, headers, verify, look)
    text = done.to_json() if style.format == "json" else done.to_text(color=style.color)
    return Outcome(text, error=done.error)
