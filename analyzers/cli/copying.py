# SPDX-License-Identifier: Apache-2.0
"""`grademl pull`: telemetry into a copy on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grademl_otel.analyzers.cli.options import (
    copied_source_options,
    plain_output_options,
    take_query,
    take_style,
    time_options,
    which_options,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.sources.registry import address
from grademl_otel.analyzers.subject import open_query, selection_of

if TYPE_CHECKING:
    from grademl_otel.analyzers.copy.pull import Pulled


@click.command(short_help="Copy a source to disk; can be interrupted and resumed.")
@copied_source_options
@which_options
@time_options
@click.option("-o", "--output", "folder", required=True, metavar="DIR", help="Folder of the copy.")
@click.option("--refresh", is_flag=True, help="Copy everything anew, also over another copy.")
@plain_output_options
def pull(**options: Any) -> Outcome:
    """Copy telemetry into a folder, which every command then reads like any SOURCE.

    The same command again goes on where it was interrupted, and adds what has come since.
    """
    from grademl_otel.analyzers.copy.pull import origin_of
    from grademl_otel.analyzers.copy.pull import pull as copy

    style = take_style(options)
    folder, refresh = Path(options.pop("folder")), options.pop("refresh")
    query = take_query(options)
    source = open_query(query, everything=True)
    origin = origin_of(address(query.source), source.uri, selection_of(query), query.since)
    done = copy(source, folder, origin, refresh=refresh, progress=query.progress)
    text = _json(done) if style.format == "json" else _text(done)
    return Outcome(text, error=done.error)


def _text(done: Pulled) -> str:
    new = "" if done.copied == done.pieces else f" ({done.copied:,} new)"
    lines = [
        f"{done.pieces:,} pieces{new}, {done.spans:,} spans in {done.folder}: {done.files:,} files,"
        f" {done.bytes / 1e6:,.1f} MB"
    ]
    lines += [f"note: {warning}" for warning in done.warnings]
    if done.error is None:
        lines.append(f"read it with: grademl {done.folder}")
    return "\n".join(lines)


def _json(done: Pulled) -> str:
    fields = asdict(done)
    error = fields.pop("error")
    return json.dumps(
        {"schema": "grademl.pull/1", **fields, "error": None if error is None else str(error)}, indent=2
    )
