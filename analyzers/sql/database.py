# SPDX-License-Identifier: Apache-2.0
"""The tables of one subject as a database: statements in, rows out, as they come."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb
import pyarrow as pa

from grademl_otel import semconv
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.sql import sandbox
from grademl_otel.analyzers.sql.lazy import LazyTable
from grademl_otel.analyzers.sql.macros import VIEWS, define
from grademl_otel.analyzers.sql.mistakes import (
    CLOSED,
    Names,
    SqlError,
    explained,
    has_place,
    is_parsers,
    moved,
)
from grademl_otel.analyzers.sql.statements import Statement, statements_of
from grademl_otel.analyzers.sql.values import rows_of
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables import TABLES, table, why_empty
from grademl_otel.analyzers.tables.arrow import schema_of

if TYPE_CHECKING:
    from grademl_otel.analyzers.sql.result import QueryResult

Made = TypeVar("Made")

_ANSWERS: Final = frozenset({"SELECT", "MULTI", "EXPLAIN", "PRAGMA", "CALL", "EXECUTE", "RELATION"})
"""Kinds of statements whose rows are an answer (MULTI: of a PIVOT); others do something."""
_NEEDLESS: Final = frozenset({"TRANSACTION"})
_MARKUP: Final = re.compile(r"\[(.*?)\]\(.*?\)|`")
BATCH_ROWS: Final = 16_384


@dataclass(frozen=True)
class ResultColumn:
    """A column of an answer: its name, and its type as DuckDB writes it."""

    name: str
    type: str


@dataclass(frozen=True)
class Rows:
    """The rows of one statement, to be read once, and before another statement is run."""

    columns: list[ResultColumn]
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns, those that occur again with a number after them."""
        seen: dict[str, int] = {}
        names = []
        for column in self.columns:
            name = column.name
            while name in seen:
                seen[column.name] += 1
                name = f"{column.name}_{seen[column.name]}"
            seen[name] = 0
            names.append(name)
        return names

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as Python values, see `values.rows_of`."""
        types = [column.type for column in self.columns]
        for batch in self.batches:
            yield from rows_of(batch, types)


class Database:
    """A session of SQL over what was read. Views, tables and macros that statements create live as long.

    Nothing is written to the source; without ``external`` no statement reaches a file or the network.
    Statements run in a thread of their own, so that Ctrl-C ends them. Close it, or use it in a ``with``.
    """

    def __init__(self, about: Subject, external: bool = False) -> None:
        self.about = about
        self._external = external
        self._folder = tempfile.TemporaryDirectory(prefix="grademl-sql-", ignore_cleanup_errors=True)
        self._thread = ThreadPoolExecutor(1, "grademl-sql")
        self._connection = sandbox.connect(self._folder.name, external)
        self._tables = {
            name: LazyTable(schema_of(schema), partial(table, about, name)) for name, schema in TABLES.items()
        }
        self._define()
        if not external:
            sandbox.lock(self._connection)
        self._own = self._entries()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session and remove what it has put on disk."""
        self._connection.interrupt()
        self._thread.shutdown()
        self._connection.close()
        self._folder.cleanup()

    def run(self, text: str) -> Rows | None:
        """Run the statements of ``text``; return the rows of the last one, None where it has none.

        Those before it are there for what they define: their rows are not made. Raises SqlError, UsageError
        where there is no statement, and what reading a table raises.
        """
        statements = statements_of(text)
        if not statements:
            raise UsageError("there is no SQL; as in: SELECT name, count(*) FROM spans GROUP BY ALL")
        for one in self._tables.values():
            one.scanned = False
        for statement in statements[:-1]:
            self._run(statement, text, wanted=False)
        return self._run(statements[-1], text)

    def query(self, text: str) -> QueryResult:
        """Run the statements of ``text`` and return all rows of the last one. Raises as `run` does."""
        from grademl_otel.analyzers.sql.result import QueryResult  # which is made of what is here

        rows = self.run(text)
        if rows is None:
            raise UsageError("the last statement has no rows to show; end with a SELECT")
        return QueryResult.of(self, rows)

    def why_empty(self) -> list[str]:
        """Return why tables that the last statements have scanned have no rows, where they have none."""
        scanned = [name for name, one in self._tables.items() if one.scanned]
        return [line for name in scanned if (line := why_empty(self.about, name)) is not None]

    def described(self) -> list[tuple[str, str]]:
        """Return (table, what a row of it is): ours, then what statements made."""
        known = {name: schema.about for name, schema in TABLES.items()}
        known |= {view.name: view.about for view in VIEWS}
        plain = {name: _MARKUP.sub(lambda found: found[1] or "", about) for name, about in known.items()}
        return [(name, plain.get(name, "made in this session")) for name in self.names().tables]

    def columns_of(self, name: str) -> list[tuple[str, str, str]]:
        """Return (column, type, what it is) of a table."""
        about = {one.name: one.about for one in TABLES[name].columns} if name in TABLES else {}
        found = self._connection.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index",
            [name],
        ).fetchall()
        return [(column, of, about.get(column, "")) for column, of in found]

    def texts(self) -> list[str]:
        """Return what columns of names hold: of spans, phases, services."""
        spans = self.about.telemetry.spans
        services = [str(one.get("service.name", "")) for one in spans.resources]
        return list(dict.fromkeys([*semconv.PHASES, *spans.names, *services]))

    def names(self) -> Names:
        """Return the names that statements can use."""
        columns = self._connection.execute(
            "SELECT table_name, list(column_name) FROM duckdb_columns() WHERE NOT internal GROUP BY ALL"
        ).fetchall()
        functions = self._connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions()"
        ).fetchall()
        known = {name: schema.column_names for name, schema in TABLES.items()} | dict(columns)
        return Names([*known], known, [name for (name,) in functions])

    def _run(self, statement: Statement, text: str, wanted: bool = True) -> Rows | None:
        try:
            (*_, kind) = (one.type.name for one in self._connection.extract_statements(statement.sql))
            if kind in _NEEDLESS:
                raise SqlError("a session has no transactions", text, statement.offset)
            if not self._external and (
                sandbox.reaches_out(kind, statement.sql) or sandbox.logs(statement.sql)
            ):
                raise SqlError(CLOSED, text, None)
            if kind not in _ANSWERS:
                self._wait(lambda: self._connection.execute(statement.sql))
                self._restore(statement, text)
                return None
            relation = self._wait(lambda: self._connection.sql(statement.sql))
            self._restore(statement, text)
            if not wanted or relation is None:
                return None
            columns = [
                ResultColumn(name, str(of)) for name, of in zip(relation.columns, relation.types, strict=True)
            ]
            read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
            reader = self._wait(lambda: read(BATCH_ROWS))
        except (duckdb.Error, pa.ArrowException) as error:
            raise self._explained(error, statement, text) from None
        return Rows(columns, reader.schema, self._batches(reader, statement, text))

    def _batches(
        self, reader: pa.RecordBatchReader, statement: Statement, text: str
    ) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = self._wait(lambda: next(reader, None))
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self._explained(error, statement, text) from None
            if batch is None:
                return
            yield batch

    def _wait(self, work: Callable[[], Made]) -> Made:
        """Do ``work`` in the thread; Ctrl-C ends it."""
        future = self._thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._connection.interrupt()
            wait([future])
            raise

    def _explained(self, error: Exception, statement: Statement, text: str) -> Exception:
        """Return the error of ours that ``error`` stands for."""
        for one in self._tables.values():
            if (failure := one.failure) is not None:
                one.failure = None
                if isinstance(failure, Exception):
                    return failure
        if not isinstance(error, duckdb.Error):
            error = duckdb.Error(str(error))
        if not has_place(error):
            error = self._asked_again(error, statement)
        return explained(error, statement, text, self.names())

    def _asked_again(self, error: duckdb.Error, statement: Statement) -> duckdb.Error:
        """Return ``error`` with its place: of a relation DuckDB does not tell it, of a plan it does."""
        before = "EXPLAIN "
        try:
            self._connection.execute(before + statement.sql)
        except duckdb.Error as told:
            if not is_parsers(told):  # not every statement has a plan
                return moved(told, -len(before))
        return error

    def _define(self) -> None:
        for name, one in self._tables.items():
            self._connection.register(name, one)
        define(self._connection)

    def _entries(self) -> set[tuple[object, ...]]:
        """Return (database, schema, name, number) of what has the name of one of our tables or views."""
        names = ", ".join(f"'{name}'" for name in [*TABLES, *(view.name for view in VIEWS)])
        found = self._connection.execute(
            "SELECT database_name, schema_name, view_name, view_oid FROM duckdb_views()"
            f" WHERE lower(view_name) IN ({names}) UNION ALL"
            " SELECT database_name, schema_name, table_name, table_oid FROM duckdb_tables()"
            f" WHERE lower(table_name) IN ({names})"
        ).fetchall()
        return set(found)

    def _restore(self, statement: Statement, text: str) -> None:
        """Raise SqlError, with all as it was, where a statement has replaced or dropped a table of ours."""
        now = self._entries()
        if now == self._own:
            return
        (name, *_) = sorted(str(entry[2]) for entry in now ^ self._own)
        for database, schema, other, _ in now - self._own:
            for kind in ("VIEW", "TABLE"):
                with suppress(duckdb.Error):
                    self._connection.execute(f'DROP {kind} IF EXISTS "{database}"."{schema}"."{other}"')
        self._define()
        self._own = self._entries()
        raise SqlError(f"{name} is a table of what was read, and stays; choose another name", text, None)
