# SPDX-License-Identifier: Apache-2.0
"""Files as a source: a file, a run folder, a folder of run folders, a glob, or standard input.

What is in a file is found from its content: OTLP/JSON lines or documents, Jaeger JSON, gzip of either.
"""

from __future__ import annotations

import glob as globbing
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from grademl_otel.analyzers.errors import NothingFound, SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, foreign_services, list_runs
from grademl_otel.analyzers.sources.base import Listing, Selection, SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.formats.documents import read_document, split_documents
from grademl_otel.analyzers.sources.narrow import narrow, run_ids

TRACES: Final = "traces.jsonl"
STDIN: Final = "-"
_RUN_FOLDER: Final = re.compile(r"\d{8}T\d{6}Z-(.+)")
_SUFFIXES: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GLOB: Final = re.compile(r"[*?\[]")

# `list` is a method of a source, so that the body of the class cannot name the type.
_Runs = list[RunSummary]
_Lines = list[str]


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
        groups = _groups(self.path, None)
        for group in groups:
            try:
                telemetry = _load(self.path, group, self.options)
            except (SourceError, NothingFound) as error:
                if len(groups) == 1:
                    raise
                warnings.append(str(error))
                continue
            found = list_runs(telemetry)
            runs += [replace(run, path=str(group[0])) for run in found]
            services.update(foreign_services(telemetry))
            warnings += telemetry.ledger.warnings
        runs.sort(key=lambda run: (run.start, run.attempt), reverse=True)
        return Listing(runs, sorted(services), warnings)

    def read(self, selection: Selection) -> Telemetry:
        groups = _groups(self.path, selection)
        telemetry = _load(self.path, [path for group in groups for path in group], self.options)
        spans = narrow(telemetry.spans, selection)
        if not len(spans):
            raise NothingFound(f"{self.path}: no span in it matches; see `grademl runs {self.path}`")
        if selection.run_id is not None and len(run_ids(spans)) > 1:
            raise _ambiguous(self.path, selection.run_id)
        return replace(telemetry, spans=spans)


def _groups(where: str, selection: Selection | None) -> list[list[Path]]:
    """Return the files to read, those of one run together; of run folders only those selected.

    A run has several folders when its ranks or attempts started at different times. Without a selection all
    runs are returned, the latest first.
    """
    if where == STDIN:
        return [[Path(STDIN)]]
    path = Path(where)
    if _GLOB.search(where) and not path.exists():
        names = sorted(globbing.glob(where, recursive=True))
        if not names:
            raise NothingFound(f"{where}: no file matches")
        return [_files(Path(name)) for name in names]
    if not path.exists():
        raise SourceError(f"{where}: no such file or folder")
    if not path.is_dir() or (path / TRACES).exists():
        return [_files(path)]
    folders = run_folders(path)
    if not folders:
        return [_files(path)]
    if selection is not None:
        folders = _selected(folders, selection, where)
    by_run: dict[str, list[Path]] = {}
    for folder in folders:
        by_run.setdefault(_run_id(folder) or folder.name, []).extend(_files(folder))
    return list(by_run.values())


def _load(where: str, paths: list[Path], options: SourceOptions) -> Telemetry:
    ledger = Ledger()
    buffer = SpanBuilder(options.max_spans)
    with gc_paused():
        for path in paths:
            if buffer.full:
                break
            with _opened(path) as stream:
                read_stream(stream, str(path), buffer, ledger, options.max_bytes)
    if buffer.full:
        ledger.capped = True
        ledger.warnings.append(f"{where}: stopped after {len(buffer):,} spans; read more with --max-spans")
    if not len(buffer):
        raise NothingFound(f"{where}: no spans in it (yet)")
    return Telemetry(where, buffer.finish(ledger), ledger)


def run_folders(path: Path) -> list[Path]:
    """Return the run folders in ``path``, the latest first."""
    try:
        found = [entry for entry in path.iterdir() if (entry / TRACES).is_file()]
    except OSError as error:
        raise _unreadable(str(path), error) from None
    return sorted(found, key=lambda entry: entry.name, reverse=True)


def _selected(folders: list[Path], selection: Selection, where: str) -> list[Path]:
    """The folder of the run that is asked for; the latest by default; all when names do not tell."""
    if selection.trace_ids or selection.service or selection.start or selection.end:
        return folders
    if selection.run_id is None:
        latest = _run_id(folders[0])
        return [folder for folder in folders if latest and _run_id(folder) == latest] or folders[:1]
    named = [folder for folder in folders if _run_id(folder).lower().startswith(selection.run_id.lower())]
    if len({_run_id(folder) for folder in named}) > 1:
        raise _ambiguous(where, selection.run_id)
    return named or folders


def _ambiguous(where: str, prefix: str) -> UsageError:
    return UsageError(f"{where}: several runs begin with {prefix}; give more of the id")


def _run_id(folder: Path) -> str:
    match = _RUN_FOLDER.fullmatch(folder.name)
    return match.group(1) if match else ""


def _files(path: Path) -> list[Path]:
    """Return the trace files of ``path``: itself, or those directly in the folder."""
    if not path.is_dir():
        return [path]
    if (path / TRACES).is_file():
        return [path / TRACES]
    try:
        found = sorted(
            entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(_SUFFIXES)
        )
    except OSError as error:
        raise _unreadable(str(path), error) from None
    if not found:
        raise NothingFound(
            f"{path}: neither a run nor a trace file in this folder (run folders hold {TRACES};"
            f" trace files end in {', '.join(_SUFFIXES)})"
        )
    return found


def _opened(path: Path) -> IO[bytes]:
    if str(path) == STDIN:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(str(path), error) from None


def _unreadable(where: str, error: Exception) -> SourceError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return SourceError(f"{where}: cannot be read: {reason[:1].lower()}{reason[1:]}")


def read_stream(stream: IO[bytes], where: str, buffer: SpanBuilder, ledger: Ledger, max_bytes: int) -> None:
    """Add the spans of one file to ``buffer``.

    A file is read line by line if its first line is a document; otherwise, as with indented JSON, as a whole
    of at most ``max_bytes``. A last line that does not parse is taken for cut by a writer at work.
    Raises SourceError when nothing in it can be read.
    """
    try:
        head = stream.read(len(_GZIP_MAGIC))
        rest = _Prefixed(head, stream)
        if head == _GZIP_MAGIC:
            _read_text(gzip.GzipFile(fileobj=io.BufferedReader(rest)), where, buffer, ledger, max_bytes)
        else:
            _read_text(io.BufferedReader(rest), where, buffer, ledger, max_bytes)
    except (OSError, EOFError, zlib.error) as error:
        if not len(buffer):
            raise _unreadable(where, error) from None
        ledger.unreadable_lines += 1
        ledger.warnings.append(f"{where}: broke off: {error}")


class _Prefixed(io.RawIOBase):
    """A stream from which some bytes were taken, as if they had not been; standard input cannot seek."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        some = self._head or self._rest.read(len(target))
        some, self._head = some[: len(target)], some[len(target) :]
        target[: len(some)] = some
        return len(some)


def _read_text(
    stream: io.BufferedReader | gzip.GzipFile, where: str, buffer: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    before = len(buffer)
    documents = 0
    first_fault: str | None = None
    cut_line: int | None = None
    for number, line in _lines(stream, where, max_bytes):
        if buffer.full:
            return
        try:
            read_document(line, buffer)
            documents += 1
        except Unreadable as fault:
            if documents == 0 and number == 1:
                whole = line + stream.read(max_bytes - len(line) + 1)
                if len(whole) > max_bytes:
                    raise SourceError(f"{where}: a document of more than {max_bytes:,} bytes") from None
                _read_whole(whole, where, buffer, ledger, fault)
                return
            if _read_packed(line, buffer):
                documents += 1
                continue
            first_fault = first_fault or f"line {number}: {fault}"
            ledger.unreadable_lines += 1
            cut_line = None if line.endswith(b"\n") else number
    if cut_line is not None:
        ledger.warnings.append(f"{where}: the last line ({cut_line}) is cut; it was left out")
    if first_fault and (cut_line is None or ledger.unreadable_lines > 1):
        ledger.warnings.append(f"{where}: {ledger.unreadable_lines} unreadable lines left out; {first_fault}")
    if first_fault and len(buffer) == before and documents == 0:
        raise SourceError(f"{where}: {first_fault}")


def _lines(
    stream: io.BufferedReader | gzip.GzipFile, where: str, max_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of the lines that are not blank; only ``\\n`` ends a line."""
    number = 0
    while line := stream.readline(max_bytes + 1):
        if len(line) > max_bytes:
            raise SourceError(f"{where}: line {number + 1} is longer than {max_bytes:,} bytes")
        if line.strip():
            number += 1
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _read_packed(line: bytes, buffer: SpanBuilder) -> bool:
    """Read documents that stand back to back in one line; false when there are none."""
    before = len(buffer)
    try:
        for document in split_documents(line):
            read_document(document, buffer)
    except Unreadable:
        return len(buffer) > before
    return True


def _read_whole(data: bytes, where: str, buffer: SpanBuilder, ledger: Ledger, first: Unreadable) -> None:
    """Read documents that are no lines. ``first`` is what was wrong with the first line taken alone."""
    before = len(buffer)
    documents = 0
    try:
        for document in split_documents(data):
            if buffer.full:
                return
            read_document(document, buffer)
            documents += 1
    except Unreadable as fault:
        if documents == 0 and len(buffer) == before:
            raise SourceError(f"{where}: {_first_fault(data, first, fault)}") from None
        ledger.unreadable_lines += 1
        ledger.warnings.append(f"{where}: broke off after {documents} documents: {fault}")


def _first_fault(data: bytes, line: Unreadable, whole: Unreadable) -> str:
    start = data[:512].lstrip()
    if not start.startswith((b"{", b"[")):
        kind = "an HTML page" if start[:15].lower().startswith((b"<!doctype html", b"<html")) else "no JSON"
        return f"{kind}; expected OTLP/JSON lines or Jaeger JSON"
    if b"\n" in data.rstrip(b"\n"):
        return str(whole)
    return f"{line}; if it is being written, try again when a line is complete"
