# SPDX-License-Identifier: Apache-2.0
"""A text of SQL cut into its statements, by DuckDB's own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb


@dataclass(frozen=True)
class Statement:
    """One statement: from its first word, from where DuckDB tells places, to before its ``;``."""

    sql: str
    offset: int
    """Where it begins in the text, in characters."""


def statements_of(text: str) -> list[Statement]:
    """Return the statements of ``text``, without the empty ones (nothing but comments)."""
    encoded = text.encode()
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


def _tokens(text: str) -> list[tuple[int, object]]:
    """Return (position in bytes, kind) of each token."""
    return [*duckdb.tokenize(text)]


def _comment() -> object:
    return duckdb.token_type.comment
