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
    grademl doctor jaeger://jaeger --header 'Authorization=Bearer ...'
    """
    # Loaded here: no other command needs it.
    from grademl_otel.analyzers.doctor.examine import error_of, examine
    from grademl_otel.analyzers.reporting.doctor_document import doctor_json
    from grademl_otel.analyzers.reporting.doctor_screen import render

    style = take_style(options)
    query = take_query(options)
    refuse_every_attempt(query)
    document = examine(query)
    if style.format == "json":
        text = doctor_json(document)
    else:
        text = render(document, color=None if style.output is None and not style.no_color else False)
    error = error_of(document)
    if error is None and style.strict and document.verdict == "incomplete":
        error = IncompleteError("the data are incomplete; the answer says what is missing")
    return Outcome(text, style.output, error)
