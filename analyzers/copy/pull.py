# SPDX-License-Identifier: Apache-2.0
"""From a source to a copy on disk: piece by piece, to be interrupted at any moment and resumed."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from grademl_otel.analyzers.copy.folder import file_number, locked, remove_copy, tidy
from grademl_otel.analyzers.copy.manifest import Manifest, refuse_others
from grademl_otel.analyzers.copy.metrics import copy_metrics
from grademl_otel.analyzers.copy.records import Origin
from grademl_otel.analyzers.copy.writer import CopyWriter
from grademl_otel.analyzers.errors import (
    GrademlError,
    Interrupted,
    NothingFound,
    SourceError,
    UsageError,
    without_secrets,
)
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.shown import Records, Shown
from grademl_otel.analyzers.sources.base import MetricSource, Piece, Progress, Selection, Source, no_progress
from grademl_otel.analyzers.sources.files.containers import NotTelemetry

_LINES: Final = 20
"""So many lines about what pieces lost are told; the copy has them all."""
_FAILURES_IN_A_ROW: Final = 5
"""After so many a server is taken for away."""


@dataclass(frozen=True)
class Pulled(Shown, screen="reporting.copying_screen"):
    """What a pull did: schema `grademl.pull/1`."""

    schema: str = field(default="grademl.pull/1", kw_only=True)
    source: str
    folder: str
    pieces: int
    """Done, now and before."""
    copied: int
    """Of those, read now."""
    failed: int
    spans: int
    files: int
    bytes: int
    metrics: int
    """Metric points."""
    warnings: list[str]
    error: GrademlError | None = None
    """Why it is not all there, if it is not."""

    def _tables(self) -> Mapping[str, Records]:
        return {"pull": Records(Pulled, [self])}


def origin_of(address: str, shown: str, selection: Selection, since: int | None) -> Origin:
    """Return where a copy is from: ``address`` as typed, ``shown`` without secrets, ``since`` in ns.

    A selection by duration is another moment at every call, and the same question.
    """
    if "://" in address:
        digest = hashlib.sha256(address.partition("://")[2].rpartition("@")[2].encode()).hexdigest()[:16]
        identity = f"{without_secrets(address)} {digest}"
    else:
        identity = address if address == "-" else str(Path(address).absolute())
    asked = msgspec.json.encode((selection if since is None else replace(selection, start=-since), since))
    return Origin(shown, identity, asked.decode(), selection)


def pull(
    source: Source, folder: Path, origin: Origin, *, refresh: bool = False, progress: Progress = no_progress
) -> Pulled:
    """Copy what ``origin`` selects of ``source`` into ``folder``, or what is missing there.

    Raises UsageError for a folder that holds another copy, NothingFound when nothing matches, SourceError
    when the source gives nothing at all, and Interrupted, each with the copy in a state that a next call goes
    on from. A source that fails for a part is told in `Pulled.error`.
    """
    with locked(folder):
        refuse_others(folder)
        if refresh:
            _check_apart(folder, origin)
            next(source.pieces(origin.selection, Ledger()), None)  # one that is away costs no copy
            remove_copy(folder)
        manifest = Manifest(folder)
        try:
            selection = _begin(folder, manifest, origin)
            return _Pull(source, folder, manifest, selection, progress).run()
        finally:
            empty = not manifest.counts()[2]
            manifest.close()
            if empty:
                remove_copy(folder)


def _check_apart(folder: Path, origin: Origin) -> None:
    """Raise UsageError for a copy that would be removed before it is copied."""
    source, target = Path(origin.identity).resolve(), folder.resolve()
    if "://" not in origin.identity and (source == target or target in source.parents):
        raise UsageError(f"{folder}: cannot be copied anew from {origin.address}, which is in it")


def _begin(folder: Path, manifest: Manifest, origin: Origin) -> Selection:
    """Return the selection, as the first pull understood it."""
    before = manifest.origin
    if before is not None and before.identity != origin.identity:
        raise UsageError(
            f"{folder}: a copy of {before.address}; copy {origin.address} into another folder, or over it"
            " with --refresh"
        )
    if before is not None and before.asked != origin.asked:
        raise UsageError(
            f"{folder}: a copy of another selection of {before.address}; copy this one into another folder,"
            " or over it with --refresh"
        )
    tidy(folder, manifest)
    manifest.begin(before or origin)
    return (before or origin).selection


class _Pull:
    """One pull at work."""

    def __init__(
        self, source: Source, folder: Path, manifest: Manifest, selection: Selection, progress: Progress
    ) -> None:
        self._source = source
        self._folder = folder
        self._manifest = manifest
        self._writer = CopyWriter(folder, manifest)
        self._selection = selection
        self._progress = progress
        self._ledger = Ledger()
        self._seen = 0
        self._copied = 0
        self._fewer = 0
        self._total: int | None = None
        self._failures: list[SourceError] = []
        self._strangers: list[SourceError] = []
        self._told: dict[str, None] = {}

    def run(self) -> Pulled:
        """Copy, and say what became of it."""
        try:
            self._copy_all()
            self._writer.flush()  # what a kill while metrics are copied does not cost
            self._copy_metrics()
            self._end(complete=not self._failures and self._ledger.broken is None)
        except KeyboardInterrupt:
            self._end(complete=False)
            raise Interrupted(f"interrupted: {self._so_far()}") from None
        except SourceError as error:  # the source cannot even tell what it has
            self._end(complete=False)
            if not self._manifest.counts()[2]:
                raise
            self._failures.append(error)
        return self._pulled()

    def _copy_all(self) -> None:
        in_a_row = 0
        for piece in self._pieces():
            self._seen += 1
            self._progress("pieces", self._seen - 1, self._total)
            try:
                self._copy(piece)
                in_a_row = 0
            except NotTelemetry as error:  # as another program's settings in a folder, missed by nobody
                self._strangers.append(error)
            except SourceError as error:
                self._failures.append(error)
                in_a_row += 1
                if in_a_row == _FAILURES_IN_A_ROW:
                    return

    def _pieces(self) -> Iterator[Piece]:
        pieces = self._source.pieces(self._selection, self._ledger)
        self._total = operator.length_hint(pieces) or None
        return pieces

    def _copy(self, piece: Piece) -> None:
        before = self._manifest.done(piece.key)
        if before is not None and before[0]:
            return
        copied = self._writer.copy(piece)
        if copied.ledger.broken is not None:
            raise SourceError(copied.ledger.broken)
        if before is not None and copied.received < before[1]:
            self._fewer += 1
            return
        self._writer.keep(copied)
        self._told.update(dict.fromkeys(copied.ledger.warnings[: _LINES - len(self._told)]))
        self._copied += 1

    def _copy_metrics(self) -> None:
        """Copy the metrics of each file in which something is new; of one that has fewer now, nothing."""
        if not isinstance(self._source, MetricSource):
            return
        there = {part.key: part for part in self._manifest.metrics()}
        number = max((file_number(part.file) for part in there.values() if part.file), default=0)
        for part in self._source.metric_parts(self._selection):
            before = there.get(part.key)
            if before is not None and before.version == part.version:
                continue
            number += 1
            copied = copy_metrics(part, self._folder, number)
            if before is None or copied.points >= before.points:
                self._manifest.commit_metrics(copied)

    def _end(self, complete: bool) -> None:
        self._writer.flush()
        self._ledger.warnings += map(str, self._strangers)
        if self._fewer:
            self._ledger.warnings.append(
                f"{self._source.uri}: {self._fewer} pieces have fewer spans there than were copied before;"
                " what was copied is kept"
            )
        self._manifest.finish(complete, self._ledger)
        tidy(self._folder, self._manifest)

    def _so_far(self) -> str:
        done, waiting, spans = self._manifest.counts()
        known = max(done + waiting, self._total or 0)
        of = f" of {known:,}" if known > done else ""
        return f"copied {done:,}{of} pieces, {spans:,} spans; run the same command again to go on"

    def _nothing(self) -> GrademlError:
        return NothingFound(
            f"{self._source.uri}: no spans in it match, or not yet; see `grademl runs`, or widen the"
            " time with --since or --from"
        )

    def _pulled(self) -> Pulled:
        done, _, spans = self._manifest.counts()
        if not spans:
            raise next(iter(self._failures + self._strangers), self._nothing())
        error = None
        if self._failures:
            more = f" (and {len(self._failures) - 1} more)" if len(self._failures) > 1 else ""
            error = SourceError(f"{self._failures[0]}{more}; {self._so_far()}")
        elif self._ledger.broken is not None:
            error = SourceError(f"{self._ledger.broken}; the rest was copied")
        metrics = self._manifest.metrics()
        held = [(file.name, file.bytes) for file in self._manifest.files()]
        held += [(part.file, part.bytes) for part in metrics if part.file]
        return Pulled(
            source=self._source.uri,
            folder=str(self._folder),
            pieces=done,
            copied=self._copied,
            failed=len(self._failures),
            spans=spans,
            files=len(held),
            bytes=sum(size for _, size in held),
            metrics=sum(part.points for part in metrics),
            warnings=[
                *(*self._ledger.warnings, *self._told),
                *(line for part in metrics for line in part.warnings),
            ],
            error=error,
        )
