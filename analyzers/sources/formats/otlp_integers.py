# SPDX-License-Identifier: Apache-2.0
"""Long arrays of integers in OTLP/JSON, as tables are, without an object for each of their elements.

As writers write them, an array is ``{"arrayValue":{"values":[{"intValue":"7"},{"intValue":"8"}]}}``: without
what stands between the numbers it is the JSON of a list. What is written in any other way is left to others.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

_BEGIN: Final = b'{"arrayValue":{"values":[{"intValue":"'
_BETWEEN: Final = b'"},{"intValue":"'
_DELETED: Final = _BETWEEN.replace(b",", b"")
_END: Final = b'"}]}}'
_MOST: Final = (1 << 63) - 1
_FAULTS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Pair(msgspec.Struct, forbid_unknown_fields=True):
    """An attribute, its value as it is written."""

    key: str
    value: msgspec.Raw


_pairs: Final = msgspec.json.Decoder(list[_Pair])
_numbers: Final = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=-_MOST - 1, le=_MOST)]])


def pairs_of(raw: bytes) -> list[tuple[str, list[int] | None, Any]] | None:
    """Return (key, integers, AnyValue) of the attributes in ``raw``, of the last two one, else None.

    None where anything in it is not as usual.
    """
    found: list[tuple[str, list[int] | None, Any]] = []
    try:
        for pair in _pairs.decode(raw):
            numbers = _integers(bytes(pair.value))
            found.append((pair.key, numbers, msgspec.json.decode(pair.value) if numbers is None else None))
    except _FAULTS:
        return None
    return found


def _integers(value: bytes) -> list[int] | None:
    """Return the integers of an AnyValue; None for what is no array of them, or not written as usual."""
    if not (value.startswith(_BEGIN) and value.endswith(_END)):
        return None
    inner = value[len(_BEGIN) : -len(_END)]
    # Far faster than to replace each: all that is deleted, and each comma, must be of what is between.
    text, between = inner.translate(None, _DELETED), inner.count(_BETWEEN)
    if len(inner) - len(text) != between * len(_DELETED) or text.count(b",") != between:
        return None
    try:
        return _numbers.decode(b"[%b]" % text)
    except _FAULTS:
        return None
