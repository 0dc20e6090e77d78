# SPDX-License-Identifier: Apache-2.0
"""Metrics of files, read when asked for: OTLP JSON and protobuf, in anything that spans may be in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.sources.base import Selection, Source
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
from grademl_otel.analyzers.sources.files.source import FileSource
from grademl_otel.analyzers.sources.formats import otlp_metrics, otlp_proto, sniff
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
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
    no points, as with every source but files.
    """
    if not isinstance(source, FileSource):
        raise NothingFound(f"{source.uri}: metrics are read from files only")
    builder = PointBuilder(_MOST)
    series = list(chain.from_iterable(paths.groups(source.path, selection)))
    warnings: list[str] = []
    with gc_paused():
        for path in paths.metric_files(series):
            reader = _FileReader(builder, source.options.max_bytes)
            try:
                reader.read(path)
            except _FAULTS as fault:
                warnings.append(_told(path, f"metrics are read up to a fault: {fault}"))
            if reader.left_out:
                what = "document" if reader.left_out == 1 else "documents"
                warnings.append(
                    _told(path, f"{reader.left_out:,} {what} of metrics left out; {reader.fault}")
                )
    if builder.full:
        warnings.append(f"{source.path}: stopped after {len(builder):,} metric points")
    if not len(builder):
        why = f" ({warnings[0]})" if warnings else ""
        raise NothingFound(f"{source.path}: no metrics beside its spans{why}")
    return builder.finish(warnings)


def _told(path: Path, what: str) -> str:
    return what if what.startswith(str(path)) else f"{path}: {what}"


class _FileReader:
    """Reads the metrics of one file; documents and messages that are none are counted."""

    def __init__(self, builder: PointBuilder, max_bytes: int) -> None:
        self._builder = builder
        self._max_bytes = max_bytes
        self.left_out = 0
        self.fault = ""
        """What was wrong with the first one."""

    def read(self, path: Path) -> None:
        """Raises SourceError, Unreadable or Cut where the file cannot be read on."""
        faults: list[str] = []
        head, stream = peeked(unbroken(blocks_of(path), faults), sniff.HEAD)
        kind = sniff.holds(head)
        if kind is Holds.TEXT:
            self._text(stream)
        elif kind is Holds.PROTOBUF:
            for group in messages_of_field_1(ByteStream(stream), self._max_bytes):
                self._try(partial(_read_group, group, self._builder))
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
        while window.peek() != END and not self._builder.full:
            line = window.line()
            if line is not None and (lines or _is_document(line)):
                lines = True
                window.skip(len(line))
                self._try(partial(_read_json, line, self._builder))
            elif document := window.document():
                self._try(partial(_read_json, document, self._builder))

    def _message(self, message: bytes) -> None:
        opened = unpacked(message, self._max_bytes)
        if sniff.holds(opened[: sniff.HEAD]) is Holds.TEXT:
            _read_json(opened, self._builder)
            return
        for group in messages_of_field_1(ByteStream([opened]), self._max_bytes):
            _read_group(group, self._builder)

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


def _read_json(document: bytes, builder: PointBuilder) -> None:
    """Add the points of a document; one of another kind is passed over."""
    if _KEY not in document:
        return
    try:
        groups = _top.decode(document).get("resourceMetrics")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if groups is not None:
        otlp_metrics.read_json(groups, builder)


def _read_group(group: bytes, builder: PointBuilder) -> None:
    if otlp_proto.signal(group) == otlp_proto.METRICS:
        otlp_metrics.read_resource_metrics(group, builder)
