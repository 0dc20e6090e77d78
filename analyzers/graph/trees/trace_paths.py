# SPDX-License-Identifier: Apache-2.0
"""The critical paths of many traces, over one set of sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import Path, Sections

MOST_NS: Final = 2**63 - 1
"""What times and their sums are at most, here: contradicting spans can add up to more."""


@dataclass(frozen=True, eq=False)
class TracePaths(Sequence[tuple[int, Path]]):
    """(root, path) of each trace, as arrays; a `Path` is made when one is looked at."""

    roots: IntArray
    """Index into the columns."""
    start: IntArray
    end: IntArray
    """Unix ns: the sections of each trace tile ``[start, end)``."""
    sections: Sections
    """Those of all traces, one trace after the other."""
    first: IntArray
    """Where those of each trace begin in ``sections``, and where the last end."""
    clipped_ns: IntArray
    overlap_ns: IntArray
    """Both as in `Path`, `MOST_NS` at most."""

    @property
    def total_ns(self) -> IntArray:
        """Length of each path."""
        return self.end - self.start

    @property
    def trace(self) -> IntArray:
        """Number of the trace of each section, from 0."""
        numbers: IntArray = np.repeat(np.arange(len(self)), np.diff(self.first))
        return numbers

    def __len__(self) -> int:
        return len(self.roots)

    @overload
    def __getitem__(self, at: int) -> tuple[int, Path]: ...
    @overload
    def __getitem__(self, at: slice) -> TracePaths: ...
    def __getitem__(self, at: int | slice) -> tuple[int, Path] | TracePaths:
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        at = range(len(self))[at]
        path = Path(
            int(self.start[at]),
            int(self.end[at]),
            self.sections[int(self.first[at]) : int(self.first[at + 1])],
            int(self.clipped_ns[at]),
            int(self.overlap_ns[at]),
        )
        return int(self.roots[at]), path

    def __iter__(self) -> Iterator[tuple[int, Path]]:
        return (self[at] for at in range(len(self)))

    def take(self, kept: IntArray) -> TracePaths:
        """Return the paths of the traces at ``kept``, in that order."""
        counts = np.diff(self.first)[kept]
        first: IntArray = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        # Each section's place here, and from there how far it was from it.
        at = np.arange(first[-1]) + np.repeat(self.first[:-1][kept] - first[:-1], counts)
        return TracePaths(
            roots=self.roots[kept],
            start=self.start[kept],
            end=self.end[kept],
            sections=self.sections.take(at),
            first=first,
            clipped_ns=self.clipped_ns[kept],
            overlap_ns=self.overlap_ns[kept],
        )
