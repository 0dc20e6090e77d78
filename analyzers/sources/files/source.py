# SPDX-License-Identifier: Apache-2.0
"""Files as a source: a file, a run folder, a folder of either, a glob, or standard input.

What is in a file is told by its content, whatever it is called.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.copy import is_copy
from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, foreign_services, list_runs
from grademl_otel.analyzers.sources.base import (
    Listing,
    MetricPart,
    Piece,
    Probe,
    Selection,
    SourceOptions,
)
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files import paths, seams
from grademl_otel.analyzers.sources.files.blocks import blocks_of
from grademl_otel.analyzers.sources.files.compression import peeked
from grademl_otel.analyzers.sources.files.containers import NotTelemetry, read_blocks, unbroken
from grademl_otel.analyzers.sources.formats import sniff
from grademl_otel.analyzers.sources.formats.decoding import gc_paused
from grademl_otel.analyzers.sources.narrow import selected

_PROGRESS_S: Final = 0.25

# `list` is a method of a source, so that the body of the class cannot name the type.
_Runs = list[RunSummary]
_Lines = list[str]
_Pieces = list[Piece]


@dataclass(frozen=True)
class FileSource:
    """The files that a path, a folder or a glob stands for; ``-`` is standard input."""

    path: str
    options: SourceOptions = field(default_factory=SourceOptions)

    @property
    def uri(self) -> str:
        return self.path

    def list(self) -> Listing:
        runs: _Runs = []
        services: set[str] = set()
        warnings: _Lines = []
        groups = paths.groups(self.path, None)
        for group in groups:
            try:
                telemetry = _load(self.path, group, self.options)
            except (SourceError, NothingFound) as error:
                if len(groups) == 1:
                    raise
                warnings.append(str(error))
                continue
            runs += [replace(run, path=str(group[0][-1])) for run in list_runs(telemetry, whole=True)]
            services.update(foreign_services(telemetry))
            warnings += telemetry.ledger.warnings
        runs.sort(key=lambda run: (run.start, run.attempt), reverse=True)
        return Listing(runs, sorted(services), warnings)

    def read(self, selection: Selection) -> Telemetry:
        series = list(chain.from_iterable(paths.groups(self.path, selection)))
        return selected(_load(self.path, series, self.options), selection)

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        from grademl_otel.analyzers.sources.files.growth import pieces_of

        found: _Pieces = []
        series = list(chain.from_iterable(paths.groups(self.path, selection)))
        for one in series:
            try:
                found += pieces_of(one, self.options.max_bytes, alone=len(series) == 1)
            except (SourceError, OSError) as error:
                fault = error if isinstance(error, SourceError) else paths.unreadable(str(one[-1]), error)
                if len(series) == 1:
                    raise fault from None
                ledger.broken = ledger.broken or str(fault)
                ledger.warnings.append(str(fault))
        return iter(found)

    def metric_parts(self, selection: Selection | None) -> Sequence[MetricPart]:
        from grademl_otel.analyzers.sources.files.metrics import parts_of  # brings protobuf

        return parts_of(chain.from_iterable(paths.groups(self.path, selection)), self.options.max_bytes)

    def probe(self) -> Probe:
        from grademl_otel.analyzers.sources.files.looks import probe_files

        return probe_files(self.path)


def _load(where: str, group: list[paths.Series], options: SourceOptions) -> Telemetry:
    """Read all that is in ``group``; what cannot be read is told, unless that is all there is."""
    ledger = Ledger()
    builder = SpanBuilder(options.max_spans)
    progress = _Progress(group, options)
    failures: list[SourceError] = []
    with gc_paused():
        for series in group:
            if builder.full:
                break
            try:
                read_series(series, builder, ledger, options.max_bytes, progress.block)
            except SourceError as error:
                failures.append(error)
    if failures and len(failures) == len(group):
        raise failures[0]
    for failure in failures:
        # What is no telemetry, as another program's settings in the same folder, is missed by nobody.
        if ledger.broken is None and not isinstance(failure, NotTelemetry):
            ledger.broken = str(failure)
        else:
            ledger.warnings.append(str(failure))
    if builder.full:
        ledger.capped = True
        ledger.warnings.append(f"{where}: stopped after {len(builder):,} spans; read more with --max-spans")
    if not len(builder):
        raise NothingFound(f"{where}: no spans in it (yet)")
    return Telemetry(where, builder.finish(ledger), ledger)


def read_series(
    series: paths.Series,
    builder: SpanBuilder,
    ledger: Ledger,
    max_bytes: int,
    told: Callable[[int], None] = lambda count: None,
) -> None:
    """Add the spans of a file, and of what it was before it was rotated, to ``builder`` until it is full.

    ``told`` is called with the number of bytes of each block that is read. Raises as `read_blocks` does.
    """
    if is_copy(str(series[0])):
        from grademl_otel.analyzers.copy.reading import read_table  # brings pyarrow

        read_table(series[0], builder)
        return
    if len(series) == 1:
        read_blocks(blocks_of(series[0], told), str(series[0]), builder, ledger, max_bytes)
        return
    lines = [path for path in series if _is_text(path)]
    for path in series:
        if path not in lines:
            read_blocks(blocks_of(path, told), str(path), builder, ledger, max_bytes)
    faults: list[str] = []
    if lines:
        streams = (unbroken(blocks_of(path, told), faults) for path in lines)
        try:
            read_blocks(seams.joined(streams), str(lines[-1]), builder, ledger, max_bytes)
        except NotTelemetry:
            if not faults:
                raise
    if faults:
        ledger.broken = ledger.broken or f"{lines[-1]}: {faults[0]}; the rest was read"


def _is_text(path: Path) -> bool:
    head, _ = peeked(unbroken(blocks_of(path), []), sniff.HEAD)
    return sniff.holds(head) is sniff.Holds.TEXT


class _Progress:
    """Tells of bytes that were read, a few times a second."""

    def __init__(self, group: list[paths.Series], options: SourceOptions) -> None:
        self._tell = options.progress
        self._done = 0
        self._next = time.monotonic() + _PROGRESS_S
        self._total = _size(group)

    def block(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_S
            self._tell("bytes", self._done, self._total)


def _size(group: list[paths.Series]) -> int | None:
    """Return the bytes of all files; None where that is not known, as of standard input."""
    total = 0
    for path in chain.from_iterable(group):
        try:
            found = path.stat()
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total
