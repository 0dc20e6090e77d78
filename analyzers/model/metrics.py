# SPDX-License-Identifier: Apache-2.0
"""Metric points as columns: gauges, sums and histograms of OTLP, one element a point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IndexArray, IntArray

GAUGE: Final = 0
SUM: Final = 1
HISTOGRAM: Final = 2
EXPONENTIAL_HISTOGRAM: Final = 3
SUMMARY: Final = 4
KINDS: Final = ("gauge", "sum", "histogram", "exponential histogram", "summary")
"""The words for the numbers in `MetricPoints.kind`."""

UNSPECIFIED: Final = 0
DELTA: Final = 1
CUMULATIVE: Final = 2


@dataclass(frozen=True)
class Buckets:
    """How often values fell between bounds: ``counts[i]`` in (``bounds[i - 1]``, ``bounds[i]``]."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than bounds: the first is of all below, the last of all above."""


class PointForm(Protocol):
    """How raw bytes of one point are written; what cannot be decoded is left out, never an error."""

    def attributes(self, raw: bytes) -> dict[str, Any]:
        """Return the attributes of the point."""

    def attributes_raw(self, raw: bytes) -> bytes:
        """Return bytes that are the same where the attributes are: most points share them with others."""

    def buckets(self, raw: bytes) -> Buckets | None:
        """Return the buckets of a histogram with explicit bounds; None for every other point."""


@dataclass(frozen=True)
class MetricPoints:
    """Points in the order read, as parallel arrays of one length; times are int64 Unix ns, 0 where absent."""

    time: IntArray
    start: IntArray
    """Since when a sum or histogram counts; a new start is a counter that began anew."""
    name_ix: IndexArray
    names: list[str]
    unit_ix: IndexArray
    units: list[str]
    kind: npt.NDArray[np.int8]
    temporality: npt.NDArray[np.int8]
    """Of sums and histograms: `DELTA` or `CUMULATIVE`."""
    monotonic: npt.NDArray[np.bool_]
    value: npt.NDArray[np.float64]
    """Of gauges and sums the value, of the others the sum of all values; NaN where there is none."""
    whole: IntArray
    """The value where it is an integer, which a float may not hold exactly."""
    is_whole: npt.NDArray[np.bool_]
    count: IntArray
    """Of histograms and summaries how many values there were; 0 for the others."""
    resource_ix: IndexArray
    resources: list[dict[str, Any]]
    scope_ix: IndexArray
    scopes: list[dict[str, Any]]
    """``name``, ``version``, ``attributes``; -1 in `scope_ix` for none."""
    forms: list[PointForm]
    raws: list[bytes]
    """Each point as it was written; ``form_ix`` says in which form."""
    form_ix: npt.NDArray[np.int8]
    warnings: list[str] = field(default_factory=list)
    """One line each, for people: what could not be read and was left out."""

    def __len__(self) -> int:
        return len(self.time)

    def name(self, ix: int) -> str:
        return self.names[int(self.name_ix[ix])]

    def unit(self, ix: int) -> str:
        return self.units[int(self.unit_ix[ix])]

    def attributes(self, ix: int) -> dict[str, Any]:
        """Return the decoded attributes of point ``ix``."""
        return self.forms[int(self.form_ix[ix])].attributes(self.raws[ix])

    def buckets(self, ix: int) -> Buckets | None:
        """Return the buckets of point ``ix``; None where it is no histogram with explicit bounds."""
        if self.kind[ix] != HISTOGRAM:
            return None
        return self.forms[int(self.form_ix[ix])].buckets(self.raws[ix])

    def resource(self, ix: int) -> dict[str, Any]:
        return self.resources[int(self.resource_ix[ix])]
