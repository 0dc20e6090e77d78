# SPDX-License-Identifier: Apache-2.0
"""Metrics of files, read when asked for: OTLP JSON and protobuf, in anything that spans may be in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.sources.base import MetricPart, MetricSource, Selection, Source, TakeGroup
from grademl_otel.analyzers.sources.files import paths
from grademl_otel.analyzers.sources.files.blocks import blocks_of
from grademl_otel.analyzers.sources.files.compression import peeked
from grademl_otel.analyzers.sources.files.containers import (
    ByteStream,
    Cut,
    delimited,
    frames,
    messages_of_field_1,
    unbroken,
    unpacked,
)
from grademl_otel.analyzers.sources.files.growth import lasting_name
from grademl_otel.analyzers.sources.formats import otlp_metrics, otlp_proto, sniff
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup
from grademl_otel.analyzers.sources.formats.sniff import Holds
from grademl_otel.analyzers.sources.formats.window import END, Window
from grademl_otel.analyzers.sources.points import PointBuilder

_KEY: Final = b'"resourceMetrics"'
_MOST: Final = 10_000_000
"""Points."""
_FAULTS: Final = (SourceError, Unreadable, Cut)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_metrics(source: Source, selection: Selection | None = None) -> MetricPoints:
    """Return the metric points beside the spans of ``selection``: in a run's folder ``metrics.jsonl``.

    What is unreadable is left out, and told in `MetricPoints.warnings`. Raises NothingFound where there are
    no points, as with every source but files and copies.
    """
    if not isinstance(source, MetricSource):
        raise NothingFound(f"{source.uri}: metrics are read from files and copies only")
    builder = PointBuilder(_MOST)
    warnings: list[str] = []
    with gc_paused():
        for part in source.metric_parts(selection):
            warnings += part.read(partial(otlp_metrics.read_group, builder=builder))
            if builder.full:
                break
    if builder.full:
        warnings.append(f"{source.uri}: stopped after {len(builder):,} metric points")
    if not len(builder):
        why = f" ({warnings[0]})" if warnings else ""
        raise NothingFound(f"{source.uri}: no metrics beside its spans{why}")
    return builder.finish(warnings)


def parts_of(series: Iterable[paths.Series], max_bytes: int) -> list[MetricPart]:
    """Return the metrics of ``series`` and of what lies beside them, file by file."""
    return [
        MetricPart(_key(path, files), _version(path), partial(_read, path, max_bytes))
        for files in paths.metric_files(series)
        for path in files
        if paths.may_be_read_again(path)
    ]


def _key(path: Path, files: paths.Series) -> str:
    try:
        return lasting_name(path, files)
    except (SourceError, OSError):  # reading it will tell
        return str(path)


def _version(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _read(path: Path, max_bytes: int, take: TakeGroup) -> list[str]:
    reader, warnings = _FileReader(take, max_bytes), []
    try:
        reader.read(path)
    except _FAULTS as fault:
        warnings.append(_told(path, f"metrics are read up to a fault: {fault}"))
    if reader.left_out:
        what = "document" if reader.left_out == 1 else "documents"
        warnings.append(_told(path, f"{reader.left_out:,} {what} of metrics left out; {reader.fault}"))
    return warnings


def _told(path: Path, what: str) -> str:
    return what if what.startswith(str(path)) else f"{path}: {what}"


class _FileReader:
    """Reads the metrics of one file; documents and messages that are none are counted."""

    def __init__(self, take: TakeGroup, max_bytes: int) -> None:
        self._take = take
        self._max_bytes = max_bytes
        self.left_out = 0
        self.fault = ""
        """What was wrong with the first one."""

    def read(self, path: Path) -> None:
        """Raises SourceError, Unreadable or Cut where the file cannot be read on."""
        faults: list[str] = []
        head, stream = peeked(unbroken(blocks_of(path), faults), sniff.HEAD)
        kind = sniff.holds(head)
        if kind is Holds.TEXT and _mentioned(path):
            self._text(stream)
        elif kind is Holds.PROTOBUF:
            for group in messages_of_field_1(ByteStream(stream), self._max_bytes):
                self._try(partial(self._group, group))
        elif kind in (Holds.FRAMES, Holds.DELIMITED):
            split = frames if kind is Holds.FRAMES else delimited
            for message in split(ByteStream(stream), self._max_bytes):
                self._try(partial(self._message, message))
        if faults:
            raise Unreadable(faults[0])

    def _text(self, stream: Iterator[bytes]) -> None:
        """Read lines, or the documents that they are not."""
        window = Window(stream, self._max_bytes)
        window.piece = self._max_bytes  # metrics are few: a document is held as a whole
        lines = False
        while window.peek() != END:
            line = window.line()
            if line is not None and (lines or _is_document(line)):
                lines = True
                window.skip(len(line))
                self._try(partial(self._document, line))
            elif document := window.document():
                self._try(partial(self._document, document))

    def _message(self, message: bytes) -> None:
        opened = unpacked(message, self._max_bytes)
        if sniff.holds(opened[: sniff.HEAD]) is Holds.TEXT:
            self._document(opened)
            return
        for group in messages_of_field_1(ByteStream([opened]), self._max_bytes):
            self._group(group)

    def _document(self, document: bytes) -> None:
        """Take the metrics of a document; one of another kind is passed over."""
        if _KEY not in document:
            return
        try:
            groups = _top.decode(document).get("resourceMetrics")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Unreadable(f"not JSON: {error}") from None
        for group in () if groups is None else otlp_metrics.groups_of(groups):
            self._take(group)

    def _group(self, message: bytes) -> None:
        if otlp_proto.signal(message) == otlp_proto.METRICS:
            self._take(MetricGroup(message, is_json=False))

    def _try(self, read: Callable[[], None]) -> None:
        """Read one document or message; count it where it cannot be."""
        try:
            read()
        except (Unreadable, Cut) as fault:
            self.left_out += 1
            self.fault = self.fault or str(fault)


def _is_document(line: bytes) -> bool:
    if _KEY not in line:  # not worth decoding
        return line.rstrip().endswith((b"}", b"]"))
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _mentioned(path: Path) -> bool:
    """Whether a file of text holds the key of metrics: documents of spans need not be held for it."""
    end = b""
    for block in unbroken(blocks_of(path), []):
        if _KEY in end + block:
            return True
        end = block[1 - len(_KEY) :]
    return False
