# SPDX-License-Identifier: Apache-2.0
"""What bytes hold, told from the first of them: text, protobuf, messages with their lengths before them."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import Final

from grademl_otel.analyzers.sources.files.compression import ZSTD
from grademl_otel.analyzers.sources.formats import wire
from grademl_otel.analyzers.sources.formats.decoding import Unreadable

HEAD: Final = 96
"""Bytes that are looked at."""
_PARQUET: Final = b"PAR1"
_GROUPS: Final = 0x0A  # field 1: resource spans of a request, a resource of these, its attributes, their keys
_SCOPES: Final = 0x12  # field 2: spans of a scope
_OF_GROUP: Final = (_GROUPS, _SCOPES, 0x1A)
_OF_RESOURCE: Final = (_GROUPS, 0x10, 0x1A)
_KEY_LEVELS: Final = 4
_LARGEST: Final = 1 << 30


class Holds(Enum):
    """How bytes are to be taken apart; the values are words for people."""

    TEXT = "JSON"
    PROTOBUF = "OTLP protobuf"
    TEMPO = "Tempo's protobuf answer"
    FRAMES = "messages of the Collector's file exporter"
    DELIMITED = "protobuf messages, their lengths before them"
    PARQUET = "Parquet"


def holds(head: bytes) -> Holds:
    """Return what begins with ``head``, of which `HEAD` bytes are enough; text where nothing else fits."""
    if head.startswith(_PARQUET):
        return Holds.PARQUET
    length = int.from_bytes(head[:4], "big")
    if len(head) > 4 and head[:4].strip() and length <= _LARGEST and _is_message(head[4:], length):
        return Holds.FRAMES
    found = _protobuf(head)
    if found is not None:
        return found
    try:
        length, at = wire.varint(head, 0, len(head))
    except Unreadable:
        return Holds.TEXT
    if _protobuf(head[at:], length) is Holds.PROTOBUF:
        return Holds.DELIMITED
    return Holds.TEXT


def _is_message(head: bytes, length: int) -> bool:
    if head.startswith(ZSTD):
        return True
    if head.startswith(b"{"):
        return not head[1:2].isspace() and length > 2
    return _protobuf(head, length) is Holds.PROTOBUF


def _protobuf(head: bytes, length: int | None = None) -> Holds | None:
    """Return whether a message of ``length`` bytes (if that is known) begins with ``head``, and which.

    Field 1 within field 1 goes down to the first attribute's key; an answer of Tempo has a level more. JSON
    may begin with the same byte, a new line.
    """
    at = 0
    sizes: list[tuple[int, int]] = []
    while at < len(head) and head[at] == _GROUPS and len(sizes) <= _KEY_LEVELS:
        try:
            size, at = wire.varint(head, at + 1, len(head))
        except Unreadable:
            return None
        sizes.append((at, size))
        if size == 0:
            break
    if not sizes or any(a + s < b + t for (a, s), (b, t) in pairwise(sizes)):
        return None
    if length is not None and sum(sizes[0]) > length:
        return None
    levels, next_byte = len(sizes), head[at : at + 1]
    if levels > _KEY_LEVELS or (levels == 3 and sizes[-1][1] == 0):
        return Holds.TEMPO
    if sizes[-1][1] == 0:
        return Holds.PROTOBUF if levels <= 2 else None
    first = next_byte[0] if next_byte else -1
    if levels == 1:
        return Holds.PROTOBUF if first in _OF_GROUP else None
    if levels == 2:
        return Holds.TEMPO if first == _SCOPES else Holds.PROTOBUF if first in _OF_RESOURCE else None
    if levels == _KEY_LEVELS or first == _SCOPES:  # a key, or a value whose key is empty
        return Holds.PROTOBUF
    return Holds.TEMPO if first in _OF_RESOURCE else None
