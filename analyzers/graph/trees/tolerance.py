# SPDX-License-Identifier: Apache-2.0
"""How far siblings of one lane may overlap before the overlap is taken at its word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray

_UNITS_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FRACTION_LIMIT_NS: Final = 1_000_000
_MOST: Final = float(1 << 62)
"""No tolerance is more, in ns: 64 bits hold it."""


@dataclass(frozen=True)
class OverlapTolerance:
    """A lane does one thing at a time, so a small overlap is a rounding of clocks, not concurrency."""

    fraction: float
    """Of the parent's duration."""
    limit_ns: int
    """The most, whatever the parent's duration."""

    def of(self, parent_ns: int) -> int:
        """Return the overlap, in ns, that is cut among children of a parent of ``parent_ns``."""
        return int(min(self.fraction * parent_ns, self.limit_ns))

    def of_each(self, parent_ns: IntArray) -> IntArray:
        """Return the same for many parents."""
        most: IntArray = np.minimum(self.fraction * parent_ns, self.limit_ns).astype(np.int64)
        return most

    @classmethod
    def parse(cls, text: str) -> OverlapTolerance:
        """Read ``1%``, ``50us``, ``1ms`` or ``0`` (off); raises ValueError with what was expected."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|ns|us|ms|s)?", text.strip())
        if match is None or (match[2] is None and float(match[1]) != 0):
            raise ValueError(f"overlap tolerance {text!r}: give a share of the parent (1%), a time (50us), 0")
        amount, unit = min(float(match[1]), _MOST), match[2]
        if unit is None:
            return cls(0.0, 0)
        if unit == "%":
            return cls(amount / 100, _FRACTION_LIMIT_NS)
        return cls(1.0, int(min(amount * _UNITS_NS[unit], _MOST)))


DEFAULT_TOLERANCE: Final = OverlapTolerance(0.01, _FRACTION_LIMIT_NS)
