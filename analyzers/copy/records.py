# SPDX-License-Identifier: Apache-2.0
"""What a manifest tells of: where a copy is from, its pieces, and its files.

A *piece* is what the source gave as a whole; a *reading* is one attempt at it. Every row of a spans file says
which reading it is of. A piece is done when all rows of a reading of it are in files that the manifest names;
rows of other readings, of an attempt that was killed or of one that a later one has replaced, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.base import Selection

SCHEMA: Final = 1
"""Of the manifest and of the files; a copy of another one is not read."""
WAITING: Final = "waiting"
DONE: Final = "done"


@dataclass(frozen=True)
class Origin:
    """Where a copy is from; the same for every pull into it."""

    address: str
    """The source's, without secrets."""
    identity: str
    """Equal for equal sources: a path is absolute in it, the query of an address a digest."""
    asked: str
    """The selection as it was asked for, as text: ``--since 1h`` is the same an hour later."""
    selection: Selection
    """As the first pull understood it."""


@dataclass(frozen=True)
class CopiedFile:
    """A spans file and how many rows of which readings it holds."""

    name: str
    bytes: int
    parts: Sequence[tuple[int, int]]
    """(reading, rows)."""

    @property
    def spans(self) -> int:
        return sum(rows for _, rows in self.parts)


@dataclass(frozen=True)
class CopiedPiece:
    """A piece of which one reading is whole."""

    key: str
    final: bool
    expected: int | None
    received: int
    reading: int
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class CopiedMetrics:
    """The metrics of one file of the source."""

    key: str
    version: str
    """Of what the file held when it was copied."""
    file: str | None
    """Where they are; None where it held none."""
    bytes: int
    points: int
    warnings: Sequence[str]
    """What was left out, a line each."""
