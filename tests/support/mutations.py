# SPDX-License-Identifier: Apache-2.0
"""Input that chance has changed: bytes, the structure of JSON, the structure of protobuf. All seeded."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from typing import Any, Final

from .every_format import varint

_LITERALS: Final = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-0",
    "1e-400",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1" + "0" * 400,
    "0.1",
    "1.7961133227638693e18",
    "--1",
    "01",
    "tru",
    '"\\ud800"',
    '"\\u0000"',
    '"unended',
    "[" * 200,
    '{"a":' * 200,
)
"""Put in as they are; some are no JSON."""
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    0.5,
    -1.5,
    1e300,
    "",
    "0",
    "-1",
    "NaN",
    "Infinity",
    "1e999",
    "9" * 30,
    "0" * 32,
    "f" * 32,
    "f" * 33,
    "٣" * 16,
    "süß\u2028\x00",
    "data:",
    [],
    {},
    [[]],
    [None],
    {"": None},
    [0, "a", {}],
    {"key": "service.name", "value": {"stringValue": "x"}},
    {"refType": "CHILD_OF", "traceID": "1", "spanID": "1"},
)
_BYTES: Final = (0, 1, 0x0A, 0x22, 0x2C, 0x5B, 0x5C, 0x5D, 0x7B, 0x7D, 0x7F, 0x80, 0xC3, 0xFF)
_VARINTS: Final = (0, 1, 127, 128, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1)

Mutate = Callable[[random.Random], bytes]
_Field = tuple[int, int, Any]
"""Number, wire type (-1: the value is written as it is), bytes or the fields of a message."""


def of_bytes(data: bytes) -> Mutate:
    """Return what flips, overwrites, cuts out, puts in, repeats, moves bytes or ends them early."""
    return lambda chance: _bytes_changed(data, chance)


def _bytes_changed(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        size = chance.choice((1, 1, 2, 4, 16, 64, 256))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice(_BYTES)
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = bytes(chance.choice(_BYTES) for _ in range(size))
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                part = changed[at : at + size]
                del changed[at : at + size]
                to = chance.randrange(len(changed) + 1)
                changed[to:to] = part
            case _:
                del changed[at:]
    return bytes(changed)


def of_json(data: bytes) -> Mutate:
    """Return what changes JSON documents, a line each: values replaced, removed, repeated, wrapped."""
    parsed = pickle.dumps([json.loads(line) for line in data.split(b"\n") if line])

    def mutate(chance: random.Random) -> bytes:
        documents = pickle.loads(parsed)
        literals: list[str] = []
        for _ in range(chance.choice((1, 1, 2, 4))):
            if documents:
                _change(*_place(documents, chance), literals, documents, chance)
        text = "\n".join(json.dumps(each, separators=(",", ":")) for each in documents)
        for number, literal in enumerate(literals):
            text = text.replace(f'"literal {number} of it"', literal)
        return text.encode("utf-8", "surrogatepass")

    return mutate


def _change(holder: Any, key: Any, literals: list[str], documents: list[Any], chance: random.Random) -> None:
    match chance.randrange(8):
        case 0:
            holder[key] = f"literal {len(literals)} of it"
            literals.append(chance.choice(_LITERALS))
        case 1 | 2:
            holder[key] = _copy(chance.choice(_VALUES))
        case 3:
            del holder[key]
        case 4:
            other, there = _place(documents, chance)
            other[there] = _copy(holder[key])
        case 5:
            holder[key] = [holder[key]] if chance.random() < 0.5 else {"value": holder[key]}
        case 6 if isinstance(holder, dict):
            holder[chance.choice((key.lower(), key + "x", "traceID", "spans", "data", ""))] = holder.pop(key)
        case _ if isinstance(holder, list):
            holder[key:key] = [_copy(holder[key])] * chance.choice((1, 3))
        case _:
            holder[key] = str(holder[key])


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return (holder, key) of some value below ``value``, which is not empty."""
    while True:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        below = value[key]
        if not (isinstance(below, dict | list) and below) or chance.random() < 0.15:
            return value, key
        value = below


def of_protobuf(data: bytes) -> Mutate:
    """Return what changes a message: numbers, types, lengths; fields repeated, removed, moved."""
    parsed = pickle.dumps(_fields(data))

    def mutate(chance: random.Random) -> bytes:
        fields = pickle.loads(parsed)
        for _ in range(chance.choice((1, 1, 2, 4))):
            holder = _message(fields, chance)
            if holder:
                _change_field(holder, chance.randrange(len(holder)), _message(fields, chance), chance)
        return _encoded(fields)

    return mutate


def _change_field(holder: list[_Field], ix: int, other: list[_Field], chance: random.Random) -> None:
    number, kind, value = holder[ix]
    match chance.randrange(8):
        case 0:
            holder[ix] = (chance.choice((0, 1, 2, number + 1, 15, 16, 2**29 - 1)), kind, value)
        case 1:
            # The bytes stay, what they are said to be changes.
            holder[ix] = (number, -1, varint(number << 3 | chance.randrange(8)) + _written(value))
        case 2:
            del holder[ix]
        case 3:
            holder[ix:ix] = [_copy(holder[ix])] * chance.choice((1, 3))
        case 4:
            other.insert(chance.randrange(len(other) + 1), _copy(holder[ix]))
        case 5:
            length = chance.choice(_VARINTS)
            holder[ix] = (number, -1, varint(number << 3 | 2) + varint(length) + _written(value))
        case 6:
            holder[ix] = (number, 0, varint(chance.choice(_VARINTS)) + b"\x80" * chance.choice((0, 0, 10)))
        case _:
            holder[ix] = (number, kind, _bytes_changed(_written(value), chance))


def _fields(data: bytes, depth: int = 0) -> list[_Field]:
    """Parse a message; what parses as one below it is taken for one. Raises ValueError for what is none."""
    fields: list[_Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            start = at
            _, at = _varint(data, at)
            fields.append((number, kind, data[start:at]))
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            fields.append((number, kind, data[at : at + size]))
            at += size
        elif kind == 2:
            length, at = _varint(data, at)
            part = data[at : at + length]
            if number == 0 or len(part) != length:
                raise ValueError("no message")
            at += length
            try:
                inner: Any = _fields(part, depth + 1) if part and depth < 8 else part
            except ValueError:
                inner = part
            if (
                inner and _written(inner) != part
            ):  # text that could be read as a message, but was not written as one
                inner = part
            fields.append((number, kind, inner))
        else:
            raise ValueError("no message")
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("no number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _message(fields: list[_Field], chance: random.Random) -> list[_Field]:
    """Return the fields of some message at or below ``fields``."""
    while True:
        below = [value for _, _, value in fields if isinstance(value, list) and value]
        if not below or chance.random() < 0.15:
            return fields
        fields = chance.choice(below)


def _written(value: Any) -> bytes:
    return _encoded(value) if isinstance(value, list) else value


def _encoded(fields: list[_Field]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        content = _written(value)
        if kind == -1:
            out += content
            continue
        out += varint(number << 3 | kind)
        if kind == 2:
            out += varint(len(content))
        out += content
    return bytes(out)


def _copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))
