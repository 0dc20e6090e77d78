# SPDX-License-Identifier: Apache-2.0
"""What a copy consists of: a small SQLite file beside the spans. What it does not name is not in the copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from grademl_otel.analyzers.copy import MANIFEST
from grademl_otel.analyzers.copy.records import (
    DONE,
    SCHEMA,
    WAITING,
    CopiedFile,
    CopiedMetrics,
    CopiedPiece,
    Origin,
)
from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger

BUSY_S: Final = 10.0
_TABLES: Final = (
    "CREATE TABLE copy (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE pieces (key TEXT PRIMARY KEY, state TEXT NOT NULL, final INTEGER NOT NULL,"
    " expected INTEGER, received INTEGER, reading INTEGER, ledger TEXT)",
    "CREATE TABLE files (name TEXT PRIMARY KEY, spans INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "CREATE TABLE parts (file TEXT NOT NULL, reading INTEGER NOT NULL, spans INTEGER NOT NULL,"
    " PRIMARY KEY (file, reading)) WITHOUT ROWID",
)
_METRICS: Final = (
    "CREATE TABLE IF NOT EXISTS metrics (key TEXT PRIMARY KEY, version TEXT NOT NULL, file TEXT,"
    " bytes INTEGER NOT NULL, points INTEGER NOT NULL, warnings TEXT NOT NULL)"
)
"""Apart: copies were made without them, and are read and topped up all the same."""


class Manifest:
    """The manifest of a folder that the caller has locked: reads the state, writes changes to it.

    Raises SourceError for one that is damaged, UsageError where it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with explained(folder):
            self._database = sqlite3.connect(folder / MANIFEST, timeout=BUSY_S, isolation_level=None)
            self._set_journal("WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._make_tables()
            self._next_reading = 1 + max(
                count(self._database, "SELECT coalesce(max(reading), -1) FROM parts"),
                count(self._database, "SELECT coalesce(max(reading), -1) FROM pieces"),
            )

    def _make_tables(self) -> None:
        """Create what an empty file lacks, all or nothing."""
        if count(self._database, "SELECT count(*) FROM sqlite_master WHERE name = 'copy'"):
            about = dict(self._database.execute("SELECT key, value FROM copy"))
            check_schema(self._folder, about.get("schema"))
            self._database.execute(_METRICS)
            return
        with self._transaction():
            for table in (*_TABLES, _METRICS):
                self._database.execute(table)
            self._put("schema", str(SCHEMA))

    @property
    def origin(self) -> Origin | None:
        """Where the copy is from; None before the first pull has said so."""
        with explained(self._folder):
            row = self._database.execute("SELECT value FROM copy WHERE key = 'origin'").fetchone()
            return msgspec.json.decode(row[0], type=Origin) if row else None

    def begin(self, origin: Origin) -> None:
        """Note that a pull is at work; the copy is not complete until it ends."""
        with self._transaction():
            self._put("origin", msgspec.json.encode(origin).decode())
            self._put("complete", "0")

    def files(self) -> list[CopiedFile]:
        """Return the files named; of those only that no piece needs, ``parts`` is empty."""
        with explained(self._folder):
            parts: dict[str, list[tuple[int, int]]] = {}
            for name, reading, rows in self._database.execute(
                "SELECT file, reading, spans FROM parts WHERE reading IN (SELECT reading FROM pieces)"
            ):
                parts.setdefault(name, []).append((reading, rows))
            rows_of_files = self._database.execute("SELECT name, bytes FROM files ORDER BY name").fetchall()
            return [CopiedFile(name, size, parts.get(name, [])) for name, size in rows_of_files]

    def forget_files(self, names: Sequence[str]) -> None:
        """Take files out, and with them the pieces that had rows there: they are waiting again."""
        with self._transaction():
            for name in names:
                self._database.execute(
                    "UPDATE pieces SET state = ?, reading = NULL, received = NULL WHERE reading IN"
                    " (SELECT reading FROM parts WHERE file = ?)",
                    (WAITING, name),
                )
                self._database.execute("DELETE FROM parts WHERE file = ?", (name,))
                self._database.execute("DELETE FROM files WHERE name = ?", (name,))

    def metrics(self) -> list[CopiedMetrics]:
        """Return the metrics that were copied, in that order."""
        with explained(self._folder):
            return metrics_in(self._database)

    def commit_metrics(self, part: CopiedMetrics) -> None:
        """Name the metrics of a file of the source, in place of those that it held before."""
        values = (part.key, part.version, part.file, part.bytes, part.points)
        with self._transaction():
            self._database.execute(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                " version = excluded.version, file = excluded.file, bytes = excluded.bytes,"
                " points = excluded.points, warnings = excluded.warnings",
                (*values, msgspec.json.encode(part.warnings).decode()),
            )

    def forget_metrics(self, files: Sequence[str]) -> None:
        """Take metrics files out, which are read again then."""
        with self._transaction():
            self._database.executemany("DELETE FROM metrics WHERE file = ?", [(name,) for name in files])

    def done(self, key: str) -> tuple[bool, int] | None:
        """Return (final, spans) of a piece that is done; None for one that is not."""
        with explained(self._folder):
            row = self._database.execute(
                "SELECT final, received FROM pieces WHERE key = ? AND state = ?", (key, DONE)
            ).fetchone()
            return (bool(row[0]), int(row[1])) if row else None

    def start_reading(self, key: str, final: bool, expected: int | None) -> int:
        """Note a piece, waiting unless a reading of it is whole; return the number of a new reading."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO pieces (key, state, final, expected) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (key, WAITING, final, expected),
            )
        self._next_reading += 1
        return self._next_reading - 1

    def commit(self, files: Sequence[CopiedFile], pieces: Sequence[CopiedPiece]) -> None:
        """Name ``files``, which are on the disk, and the pieces that are whole with them."""
        with self._transaction():
            for file in files:
                self._database.execute(
                    "INSERT INTO files VALUES (?, ?, ?)", (file.name, file.spans, file.bytes)
                )
                self._database.executemany(
                    "INSERT INTO parts VALUES (?, ?, ?)",
                    [(file.name, reading, rows) for reading, rows in file.parts],
                )
            self._database.executemany(
                "UPDATE pieces SET state = ?, final = ?, expected = ?, received = ?, reading = ?, ledger = ?"
                " WHERE key = ?",
                [(DONE, p.final, p.expected, p.received, p.reading, _text(p.ledger), p.key) for p in pieces],
            )

    def finish(self, complete: bool, ledger: Ledger) -> None:
        """Note how the pull ended, and what finding the pieces lost."""
        with self._transaction():
            self._put("complete", str(int(complete)))
            self._put("ledger", msgspec.json.encode(ledger).decode())

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of pieces that are done, of those that wait, and of spans."""
        with explained(self._folder):
            return (
                count(self._database, "SELECT count(*) FROM pieces WHERE state = ?", DONE),
                count(self._database, "SELECT count(*) FROM pieces WHERE state = ?", WAITING),
                count(self._database, "SELECT coalesce(sum(received), 0) FROM pieces"),
            )

    def close(self) -> None:
        """Close the file as one that can be copied, and read where nothing can be written."""
        with explained(self._folder), closing(self._database):
            self._set_journal("DELETE")

    def _set_journal(self, mode: str) -> None:
        """Change how writes are logged; not while somebody reads, and with either mode nothing is lost."""
        with suppress(sqlite3.OperationalError):
            self._database.execute(f"PRAGMA journal_mode = {mode}")

    def _put(self, key: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO copy VALUES (?, ?)", (key, value))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with explained(self._folder):
            try:  # around the beginning, too: an interrupt may come right after it
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise


def refuse_others(folder: Path) -> None:
    """Raise UsageError for a manifest that another program made: it is not ours to write, or to remove."""
    path = folder / MANIFEST
    if not path.is_file():
        return
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(address, uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if tables and "copy" not in tables:
            raise UsageError(f"{path}: of another program; name an empty folder or a new one with -o")


@contextmanager
def explained(folder: Path, writing: bool = True) -> Iterator[None]:
    """Turn what SQLite and decoding raise into a line of ours."""
    where = folder / MANIFEST
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if reason.startswith("no such") or "decode" in reason:
            raise _damaged(where) from None
        if writing:
            raise UsageError(f"cannot write {where}: {reason}; is there room, and is it yours?") from None
        raise SourceError(f"{where}: cannot be read: {reason}") from None
    except (sqlite3.DatabaseError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        raise _damaged(where) from None  # SQLite does not say that bytes of it were changed


def _damaged(where: Path) -> SourceError:
    return SourceError(f"{where}: damaged, or no manifest of a copy; `grademl pull --refresh` starts anew")


def check_schema(folder: Path, schema: str | None) -> None:
    if schema is None or not schema.isdigit():
        raise _damaged(folder / MANIFEST)
    if int(schema) > SCHEMA:
        raise SourceError(
            f"{folder}: a copy of format {schema}, made by a newer grademl; this one reads format {SCHEMA}:"
            " upgrade it"
        )
    if int(schema) < SCHEMA:
        raise SourceError(
            f"{folder}: a copy of format {schema}, made by an older grademl; `grademl pull --refresh`"
            " makes it anew"
        )


_NOTHING_LOST: Final = Ledger()


def _text(ledger: Ledger) -> str | None:
    return None if ledger == _NOTHING_LOST else msgspec.json.encode(ledger).decode()


def ledger_of(text: str | None) -> Ledger:
    return msgspec.json.decode(text, type=Ledger) if text else _NOTHING_LOST


def metrics_in(database: sqlite3.Connection) -> list[CopiedMetrics]:
    """Return the metrics that a manifest names; none of one that was made before there were any."""
    if not count(database, "SELECT count(*) FROM sqlite_master WHERE name = 'metrics'"):
        return []
    rows = database.execute("SELECT key, version, file, bytes, points, warnings FROM metrics ORDER BY rowid")
    return [
        CopiedMetrics(key, version, file, size, points, msgspec.json.decode(lines, type=list[str]))
        for key, version, file, size, points, lines in rows
    ]


def count(database: sqlite3.Connection, query: str, *values: str) -> int:
    return int(database.execute(query, values).fetchone()[0])
