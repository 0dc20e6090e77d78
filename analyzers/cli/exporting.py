# SPDX-License-Identifier: Apache-2.0
"""`grademl export`: what was read, for other tools."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any, Final

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
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.exports.forms import FORMS, GRAPHS, STACKS, form_of
from grademl_otel.analyzers.printable import clean, clean_lines

if TYPE_CHECKING:
    from grademl_otel.analyzers.exports.export import Export

_OPTIONS: Final = tuple(dict.fromkeys(option for form in FORMS.values() for option in form.options))
_LISTED: Final = "; ".join(f"{form.name}: {form.about}" for form in FORMS.values())


@click.command(short_help="What was read, for other tools.")
@source_options
@selection_options
@since_options
@click.option("--to", "to", type=click.Choice(tuple(FORMS)), required=True, help=f"{_LISTED}.")
@click.option(
    "--graph",
    type=click.Choice(GRAPHS),
    help="graphml: what waited for what (the default); the critical path; all phases of the execution model;"
    " their types.",
)
@click.option(
    "--of",
    type=click.Choice(STACKS),
    help="folded: where the time went (the default); the critical path.",
)
@click.option("--table", metavar="NAME", help="parquet: this table alone, into a file.")
@file_options
def export(**options: Any) -> Outcome:
    """Write what was read in a form that other tools take.

    \b
    grademl export --to perfetto -o run.perfetto-trace       open it in ui.perfetto.dev
    grademl export --to folded --of path | flamegraph.pl > path.svg
    grademl export run-3f2a --to parquet -o tables
    grademl export jaeger://jaeger --trace 4bf92f3577b34da6a3ce929d0e0e4736 --to otlp -o t.jsonl
    grademl export grademl-runs --to graphml --steps 100:110 -o steps.graphml
    grademl export jaeger://jaeger --run 3f2a --to graphml --graph types -o types.graphml
    """
    to, output, as_json = options.pop("to"), options.pop("output"), options.pop("as_json")
    strict, chosen = options.pop("strict"), {name: options.pop(name) for name in _OPTIONS}
    options.pop("debug")
    if output == "-":
        output = None
    form = form_of(to, chosen)
    if as_json and output is None:
        raise UsageError(f"--json tells what was written into a file; give one with -o, as run{form.suffix}")
    if output is None and form.folder and not any(chosen.values()):
        raise UsageError(f"--to {to} is a folder of files; name one with -o, or one table with --table")
    if output is None and not form.text and sys.stdout.isatty():
        raise UsageError(
            f"--to {to} is bytes that a terminal cannot show; give a file with -o, as run{form.suffix}"
        )
    query = take_query(options)
    refuse_every_attempt(query)
    from grademl_otel.analyzers.exports.export import Export

    found = Export(query, to, chosen)
    if output is None:
        outcome = _printed(found, strict)
    else:
        done = found.into(output)
        if not as_json:
            click.echo(clean(str(done)), err=True)
            _tell(found)
        outcome = Outcome(done.to_json() if as_json else "", None, found.reservation(strict))
    if found.reasons is not None and not strict:
        click.echo(clean(f"grademl: incomplete: {found.reasons}"), err=True)
    return outcome


def _printed(found: Export, strict: bool) -> Outcome:
    """Return what goes to standard output: bytes as they are, but nothing that a terminal would obey."""
    if sys.stdout.isatty():
        return Outcome(clean_lines(found.text()), None, found.reservation(strict))

    def put(file: IO[bytes]) -> None:
        found.into_file(file)
        _tell(found)

    return Outcome(put, None, found.reservation(strict))


def _tell(found: Export) -> None:
    """Say what the form does not hold."""
    for note in found.notes:
        click.echo(clean(f"note: {note}"), err=True)
