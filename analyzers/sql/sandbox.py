# SPDX-License-Identifier: Apache-2.0
"""A connection to a DuckDB in memory that reaches nothing but the tables it is given, unless asked to.

No files, no network, no extensions, no variables of Python; settings cannot be changed. What does not fit
into memory goes into a folder of its own, which is removed. With ``external`` files and the network are open,
as DuckDB has them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import duckdb

from grademl_otel.analyzers.sql.statements import keywords_of

_ALWAYS: Final = {
    "python_enable_replacements": "false",  # no name of a table is one of our variables
    "errors_as_json": "true",
    "max_temp_directory_size": "16GiB",
    # What cannot be known is null, neither an infinity nor an error.
    "ieee_floating_point_ops": "false",
}
_CLOSED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
}
_NEWER: Final = {"error_on_division_by_zero": "false"}
"""Settings that not every version has."""
_OUTSIDE: Final = frozenset({"COPY", "COPY_DATABASE", "EXPORT", "ATTACH", "LOAD"})
"""Kinds of statements that are for files."""
_AROUND: Final = frozenset({"PREPARE", "EXPLAIN"})
"""Those that may hold one of them."""
_LOGGING: Final = "enable_logging"
_MEMORY_SHARE: Final = 0.5
"""Of what DuckDB would take by itself, which is 80 % of what there is: we hold the columns, too."""


def connect(folder: str, external: bool = False) -> duckdb.DuckDBPyConnection:
    """Return a connection, its settings not yet locked; ``folder`` is for what does not fit into memory."""
    config: dict[str, Any] = {**_ALWAYS, **({} if external else _CLOSED), "temp_directory": folder}
    connection = duckdb.connect(":memory:", config=config)
    for name, value in _NEWER.items():
        with suppress(duckdb.Error):
            connection.execute(f"SET {name} = {value}")
    limit = connection.execute("SELECT current_setting('memory_limit')").fetchone()
    assert limit is not None
    connection.execute(f"SET memory_limit = '{_part(limit[0])}'")
    return connection


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """Let nothing change the settings from now on."""
    connection.execute("SET lock_configuration = true")


def reaches_out(kind: str, sql: str) -> bool:
    """Whether a statement is for files: DuckDB leaves its own temporary folder open to those."""
    return kind in _OUTSIDE or (kind in _AROUND and not keywords_of(sql).isdisjoint(_OUTSIDE))


def logs(sql: str) -> bool:
    """Whether a statement turns on DuckDB's log: 1.5 does not call it a setting, and aborts over its file."""
    return _LOGGING in sql.lower()


def _part(limit: str) -> str:
    number, unit = limit.split()
    return f"{float(number) * _MEMORY_SHARE:.3f} {unit}"
