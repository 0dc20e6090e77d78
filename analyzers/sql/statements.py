# SPDX-License-Identifier: Apache-2.0
"""A text of SQL cut into its statements, by DuckDB's own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from grademl_otel.analyzers.errors import UsageError


@dataclass(frozen=True)
class Statement:
    """One statement: from its first word, from where DuckDB tells places, to before its ``;``."""

    sql: str
    offset: int
    """Where it begins in the text, in characters."""


def statements_of(text: str) -> list[Statement]:
    """Return the statements of ``text``, without the empty ones (nothing but comments).

    UsageError where ``text`` is not Unicode, as what a shell hands over may be.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the SQL is not UTF-8: character {error.start + 1}") from None
    tokens = _tokens(text)
    ends = [at for at, kind in tokens if kind == duckdb.token_type.operator and encoded[at : at + 1] == b";"]
    found = []
    for start, end in zip([0, *(at + 1 for at in ends)], [*ends, len(encoded)], strict=True):
        first = next((at for at, kind in tokens if start <= at < end and kind != _comment()), None)
        if first is not None:
            found.append(Statement(encoded[first:end].decode(), len(encoded[:first].decode())))
    return found


def is_ended(text: str) -> bool:
    """Whether the last statement of ``text`` has its ``;``, or there is none."""
    tokens = [(at, kind) for at, kind in _tokens(text) if kind != _comment()]
    if not tokens:
        return True
    at, kind = tokens[-1]
    return bool(kind == duckdb.token_type.operator and text.encode()[at : at + 1] == b";")


def keywords_of(sql: str) -> set[str]:
    """Return the keywords of a statement, in capitals."""
    tokens = _tokens(sql)
    ends = [*(at for at, _ in tokens[1:]), None]
    encoded = sql.encode()
    return {
        encoded[at:end].decode().split()[0].upper()
        for (at, kind), end in zip(tokens, ends, strict=True)
        if kind == duckdb.token_type.keyword
    }


def _tokens(text: str) -> list[tuple[int, object]]:
    """Return (position in bytes, kind) of each token."""
    return [*duckdb.tokenize(text)]


def _comment() -> object:
    return duckdb.token_type.comment
