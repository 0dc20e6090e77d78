# SPDX-License-Identifier: Apache-2.0
"""`grademl query`: SQL over what was recorded; one answer, or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from grademl_otel.analyzers.cli.completion import files
from grademl_otel.analyzers.cli.options import (
    Style,
    output_options,
    refuse_every_attempt,
    selection_options,
    source_options,
    take_query,
    take_style,
    time_options,
)
from grademl_otel.analyzers.cli.output import Content, Outcome
from grademl_otel.analyzers.errors import GrademlError, IncompleteError, SourceError, UsageError
from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.secrecy import hidden
from grademl_otel.analyzers.terminal import wants_color

if TYPE_CHECKING:
    from grademl_otel.analyzers.sql.database import Database, Rows
    from grademl_otel.analyzers.sql.head import Head


@click.command(short_help="SQL over spans, steps, phases, metrics and the path.")
@source_options
@click.option("-c", "--command", "sql", metavar="SQL", help="The statements to answer.")
@click.option(
    "--file",
    "script",
    metavar="FILE",
    shell_complete=files,
    help="Read the statements from FILE; - is standard input.",
)
@selection_options
@time_options
@output_options("text", "json", "jsonl", "csv", "markdown", "parquet")
@click.option("--external", is_flag=True, help="Let SQL reach files, the network and extensions.")
def query(**options: Any) -> Outcome:
    """Answer SQL (that of DuckDB) over spans, steps, phases, metrics, path and other tables (docs/query.md).

    Statements come from -c, from --file, or from standard input; on a terminal there is a prompt. Of several,
    the last one is answered. Nothing is written to SOURCE, and SQL reaches neither files nor the network.

    \b
    grademl query -c "SELECT step, duration_ns FROM steps ORDER BY duration_ns DESC LIMIT 5"
    grademl query jaeger://jaeger --run 3f2a -c "FROM path" -f parquet -o path.parquet
    """
    from grademl_otel.analyzers.subject import broken_off, read_subject

    style, sql, script = take_style(options), options.pop("sql"), options.pop("script")
    external = options.pop("external")
    asked = take_query(options)
    refuse_every_attempt(asked)
    text = _text(sql, script, asked.source)
    _check(style, text)
    about = read_subject(asked)
    # Loaded here: no other command needs DuckDB.
    with _without_pandas():
        from grademl_otel.analyzers.sql.database import Database
        from grademl_otel.analyzers.sql.head import head_of

    head, broken = head_of(about), broken_off(about.telemetry)
    if head.reservation is not None and not style.strict:
        _say(head.reservation)
    error: GrademlError | None = None
    if broken is not None:
        error = SourceError(broken)
    elif style.strict and head.reservation is not None:
        error = IncompleteError(head.reservation)
    database = Database(about, external)
    if text is None:
        from grademl_otel.analyzers.cli.prompting import prompt

        with database:
            prompt(database, color=wants_color(sys.stdout) and not style.no_color)
        return Outcome("", None, error)
    try:
        rows = database.run(text)
        if rows is None:
            raise UsageError("the last statement has no rows to show; end with a SELECT")
    except BaseException:
        database.close()
        raise
    return Outcome(_content(database, head, rows, style), style.output, error)


def _text(sql: str | None, script: str | None, source: str | None) -> str | None:
    """Return the statements; None to ask for them."""
    if sql is not None and script is not None:
        raise UsageError("-c and --file both give SQL; give one of them")
    if sql is not None:
        return sql
    if script is None and sys.stdin.isatty():
        return None
    if script in (None, "-"):
        if source == "-":
            raise UsageError("SOURCE is standard input, so that SQL cannot be; give it with -c or --file")
        return sys.stdin.read()
    try:
        return Path(script).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--file {script}: {reason.lower()}") from None


def _check(style: Style, text: str | None) -> None:
    """Raise UsageError, before the source is read, where the answer has no place to go."""
    if text is None and not sys.stdout.isatty():
        raise UsageError("a prompt is for a terminal; give SQL with -c or --file")
    if text is None and (style.output is not None or style.format != "text"):
        raise UsageError("-f and -o are for one answer; give its SQL with -c or --file")
    if style.format == "parquet" and style.output in (None, "-") and sys.stdout.isatty():
        raise UsageError("Parquet is bytes that a terminal cannot show; give a file with -o")


def _content(database: Database, head: Head, rows: Rows, style: Style) -> Content:
    from grademl_otel.analyzers.sql import forms

    if style.format == "parquet":
        return _Parquet(database, head, rows)
    pieces: dict[str, Callable[[], Iterator[str]]] = {
        "json": lambda: forms.json_of(head, rows, database.why_empty),
        "jsonl": lambda: forms.json_lines_of(rows),
        "csv": lambda: forms.csv_of(rows),
        "markdown": lambda: forms.markdown_of(rows),
        "text": lambda: _on_screen(rows, style),
    }
    content = _closing(database, pieces[style.format]())
    next(content)
    return content


def _on_screen(rows: Rows, style: Style) -> Iterator[str]:
    from grademl_otel.analyzers.reporting.canvas import Canvas
    from grademl_otel.analyzers.sql.screen import draw, excerpt_of

    canvas = Canvas(None if style.output is None and not style.no_color else False)
    draw(canvas, excerpt_of(rows))
    yield canvas.text()


class _Parquet:
    """Writes the rows, and ends the session when it is closed, written or not."""

    def __init__(self, database: Database, head: Head, rows: Rows) -> None:
        self._database, self._head, self._rows = database, head, rows

    def __call__(self, file: IO[bytes]) -> None:
        from grademl_otel.analyzers.sql.forms import write_parquet

        write_parquet(self._head, self._rows, file)
        for line in self._database.why_empty():
            _say(line)

    def close(self) -> None:
        self._database.close()


def _closing(database: Database, pieces: Iterator[str]) -> Generator[str, None, None]:
    """Yield ``pieces``, then say why tables are empty; the session ends with them, or without."""
    with database:
        yield ""  # whoever closes it now ends the session, too
        yield from pieces
        for line in database.why_empty():
            _say(line)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not now", name=name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Keep Arrow's datasets from importing pandas, where it is: that takes longer than most answers."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _say(line: str) -> None:
    with suppress(OSError):
        click.echo(f"grademl: {hidden(clean(line))}", err=True)
