# SPDX-License-Identifier: Apache-2.0
"""Writes spans into a copy: a file is whole on the disk before the manifest names it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.copy.folder import file_number, part_name, spans_name, to_disk, writing
from grademl_otel.analyzers.copy.layout import write_table
from grademl_otel.analyzers.copy.manifest import Manifest
from grademl_otel.analyzers.copy.records import CopiedFile, CopiedPiece
from grademl_otel.analyzers.copy.stream import SpanStream
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.base import Piece
from grademl_otel.analyzers.sources.batch import SpanBatch

_SPANS_A_FILE: Final = 100_000
_BYTES_A_FILE: Final = 64 << 20
"""Of attributes and events: step tables are large."""
_BATCHES_A_FILE: Final = 20_000
"""Those of small traces take more memory than their spans."""
_SECONDS_A_FILE: Final = 30.0
"""As much work as a kill may cost."""


@dataclass
class _Pending:
    """Spans, and pieces that are whole with them, on their way into one file."""

    batches: list[tuple[int, SpanBatch]] = field(default_factory=list)
    pieces: list[CopiedPiece] = field(default_factory=list)
    since: float = 0.0
    """When it was begun."""
    spans: int = 0
    bytes: int = 0

    def add(self, reading: int, batch: SpanBatch) -> None:
        self.batches.append((reading, batch))
        self.spans += len(batch)
        self.bytes += len(batch.attributes.data) + (0 if batch.events is None else len(batch.events.data))

    @property
    def large(self) -> bool:
        return (
            self.spans >= _SPANS_A_FILE or self.bytes >= _BYTES_A_FILE or len(self.batches) >= _BATCHES_A_FILE
        )


class CopyWriter:
    """Takes pieces one after the other. Those that may still grow go into files of their own, which the next
    pull replaces. Raises UsageError where the folder cannot be written.
    """

    def __init__(self, folder: Path, manifest: Manifest, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = SpanStream(self._take)
        self._folder = folder
        self._manifest = manifest
        self._clock = clock
        self._pending = {final: _Pending(since=clock()) for final in (True, False)}
        self._final = True
        self._reading = -1
        self._next_file = 1 + max((file_number(file.name) for file in manifest.files()), default=0)

    def copy(self, piece: Piece) -> CopiedPiece:
        """Read ``piece`` into the copy. Raises what its reading raises: of it nothing counts then."""
        self._final = piece.final
        self._reading = self._manifest.start_reading(piece.key, piece.final, piece.expected)
        self.stream.begin_piece()
        before, ledger = len(self.stream), Ledger()
        piece.read(self.stream, ledger)
        self.stream.end_piece(ledger)
        received = len(self.stream) - before
        return CopiedPiece(piece.key, piece.final, piece.expected, received, self._reading, ledger)

    def keep(self, piece: CopiedPiece) -> None:
        """Let ``piece`` count once its spans are on the disk."""
        self._pending[piece.final].pieces.append(piece)
        now = self._clock()
        self._flush_if(lambda pending: pending.large or now - pending.since > _SECONDS_A_FILE)

    def flush(self) -> None:
        """Put all that was added onto the disk and into the manifest."""
        self._flush_if(lambda pending: True)

    def _take(self, batch: SpanBatch) -> None:
        self._pending[self._final].add(self._reading, batch)
        self._flush_if(lambda pending: pending.large)

    def _flush_if(self, due: Callable[[_Pending], bool]) -> None:
        for final, pending in self._pending.items():
            if (pending.batches or pending.pieces) and due(pending):
                # Replaced first: an interrupt must not let a half-written file be written twice.
                self._pending[final] = _Pending(since=self._clock())
                self._manifest.commit(self._write(pending), pending.pieces)

    def _write(self, pending: _Pending) -> list[CopiedFile]:
        if not pending.batches:
            return []
        name = spans_name(self._next_file)
        self._next_file += 1
        part, path = self._folder / part_name(name), self._folder / name
        with writing(path):
            try:
                write_table(part, pending.batches, self.stream.resources, self.stream.scopes)
                size = part.stat().st_size
                part.rename(path)
                to_disk(self._folder)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        rows: dict[int, int] = {}
        for reading, batch in pending.batches:
            rows[reading] = rows.get(reading, 0) + len(batch)
        return [CopiedFile(name, size, list(rows.items()))]
