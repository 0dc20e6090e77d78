# SPDX-License-Identifier: Apache-2.0
"""A copy as a source: the spans that were pulled, and what their source lost, as if it were read itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grademl_otel.analyzers.copy.contents import Contents, read_contents
from grademl_otel.analyzers.copy.ledgers import merged
from grademl_otel.analyzers.copy.records import CopiedFile, CopiedMetrics
from grademl_otel.analyzers.errors import GrademlError, NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, foreign_services, list_runs
from grademl_otel.analyzers.sources.base import (
    Listing,
    MetricPart,
    Piece,
    Probe,
    Selection,
    SourceOptions,
    TakeGroup,
)
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.narrow import narrow, selected
from grademl_otel.analyzers.units import count, size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_Runs = list[RunSummary]


@dataclass(frozen=True)
class CopySource:
    """The copy in a folder, or one spans file of it."""

    path: str
    options: SourceOptions = field(default_factory=SourceOptions)

    @property
    def uri(self) -> str:
        return self.path

    def list(self) -> Listing:
        telemetry = self._load()
        runs: _Runs = [replace(run, path=self.path) for run in list_runs(telemetry, whole=True)]
        return Listing(runs, sorted(foreign_services(telemetry)), telemetry.ledger.warnings)

    def read(self, selection: Selection) -> Telemetry:
        return selected(self._load(), selection)

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        """Yield the files of the copy; ``selection`` is for who reads them."""
        contents = self._contents()
        if contents is None:
            files, live = [CopiedFile(Path(self.path).name, 0, [])], None
        else:
            files, live = contents.files, contents.live
            _add(ledger, _ledger(self.path, contents))
        # A file that is there stays as it is: what replaces it has another name.
        return iter([Piece(file.name, True, None, self._reader(file, live)) for file in files])

    def metric_parts(self, selection: Selection | None) -> Sequence[MetricPart]:
        """Return the metrics files of the copy; which, was selected when they were copied."""
        contents = self._contents()
        return [] if contents is None else [self._metrics(part) for part in contents.metrics]

    def _metrics(self, part: CopiedMetrics) -> MetricPart:
        def read(take: TakeGroup) -> list[str]:
            from grademl_otel.analyzers.copy.metrics import read_groups  # brings pyarrow

            faults = [] if part.file is None else read_groups(Path(self.path) / part.file, take)
            return [*part.warnings, *faults]

        return MetricPart(part.key, part.version, read)

    def probe(self) -> Probe:
        """Return what the manifest says; nothing else is read."""
        try:
            contents = self._contents()
        except GrademlError as error:
            return Probe("copy", problems=(str(error),))
        if contents is None:
            return Probe("copy", api="one spans file of a copy, without its manifest")
        problems = () if contents.complete else (_unfinished(self.path, contents),)
        notes = [
            f"a copy of {contents.origin.address}",
            f"{count(len(contents.pieces), 'piece')}, {count(contents.spans, 'span')} in"
            f" {count(len(contents.files), 'file')}, {size(sum(file.bytes for file in contents.files))}",
        ]
        if points := sum(part.points for part in contents.metrics):
            notes.append(count(points, "metric point"))
        growing = sum(not piece.final for piece in contents.pieces)
        if growing:
            notes.append(f"{count(growing, 'piece')} may have grown since; `grademl pull` tops them up")
        return Probe("copy", api="Parquet files", notes=tuple(notes), problems=problems)

    def _contents(self) -> Contents | None:
        """Return what the manifest says; None for a single file."""
        path = Path(self.path)
        return read_contents(path) if path.is_dir() else None

    def _load(self) -> Telemetry:
        contents = self._contents()
        total = None if contents is None else contents.spans
        builder = SpanBuilder(self.options.max_spans, total or 0)
        found = Ledger()
        for piece in self.pieces(Selection(), found):
            if builder.full:
                break
            self._read_one(piece, builder, found)
            self.options.progress("spans", len(builder), total)
        if builder.full and (total is None or total > len(builder)):
            found.capped = True
            found.warnings.append(
                f"{self.path}: stopped after {len(builder):,} spans; read more with --max-spans"
            )
        if not len(builder) and found.broken is not None:
            raise SourceError(found.broken)
        if not len(builder):
            raise NothingFound(f"{self.path}: no spans in it (yet)")
        spans = builder.finish(found)
        if contents is not None:
            spans = narrow(spans, contents.origin.selection)
        return Telemetry(self.path, spans, found)

    def _read_one(self, piece: Piece, builder: SpanBuilder, ledger: Ledger) -> None:
        """Read a file; what is damaged is left out and named."""
        try:
            piece.read(builder, ledger)
        except SourceError as error:
            ledger.broken = str(error)

    def _reader(self, file: CopiedFile, live: npt.NDArray[np.bool_] | None) -> _Reader:
        path = Path(self.path)
        return _Reader(path / file.name if path.is_dir() else path, live)


@dataclass(frozen=True)
class _Reader:
    path: Path
    live: npt.NDArray[np.bool_] | None

    def __call__(self, builder: SpanBuilder, ledger: Ledger) -> None:
        from grademl_otel.analyzers.copy.reading import read_table  # pyarrow is for who reads a copy

        read_table(self.path, builder, self.live)


def _ledger(path: str, contents: Contents) -> Ledger:
    """Return what finding and reading the source lost."""
    ledger = merged([contents.ledger, *(piece.ledger for piece in contents.pieces)])
    if not contents.complete:
        ledger.broken = ledger.broken or _unfinished(path, contents)
    return ledger


def _add(ledger: Ledger, more: Ledger) -> None:
    total = merged([ledger, more])
    ledger.__dict__.update(total.__dict__)


def _unfinished(path: str, contents: Contents) -> str:
    known = len(contents.pieces) + contents.waiting
    of = f" of {known:,}" if contents.waiting else ""
    return (
        f"an unfinished copy of {contents.origin.address}, {len(contents.pieces):,}{of} pieces;"
        f" run `grademl pull ... -o {path}` again to go on"
    )
