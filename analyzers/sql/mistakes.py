# SPDX-License-Identifier: Apache-2.0
"""What DuckDB says of a statement that it cannot run, as one line that points at the place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.sql.statements import Statement
from grademl_otel.analyzers.suggest import near

CLOSED: Final = "files, the network and extensions are closed to SQL here; --external opens them"
_LISTED: Final = 20
_OF_ALIAS: Final = re.compile(r'does not have a column named "(.*)"')
_OF_FUNCTION: Final = re.compile(r"Python exception occurred while executing the UDF: \w+: ")
_IN_EXTENSION: Final = re.compile(r"exists in the \w+ extension")
_WIDEST: Final = 100
"""So many characters of a line are shown around the place."""


class SqlError(UsageError):
    """A statement cannot be run: where, why, and what may have been meant."""

    def __init__(self, what: str, text: str, at: int | None) -> None:
        """``at`` is the place in ``text``, in characters; None where it is not known."""
        where = ""
        if at is not None:
            before = text[:at]
            line, column = before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1
            where = f"line {line}, column {column}: "
            self.excerpt = _excerpt(text, at)
        super().__init__(f"SQL: {where}{what}")


@dataclass(frozen=True)
class Names:
    """What there is, by which a mistyped name is looked for."""

    tables: Sequence[str]
    columns: Mapping[str, Sequence[str]]
    """Of each table."""
    functions: Sequence[str]


def explained(error: duckdb.Error, statement: Statement, text: str, names: Names) -> SqlError:
    """Return what ``error`` says of ``statement`` in ``text``."""
    told = _told(error)
    at = _place(told, statement)
    return SqlError(_words(told, statement, names), text, at)


def _told(error: duckdb.Error) -> dict[str, str]:
    """Return what DuckDB wrote as JSON, else the message alone."""
    kind, _, rest = str(error).partition(": ")
    try:
        found = json.loads(rest)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"exception_type": kind.removesuffix(" Error"), "exception_message": rest or kind}
    return found


def has_place(error: duckdb.Error) -> bool:
    """Whether ``error`` tells where in the statement it is."""
    return "position" in _told(error)


def is_parsers(error: duckdb.Error) -> bool:
    """Whether ``error`` is about the syntax."""
    return _told(error).get("exception_type") == "Parser"


def moved(error: duckdb.Error, by: int) -> duckdb.Error:
    """Return ``error`` with its place ``by`` bytes later."""
    told = _told(error)
    if "position" in told:
        told["position"] = str(int(told["position"]) + by)
    return duckdb.Error(f"{told.get('exception_type', '')} Error: {json.dumps(told)}")


def _place(told: dict[str, str], statement: Statement) -> int | None:
    if not told.get("position", "").isdigit():
        return None
    before = statement.sql.encode()[: int(told["position"])]
    return statement.offset + len(before.decode(errors="ignore"))


def _words(told: dict[str, str], statement: Statement, names: Names) -> str:
    kind, subtype = told.get("exception_type", ""), told.get("error_subtype", "")
    name, message = told.get("name", ""), told.get("exception_message", "")
    if kind == "Permission" or "secrets are disabled" in message or _IN_EXTENSION.search(message):
        return CLOSED
    if "configuration has been locked" in message:
        return "settings cannot be changed here"
    if kind == "Out of Memory":
        return "this needs more memory, and more room for what does not fit, than it may take; ask for less"
    if of_alias := _OF_ALIAS.search(message):
        return _no_column(of_alias[1], statement, told, names)
    if subtype == "COLUMN_NOT_FOUND":
        return _no_column(name, statement, told, names)
    if subtype == "MISSING_ENTRY" and told.get("type") == "Table":
        if "/" in name or "." in name:
            return f"no table {clean(name)!r}: {CLOSED}"
        there = _listed([*names.tables])
        return f"no table {clean(name)}; {_meant(name, names.tables) or f'there are {there}'}"
    if subtype == "MISSING_ENTRY" and told.get("type", "").endswith("Function"):
        found = _meant(name, names.functions)
        return f"no function {clean(name)}" + (f"; {found}" if found else "")
    return _first_lines(message)


def _no_column(name: str, statement: Statement, told: dict[str, str], names: Names) -> str:
    """Return the nearest column of the tables that the statement names, else all of them."""
    named = [table for table in names.tables if table in statement.sql.lower()]
    there = [column for table in named for column in names.columns.get(table, ())]
    candidates = [one for one in told.get("candidates", "").split(",") if one]
    last = name.rpartition(".")[2]
    if found := _meant(last, [one for one in (*there, *candidates) if one != last]):
        return f"no column {clean(name)}; {found}"
    if len(named) == 1:
        return f"no column {clean(name)}; {named[0]} has {_listed(names.columns[named[0]])}"
    return f"no column {clean(name)}" + (f"; there are {_listed(candidates)}" if candidates else "")


def _meant(name: str, there: Sequence[str]) -> str | None:
    found = near(name, dict.fromkeys(there))
    return f"did you mean {found}?" if found else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _first_lines(message: str) -> str:
    """Return ``message`` without what Python adds to it."""
    message = _OF_FUNCTION.sub("", message)
    return message.partition("\n\nAt:")[0].partition("\n\nLINE ")[0]


def _excerpt(text: str, at: int) -> str:
    """Return the line of ``at``, and a caret below the place."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line, column = text[start : len(text) if end < 0 else end], at - start
    cut = max(0, column - _WIDEST // 2)
    shown = clean(line[cut : cut + _WIDEST].replace("\t", " "))
    return f"  {shown}\n  {' ' * (column - cut)}^"
