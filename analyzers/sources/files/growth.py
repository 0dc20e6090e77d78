# SPDX-License-Identifier: Apache-2.0
"""Files in pieces, for copies that are topped up: lines by ranges that stay as they are when a file grows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.base import Piece
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files import paths
from grademl_otel.analyzers.sources.files.blocks import blocks_of, opened
from grademl_otel.analyzers.sources.files.compression import compression
from grademl_otel.analyzers.sources.files.containers import NotTelemetry, read_blocks
from grademl_otel.analyzers.sources.formats import sniff
from grademl_otel.analyzers.sources.formats.decoding import gc_paused

_RANGE: Final = 32 << 20
_BLOCK: Final = 1 << 20
_FIRST_LINE: Final = 16 << 20
"""A file with a longer one is copied as a whole."""


_HEAD: Final = 256
"""Bytes by which a file of no lines is told from others; shorter than any export."""


@dataclass(frozen=True)
class _Range:
    """Bytes ``start`` to ``end`` of a file; None is its end, wherever that is then."""

    path: Path
    start: int = 0
    end: int | None = None

    def blocks(self) -> Iterator[bytes]:
        if self.start == 0 and self.end is None:
            yield from blocks_of(self.path)
            return
        with opened(self.path) as stream:
            stream.seek(self.start)
            left = self.end - self.start if self.end is not None else None
            while block := stream.read(_BLOCK if left is None else min(_BLOCK, left)):
                left = None if left is None else left - len(block)
                yield block


def pieces_of(series: paths.Series, max_bytes: int, alone: bool = True) -> Iterator[Piece]:
    """Yield the pieces of a file and of what it was before it was rotated. Raises SourceError.

    What is no telemetry is an error where the file is ``alone``, and a warning where it is one of several.
    """
    begin = 0
    for path, following in zip(series, (*series[1:], None), strict=True):
        first = _first_line(path, begin)
        if first is None:
            # Standard input is something else at each call.
            yield _piece(_version(path), path.is_file(), [_Range(path)], max_bytes, alone)
            begin = 0
            continue
        name = f"{path.parent.name}/{series[-1].name}#{_digest(first)}"
        bounds = _bounds(path, begin)
        begin = 0
        for start, end in pairwise(bounds):
            last = end == bounds[-1]
            ranges = [_Range(path, start, end)]
            if last and following is not None:
                begin = _continued(path, following)
                ranges += [_Range(following, 0, begin)] if begin else []
            yield _piece(f"{name}@{start}", not last or following is not None, ranges, max_bytes, alone)


def lasting_name(path: Path, series: paths.Series) -> str:
    """Name a file by where it began: the same while it grows, and once it is rotated.

    Raises SourceError and OSError.
    """
    first = _first_line(path, 0)
    if first is None:
        with opened(path) as stream:
            first = stream.read(_HEAD)
    return f"{path.parent.name}/{series[-1].name}#{_digest(first)}"


def _piece(key: str, final: bool, ranges: list[_Range], max_bytes: int, alone: bool) -> Piece:
    def read(builder: SpanBuilder, ledger: Ledger) -> None:
        blocks: Iterable[bytes] = (block for each in ranges for block in each.blocks())
        try:
            with gc_paused():
                read_blocks(blocks, str(ranges[0].path), builder, ledger, max_bytes)
        except NotTelemetry as error:
            if alone:
                raise
            ledger.warnings.append(str(error))

    return Piece(key, final, None, read)


def _first_line(path: Path, begin: int) -> bytes | None:
    """Return the line at ``begin`` of a file of lines; None for any other file, and for what is no file."""
    if not path.is_file():
        return None
    with opened(path) as stream:
        stream.seek(begin)
        head = stream.read(sniff.HEAD)
        if compression(head) or sniff.holds(head) is not sniff.Holds.TEXT:
            return None
        stream.seek(begin)
        line = b""
        while b"\n" not in line:
            block = stream.read(_BLOCK)
            if not block or len(line) > _FIRST_LINE:
                return None
            line += block
    line = line[: line.index(b"\n")]
    try:
        msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return line


def _bounds(path: Path, begin: int) -> list[int]:
    """Return where ranges begin, each with a line, and where the last one ends; the same while it grows."""
    size = path.stat().st_size
    bounds = [begin]
    with opened(path) as stream:
        for at in range(_RANGE, size, _RANGE):
            if at <= bounds[-1]:
                continue
            stream.seek(at - 1)
            while block := stream.read(_BLOCK):
                end = block.find(b"\n")
                if end >= 0:
                    at += end
                    break
                at += len(block)
            if at < size:
                bounds.append(at)
    return [*bounds, size] if size > begin else bounds


def _continued(path: Path, following: Path) -> int:
    """Return how many bytes of the next file belong to the last line of this one; 0 where it is whole."""
    with opened(path) as stream:
        tail = b""
        at = stream.seek(0, 2)
        while at and b"\n" not in tail and len(tail) < _FIRST_LINE:
            step = min(_BLOCK, at)
            at = stream.seek(at - step)
            tail = stream.read(step) + tail
            stream.seek(at)
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not tail.strip():
        return 0
    with opened(following) as stream:
        head = b""
        while b"\n" not in head and len(head) < _FIRST_LINE and (block := stream.read(_BLOCK)):
            head += block
    rest = head[: head.find(b"\n") + 1]
    try:
        msgspec.json.decode(tail + rest, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return 0
    return len(rest)


def _version(path: Path) -> str:
    """Name what a file holds now: it is copied again as a whole when that is something else."""
    if not path.is_file():
        return str(path)
    found = path.stat()
    with opened(path) as stream:
        head = stream.read(4096)
    return f"{path.parent.name}/{path.name}#{_digest(head)}:{found.st_size}:{found.st_mtime_ns}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
