# SPDX-License-Identifier: Apache-2.0
"""A column out of the values of many spans: ids, times, enums, raw bytes.

Each has a fast path for values that are all well-formed, and an exact one, value by value, for the rest.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.raw import Form, RawColumn
from grademl_otel.analyzers.sources.batch import IdArray
from grademl_otel.analyzers.sources.formats.decoding import Unreadable

NO_TIME: Final = -1
_MAX_TIME: Final = 2**63 - 1
_EXACT: Final = 2**53
"""Below, floats hold every integer."""
_HEX: Final = re.compile(r"[0-9A-Fa-f]+", re.ASCII)
_BASE64: Final = {
    8: re.compile(r"[A-Za-z0-9+/]{11}=", re.ASCII),
    16: re.compile(r"[A-Za-z0-9+/]{22}==", re.ASCII),
}

Number = int | str | float | None
Size = Literal[8, 16]


# --- Ids ---


@overload
def ids(texts: Sequence[str | None], size: Literal[8], *, optional: bool = ...) -> IdArray: ...
@overload
def ids(
    texts: Sequence[str | None], size: Literal[16], *, optional: bool = ...
) -> tuple[IdArray, IdArray]: ...
def ids(
    texts: Sequence[str | None], size: Size, *, optional: bool = False
) -> IdArray | tuple[IdArray, IdArray]:
    """Return ids of ``size`` bytes given as hex (padding may be missing) or base64; of 16 bytes (high, low).

    Raises Unreadable for what is no id, and, unless ``optional``, for one that is absent or all zeros.
    """
    zero = "0" * (2 * size)
    full = [text or zero for text in texts]
    raw = b""
    if set(map(len, full)) == {2 * size}:
        try:
            raw = bytes.fromhex("".join(full))
        except ValueError:
            pass
    if len(raw) != len(full) * size:  # white space is skipped
        raw = b"".join([_id(text, size) for text in full])
    return _from_bytes(raw, size, texts, optional)


@overload
def binary_ids(raws: Sequence[bytes], size: Literal[8], *, optional: bool = ...) -> IdArray: ...
@overload
def binary_ids(
    raws: Sequence[bytes], size: Literal[16], *, optional: bool = ...
) -> tuple[IdArray, IdArray]: ...
def binary_ids(
    raws: Sequence[bytes], size: Size, *, optional: bool = False
) -> IdArray | tuple[IdArray, IdArray]:
    """Return ids given as bytes, of which leading zeros may be missing; otherwise as `ids`."""
    zero = bytes(size)
    full = [raw or zero for raw in raws]
    if set(map(len, full)) - {size}:
        for raw in full:
            if len(raw) > size:
                raise Unreadable(f"{raw[:20].hex()!r} is no id of {size} bytes")
        full = [raw.rjust(size, b"\0") for raw in full]
    return _from_bytes(b"".join(full), size, raws, optional)


def identified(trace: str | None, span: str | None, parent: str | None = None) -> bool:
    """Whether these are the ids of a span; that of a parent may be absent."""
    try:
        ids([trace], 16)
        ids([span], 8)
        ids([parent], 8, optional=True)
    except Unreadable:
        return False
    return True


def _id(text: str, size: int) -> bytes:
    if len(text) <= 2 * size and _HEX.fullmatch(text):
        return bytes.fromhex(text.rjust(2 * size, "0"))
    if _BASE64[size].fullmatch(text):
        return binascii.a2b_base64(text)
    raise Unreadable(f"{text[:40]!r} is no id of {size} bytes")


def _from_bytes(
    raw: bytes, size: int, given: Sequence[Any], optional: bool
) -> IdArray | tuple[IdArray, IdArray]:
    words = np.frombuffer(raw, ">u8").astype(np.uint64).reshape(-1, size // 8)
    if not optional:
        absent = ~words.any(axis=1)
        if absent.any():
            raise Unreadable(f"a span without an id: {given[int(absent.argmax())]!r}")
    return words[:, 0] if size == 8 else (words[:, 0].copy(), words[:, 1].copy())


# --- Times ---


def times(values: Sequence[Number]) -> IntArray:
    """Return integers given as numbers or decimal strings: 0 where absent, `NO_TIME` for what is no time.

    A fraction is cut off; what is negative or beyond int64 is no time.
    """
    try:
        found = np.array(list(map(int, values)), np.int64)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.array([_time(value) for value in values], np.int64)
    return np.where(found < 0, NO_TIME, found) if len(found) and found.min() < 0 else found


def microseconds(values: Sequence[Number]) -> IntArray:
    """Return ns of values in us, as `times`; fractions are rounded to ns."""
    kinds = set(map(type, values))
    if kinds == {int}:
        with suppress(OverflowError):
            found = np.array(values, np.int64)
            if found.min() >= 0 and found.max() <= _MAX_TIME // 1000:
                return found * 1000
    elif kinds <= {int, float}:
        with suppress(OverflowError):
            us = np.array(values, np.float64)
            if len(us) and us.min() >= 0 and us.max() < _EXACT:
                whole = np.floor(us)
                return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return np.array([_nanoseconds(value) for value in values], np.int64)


def settled(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return times as a batch has them: where either is no time, both are 0."""
    odd = (start < 0) | (end < 0)
    if not odd.any():
        return start, end
    return np.where(odd, 0, start), np.where(odd, 0, end)


def _time(value: Number) -> int:
    """Return what `times` makes of one value."""
    exact = _decimal(value)
    return int(exact) if -1 < exact < _MAX_TIME + 1 else NO_TIME


def _nanoseconds(value: Number) -> int:
    """Return what `microseconds` makes of one value."""
    if isinstance(value, float) and 0 <= value < _EXACT:
        whole = int(value)
        return whole * 1000 + round((value - whole) * 1000)
    exact = _decimal(value)
    if not 0 <= exact <= _MAX_TIME:
        return NO_TIME
    ns = round(exact * 1000)
    return ns if ns <= _MAX_TIME else NO_TIME


def _decimal(value: Number) -> Decimal:
    """Return a number exactly, 0 where it is absent; a negative one for what is none."""
    try:
        exact = Decimal(value or 0)
    except InvalidOperation:
        return Decimal(NO_TIME)
    return exact if exact.is_finite() else Decimal(NO_TIME)


# --- Texts, enums, flags, raw bytes ---


def shared(texts: Sequence[str], known: dict[str, str]) -> list[str]:
    """Return ``texts`` with one object for all equal ones, from ``known``, to which new ones are added."""
    known.update({text: text for text in set(texts) - known.keys()})
    return list(map(known.__getitem__, texts))


def enums(values: Sequence[Number], names: Mapping[str, int]) -> npt.NDArray[np.int8]:
    """Return enums given as numbers, digits or names; a name may have a prefix that ends in ``_``.

    0 for what is none of these, and beyond int8.
    """
    number = {value: _enum(value, names) for value in set(values)}
    return np.fromiter(map(number.__getitem__, values), np.int8, len(values))


def flags(values: Sequence[Number]) -> npt.NDArray[np.uint32]:
    """Return flags given as numbers or digits; 0 for what is none, or beyond 32 bits."""
    if not any(values):
        return np.zeros(len(values), np.uint32)
    number = {value: _within(_time(value), 2**32 - 1) for value in set(values)}
    return np.fromiter(map(number.__getitem__, values), np.uint32, len(values))


def _enum(value: Number, names: Mapping[str, int]) -> int:
    if isinstance(value, str) and not value.isdigit():
        return names.get(value.rpartition("_")[2].upper(), 0)
    return _within(_time(value), 127)


def _within(value: int, last: int) -> int:
    return value if 0 <= value <= last else 0


def raw_column(form: Form, raws: Sequence[Any]) -> RawColumn:
    """Return raw bytes, one object with the buffer interface a span, as a column."""
    try:
        lengths = list(map(len, raws))
    except TypeError:  # msgspec.Raw has none
        lengths = [memoryview(raw).nbytes for raw in raws]
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return RawColumn(form, b"".join(raws), offsets)
