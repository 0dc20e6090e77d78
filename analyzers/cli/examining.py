# SPDX-License-Identifier: Apache-2.0
"""`grademl doctor`: what there is, what is recorded of it and what is not, and why."""

from __future__ import annotations

from typing import Any

import click

from grademl_otel.analyzers.cli.options import (
    output_options,
    refuse_every_attempt,
    source_options,
    take_query,
    take_style,
    time_options,
    which_options,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.errors import IncompleteError


@click.command(short_help="Reach a source; what is recorded in it, what is not, and why.")
@source_options
@which_options
@time_options
@output_options("text", "json")
def doctor(**options: Any) -> Outcome:
    """Look at a source: can it be read, with which API and limits, what is in it, what is recorded, what not.

    Without SOURCE: the local runs, and whether recording works here.

    \b
    grademl doctor                                  the local runs, and whether recording works here
    grademl doctor jaeger://jaeger --header 'Authorization=Bearer ...'
    """
    # Loaded here: no other command needs it.
    from grademl_otel.analyzers.examination.examine import error_of, examine

    style = take_style(options)
    query = take_query(options)
    refuse_every_attempt(query)
    document = examine(query)
    text = document.to_json() if style.format == "json" else document.to_text(color=style.color)
    error = error_of(document)
    if error is None and style.strict and document.verdict == "incomplete":
        error = IncompleteError("the data are incomplete; the answer says what is missing")
    return Outcome(text, style.output, error)
