# SPDX-License-Identifier: Apache-2.0
"""Unpacks an answer that a server, or a proxy on the way, has packed; a little at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from grademl_otel.analyzers.sources.files.compression import Broken, expanded

_OUTPUT: Final = 1 << 18


def unpacked(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield ``blocks`` as they were before ``encoding`` (a Content-Encoding): gzip, zstd, deflate or none.

    gzip and zstd are told from their first bytes, whatever the encoding says. Raises Broken.
    """
    encoding = encoding.strip().lower()
    if encoding == "deflate":
        return _inflated(blocks)
    if encoding not in ("", "identity", "gzip", "x-gzip", "zstd"):
        raise Broken(f"it is packed by {encoding[:20]!r}, which was not asked for")
    return expanded(blocks)


def _inflated(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack zlib, or, as some servers call it too, what zlib wraps."""
    stream = iter(blocks)
    head = next(stream, b"")
    wrapped = len(head) > 1 and head[0] & 15 == 8 and (head[0] * 256 + head[1]) % 31 == 0
    unpacker = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
    for block in chain((head,), stream):
        rest = block
        while rest and not unpacker.eof:
            try:
                piece = unpacker.decompress(rest, _OUTPUT)
            except zlib.error:
                raise Broken("its deflate data are damaged") from None
            rest = unpacker.unconsumed_tail
            if piece:
                yield piece
