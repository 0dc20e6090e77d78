# SPDX-License-Identifier: Apache-2.0
"""JSON from a stream, line by line or as a whole, until documents can be cut out of it as it comes."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator
from typing import Any

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.documents import read_document, split_documents


class _Raw(io.RawIOBase):
    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._head = b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        some = self._head or next(self._blocks, b"")
        some, self._head = some[: len(target)], some[len(target) :]
        target[: len(some)] = some
        return len(some)


def read_json(
    chunks: Iterable[bytes], builder: SpanBuilder, ledger: Ledger, where: str, max_bytes: int
) -> None:
    _read_text(io.BufferedReader(_Raw(chunks)), where, builder, ledger, max_bytes)


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
