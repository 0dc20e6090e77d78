# SPDX-License-Identifier: Apache-2.0
"""`grademl diff` and `grademl check`: two beside each other, and one held against what it should be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from grademl_otel.analyzers.cli.options import (
    PAIRED,
    Style,
    listed_source_options,
    output_options,
    paired_source_options,
    refuse_every_attempt,
    selection_options,
    take_query,
    take_style,
    time_options,
    twice,
)
from grademl_otel.analyzers.cli.output import Outcome
from grademl_otel.analyzers.cli.parse import Choice, Parsed, share
from grademl_otel.analyzers.errors import UsageError

if TYPE_CHECKING:
    from grademl_otel.analyzers.answers import Answer
    from grademl_otel.analyzers.comparison.document import CheckDocument, DiffDocument
    from grademl_otel.analyzers.queries import Query

# Here as words and numbers, so that help and completion load nothing of the analysis.
BY: Final = ("phase", "type")
THRESHOLD: Final = 0.01

_FORMS: Final = ("text", "json", "jsonl", "csv", "markdown", "junit")


@click.command(short_help="Two runs beside each other: what is faster, and whether that is noise.")
@paired_source_options
@twice
@selection_options
@time_options
@output_options(*_FORMS)
@click.option(
    "--by",
    type=Choice(BY),
    default=BY[0],
    show_default=True,
    help="Phases of the step; or types of the execution model.",
)
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    metavar="EXPR",
    help="Exit with 1 where B exceeds A by that, as 'step_time>5%'; repeatable.",
)
@click.option(
    "--threshold",
    type=Parsed("SHARE", share),
    default=THRESHOLD,
    metavar="1%",
    help="Differences below it, of the step, do not matter; 1% by default.",
)
def diff(**options: Any) -> Outcome:
    """Compare B with A: step, phases, critical path, what is outside of steps; or traces by operation.

    A and B are SOURCEs, or SOURCE#RUN with the first digits of a run's id. With one SOURCE or none, an option
    given twice says which is which; without any, B is the latest run in it and A the one before.

    \b
    grademl diff                                       the latest run, and the one before
    grademl diff old-runs new-runs --fail-on 'step_time>5%'
    grademl diff 'grademl-runs#3f2a' 'grademl-runs#91bc'
    grademl diff --run 3f2a --steps 100:500 --steps 500:900
    grademl diff jaeger://jaeger --service cart --since 2h --to 12:00 --since 1h
    """  # fmt: skip
    from grademl_otel.analyzers.comparison import ask

    style = take_style(options)
    by, fail_on, threshold = options.pop("by"), options.pop("fail_on"), options.pop("threshold")
    if style.format == "junit" and not fail_on:
        raise UsageError("-f junit is a report on limits: give some with --fail-on")
    a, b = _both(options)
    answer = ask.diff(a, b, by=by, fail_on=fail_on, threshold=threshold)
    return _outcome(answer, style)


@click.command(short_help="Hold a run against limits, for continuous integration.")
@listed_source_options("arguments", "[SOURCE] EXPR...")
@selection_options
@time_options
@output_options(*_FORMS)
def check(**options: Any) -> Outcome:
    """Say of each expression whether it holds of a run, or of traces; exit with 1 where one does not.

    \b
    grademl check 'data.wait<10%' 'p95(step_time)<250ms' complete
    grademl check runs/nightly 'ended=exit' 'ranks=8' 'steps>=1000' 'findings=0'
    grademl check jaeger://jaeger --service cart --since 1h 'p95(GET /cart)<200ms' 'errors<1%'
    """
    from grademl_otel.analyzers.comparison import ask

    style = take_style(options)
    options["source"], expressions = _source_and_expressions(options.pop("arguments"))
    query = take_query(options)
    refuse_every_attempt(query)
    return _outcome(ask.check(query, expressions), style)


def _outcome(answer: Answer[DiffDocument] | Answer[CheckDocument], style: Style) -> Outcome:
    from grademl_otel.analyzers.comparison.ask import reservation
    from grademl_otel.analyzers.reporting import comparison_tables

    document = answer.found
    if style.format == "json":
        text = document.to_json()
    elif style.format == "text":
        text = document.to_text(color=style.color)
    else:
        text = comparison_tables.write(document, style.format)
    return Outcome(text, style.output, reservation(answer, style.strict))


def _both(options: dict[str, Any]) -> tuple[Query, Query]:
    """Return the queries of A and B."""
    from grademl_otel.analyzers.comparison.ask import latest_two, split_run

    given = options.pop("sources")
    if len(given) > 2:
        raise UsageError(f"{len(given)} SOURCEs, {given[0]} the first; two are compared: A and B")
    sides: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for number, side in enumerate(sides):
        for name, value in options.items():
            side[name] = _of_side(name, value, number) if name in PAIRED else value
        side["source"] = given[min(number, len(given) - 1)] if given else None
        source, run = split_run(side["source"])
        if run is not None:
            if side["run"] is not None:
                raise UsageError(f"{side['source']} names a run, and so does --run; give one of them")
            side["source"], side["run"] = source, run
    a, b = (take_query(side) for side in sides)
    for query in (a, b):
        refuse_every_attempt(query)
    return latest_two(a) if a == b and len(given) < 2 else (a, b)


def _of_side(name: str, value: Any, number: int) -> Any:
    """Return the ``value`` of an option for side ``number``: given once for both, twice for each."""
    if len(value) > 2:
        raise UsageError(f"--{name}: given {len(value)} times; once is for both, twice for A and for B")
    chosen = value[min(number, len(value) - 1)] if value else None
    if name == "traces":
        return () if chosen is None else (chosen,)
    return chosen


def _source_and_expressions(arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return SOURCE, None for the default, and the expressions."""
    if not arguments:
        raise UsageError("what to check? give expressions, as 'step_time<200ms' or complete")
    from grademl_otel.analyzers.comparison.ask import is_source
    from grademl_otel.analyzers.comparison.expressions import suggestion

    if is_source(arguments[0]):
        if len(arguments) == 1:
            near = "" if Path(arguments[0]).exists() else suggestion(arguments[0], ("complete",))
            if near:
                raise UsageError(f"{arguments[0]} is no expression{near}")
            raise UsageError(f"what to check of {arguments[0]}? give expressions, as 'step_time<200ms'")
        return arguments[0], arguments[1:]
    return None, arguments
