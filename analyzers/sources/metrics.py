# SPDX-License-Identifier: Apache-2.0
"""Metrics of files, read when asked for: OTLP JSON and protobuf, in anything that spans may be in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.sources import paths
from grademl_otel.analyzers.sources.base import Selection, Source
from grademl_otel.analyzers.sources.blocks import blocks_of
from grademl_otel.analyzers.sources.compression import peeked
from grademl_otel.analyzers.sources.containers import (
    ByteStream,
    Cut,
    delimited,
    frames,
    messages_of_field_1,
    unbroken,
    unpacked,
)
from grademl_otel.analyzers.sources.files import FileSource
from grademl_otel.analyzers.sources.formats import otlp_metrics, otlp_proto, sniff
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.formats.sniff import Holds
from grademl_otel.analyzers.sources.formats.window import END, Window
from grademl_otel.analyzers.sources.points import PointBuilder

_KEY: Final = b'"resourceMetrics"'
_MOST: Final = 10_000_000
"""Points."""
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_metrics(source: Source, selection: Selection | None = None) -> MetricPoints:
    """Return the metric points beside the spans of ``selection``: in a run's folder ``metrics.jsonl``.

    What is unreadable is left out. Raises NothingFound where there are none, as with every source but files.
    """
    if not isinstance(source, FileSource):
        raise NothingFound(f"{source.uri}: metrics are read from files only")
    builder = PointBuilder(_MOST)
    series = list(chain.from_iterable(paths.groups(source.path, selection)))
    with gc_paused():
        for path in paths.metric_files(series):
            try:
                _read_file(path, builder, source.options.max_bytes)
            except (SourceError, Unreadable, Cut):
                continue  # whoever reads the spans of it tells
    if not len(builder):
        raise NothingFound(f"{source.path}: no metrics beside its spans")
    return builder.finish()


def _read_file(path: Path, builder: PointBuilder, max_bytes: int) -> None:
    head, stream = peeked(unbroken(blocks_of(path), []), sniff.HEAD)
    kind = sniff.holds(head)
    if kind is Holds.TEXT:
        for document in _documents(Window(stream, max_bytes)):
            _read_json(document, builder)
    elif kind is Holds.PROTOBUF:
        for group in messages_of_field_1(ByteStream(stream), max_bytes):
            _read_group(group, builder)
    elif kind in (Holds.FRAMES, Holds.DELIMITED):
        split = frames if kind is Holds.FRAMES else delimited
        for message in split(ByteStream(stream), max_bytes):
            _read_message(unpacked(message, max_bytes), builder, max_bytes)


def _documents(window: Window) -> Iterator[bytes]:
    """Yield lines, or the documents that they are not."""
    while window.peek() != END:
        line = window.line()
        if line is not None and _is_document(line):
            window.skip(len(line))
            yield line
            continue
        document = window.document()
        if document is None:
            return
        yield document


def _is_document(line: bytes) -> bool:
    if _KEY not in line:  # not worth decoding
        return line.rstrip().endswith((b"}", b"]"))
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _read_json(document: bytes, builder: PointBuilder) -> None:
    if _KEY in document:
        try:
            groups = _top.decode(document).get("resourceMetrics")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        if groups is not None:
            otlp_metrics.read_json(groups, builder)


def _read_message(message: bytes, builder: PointBuilder, max_bytes: int) -> None:
    if sniff.holds(message[: sniff.HEAD]) is Holds.TEXT:
        _read_json(message, builder)
        return
    for group in messages_of_field_1(ByteStream([message]), max_bytes):
        _read_group(group, builder)


def _read_group(group: bytes, builder: PointBuilder) -> None:
    if otlp_proto.signal(group) == otlp_proto.METRICS:
        otlp_metrics.read_resource_metrics(group, builder)
