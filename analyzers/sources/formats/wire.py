# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format: the fields of a message by their places, without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from grademl_otel.analyzers.sources.formats.decoding import Unreadable

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES: Final = 10
_BROKEN: Final = "not protobuf, or a damaged message"


class Field(NamedTuple):
    """A field of a message; ``start`` to ``end`` is its value, without tag and length."""

    number: int
    wire: int
    start: int
    end: int


def fields(data: bytes | memoryview, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message that lies at ``start`` to ``end`` of ``data``.

    Raises Unreadable at the first that is none, or does not end within the message.
    """
    at, end = start, len(data) if end is None else end
    while at < end:
        tag, at = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == LENGTH:
            length, at = varint(data, at, end)
            stop = at + length
        elif wire == VARINT:
            _, stop = varint(data, at, end)
        elif wire in _FIXED:
            stop = at + _FIXED[wire]
        else:
            raise Unreadable(_BROKEN)
        if not number or stop > end:
            raise Unreadable(_BROKEN)
        yield Field(number, wire, at, stop)
        at = stop


def varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return (the number at ``at``, where it ends). Raises Unreadable when none ends before ``end``."""
    value = shift = 0
    for place in range(at, min(end, at + _VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise Unreadable(_BROKEN)


def first(data: bytes | memoryview, number: int) -> bytes:
    """Return the value of the first field ``number``, below 16, of bytes; empty where there is none."""
    at = 0
    while at < len(data):
        if data[at] == number << 3 | LENGTH:
            field = next(fields(data, at))
            return bytes(data[field.start : field.end])
        at = _after(data, at)
    return b""


def split(data: bytes | memoryview, size: int) -> Iterator[bytes | memoryview]:
    """Yield ``data``, a message, as messages of about ``size`` bytes with some of its fields each."""
    if len(data) <= size:
        yield data
        return
    begun = ended = 0
    while ended < len(data):
        end = _after(data, ended)
        if end - begun > size and ended > begun:
            yield data[begun:ended]
            begun = ended
        ended = end
    yield data[begun:ended]


def _after(data: bytes | memoryview, at: int) -> int:
    """Return where the field at ``at`` ends; raise Unreadable as `fields` does.

    Those with a tag of one byte and less than 16 KiB, as spans are, are passed without being looked at.
    """
    if at + 3 <= len(data) and data[at] & 0x87 == LENGTH and data[at] > LENGTH:
        low, high = data[at + 1], data[at + 2]
        end = at + 2 + low if low < 0x80 else at + 3 + (low & 0x7F) + (high << 7)
        if (low < 0x80 or high < 0x80) and end <= len(data):
            return end
    return next(fields(data, at)).end
