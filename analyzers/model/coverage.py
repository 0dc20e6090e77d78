# SPDX-License-Identifier: Apache-2.0
"""How much of a rank's training is not here: which steps, and how long the holes are that they leave.

A number that is made from steps says nothing of those that are missing, and these need not be like the
others: what is lost most easily is what came in a rush, or at the end. So where more than 1 % of the steps,
or of the time of training, is missing, the steady step is not told, and a finding stands only if it holds
whatever the missing part was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.units import percent

TOLERATED: Final = 0.01
"""Part of the training that may be missing without a word about its numbers."""
_NOT_TRAINING: Final = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE


@dataclass(frozen=True)
class Rows:
    """The rows of one rank in order of their starts."""

    step: IntArray
    start: IntArray
    end: IntArray
    flags: IntArray


@dataclass(frozen=True)
class Coverage:
    """What is missing of one rank."""

    rank: int
    expected: int
    """Training steps that it did, as far as it has said."""
    missing: int
    """Those of which there is no row."""
    holes: tuple[tuple[int, int], ...] = ()
    """Where they were, ``[start, end)`` in Unix ns, as far as the numbers of their neighbours tell."""
    trained_ns: int = 0
    """Time of the training steps that are here."""
    marks_share: float = 0.0
    """Part of the marks that the recorder lost: what was in rows that are here."""
    evaluation_missing: int = 0
    """Evaluation steps of which there is no row."""
    open_end: bool = False
    """Whether reading stopped before the rank's end: nobody knows how much more there is."""

    @property
    def hole_ns(self) -> int:
        return sum(end - start for start, end in self.holes)

    @property
    def share(self) -> float:
        """The part of the training of which nothing is known, 0 to 1: of steps or of time, what is more."""
        if self.open_end or (self.missing and not self.trained_ns):
            return 1.0
        steps = self.missing / self.expected if self.expected else 0.0
        time = self.hole_ns / (self.hole_ns + self.trained_ns) if self.hole_ns else 0.0
        return max(steps, time, self.marks_share)

    @property
    def trusted(self) -> bool:
        """Whether numbers made from its steps can be told."""
        return self.share <= TOLERATED

    def within(self, start: int, end: int, here: Rows, chosen: range | None = None) -> Coverage:
        """Return the same of the time from ``start`` to ``end``, in which the training steps ``here`` are.

        ``chosen`` are the numbers of the steps that should be; by default those from the first to the last.
        """
        if chosen is None:
            numbers = here.step
            chosen = range(int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else range(0)
        expected = len(range(chosen.start, min(chosen.stop, self.expected)))
        cut = ((max(low, start), min(high, end)) for low, high in self.holes)
        return replace(
            self,
            expected=expected,
            missing=max(0, expected - len(here.step)),
            holes=tuple((low, high) for low, high in cut if low < high),
            trained_ns=int((here.end - here.start).sum()),
            open_end=self.open_end and chosen.stop > self.expected,
        )

    def in_words(self) -> str:
        """Return why not, as "20 of 120 steps are missing (17 % of the training)"."""
        if self.missing:
            of_time = f" ({percent(self.share)} of its training)" if self.trained_ns else ""
            return f"{self.missing:,} of {self.expected:,} steps of rank {self.rank} are missing{of_time}"
        if self.open_end:
            return f"reading stopped before the end of rank {self.rank}"
        return f"{percent(self.marks_share)} of the marks of rank {self.rank} are lost"


def coverage_of(rank: int, rows: Rows, expected: int, bounds: tuple[int, int]) -> Coverage:
    """Return what is missing of a rank that did ``expected`` training steps between ``bounds``."""
    training = (rows.flags & _NOT_TRAINING) == 0
    missing = max(0, expected - int(np.count_nonzero(training)))
    trained = int((rows.end - rows.start)[training].sum())
    holes = _holes(rows, training, expected, bounds) if missing else ()
    return Coverage(rank, expected, missing, holes, trained)


def _holes(
    rows: Rows, training: npt.NDArray[np.bool_], expected: int, bounds: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Return the times between rows whose numbers show that steps between them are missing."""
    low, high = bounds
    begins = np.append(rows.start, max(high, int(rows.end.max(initial=high))))
    ends = np.append(min(low, int(rows.start.min(initial=low))), np.maximum.accumulate(rows.end))
    done = np.append(0, rows.step + training)  # before each gap
    asked = np.append(rows.step, expected)  # after it
    lost = np.flatnonzero((asked > done) & (begins > ends))
    return tuple(zip(ends[lost].tolist(), begins[lost].tolist(), strict=True))
