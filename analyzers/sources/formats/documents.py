# SPDX-License-Identifier: Apache-2.0
"""JSON documents of any known kind out of a stream: one a line, back to back, or one bigger than memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats import kinds
from grademl_otel.analyzers.sources.formats.cutting import Cutter
from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable
from grademl_otel.analyzers.sources.formats.window import END, CutShort, Window

_BOM: Final = b"\xef\xbb\xbf"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_HTML: Final = re.compile(rb"\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_BRACKETS: Final = b"{["
_ONLY_SPANS: Final = re.compile(rb'\s*\{\s*"resourceSpans"\s*:\s*\[(.*)\]\s*\}\s*', re.DOTALL)
_SMALL: Final = 1 << 15
_TOGETHER: Final = 1 << 20
"""Bytes of lines that are read at once, where each has at most `_SMALL`."""
_TOP_KEYS: Final = kinds.KNOWN | {"id", "traceId"}


def read_document(
    raw: bytes | msgspec.Raw, builder: SpanBuilder, ledger: Ledger | None = None, depth: int = 0
) -> None:
    """Add the spans of one document to ``builder`` until it is full; metrics and logs are passed over.

    What it says it lacks is counted in ``ledger``. Raises Unreadable when it is no JSON, or of another kind.
    """
    try:
        kinds.read(raw, builder, Ledger() if ledger is None else ledger, depth)
    except NotJson:
        raise Unreadable(_what(bytes(memoryview(raw)[:512])) or "not JSON") from None


def read_json(
    chunks: Iterable[bytes], builder: SpanBuilder, ledger: Ledger, where: str, max_bytes: int
) -> None:
    """Add the spans of the documents in ``chunks`` to ``builder`` until it is full.

    Lines that are no documents are left out and counted; ``where`` names the text in the ledger's warnings.
    No value but arrays of spans may have more than ``max_bytes``. Raises Unreadable when nothing can be read.
    """
    _Documents(Window(chunks, max_bytes), builder, ledger, where, max_bytes).read()


class _Documents:
    """One stream: what it is made of is found from its first document, and kept to."""

    def __init__(
        self, window: Window, builder: SpanBuilder, ledger: Ledger, where: str, max_bytes: int
    ) -> None:
        self._window = window
        self._builder = builder
        self._ledger = ledger
        self._where = where
        self._max_bytes = max_bytes
        self._before = len(builder)
        self._read = 0
        self._lines = False
        """Whether the documents are lines."""
        self._number = 0
        """Of the document or line, from 1."""
        self._apart = 0
        """How many lines are to be read each by itself."""
        self._unreadable = 0
        self._fault: str | None = None
        self._cut = False

    def read(self) -> None:
        head = self._window.head(512)
        if head.startswith(_BOM):
            self._window.skip(len(_BOM))
        elif head.startswith(_UTF_16) or (b"\0" in head[:4] and head[:4].strip(b"\0")[:1] in (b"{", b"[")):
            raise Unreadable("UTF-16 text; make it UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        while not self._builder.full and self._window.peek() != END:
            self._number += 1
            if not self._one():
                break
        self._tell()

    def _one(self) -> bool:
        """Take one line or document; return whether to go on."""
        line = self._window.line()
        if line is not None:
            if len(line) <= _SMALL and self._together():
                return True
            try:
                kinds.read(line, self._builder, self._ledger)
            except NotJson as fault:
                if self._lines or self._is_odd_line(line):
                    self._lines = True
                    return self._odd_line(line, fault)
            except Unreadable as fault:
                self._lines = True
                return self._leave_out(fault, line)
            else:
                self._lines, self._read = True, self._read + 1
                self._window.skip(len(line))
                return True
        try:
            self._document()
            self._read += 1
        except CutShort as fault:
            self._broken_off(fault)
            return False
        except Unreadable as fault:
            if not self._lines:
                self._broken_off(fault)
                return False
            self._count(fault)
            return self._window.skip_line()
        return True

    def _together(self) -> bool:
        """Take small lines of OTLP at once, of which each alone would cost more than its spans."""
        if self._apart:
            self._apart -= 1
            return False
        lines = self._window.head(_TOGETHER).split(b"\n")[:-1]
        spans, taken, number = [], 0, 0
        for line in lines:
            match = _ONLY_SPANS.fullmatch(line)
            if match is not None:
                number += 1
                if inner := match.group(1).strip():
                    spans.append(inner)
            elif line.strip():
                break
            taken += len(line) + 1
        count = len(spans)
        if count > 1:
            try:
                kinds.read_groups(b"[%b]" % b",\n".join(spans), self._builder, self._ledger)
            except Unreadable:  # one by one, so that only what is wrong is left out
                count = 0
        if count <= 1:
            self._apart = len(lines)
            return False
        self._lines = True
        self._read += count
        self._number += number - 1
        self._window.skip(taken)
        return True

    def _document(self) -> None:
        """Take a document that is no line."""
        if self._window.peek() not in _BRACKETS:
            head = self._window.head(512)
            raise NotJson(_what(head) or "no JSON")
        try:
            document = self._window.document()
        except CutShort:
            document = None  # some of it may be whole
        if document is None:
            Cutter(self._window, self._builder, self._ledger).document()
            return
        try:
            kinds.read(document, self._builder, self._ledger)
        except NotJson:
            # What a decoder refuses may be a profiler's: their readers take events one by one.
            if kinds.EVENTS.encode() not in document and not kinds.is_events(document):
                raise
            Cutter(Window([document], self._max_bytes), self._builder, self._ledger).document()

    def _is_odd_line(self, line: bytes) -> bool:
        """Whether this first line, which is no document, is a broken line: that after it is a document."""
        following = self._window.head(len(line) + self._window.piece)[len(line) :].partition(b"\n")[0]
        if kinds.first_key(following).decode("utf-8", "replace") not in _TOP_KEYS or following[:1] != b"{":
            return False
        try:
            msgspec.json.decode(following, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return True

    def _odd_line(self, line: bytes, fault: Unreadable) -> bool:
        """Take a line that is no document: several of them, or none."""
        packed = Window([line], self._max_bytes)
        before, count = len(self._builder), 0
        try:
            while packed.peek() != END and not self._builder.full:
                if packed.peek() not in _BRACKETS:
                    raise fault
                Cutter(packed, self._builder, self._ledger).document()
                count += 1
        except Unreadable:
            if len(self._builder) == before and not count:
                return self._leave_out(fault, line)
            self._count(fault)
        self._read += count
        self._window.skip(len(line))
        return True

    def _leave_out(self, fault: Unreadable, line: bytes) -> bool:
        self._count(fault, line)
        self._cut = not line.endswith(b"\n") and isinstance(fault, NotJson)
        self._window.skip(len(line))
        return True

    def _count(self, fault: Unreadable, line: bytes = b"{") -> None:
        self._unreadable += 1
        if self._fault is None:
            self._fault = f"line {self._number}: {_what(line[:512]) or fault}"

    def _broken_off(self, fault: Unreadable) -> None:
        """Tell of a document that the stream cannot be read beyond."""
        if not self._read and len(self._builder) == self._before:
            again = "; if it is being written, try again when it is complete"
            raise Unreadable(f"{fault}{again}" if isinstance(fault, CutShort) else str(fault)) from None
        self._ledger.unreadable_lines += 1
        spans = len(self._builder) - self._before
        self._ledger.warnings.append(
            f"{self._where}: broke off in document {self._number}, after {spans:,} spans: {fault}"
        )

    def _tell(self) -> None:
        """Put lines that were left out into the ledger, or raise if there was nothing else."""
        if self._fault is None:
            return
        if not self._read and len(self._builder) == self._before:
            raise Unreadable(self._fault)
        self._ledger.unreadable_lines += self._unreadable
        if self._cut:
            self._ledger.warnings.append(
                f"{self._where}: the last line ({self._number}) is cut; it was left out"
            )
        if not self._cut or self._unreadable > 1:
            lines = "1 unreadable line" if self._unreadable == 1 else f"{self._unreadable:,} unreadable lines"
            self._ledger.warnings.append(f"{self._where}: {lines} left out; {self._fault}")


def _what(head: bytes) -> str | None:
    """Return in words what begins with ``head``; None where that may well be JSON."""
    if _HTML.match(head):
        return "an HTML page, no JSON"
    if head.lstrip()[:1] not in (b"{", b"["):
        begins = head.lstrip()[:24]
        text = begins.decode(errors="replace").rstrip("\ufffd")  # the last character may be cut
        if "\ufffd" in text or not "".join(text.split()).isprintable():
            return f"no JSON; it begins with the bytes {begins[:8].hex(' ')}"
        return f"no JSON; it begins with {text!r}"
    return None
