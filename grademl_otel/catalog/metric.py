# SPDX-License-Identifier: Apache-2.0
"""What a row of the catalog says of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GAUGE: Final = "gauge"
"""A value at a time that cannot be added up over devices: a utilization, a temperature."""
UPDOWN: Final = "updowncounter"
"""An amount at a time that can be: bytes in use."""
COUNTER: Final = "counter"
"""What was counted since the start of the series; never falls."""

HISTOGRAM: Final = "histogram"
"""How often which values occurred; of the training only, no sampled series is one."""


@dataclass(frozen=True, slots=True, eq=False)  # a row is itself: looked up many times a second
class Metric:
    """A metric as it is exported, and what becomes of it in the resource tables of window spans."""

    name: str
    unit: str
    """As UCUM writes it: s, By, 1, J, W, Hz, {error}."""
    kind: str
    """`GAUGE`, `UPDOWN`, `COUNTER` or `HISTOGRAM`."""
    description: str
    needs: str
    """Where it comes from, and where it exists; for the documentation."""
    attributes: tuple[str, ...] = ()
    """Keys of its points, beside those that identify the device."""
    column: str = ""
    """``kind.column`` of a resource table, such as ``gpu.utilization``; empty: not carried by spans."""
    scale: float = 1
    """A number in that column is the value times this, rounded; of a counter what was added in a bin."""
