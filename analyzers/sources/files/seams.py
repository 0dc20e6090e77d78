# SPDX-License-Identifier: Apache-2.0
"""A file that was rotated, read as one: a line that rotation cut in two is put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

_REQUEST: Final = b'{"resource'
_LONGEST: Final = 64 << 20
"""Bytes of a line that are held back for the next file."""


def joined(files: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the blocks of ``files`` one after the other; each ends with a whole line where that can be had.

    Old versions of the Collector rotate in the middle of a line. Where the end of one file and the beginning
    of the next are a document only together, they are yielded so; else a new line parts them.
    """
    tail = b""
    for blocks in files:
        stream = iter(blocks)
        if tail.strip():
            first = _first_line(stream)
            whole = tail + first
            if b"\n" in first:
                apart = _is_json(tail) or not _is_json(whole)
            else:  # that file is a part of this line, too, unless it is a request
                apart = _is_json(tail) or (first.startswith(_REQUEST) and _is_json(first))
            stream = chain([tail + b"\n" + first if apart else whole], stream)
        tail = b""
        for block in stream:
            end = block.rfind(b"\n") + 1
            if not end:
                tail += block
            else:
                yield tail + block[:end]
                tail = block[end:]
            if len(tail) > _LONGEST:
                yield tail
                tail = b""
    if tail:
        yield tail


def _first_line(stream: Iterator[bytes]) -> bytes:
    """Return the blocks up to the one in which the first line ends."""
    parts: list[bytes] = []
    for block in stream:
        parts.append(block)
        if b"\n" in block or sum(map(len, parts)) > _LONGEST:
            break
    return b"".join(parts)


def _is_json(text: bytes) -> bool:
    """Whether the first line of ``text`` is a document."""
    line, _, _ = text.partition(b"\n")
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
