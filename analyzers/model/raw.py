# SPDX-License-Identifier: Apache-2.0
"""What a span carries beside its fields, kept as it was read and decoded only for who asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IndexArray, IntArray

NOTHING: Final = -1
"""In `RawStore.column`: the span has nothing there."""
_CACHED_BYTES: Final = 2048
"""Longer raw forms are step tables: each is read once."""
_BLOCK: Final = 32
"""So many spans are worth comparing at once."""
_ESCAPED: Final = re.compile(rb"\\u00(?:[4-7]|2[eE])")
"""How JSON may write a letter or a dot of a key; what it mostly escapes, as ``&``, is in no key."""
_FEW: Final = 16
"""Of so many times more rows: then one by one is faster than all at once."""
_SEARCHED: Final = 1 << 24
"""So many bytes are searched at once: they may have to be copied for that."""


@dataclass(frozen=True)
class Event:
    """Something that happened at one moment of a span; ``time`` in Unix ns."""

    time: int
    name: str
    attributes: dict[str, Any]


class Form(Protocol):
    """How raw bytes of one span are written. What cannot be decoded is left out, never an error.

    The key of an attribute stands in the bytes as it is, unless a backslash does, or the form makes it up.
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """Stable: copies on disk name it."""

    def attributes(self, raw: bytes) -> dict[str, Any]:
        """Return the attributes: str, int, float, bool, bytes, None, or lists and dicts of these."""

    def events(self, raw: bytes) -> Sequence[Event]:
        """Return the events, in the order given."""


@dataclass(frozen=True)
class RawColumn:
    """Raw bytes of ``len(offsets) - 1`` spans, one after the other, all of one form."""

    form: Form
    data: bytes | memoryview
    offsets: IntArray
    """Where each begins in ``data``, and where the last ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, ix: int) -> bytes:
        return bytes(self.data[int(self.offsets[ix]) : int(self.offsets[ix + 1])])


def joined(columns: Sequence[RawColumn]) -> RawColumn:
    """Return ``columns``, which are of one form and not none, as one."""
    if len(columns) == 1:
        return columns[0]
    offsets = [np.zeros(1, np.int64)]
    end = 0
    for column in columns:
        offsets.append(column.offsets[1:] - column.offsets[0] + end)
        end = int(offsets[-1][-1]) if len(column) else end
    pieces = [column.data[int(column.offsets[0]) : int(column.offsets[-1])] for column in columns]
    return RawColumn(columns[0].form, b"".join(pieces), np.concatenate(offsets))


@dataclass(frozen=True)
class RawStore:
    """Raw bytes of each span of some columns: row ``row[ix]`` of ``columns[column[ix]]``."""

    columns: Sequence[RawColumn]
    column: IndexArray
    """`NOTHING` for a span that has nothing."""
    row: IndexArray

    def __len__(self) -> int:
        return len(self.column)

    def form(self, ix: int) -> Form | None:
        """Return the form of the bytes of span ``ix``; None where it has nothing."""
        column = int(self.column[ix])
        return None if column == NOTHING else self.columns[column].form

    def raw(self, ix: int) -> bytes:
        """Return the bytes of span ``ix``; empty where it has nothing."""
        column = int(self.column[ix])
        return b"" if column == NOTHING else self.columns[column][int(self.row[ix])]

    def attributes(self, ix: int) -> dict[str, Any]:
        """Return the attributes of span ``ix``; read-only: those of equal raw bytes are shared."""
        column = int(self.column[ix])
        if column == NOTHING:
            return {}
        raws = self.columns[column]
        raw = raws[int(self.row[ix])]
        return _decoded(raws.form, raw) if len(raw) <= _CACHED_BYTES else raws.form.attributes(raw)

    def may_have(self, ix: int, keys: Sequence[bytes]) -> bool:
        """Return whether span ``ix`` may have an attribute of ``keys``: far cheaper than decoding it."""
        raw = self.raw(ix)
        return any(key in raw for key in keys) or _may_hide(raw)

    def that_may_have(self, key: bytes, some: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of ``some`` spans may have an attribute of ``key``, see `may_have`."""
        told: npt.NDArray[np.bool_] = np.zeros(len(some), np.bool_)
        for number, raws in enumerate(self.columns):
            here = np.flatnonzero(self.column[some] == number)
            if len(here) < len(raws) // _FEW:
                told[here] = _each_with(raws, self.row[some[here]], key)
            elif len(here):
                told[here] = _rows_with(raws, key)[self.row[some[here]]]
        return told

    def events(self, ix: int) -> list[Event]:
        """Return the events of span ``ix``."""
        form = self.form(ix)
        return [] if form is None else list(form.events(self.raw(ix)))

    def same(self, some: IntArray, others: IntArray, decoded: Callable[[int], Any]) -> npt.NDArray[np.bool_]:
        """Return for each pair of spans whether they have the same: byte for byte, or once ``decoded``."""
        same = np.zeros(len(some), np.bool_)
        stays = np.ones(len(some), np.bool_)
        stays[:1] = False
        for ixs in (some, others):
            stays[1:] &= (np.diff(self.column[ixs]) == 0) & (np.diff(self.row[ixs]) == 1)
        bounds = [*np.flatnonzero(~stays).tolist(), len(some)]
        for begin, end in pairwise(bounds):
            if end - begin >= _BLOCK:  # what was read twice was mostly read in the same order
                ours, theirs = (self._block(ixs[begin], ixs[end - 1]) for ixs in (some, others))
                same[begin:end] = ours == theirs
        for at in np.flatnonzero(~same).tolist():
            one, other = int(some[at]), int(others[at])
            alike = self.raw(one) == self.raw(other) and self.form(one) == self.form(other)
            same[at] = alike or decoded(one) == decoded(other)
        return same

    def _block(self, first: int, last: int) -> tuple[Form, bytes, bytes] | None:
        """Return form, bytes and lengths of the spans from ``first`` to ``last``, in one column."""
        if self.column[first] == NOTHING:
            return None
        raws = self.columns[int(self.column[first])]
        ends = raws.offsets[int(self.row[first]) : int(self.row[last]) + 2]
        return raws.form, bytes(raws.data[int(ends[0]) : int(ends[-1])]), np.diff(ends).tobytes()

    def take(self, kept: IntArray) -> RawStore:
        """Return the store of the spans at ``kept``; it shares the bytes."""
        return replace(self, column=self.column[kept], row=self.row[kept])


def _may_hide(raw: bytes) -> bool:
    return b"\\u00" in raw and _ESCAPED.search(raw) is not None


def _each_with(raws: RawColumn, rows: IndexArray, key: bytes) -> list[bool]:
    """Return which of ``rows`` hold ``key``, or an escape that may hide it."""
    begins, ends = raws.offsets[rows].tolist(), raws.offsets[rows + 1].tolist()
    each = (bytes(raws.data[begin:end]) for begin, end in zip(begins, ends, strict=True))
    return [key in raw or _may_hide(raw) for raw in each]


def _rows_with(raws: RawColumn, key: bytes) -> npt.NDArray[np.bool_]:
    """Return the same of all rows of ``raws``."""
    rows: npt.NDArray[np.bool_] = np.zeros(len(raws), np.bool_)
    if not len(raws):
        return rows
    begin, end = int(raws.offsets[0]), int(raws.offsets[-1])
    found: list[int] = []
    for at in range(begin, end, _SEARCHED):
        piece = bytes(raws.data[at : min(at + _SEARCHED + len(key) + len(b"\\u00.."), end)])
        hit = piece.find(key)
        while hit >= 0:
            found.append(at + hit)
            hit = piece.find(key, hit + 1)
        if b"\\" in piece and b"\\u00" in piece:
            found += [at + match.start() for match in _ESCAPED.finditer(piece)]
    if found:
        rows[np.searchsorted(raws.offsets, np.array(found, np.int64), side="right") - 1] = True
    return rows


@lru_cache(maxsize=16384)
def _decoded(form: Form, raw: bytes) -> dict[str, Any]:
    return form.attributes(raw)
