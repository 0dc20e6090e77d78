# SPDX-License-Identifier: Apache-2.0
"""gzip and zstd, told from their first bytes: members back to back, one in the other, cut ones, bombs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f
_LAYERS: Final = 2
_OUTPUT: Final = 1 << 20
"""Bytes; what is handed on at a time."""
_ZSTD_INPUT: Final = 4 << 10
"""Bytes; four of them may become a block of 128 KiB, and each call expands all that it is given."""
_ZSTD_WINDOW: Final = 1 << 27
_HARMLESS: Final = 64 << 20
_RATIO: Final = 1000


class Broken(Exception):
    """A stream ends or breaks in the middle: the text says how; what was yielded before it is good."""


def compression(head: bytes) -> str | None:
    """Return ``gzip`` or ``zstd`` where ``head``, the first 4 bytes of a stream, says so."""
    if head.startswith(GZIP):
        return "gzip"
    if head.startswith(ZSTD) or (head[:1] and 0x50 <= head[0] <= 0x5F and head[1:4] == _ZSTD_SKIPPABLE):
        return "zstd"
    return None


def expanded(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what ``blocks`` hold, without its compression if there is any; no piece is empty.

    Raises Broken after all that could be had, also for what expands without end.
    """
    stream = iter(blocks)
    for _ in range(_LAYERS):
        head, stream = peeked(stream, 4)
        kind = compression(head)
        if kind is None:
            break
        stream = _bounded(_LAYER[kind], stream)
    return stream


def peeked(blocks: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first ``count`` bytes (fewer where there are no more), and all blocks, with them."""
    first: list[bytes] = []
    have = 0
    while have < count:
        block = next(blocks, None)
        if block is None:
            break
        first.append(block)
        have += len(block)
    head = b"".join(first)

    def again() -> Iterator[bytes]:
        if head:
            yield head
        yield from blocks

    return head[:count], again()


def _bounded(
    expand: Callable[[Iterable[bytes]], Iterator[bytes]], blocks: Iterable[bytes]
) -> Iterator[bytes]:
    """Yield the pieces of ``expand(blocks)`` unless they grow as only bombs do."""
    taken = given = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for block in blocks:
            taken += len(block)
            yield block

    for piece in expand(counted()):
        given += len(piece)
        if given > _HARMLESS and given > _RATIO * taken:
            raise Broken(f"it expands to more than {_RATIO:,} times its size; no telemetry does")
        yield piece


def _gunzip(blocks: Iterable[bytes]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    for block in blocks:
        rest, more = block, True
        while rest or more:
            if member.eof:
                rest = rest.lstrip(b"\0")  # tapes and some programs pad with zeros
                if not rest:
                    break
                member = zlib.decompressobj(wbits=31)
            try:
                piece = member.decompress(rest, _OUTPUT)
            except zlib.error:
                raise Broken("its gzip data are damaged") from None
            more = len(piece) == _OUTPUT
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if piece:
                yield piece
    if not member.eof:
        if piece := member.flush():
            yield piece
        raise Broken("its gzip data end in the middle")


def _unzstd(blocks: Iterable[bytes]) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError

    context = ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame = None
    pieces: list[bytes] = []
    size = 0
    fault = ""
    for part in _parts(blocks, _ZSTD_INPUT):
        rest = part
        try:
            while rest:
                frame = frame or context.decompressobj()
                pieces.append(frame.decompress(rest))
                size += len(pieces[-1])
                rest = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
        except (ZstdError, MemoryError) as error:
            fault = "its zstd data are damaged"
            if "memory" in str(error):
                fault = f"its zstd data need a window of more than {_ZSTD_WINDOW >> 20} MiB"
            break
        if size >= _OUTPUT:
            yield b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)
    if fault or frame is not None:
        raise Broken(fault or "its zstd data end in the middle")


def _parts(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    for block in blocks:
        for at in range(0, len(block), size):
            yield block[at : at + size]


_LAYER: Final[dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]]] = {"gzip": _gunzip, "zstd": _unzstd}
