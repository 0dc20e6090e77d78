# SPDX-License-Identifier: Apache-2.0
"""`grademl export`: graphs for other tools."""

from __future__ import annotations

from typing import Any, Final

import click

from grademl_otel.analyzers.cli.options import (
    file_options,
    refuse_every_attempt,
    selection_options,
    since_options,
    source_options,
    take_query,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.errors import SourceError

# Here as words, so that other commands load nothing of it.
FORMS: Final = ("graphml",)
GRAPHS: Final = ("dependencies", "path", "phases", "types")


@click.command(short_help="Graphs for other tools, as GraphML.")
@source_options
@selection_options
@since_options
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="What to write.")
@click.option(
    "--graph",
    type=click.Choice(GRAPHS),
    default=GRAPHS[0],
    show_default=True,
    help="What waited for what; the critical path; all phases of the execution model; their types.",
)
@file_options
def export(**options: Any) -> Outcome:
    """Write a graph that other tools read.

    \b
    grademl export grademl-runs --to graphml --steps 100:110 -o steps.graphml
    grademl export jaeger://jaeger --run 3f2a --to graphml --graph types -o types.graphml
    """
    from grademl_otel.analyzers.exports import exported

    form, graph, output = options.pop("form"), options.pop("graph"), options.pop("output")
    options.pop("debug")
    query = take_query(options)
    refuse_every_attempt(query)
    answer = exported(query, graph, form)
    return Outcome(answer.found, output, None if answer.broken is None else SourceError(answer.broken))
