# SPDX-License-Identifier: Apache-2.0
"""A stretch of a stream of JSON text: grows as far as is looked, and lets go of what was taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable
from grademl_otel.analyzers.sources.formats.jsonscan import MAX_DEPTH, TOO_DEEP, scan

PIECE: Final = 2 << 20
"""Bytes that are handed on together: bigger pieces make nothing faster."""
LINE: Final = 16 << 20
"""Bytes of the longest line that is handed on as it is."""
END: Final = -1
_SPACE: Final = re.compile(rb"[ \t\r\n\x1e]*")
_KEY: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_LONGEST_KEY: Final = 1 << 12
_FIRST_LOOK: Final = 1 << 12
_LOOSE: Final = b", \t\r\n"
"""What may stand between the last element of an array and its end."""


_CHUNK: Final = 1 << 18


class CutShort(Unreadable):
    """The text ends within a document."""


class Window:
    """What of ``chunks`` is looked at; what was before is taken. No value has more than ``max_bytes``."""

    def __init__(self, chunks: Iterable[bytes], max_bytes: int) -> None:
        self._chunks = _small(chunks)
        self._data = bytearray()  # what counts is from `_at` to `_end`; the rest is room
        self._at = 0
        self._end = 0
        self._ended = False
        self._max_bytes = max_bytes
        self.piece = min(PIECE, max_bytes)
        self._longest_line = min(LINE, max_bytes)

    def head(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer at the end, without taking them."""
        self._fill(size)
        return self._slice(self._at, min(self._end, self._at + size))

    def peek(self) -> int:
        """Pass over white space; return the byte that follows, `END` if none does.

        Raises Unreadable where there is more of it than a document may have.
        """
        passed = 0
        while True:
            start = self._at
            self._at = _SPACE.match(self._data, start, self._end).end()  # type: ignore[union-attr]
            if self._at < self._end:
                return self._data[self._at]
            passed += self._at - start
            if passed > self._max_bytes:
                raise Unreadable(f"{self._max_bytes:,} blanks and nothing after them")
            if not self._fill(1):
                return END

    def skip(self, count: int = 1) -> None:
        """Take bytes that nobody wants."""
        self._at += count

    def line(self) -> bytes | None:
        """Return the bytes up to the end of the line, or of the text, without taking them.

        None where neither is within `LINE` bytes.
        """
        looked = 0
        while True:
            until = min(self._end, self._at + self._longest_line)
            found = self._data.find(b"\n", self._at + looked, until)
            if found >= 0:
                return self._slice(self._at, found + 1)
            looked = self._end - self._at
            if looked >= self._longest_line:
                return None
            if not self._fill(looked + 1):
                return self._slice(self._at, self._at + looked)

    def skip_line(self) -> bool:
        """Take the rest of the line, however long it is; return whether it had an end."""
        while True:
            found = self._data.find(b"\n", self._at, self._end)
            if found >= 0:
                self._at = found + 1
                return True
            self._at = self._end
            if not self._fill(1):
                return False

    def key(self) -> str:
        """Take the key of a member, the colon after it included. Raises NotJson where there is none."""
        self._fill(_LONGEST_KEY)
        match = _KEY.match(self._data, self._at, min(self._end, self._at + _LONGEST_KEY))
        if match is None:
            left = self.head(_LONGEST_KEY)
            if len(left) < _LONGEST_KEY and (not left or left.count(b'"') < 2 or left.endswith(b'"')):
                raise CutShort("it ends within a document")
            raise NotJson("not JSON: a key is expected")
        self._at = match.end()
        return match.group(1).decode("utf-8", "replace")

    def value(self, limit: int | None = None) -> bytes | None:
        """Take the value of a member; take nothing and return None if it does not end within ``limit`` bytes.

        Raises Unreadable for one of more than ``max_bytes``, CutShort where the text ends within it.
        """
        for size in self._sizes(limit):
            end, cut = self._scan(size, first=True)
            stop = cut if cut >= 0 else end
            if stop >= 0:
                return self._take(stop)
            if self._end - self._at < size:
                raise CutShort("it ends within a document")
        return None

    def elements(self) -> tuple[bytes, int]:
        """Take the next elements of an array, of about a piece, as an array.

        Returns (them, the bracket that closes the array; 0 where it is farther on). Nothing is taken, and
        (b"", 0) returned, where an element is bigger than a piece. Raises CutShort where the text ends within
        one.
        """
        end, cut = self._scan(self.piece, first=False)
        stop = end if end >= 0 else cut
        if stop < 0:
            if self._end - self._at < self.piece:
                raise CutShort("it ends within a document")
            return b"", 0
        bracket = self._data[stop] if end >= 0 else 0
        start, self._at = self._at, stop + 1
        while stop > start and self._data[stop - 1] in _LOOSE:
            stop -= 1
        with memoryview(self._data) as view, view[start:stop] as some:
            return b"".join((b"[", some, b"]")), bracket

    def element(self) -> bytes:
        """Take one element of an array, as big as it may be, or what follows the comma after the last."""
        taken = self.value()
        assert taken is not None
        return taken

    def document(self) -> bytes | None:
        """Take an array or object that is a document; take nothing and return None if it exceeds a piece.

        Raises CutShort where the text ends within it.
        """
        for size in self._sizes(self.piece):
            end, _ = self._scan(size, first=False, inside=1)
            if end >= 0:
                return self._take(end + 1)
            if self._end - self._at < size:
                raise CutShort("it ends within a document")
        return None

    def _sizes(self, limit: int | None) -> Iterable[int]:
        """Yield how far to look, each time farther, up to ``limit``; raise Unreadable past ``max_bytes``."""
        most = self._max_bytes if limit is None else limit
        size = min(_FIRST_LOOK, most)
        while True:
            yield size
            if size >= most:
                break
            size = min(size * 8, most)
        if limit is None:
            raise Unreadable(f"a value of more than {most:,} bytes")

    def _scan(self, size: int, first: bool, inside: int = 0) -> tuple[int, int]:
        self._fill(size)
        start = min(self._end, self._at + inside)
        end, cut = scan(self._data, start, max(start, min(self._end, self._at + size)), first)
        if end == TOO_DEEP:
            raise Unreadable(f"brackets nested more than {MAX_DEPTH:,} deep")
        return end, cut

    def _fill(self, size: int) -> bool:
        """Have ``size`` bytes at hand, or all that are left; return whether there are so many."""
        while self._end - self._at < size and not self._ended:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._ended = True
            else:
                self._put(chunk)
        return self._end - self._at >= size

    def _put(self, chunk: bytes | memoryview) -> None:
        """Append to what is at hand; memory is kept, since new memory costs more than the copy."""
        held = self._end - self._at
        if self._end + len(chunk) > len(self._data):
            needed = held + len(chunk)
            old = self._data
            if needed > len(old):
                self._data = bytearray(needed + needed // 4)
            with memoryview(old) as source, memoryview(self._data) as target:
                target[:held] = source[self._at : self._end]
            self._at, self._end = 0, held
        self._data[self._end : self._end + len(chunk)] = chunk
        self._end += len(chunk)

    def _take(self, stop: int) -> bytes:
        taken = self._slice(self._at, stop)
        self._at = stop
        return taken

    def _slice(self, start: int, stop: int) -> bytes:
        with memoryview(self._data) as view:
            return bytes(view[start:stop])


def _small(chunks: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield ``chunks`` in parts that a window takes without growing."""
    for chunk in chunks:
        if len(chunk) <= _CHUNK:
            yield chunk
        else:
            view = memoryview(chunk)
            yield from (view[at : at + _CHUNK] for at in range(0, len(chunk), _CHUNK))
