# SPDX-License-Identifier: Apache-2.0
"""What a word of SQL that is being typed may become, by where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_PART: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OF_TABLE: Final = re.compile(
    r"(?:\bFROM|\bJOIN|\bINTO|\bDESCRIBE|\bSUMMARIZE|\bTABLE)\s+\w*\Z", re.IGNORECASE
)
_IN_TEXT: Final = re.compile(r"'((?:[^']|'')*)\Z")
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*")
_MOST: Final = 200

# fmt: off
KEYWORDS: Final = (
    "ALL", "AND", "ANTI", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "CAST", "COLUMNS", "CREATE", "CROSS",
    "DESC", "DESCRIBE", "DISTINCT", "DROP", "ELSE", "END", "EXCEPT", "EXCLUDE", "EXISTS", "EXPLAIN", "FALSE",
    "FILTER", "FROM", "FULL", "GROUP", "HAVING", "IN", "INNER", "INTERSECT", "IS", "JOIN", "LEFT", "LIKE",
    "LIMIT", "MACRO", "NOT", "NULL", "NULLS", "OFFSET", "ON", "OR", "ORDER", "OUTER", "OVER", "PARTITION",
    "PIVOT", "QUALIFY", "REPLACE", "RIGHT", "SELECT", "SEMI", "SUMMARIZE", "TABLE", "THEN", "TRUE", "UNION",
    "UNNEST", "UNPIVOT", "USING", "VALUES", "VIEW", "WHEN", "WHERE", "WINDOW", "WITH",
)
# fmt: on


@dataclass(frozen=True)
class Vocabulary:
    """The words that there are."""

    tables: Sequence[str]
    columns: Mapping[str, Sequence[str]]
    functions: Sequence[str]
    table_macros: Sequence[str]
    texts: Sequence[str]
    """What text in quotes may be: names of spans, phases, services."""


def completions(text: str, known: Vocabulary) -> Iterator[tuple[str, str, str]]:
    """Yield (what is typed of it, the whole word, what it is) for the end of ``text``, without repeats."""
    bare = _QUOTED.sub("", text)
    if in_text := _IN_TEXT.search(bare):
        yield from _begun(in_text[1], [(word.replace("'", "''"), "name") for word in known.texts])
        return
    found = _PART.search(bare)
    typed = found[0] if found else ""
    before = bare[: len(bare) - len(typed)]
    named = [table for table in known.tables if re.search(rf"\b{re.escape(table)}\b", bare, re.IGNORECASE)]
    columns = [(column, "column") for table in named or known.tables for column in known.columns[table]]
    if before.endswith("."):
        yield from _begun(typed, columns)
        return
    if _OF_TABLE.search(bare):
        tables = [(table, "table") for table in known.tables]
        yield from _begun(typed, [*tables, *((f"{name}(", "macro") for name in known.table_macros)])
        return
    if not typed:
        return
    keywords = [(word if typed.isupper() else word.lower(), "keyword") for word in KEYWORDS]
    functions = [(f"{name}(", "function") for name in known.functions]
    tables = [(table, "table") for table in known.tables]
    yield from _begun(typed, [*columns, *keywords, *tables, *functions])


def _begun(typed: str, words: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for word, kind in words:
        if word not in seen and word.lower().startswith(typed.lower()) and word != typed:
            seen.add(word)
            yield typed, word, kind
            if len(seen) == _MOST:
                return
