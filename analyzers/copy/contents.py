# SPDX-License-Identifier: Apache-2.0
"""What a manifest says at one moment, for who reads a copy, also while a pull is at work."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.copy import MANIFEST
from grademl_otel.analyzers.copy.manifest import (
    BUSY_S,
    check_schema,
    count,
    explained,
    ledger_of,
    metrics_in,
)
from grademl_otel.analyzers.copy.records import (
    DONE,
    WAITING,
    CopiedFile,
    CopiedMetrics,
    CopiedPiece,
    Origin,
)
from grademl_otel.analyzers.model.columns import Ledger


@dataclass(frozen=True)
class Contents:
    """What a manifest says at one moment."""

    origin: Origin
    complete: bool
    """Whether the last pull came to its end."""
    ledger: Ledger
    """What finding the pieces lost."""
    pieces: list[CopiedPiece]
    waiting: int
    """Pieces that were begun and have no whole reading."""
    files: list[CopiedFile]
    metrics: list[CopiedMetrics]

    @property
    def live(self) -> npt.NDArray[np.bool_]:
        """For each reading whether its rows count."""
        readings = [piece.reading for piece in self.pieces]
        known = [reading for file in self.files for reading, _ in file.parts]
        mask = np.zeros(max([*readings, *known], default=-1) + 1, np.bool_)
        mask[readings] = True
        return mask

    @property
    def spans(self) -> int:
        return sum(piece.received for piece in self.pieces)


def read_contents(folder: Path) -> Contents:
    """Return what the manifest of ``folder`` says; SourceError where it is none of ours or damaged."""
    with explained(folder, writing=False), closing(_open_to_read(folder / MANIFEST)) as database:
        database.execute("BEGIN")  # one moment, though a pull may be writing
        about = dict(database.execute("SELECT key, value FROM copy"))
        check_schema(folder, about.get("schema"))
        parts: dict[str, list[tuple[int, int]]] = {}
        for name, reading, rows in database.execute("SELECT file, reading, spans FROM parts"):
            parts.setdefault(name, []).append((reading, rows))
        files = database.execute("SELECT name, bytes FROM files ORDER BY name")
        done = database.execute(
            "SELECT key, final, expected, received, reading, ledger FROM pieces"
            " WHERE state = ? ORDER BY rowid",
            (DONE,),
        )
        return Contents(
            origin=msgspec.json.decode(about["origin"], type=Origin),
            complete=about.get("complete") == "1",
            ledger=msgspec.json.decode(about.get("ledger", "{}"), type=Ledger),
            files=[CopiedFile(name, size, parts.get(name, [])) for name, size in files],
            pieces=[
                CopiedPiece(key, bool(final), expected, received, reading, ledger_of(text))
                for key, final, expected, received, reading, text in done
            ],
            metrics=metrics_in(database),
            waiting=count(database, "SELECT count(*) FROM pieces WHERE state = ?", WAITING),
        )
    raise AssertionError("unreachable")


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open without writing; where even the log's index cannot be, the file as the last checkpoint left it."""
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    database = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        database = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
    return database
