# SPDX-License-Identifier: Apache-2.0
"""Where values end in JSON text, without building any: in C where that was compiled, else with numpy.

Nothing is validated here: strings and brackets are told apart, no more. What is cut out goes to a decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray

_INTERFACE: Final = 1  # of _jsonscan.c
MAX_DEPTH: Final = 1000
"""Levels of brackets that are followed."""
TOO_DEEP: Final = -2

_QUOTE, _COMMA, _BACKSLASH = b'",\\'
_DEEPER: Final = np.zeros(256, np.int64)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1
_MARK: Final = _DEEPER != 0
_MARK[_COMMA] = True
_FIRST_LOOK: Final = 1 << 12  # bytes

_Bytes = bytes | bytearray
_Text = npt.NDArray[np.uint8]


def plain_scan(data: _Bytes, start: int, stop: int, first: bool) -> tuple[int, int]:
    """Do what `scan` says."""
    size = _FIRST_LOOK if first else stop - start
    while True:
        until = min(stop, start + size)
        end, cut = _ends(np.frombuffer(data, np.uint8, until - start, start), first)
        if until == stop or end != -1 or (first and cut >= 0):
            return (end + start if end >= 0 else end), (cut + start if cut >= 0 else cut)
        size *= 8


def _ends(text: _Text, first: bool) -> tuple[int, int]:
    marks = _outside_strings(text, _quotes(text))
    depth = np.cumsum(_DEEPER[text[marks]])
    over = np.flatnonzero((depth < 0) | (depth > MAX_DEPTH))
    until = int(over[0]) if len(over) else len(depth)
    commas = np.flatnonzero((depth[:until] == 0) & (text[marks[:until]] == _COMMA))
    if first and len(commas):
        return -1, int(marks[commas[0]])
    end = -1
    if len(over):
        end = int(marks[until]) if depth[until] < 0 else TOO_DEEP
    return end, int(marks[commas[-1]]) if len(commas) else -1


def _quotes(text: _Text) -> IntArray:
    """Return where strings begin and end, in turn."""
    quotes = np.flatnonzero(text == _QUOTE)
    slashes = np.flatnonzero(text == _BACKSLASH)
    if len(slashes):  # an odd number of them before a quote makes it a part of the string
        last = np.append(np.flatnonzero(np.diff(slashes) != 1), len(slashes) - 1)
        odd = np.diff(last, prepend=-1) % 2 == 1
        quotes = np.setdiff1d(quotes, slashes[last[odd]] + 1, assume_unique=True)
    return quotes


def _outside_strings(text: _Text, quotes: IntArray) -> IntArray:
    """Return where brackets and commas are that are none of a string's characters."""
    marks = np.flatnonzero(_MARK[text])
    outside: IntArray = marks[np.searchsorted(quotes, marks) % 2 == 0]
    return outside


def plain_gather(data: bytes, offsets: IntArray, words: tuple[bytes, ...]) -> list[bytes]:
    """Do what `gather` says."""
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    text = np.frombuffer(data, np.uint8)
    quotes = _quotes(text)
    marks = _outside_strings(text, quotes)
    marks = marks[text[marks] != _COMMA]
    depth = np.cumsum(_DEEPER[text[marks]])
    opened = marks[(depth == 2) & (text[marks] == ord("{"))]
    closed = marks[(depth == 1) & (_DEEPER[text[marks]] < 0)]
    closed = closed[np.searchsorted(closed, opened)] + 1 if len(opened) else closed
    found = np.array(
        [hit.start() for word in words for hit in re.finditer(re.escape(b'"' + word + b'"'), data)], np.int64
    )
    found = found[np.isin(found, quotes[::2])]
    element = np.searchsorted(opened, found) - 1
    element = np.unique(element[(element >= 0) & (found < closed[element])]) if len(opened) else opened
    picked: list[list[bytes]] = [[] for _ in offsets[1:]]
    row_of = np.searchsorted(offsets, opened[element], side="right") - 1
    for row, start, stop in zip(
        row_of.tolist(), opened[element].tolist(), closed[element].tolist(), strict=True
    ):
        picked[row].append(data[start:stop] + b",")
    return [b"".join(parts) for parts in picked]


scan: Callable[[_Bytes, int, int, bool], tuple[int, int]] = plain_scan
"""``scan(data, start, stop, first)`` looks from within a container for what ends it or one of its elements.

Returns (end, cut): where the bracket is that closes the container, -1 where it is not before ``stop``,
`TOO_DEEP` where brackets are nested too deeply; and where the last comma of the container itself is before
that, or with ``first`` the first one; -1 for none. ``start`` must not be within a string.
"""
gather: Callable[[bytes, IntArray, tuple[bytes, ...]], list[bytes]] = plain_gather
"""``gather(data, offsets, words)`` picks from arrays of objects those in which one of some strings stands.

The arrays, JSON that a decoder has seen, lie in ``data`` as those of a `RawColumn` do; ``offsets`` are int64.
Returns for each array its objects as they are written, a comma after each.
"""

try:
    from grademl_otel.analyzers.sources.formats import _jsonscan  # type: ignore[attr-defined]

    if _jsonscan.INTERFACE == _INTERFACE:
        scan, gather = _jsonscan.scan, _jsonscan.gather
except ImportError:
    pass

COMPILED: Final = scan is not plain_scan
