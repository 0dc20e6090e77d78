# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the query and the style they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from grademl_otel.analyzers.cli import parse
from grademl_otel.analyzers.cli.completion import files, sources, words
from grademl_otel.analyzers.cli.completion import runs as run_ids
from grademl_otel.analyzers.cli.progress import ProgressLine
from grademl_otel.analyzers.errors import UsageError

if TYPE_CHECKING:
    from grademl_otel.analyzers.model.clocks import ClockRule
    from grademl_otel.analyzers.queries import Query

Command = TypeVar("Command", bound=Callable[..., Any])


def _one(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> str | None:
    """Return the one SOURCE that may be given; a shell makes several of a glob."""
    if len(given) > 1 and not context.resilient_parsing:
        raise UsageError(
            f"{len(given)} SOURCEs, {given[0]} the first; one is taken: a folder, a glob in quotes ('a*')"
        )
    return given[0] if given else None


source_argument: Final = click.argument(
    "source", nargs=-1, metavar="[SOURCE]", callback=_one, shell_complete=sources
)

_SOURCE: Final = (
    source_argument,
    click.option("--header", "headers", multiple=True, metavar="K=V",
                 help="HTTP header to send to the source; repeatable. Also $GRADEML_HEADERS."),
    click.option("--ca", metavar="FILE", shell_complete=files,
                 help="Trust the certificates in FILE instead of the system's. Also $GRADEML_CA."),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S",
                 help="Seconds to wait for a server's answer."),
)  # fmt: skip
_BOUND: Final = (
    click.option("--max-spans", type=click.IntRange(min=1), metavar="N", help="Read at most about N spans."),
)  # fmt: skip
_TIME: Final = (
    click.option("--service", metavar="S", help="Only runs and traces in which this service occurs."),
    click.option("--since", type=parse.Parsed("DURATION", parse.duration_ns), metavar="1h",
                 help="Only what was still going on so long ago, or later."),
    click.option("--from", "start", type=parse.Parsed("TIME", parse.time_ns), metavar="T",
                 help="Only what was still going on at T, or later (ISO 8601 or Unix seconds)."),
    click.option("--to", "end", type=parse.Parsed("TIME", parse.time_ns), metavar="T",
                 help="Only what began before T."),
)  # fmt: skip
_WHICH: Final = (
    click.option("--run", metavar="ID|latest", shell_complete=run_ids,
                 help="This run: its id or the first digits of it; the latest by default."),
    click.option("--attempt", metavar="N|last|all", shell_complete=words("last", "all"),
                 help="Attempt of the run; the last by default."),
    click.option("--trace", "traces", multiple=True, metavar="ID", help="Only this trace; repeatable."),
    click.option("--operation", metavar="O", help="Only traces with this operation."),
    click.option("--attribute", "attributes", multiple=True, type=parse.Parsed("K=V", parse.attribute),
                 metavar="K=V", help="Only traces with a span that has this attribute; repeatable."),
)  # fmt: skip
_PART: Final = (
    click.option("--fit", type=click.IntRange(min=1), metavar="N",
                 help="Fit of the run; the last by default."),
    click.option("--ranks", type=parse.Parsed("RANKS", parse.ranks), metavar="0-3,7",
                 help="Only these ranks."),
    click.option("--steps", type=parse.Parsed("STEPS", parse.steps), metavar="100:200|last:500|all",
                 shell_complete=words("all"),
                 help="Only these training steps."),
    click.option("--clocks", multiple=True, metavar="auto|off|HOST=MS", shell_complete=words("auto", "off"),
                 help="Clocks of hosts: shift as spans tell (auto), not at all, or by so much; repeatable."),
    click.option("--overlap-tolerance", "tolerance", type=parse.Parsed("TOLERANCE", parse.tolerance),
                 metavar="1%|0|50us", help="Overlap of siblings of one lane to be cut; 0 for none."),
    click.option("--no-inferred", is_flag=True, help="Only what was observed, not what times suggest."),
)  # fmt: skip
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="The same as -f json.")
_DEBUG: Final = click.option(
    "--debug", is_flag=True, help="Show what servers are asked, and the traceback of an error."
)
_FILE: Final = click.option(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=files,
    help="Write the answer to FILE, whole or not at all.",
)
_STRICT: Final = click.option("--strict", is_flag=True, help="Exit with 4 when the data are incomplete.")
_COMMON: Final = (
    _FILE,
    click.option("--no-color", is_flag=True, help="No colours. Also $NO_COLOR."),
    _STRICT,
    _DEBUG,
)


PAIRED: Final = (
    "run", "attempt", "fit", "traces", "operation", "service", "since", "start", "end", "ranks", "steps",
)  # fmt: skip
"""Options of which `diff` takes one for both of its sides, or one for each."""


def source_options(command: Command) -> Command:
    """Add SOURCE and how to read it."""
    return _apply((*_SOURCE, *_BOUND), command)


def copied_source_options(command: Command) -> Command:
    """Add SOURCE and how to reach it, without a bound: a copy is of everything."""
    return _apply(_SOURCE, command)


def paired_source_options(command: Command) -> Command:
    """Add A and B, and how to read them."""
    argument = click.argument("sources", nargs=-1, metavar="[A] [B]", shell_complete=sources)
    return _apply((argument, *_SOURCE[1:], *_BOUND), command)


def listed_source_options(name: str, metavar: str) -> Callable[[Command], Command]:
    """Add SOURCE among other arguments, and how to read it."""

    def decorate(command: Command) -> Command:
        argument = click.argument(name, nargs=-1, metavar=metavar, shell_complete=sources)
        return _apply((argument, *_SOURCE[1:], *_BOUND), command)

    return decorate


def twice(command: Command) -> Command:
    """Let each option below it that selects be given twice: for A, then for B."""
    for option in command.__click_params__:  # type: ignore[attr-defined]
        if isinstance(option, click.Option) and option.name in PAIRED:
            option.multiple = True
            what = (option.help or "").removesuffix("; repeatable.").rstrip(".")
            option.help = f"{what}. Twice: of A, of B."
    return command


def time_options(command: Command) -> Command:
    """Add the choice by service and time, which every command has."""
    return _apply(_TIME, command)


def since_options(command: Command) -> Command:
    """Add the same without an end, for a command that has another ``--to``."""
    return _apply(_TIME[:-1], command)


def selection_options(command: Command) -> Command:
    """Add the choice of a run, an attempt, traces, ranks and steps."""
    return _apply((*_WHICH, *_PART), command)


def which_options(command: Command) -> Command:
    """Add the choice of a run, an attempt and traces, not of a part of one."""
    return _apply(_WHICH, command)


def output_options(*formats: str) -> Callable[[Command], Command]:
    """Add the choice of a format, of a file, and how strict to be."""

    def decorate(command: Command) -> Command:
        shared = (
            click.option(
                "-f", "--format", "format_", type=parse.Choice(formats), help="Format of the answer."
            ),
            _JSON,
            *_COMMON,
        )
        return _apply(shared, command)

    return decorate


def file_options(command: Command) -> Command:
    """Add the choice of a file for a command whose answer has a form of its own; JSON tells what it wrote."""
    told = click.option("--json", "as_json", is_flag=True, help="Tell what was written, as JSON; needs -o.")
    return _apply((_FILE, told, _STRICT, _DEBUG), command)


def plain_output_options(command: Command) -> Command:
    """Add the choice of text or JSON for a command whose answer is what it did."""
    formats = click.option("-f", "--format", "format_", type=parse.Choice(("text", "json")),
                           help="Format of the answer.")  # fmt: skip
    return _apply((formats, _JSON, _DEBUG), command)


def _apply(decorators: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@dataclass(frozen=True)
class Style:
    """How to write the answer, from the options of `output_options`."""

    format: str
    output: str | None
    no_color: bool
    strict: bool

    @property
    def color(self) -> bool | None:
        """Whether to write colours: never into a file; None if standard output likes them."""
        return False if self.no_color or self.output is not None else None


def take_style(options: dict[str, Any]) -> Style:
    """Remove the output options from ``options`` and return them as one value."""
    chosen: str | None = options.pop("format_")
    if options.pop("as_json"):
        if chosen not in (None, "json"):
            raise UsageError(f"--json and -f {chosen} contradict each other; give one of them")
        chosen = "json"
    options.pop("debug")
    return Style(
        chosen or "text",
        options.pop("output", None),
        options.pop("no_color", False),
        options.pop("strict", False),
    )


def take_query(options: dict[str, Any]) -> Query:
    """Return the rest of ``options`` as a query."""
    # Loaded here, with most of the analysis: help and completion do without it.
    from grademl_otel.analyzers.queries import Query
    from grademl_otel.analyzers.sources.base import no_progress
    from grademl_otel.analyzers.sources.credentials import parse_headers

    attempt = options.pop("attempt", None)
    run = options.pop("run", None)
    return Query.of(
        options.pop("source"),
        run=None if run == "latest" else run,
        attempt=_attempt(attempt),
        every_attempt=attempt == "all",
        clocks=_clocks(options.pop("clocks", ())),
        inferred=not options.pop("no_inferred", False),
        headers=parse_headers(options.pop("headers")),
        progress=click.get_current_context().find_object(ProgressLine) or no_progress,
        **options,
    )


def refuse_every_attempt(query: Query) -> None:
    """Raise UsageError where all attempts are asked for, and a command is about one."""
    if query.every_attempt:
        raise UsageError("--attempt all: one attempt at a time here; name each with --attempt N")


def _attempt(text: str | None) -> int | None:
    if text in (None, "last", "all"):
        return None
    if not text.isdigit() or len(text) > 9:
        raise UsageError(f"--attempt {text}: give a number, 'last' or 'all'")
    return int(text)


def _clocks(texts: Sequence[str]) -> ClockRule | None:
    from grademl_otel.analyzers.model.clocks import ClockRule

    try:
        return ClockRule.parse(texts) if texts else None
    except ValueError as error:
        raise UsageError(f"--clocks {error}") from None
