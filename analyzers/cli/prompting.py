# SPDX-License-Identifier: Apache-2.0
"""The prompt of `grademl query`: statements until `;`, answers below them; an error does not end it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]

from grademl_otel.analyzers.cli.interrupts import interruptible
from grademl_otel.analyzers.errors import GrademlError
from grademl_otel.analyzers.printable import clean, clean_lines
from grademl_otel.analyzers.reporting.canvas import LEFT, Canvas, table
from grademl_otel.analyzers.secrecy import hidden
from grademl_otel.analyzers.sql.completion import Vocabulary, completions
from grademl_otel.analyzers.sql.database import Database
from grademl_otel.analyzers.sql.macros import MACROS
from grademl_otel.analyzers.sql.screen import draw, excerpt_of
from grademl_otel.analyzers.sql.statements import is_ended
from grademl_otel.analyzers.suggest import or_near

_HELP: Final = (
    ("SELECT ...;", "a statement of SQL, over several lines until its `;`"),
    (".tables", "the tables, and the views that you made"),
    (".schema TABLE", "its columns"),
    (".macros", "what SQL here has beyond DuckDB's"),
    (".quit", "or Ctrl-D"),
)
_SAME: Final = {
    "\\d": ".schema", "\\dt": ".tables", "\\q": ".quit", "\\?": ".help",
    ".exit": ".quit", "quit": ".quit", "exit": ".quit", "help": ".help",
}  # fmt: skip
"""As other prompts call it."""


def prompt(database: Database, color: bool = True) -> None:
    """Ask for statements, and answer each, until the end of input."""
    session = _session(database, color)
    commands = _Commands(database, color)
    click.echo("SQL ends with ;   .help tells more, .quit or Ctrl-D ends")
    while True:
        running = False
        try:
            text = session.prompt()
            running = True
            # Of its own for each statement: the Ctrl-C that ends one must not be the first of two.
            with interruptible():
                if not _answered(text.strip(), database, commands, color):
                    return
        except EOFError:
            return
        except KeyboardInterrupt:
            if running:
                _tell("interrupted")
        except GrademlError as error:
            _tell(str(error), error.excerpt)


def _answered(text: str, database: Database, commands: _Commands, color: bool) -> bool:
    """Answer ``text``; return False where it asks to end."""
    if not text:
        return True
    if (command := _command(text)) is not None:
        return commands.run(*command)
    rows = database.run(text)
    if rows is not None:
        canvas = _canvas(color)
        draw(canvas, excerpt_of(rows))
        click.echo(canvas.text(), nl=False)
    for line in database.why_empty():
        _tell(line)
    return True


class _Commands:
    """What begins with a dot."""

    def __init__(self, database: Database, color: bool) -> None:
        self._database, self._color = database, color
        self._of: dict[str, Callable[[str], None]] = {
            ".help": self._help,
            ".tables": self._tables,
            ".schema": self._schema,
            ".macros": self._macros,
        }

    def run(self, name: str, argument: str) -> bool:
        """Run a command; return False for the one that ends."""
        if name == ".quit":
            return False
        if name == ".schema" and not argument:
            name = ".tables"
        if name in self._of:
            self._of[name](argument)
        else:
            _tell(f"no command {name}; {or_near(name, [*self._of, '.quit'])}")
        return True

    def _help(self, _: str) -> None:
        self._show([("", LEFT), ("", LEFT)], _HELP)

    def _tables(self, _: str) -> None:
        self._show([("table", LEFT), ("", LEFT)], self._database.described())

    def _schema(self, name: str) -> None:
        names = self._database.names()
        if name not in names.tables:
            _tell(f"no table {name}; {or_near(name, names.tables)}")
            return
        rows = self._database.columns_of(name)
        self._show([("column", LEFT), ("type", LEFT), ("", LEFT)], rows)

    def _macros(self, _: str) -> None:
        self._show([("macro", LEFT), ("", LEFT)], [(macro.call, macro.about) for macro in MACROS])

    def _show(self, columns: list[tuple[str, str]], rows: Iterable[tuple[str, ...]]) -> None:
        canvas = _canvas(self._color)
        canvas.tables([table("", columns, rows, header=any(heading for heading, _ in columns))])
        click.echo(canvas.text(), nl=False)


def _command(text: str) -> tuple[str, str] | None:
    """Return (command, its argument) where ``text`` is one, else None."""
    name, _, argument = text.rstrip("; ").partition(" ")
    name = _SAME.get(name.lower(), name)
    return (name, argument.strip()) if re.match(r"[.\\]", name) else None


def _session(database: Database, color: bool) -> PromptSession[str]:
    keys = KeyBindings()

    @Condition
    def is_whole() -> bool:
        text = session.default_buffer.text
        return not text.strip() or _command(text.strip()) is not None or is_ended(text)

    @keys.add("enter", filter=is_whole)
    def accept(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    plain = {} if color else {"color_depth": ColorDepth.DEPTH_1_BIT}
    session: PromptSession[str] = PromptSession(
        "sql> ",
        multiline=True,
        prompt_continuation=lambda width, number, wrapped: "...> ".rjust(width),
        lexer=PygmentsLexer(SqlLexer) if color else None,
        completer=_Words(database),
        complete_while_typing=False,
        key_bindings=keys,
        history=_history(),
        **plain,  # type: ignore[arg-type]
    )
    return session


class _Words(Completer):
    def __init__(self, database: Database) -> None:
        self._database = database

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.lstrip().startswith("."):
            return
        for typed, word, kind in completions(text, self._vocabulary()):
            yield Completion(word, start_position=-len(typed), display=clean(word), display_meta=kind)

    def _vocabulary(self) -> Vocabulary:
        names = self._database.names()
        macros = [macro.name for macro in MACROS if macro.is_table]
        return Vocabulary(names.tables, names.columns, names.functions, macros, self._database.texts())


def _history(environ: Mapping[str, str] = os.environ) -> History:
    """Return the history in the user's state folder (XDG), or one that is forgotten."""
    base = environ.get("XDG_STATE_HOME") or ""
    folder = (Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()) / "grademl"
    path = folder / "query-history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(str(path))


def _canvas(color: bool) -> Canvas:
    return Canvas(None if color else False)


def _tell(line: str, excerpt: str | None = None) -> None:
    click.echo(f"grademl: {hidden(clean(line))}", err=True)
    if excerpt is not None and sys.stderr.isatty():
        click.echo(hidden(clean_lines(excerpt)), err=True)
