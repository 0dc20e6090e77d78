# SPDX-License-Identifier: Apache-2.0
"""`grademl pull` and `grademl push`: telemetry into a copy on disk, and on to a collector."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
from grademl_otel.analyzers.errors import without_secrets
from grademl_otel.export.settings import METRICS

if TYPE_CHECKING:
    from grademl_otel.analyzers.sources import Source

_JAEGER_PORT = 16686
_JAEGER_ANSWERS_S = 2.0


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
    from grademl_otel.analyzers.copy.pull import origin_of
    from grademl_otel.analyzers.copy.pull import pull as copy
    from grademl_otel.analyzers.sources.registry import address
    from grademl_otel.analyzers.subject import open_query, selection_of

    style = take_style(options)
    folder, refresh = Path(options.pop("folder")), options.pop("refresh")
    query = take_query(options)
    refuse_every_attempt(query)
    source = open_query(query, everything=True)
    origin = origin_of(address(query.source), source.uri, selection_of(query), query.since)
    done = copy(source, folder, origin, refresh=refresh, progress=query.progress)
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
    from grademl_otel.analyzers.copy.endpoint import settings_for
    from grademl_otel.analyzers.copy.push import push as send
    from grademl_otel.analyzers.query import Query
    from grademl_otel.analyzers.sources.credentials import parse_headers
    from grademl_otel.analyzers.subject import open_query, selection_of

    style = take_style(options)
    endpoint, verify = options.pop("endpoint"), options.pop("verify")
    headers = parse_headers(options.pop("headers"))
    settings = settings_for(endpoint, headers)
    if options.pop("no_verify"):
        there = None
    elif verify is not None:
        there = open_query(Query.of(verify), everything=True)
    else:
        there = _jaeger_at(endpoint)
    query = take_query({**options, "headers": ()})
    refuse_every_attempt(query)
    done = send(
        open_query(query, everything=True),
        settings,
        without_secrets(endpoint),
        selection_of(query),
        metrics=settings_for(endpoint, headers, signal=METRICS),
        verify=there,
        progress=query.progress,
    )
    text = done.to_json() if style.format == "json" else done.to_text(color=style.color)
    return Outcome(text, error=done.error)


def _jaeger_at(endpoint: str) -> Source | None:
    """Return the Jaeger on the host of ``endpoint``, if one answers at its usual port."""
    from grademl_otel.analyzers.sources.base import SourceOptions
    from grademl_otel.analyzers.sources.registry import open_source

    host = urlsplit(endpoint).hostname or ""
    place = f"jaeger://[{host}]:{_JAEGER_PORT}" if ":" in host else f"jaeger://{host}:{_JAEGER_PORT}"
    # Nobody named this server: what the environment holds for others is not for it.
    everything = SourceOptions(max_spans=sys.maxsize, max_traces=sys.maxsize, anonymous=True)
    impatient = replace(everything, timeout_s=_JAEGER_ANSWERS_S)
    return None if open_source(place, impatient).probe().problems else open_source(place, everything)
