# SPDX-License-Identifier: Apache-2.0
"""Spans and metrics as plain data: all that lies between the conversion of marks and the encoders.

Times are Unix nanoseconds, ids are integers (0: none). Everything has kind INTERNAL and the instrumentation
scope `semconv.SCOPE_NAME`, so that neither is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
"""An attribute's value; sequences are of one type. ``bool`` and ``int`` are different types on the wire."""
Attributes = dict[str, Value]


@dataclass(slots=True)
class Link:
    """A reference from one span to another."""

    trace_id: int
    span_id: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Span:
    """A finished span."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    error: str | None = None
    """None: status unset. Otherwise status ERROR with this description."""


@dataclass(slots=True)
class Resource:
    """The process that did the work: attributes of its OpenTelemetry resource."""

    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Point:
    """One value of a sum or gauge; times of its own where they are not those of the metric."""

    value: int | float
    attributes: Attributes = field(default_factory=dict)
    start_ns: int = 0
    time_ns: int = 0


@dataclass(slots=True)
class Sum:
    """A cumulative monotonic sum since ``start_ns``."""

    name: str
    unit: str
    description: str
    start_ns: int
    time_ns: int
    points: list[Point]


@dataclass(slots=True)
class UpDown:
    """A cumulative sum that may fall: an amount, such as bytes in use, that can be added up over devices."""

    name: str
    unit: str
    description: str
    start_ns: int
    time_ns: int
    points: list[Point]


@dataclass(slots=True)
class Gauge:
    """Values at a time."""

    name: str
    unit: str
    description: str
    time_ns: int
    points: list[Point]


@dataclass(slots=True)
class Histogram:
    """A cumulative histogram since ``start_ns``; ``counts`` has one element more than ``bounds``."""

    name: str
    unit: str
    description: str
    start_ns: int
    time_ns: int
    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


Metric = Sum | UpDown | Gauge | Histogram
