# SPDX-License-Identifier: Apache-2.0
"""Columns that grow by batches: arrays in lists, raw bytes beside them, joined when all is there.

Sources with many small traces give many small batches. Those are put together as they come, so that what
each array costs by itself does not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IndexArray, IntArray
from grademl_otel.analyzers.model.raw import NOTHING, Form, RawColumn, RawStore, joined

_TOGETHER: Final = 256
"""So many parts are put together at a time,"""
_SMALL: Final = 256 * _TOGETHER
"""if they have fewer rows than that."""

_MOST_EXPECTED: Final = 1 << 24
"""Rows: what is expected is what somebody's file says."""

Arrays = dict[str, npt.NDArray[Any]]


class Parts:
    """Arrays of given names and types, all of one length, each with raw attributes and events a row."""

    def __init__(self, dtypes: Mapping[str, Any], expected: int = 0) -> None:
        """``expected``: for so many rows there are arrays from the beginning, not put together at the end.

        Then the memory of one part serves the next: each byte that a process never had before is dear.
        """
        self._dtypes = {**dtypes, **dict.fromkeys(_REFERENCES, np.int32)}
        self._expected = min(expected, _MOST_EXPECTED)
        self._whole: Arrays = {name: np.empty(self._expected, of) for name, of in self._dtypes.items()}
        self._parts: list[Arrays] = []
        self._settled = 0
        self._raws: list[RawColumn] = []
        self._settled_raws = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        attributes: RawColumn,
        events: RawColumn | None,
        rows: IntArray | None,
    ) -> None:
        """Append ``rows`` (None: all) of ``arrays`` and of the raw columns beside them."""
        row: IndexArray = np.arange(len(attributes), dtype=np.int32)
        if rows is not None:
            row = row[rows]
            arrays = {name: array[rows] for name, array in arrays.items()}
        part = {name: np.asarray(array, self._dtypes[name]) for name, array in arrays.items()}
        at = len(self._raws)
        self._raws.append(attributes)
        part["attributes_column"], part["attributes_row"] = np.full_like(row, at), row
        if events is None:
            part["events_column"] = np.full_like(row, NOTHING)
        elif events is attributes:
            part["events_column"] = part["attributes_column"]
        else:
            self._raws.append(events)
            part["events_column"] = np.full_like(row, at + 1)
        part["events_row"] = row
        first, self._length = self._length, self._length + len(row)
        if len(self._parts) < 2 and self._length <= self._expected:
            for name, array in self._whole.items():
                array[first : self._length] = part[name]
            part = {name: array[: self._length] for name, array in self._whole.items()}
            self._parts.clear()
        self._parts.append(part)
        if len(self._parts) - self._settled >= _TOGETHER:
            self._settle()

    def last(self, name: str, count: int) -> npt.NDArray[Any]:
        """Return the last ``count`` elements of one array."""
        some: list[npt.NDArray[Any]] = []
        for part in reversed(self._parts):
            if count <= 0:
                break
            some.append(part[name][max(0, len(part[name]) - count) :])
            count -= len(some[-1])
        return np.concatenate(some[::-1]) if some else np.zeros(0, self._dtypes[name])

    def join(self) -> tuple[Arrays, RawStore, RawStore]:
        """Return everything: arrays, raw attributes, raw events. More may be appended after that."""
        if len(self._parts) != 1:
            self._parts[:] = [self._concatenated(self._parts)]
        self._settled, self._settled_raws = 1, len(self._raws)
        arrays = dict(self._parts[0])
        attributes, events = (
            RawStore(self._raws[:], arrays.pop(f"{what}_column"), arrays.pop(f"{what}_row"))
            for what in ("attributes", "events")
        )
        return arrays, attributes, events

    def _concatenated(self, parts: list[Arrays]) -> Arrays:
        """Return ``parts`` as one, emptying them on the way: no more than one array is held twice."""
        return {
            name: np.concatenate([part.pop(name) for part in parts]) if parts else np.zeros(0, dtype)
            for name, dtype in self._dtypes.items()
        }

    def _settle(self) -> None:
        """Make one part of the last ones, and one raw column of a form of theirs, if they are small."""
        small = self._parts[self._settled :]
        if sum(len(part["events_row"]) for part in small) < _SMALL:
            part = self._concatenated(small)
            self._join_raws(part)
            self._parts[self._settled :] = [part]
        self._settled, self._settled_raws = len(self._parts), len(self._raws)

    def _join_raws(self, part: Arrays) -> None:
        """Join the raw columns that are not settled, and point the references of ``part`` there."""
        first = self._settled_raws
        by_form: dict[Form, list[int]] = {}
        for at, raws in enumerate(self._raws[first:]):
            by_form.setdefault(raws.form, []).append(at)
        column_of = np.full(len(self._raws) - first + 1, NOTHING, np.int32)  # the last is that of NOTHING
        before = np.zeros(len(column_of), np.int32)
        together = []
        for number, ats in enumerate(by_form.values()):
            some = [self._raws[first + at] for at in ats]
            column_of[ats] = first + number
            before[ats[1:]] = np.cumsum([len(raws) for raws in some[:-1]])
            together.append(joined(some))
        self._raws[first:] = together
        for what in ("attributes", "events"):
            column = np.where(part[f"{what}_column"] == NOTHING, -1, part[f"{what}_column"] - first)
            part[f"{what}_row"] = part[f"{what}_row"] + before[column]
            part[f"{what}_column"] = column_of[column]


_REFERENCES: Final = ("attributes_column", "attributes_row", "events_column", "events_row")
