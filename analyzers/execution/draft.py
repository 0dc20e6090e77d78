# SPDX-License-Identifier: Apache-2.0
"""Phases as sources find them, in any order, before they become a tree."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IndexArray, IntArray
from grademl_otel.analyzers.execution.identity import UNNAMED, Kind, Tags, tags
from grademl_otel.analyzers.execution.model import DERIVED

ROOT: Final = 0
"""Number of the implicit root of every draft."""

Values = IntArray | IndexArray | int

Columns = dict[str, npt.NDArray[Any]]

COLUMNS: Final[Mapping[str, type[np.signedinteger[Any]]]] = {
    "parent": np.int32,
    "start": np.int64,
    "end": np.int64,
    "kind": np.int32,
    "number": np.int64,
    "label": np.int32,
    "span_ix": np.int32,
    "host": np.int32,
    "flags": np.int8,
}
"""Column -> how it is kept: of millions of phases every byte counts."""


class IllegalPlace(ValueError):
    """A phase cannot be put there; the text says why."""


class Draft:
    """Phases in blocks of arrays, numbered as they come. Nothing here is an object per phase."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, int] = {}
        self.labels: dict[Tags, int] = {}
        self.hosts: dict[str, int] = {}
        self._blocks: list[Columns] = []
        self._first: list[int] = []
        """Number of the first phase of each block."""
        self._count = 0
        self._moved: dict[int, int] = {}
        self._marked: dict[int, int] = {}
        self.add(self.kind(""), -1, 0, 0, flags=DERIVED)

    def __len__(self) -> int:
        return self._count

    def kind(self, name: str, type_tags: Mapping[str, Any] | None = None, counted: str | None = None) -> int:
        """Return the number of a kind; ``counted`` is the key of the tag that each instance numbers."""
        if self._count:
            name = name or UNNAMED
        one = Kind(name, tags(type_tags or {}), counted)
        return self.kinds.setdefault(one, len(self.kinds))

    def label(self, of_instance: Mapping[str, Any]) -> int:
        """Return the number of the tags of an instance that its type does not have; -1 for none."""
        found = tags(of_instance)
        return self.labels.setdefault(found, len(self.labels)) if found else -1

    def host(self, name: str) -> int:
        """Return the number of a host or clock; -1 for the empty name."""
        return self.hosts.setdefault(name, len(self.hosts)) if name else -1

    def add(
        self,
        kind: Values,
        parent: Values,
        start: Values,
        end: Values,
        *,
        number: Values = -1,
        label: Values = -1,
        span_ix: Values = -1,
        host: Values = -1,
        flags: Values = 0,
    ) -> IntArray:
        """Add phases, one for each element of the arrays; return their numbers."""
        values = (parent, start, end, kind, number, label, span_ix, host, flags)
        given = {
            name: np.atleast_1d(np.asarray(value)).astype(COLUMNS[name], copy=False)
            for name, value in zip(COLUMNS, values, strict=True)
        }
        count = next((len(array) for array in given.values() if len(array) != 1), 1)
        if not count:
            return np.zeros(0, np.int64)
        self._first.append(self._count)
        self._blocks.append({name: np.broadcast_to(array, (count,)) for name, array in given.items()})
        self._count += count
        return np.arange(self._count - count, self._count)

    def add_one(self, kind: int, parent: int, start: int = 0, end: int = 0, **more: int) -> int:
        """Add one phase; return its number."""
        return int(self.add(kind, parent, start, end, **more)[0])

    def parent(self, phase: int) -> int:
        """Return the number of the parent of ``phase``; -1 for the root."""
        if phase in self._moved:
            return self._moved[phase]
        block = bisect_right(self._first, phase) - 1
        return int(self._blocks[block]["parent"][phase - self._first[block]])

    def is_above(self, phase: int, other: int) -> bool:
        """Return whether ``phase`` is an ancestor of ``other``."""
        return phase != other and phase in self._line(other)

    def is_within(self, phase: int, some: Set[int]) -> bool:
        """Return whether ``phase`` is one of ``some``, or an ancestor of it is."""
        return not some.isdisjoint(self._line(phase))

    def common(self, some: Iterable[int]) -> int:
        """Return the innermost phase that each of ``some`` is, or lies within."""
        lines = [self._line(phase) for phase in some]
        return next(phase for phase in lines[0] if all(phase in line for line in lines))

    def _line(self, phase: int) -> dict[int, None]:
        """Return ``phase`` and its ancestors, the root last."""
        line: dict[int, None] = {}
        while phase >= 0 and phase not in line:
            line[phase] = None
            phase = self.parent(phase)
        return line

    def move(self, phase: int, parent: int) -> None:
        """Put ``phase``, with all below it, under ``parent``; IllegalPlace where that lies below it."""
        if phase == parent or self.is_above(phase, parent):
            raise IllegalPlace("a phase cannot be part of itself, or of what is part of it")
        self._moved[phase] = parent

    def mark(self, phase: int, flag: int) -> None:
        """Give ``phase`` a further flag."""
        self._marked[phase] = self._marked.get(phase, 0) | flag

    def take(self) -> Columns:
        """Return all phases as one array for each of `COLUMNS`. The draft is spent then."""
        joined = {name: np.concatenate([block.pop(name) for block in self._blocks]) for name in COLUMNS}
        for phase, parent in self._moved.items():
            joined["parent"][phase] = parent
        for phase, flag in self._marked.items():
            joined["flags"][phase] |= flag
        return joined
