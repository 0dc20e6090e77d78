# SPDX-License-Identifier: Apache-2.0
"""Decodes the resource tables of window and run spans, and puts those of a run together: what each device did
over time.

What is in a store is not trusted: a table that contradicts itself is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.tables import MalformedTable
from grademl_otel.catalog import METRICS
from grademl_otel.catalog.metric import COUNTER

_VERSION: Final = 1
_MS: Final = 1_000_000
_US: Final = 1_000
_MAX_NUMBERS: Final = 1 << 20
_MAX_TIME: Final = 1 << 62
_ID, _CAPACITY = "id", "capacity"
_TOLERANCE_NS: Final = 2 * _MS
"""Two ranks of a host tie the same second to Unix time each for itself: that differs by microseconds."""

ADDED: Final = frozenset(metric.column for metric in METRICS if metric.column and metric.kind == COUNTER)
"""Columns, as ``network.rx``, whose numbers are what was added in a bin; of the others they are means."""


class Key(NamedTuple):
    """Whose numbers these are."""

    host: str
    kind: str
    device: str
    column: str

    @property
    def added(self) -> bool:
        """Whether each number is what was added in its bin, and not a mean."""
        return f"{self.kind}.{self.column}" in ADDED


@dataclass(frozen=True)
class Samples:
    """One column of one device, in the order of time; bins of which nothing is known are not there."""

    start: IntArray
    """Of each bin, in Unix ns."""
    length: IntArray
    """Of each bin, in ns."""
    values: IntArray
    capacity: int | None
    """The most that it can be, of what is added per second; None where nobody knows."""


def decode_resources(attributes: Mapping[str, Any], host: str, span_start: int) -> dict[Key, Samples]:
    """Return the resource table in the attributes of a span of ``host`` that starts at ``span_start``.

    Empty where there is none. Raises MalformedTable.
    """
    version = attributes.get(semconv.RESOURCES_VERSION)
    if version is None:
        return {}
    if version != _VERSION:
        raise MalformedTable(f"resource table of version {version!r}; this release reads version {_VERSION}")
    bins = _integer(attributes, semconv.RESOURCES_BINS, 1, _MAX_NUMBERS)
    length = _integer(attributes, semconv.RESOURCES_BIN, 1, 86_400_000) * _MS
    first = span_start + _integer(attributes, semconv.RESOURCES_START, -(1 << 52), 1 << 52) * _US
    if not 0 <= first < _MAX_TIME - bins * length:
        raise MalformedTable(f"resource table that starts at {first} ns")
    # Of millions of numbers most stand at the same times as others: these have one array for all.
    starts, lengths = first + np.arange(bins, dtype=np.int64) * length, np.full(bins, length, np.int64)

    found: dict[Key, Samples] = {}
    prefix = semconv.RESOURCES_PREFIX
    kinds = [key[len(prefix) :].split(".") for key in attributes if key.startswith(prefix)]
    for kind in sorted(parts[0] for parts in kinds if len(parts) == 2 and parts[1] == _ID):
        devices = _names(f"{prefix}{kind}.{_ID}", attributes[f"{prefix}{kind}.{_ID}"])
        for column in (parts[1] for parts in kinds if len(parts) == 2 and parts[0] == kind):
            if column == _ID:
                continue
            name = f"{prefix}{kind}.{column}"
            values = _unfolded(name, attributes[name], bins * len(devices)).reshape(len(devices), bins)
            most = attributes.get(f"{name}.{_CAPACITY}")
            capacities = None if most is None else _unfolded(f"{name}.{_CAPACITY}", most, len(devices))
            for place, device in enumerate(devices):
                known = values[place] != semconv.RESOURCES_ABSENT
                if not known.any():
                    continue
                all_known = bool(known.all())
                capacity = None if capacities is None else int(capacities[place])
                found[Key(host, kind, device, column)] = Samples(
                    starts if all_known else starts[known],
                    lengths if all_known else lengths[known],
                    values[place] if all_known else values[place][known],
                    None if capacity is None or capacity < 0 else capacity,
                )
    return found


def together(tables: Iterable[Mapping[Key, Samples]]) -> dict[Key, Samples]:
    """Return what several tables say, in the order of time; of what two say of one time the finer one stays.

    The capacity is that of the latest bin that has one.
    """
    parts: dict[Key, list[Samples]] = {}
    for table in tables:
        for key, samples in table.items():
            parts.setdefault(key, []).append(samples)
    return {key: _joined(parts[key]) for key in sorted(parts)}


def _joined(parts: list[Samples]) -> Samples:
    parts = sorted(parts, key=lambda part: int(part.start[0]))
    capacity = next((part.capacity for part in reversed(parts) if part.capacity is not None), None)
    start, length, values = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "length", "values")
    )
    order = np.lexsort((start, length))  # the finest first
    keep = _apart(start[order], length[order])
    chosen = order[keep]
    chosen = chosen[np.argsort(start[chosen], kind="stable")]
    return Samples(start[chosen], length[chosen], values[chosen], capacity)


def _apart(start: IntArray, length: IntArray) -> BoolArray:
    """Return which bins to keep so that none overlap, the first ones given first."""
    by_time = np.argsort(start, kind="stable")
    ends = np.maximum.accumulate((start + length)[by_time])
    if not np.any(start[by_time][1:] < ends[:-1] - _TOLERANCE_NS):
        return np.ones(len(start), np.bool_)
    keep = np.zeros(len(start), np.bool_)
    taken = np.zeros(0, np.int64)
    ends_of = np.zeros(0, np.int64)
    for size in np.unique(length):  # those of one length overlap only where they are the same
        here = np.flatnonzero(length == size)
        here = here[np.argsort(start[here], kind="stable")]
        last = -_MAX_TIME
        fresh = []
        for index in here.tolist():
            begin = int(start[index])
            if begin < last - _TOLERANCE_NS:
                continue
            place = int(np.searchsorted(ends_of, begin + _TOLERANCE_NS, side="right"))
            if place < len(taken) and int(taken[place]) < begin + int(size) - _TOLERANCE_NS:
                continue
            fresh.append(index)
            last = begin + int(size)
        keep[fresh] = True
        taken = np.sort(np.concatenate([taken, start[fresh]]))
        ends_of = np.sort(np.concatenate([ends_of, start[fresh] + length[fresh]]))
    return keep


def _integer(attributes: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = attributes.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise MalformedTable(f"{key} is {value!r}")
    return value


def _parsed(key: str, value: Any) -> list[Any]:
    """Return an array attribute as a list; one in JSON is taken, too (Jaeger's v1 API)."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            value = [value]  # a server that gives an array of one as its element
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_NUMBERS:
        raise MalformedTable(f"{key} is no array that a resource table may have")
    return value


def _names(key: str, value: Any) -> list[str]:
    names = _parsed(key, value)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise MalformedTable(f"{key} is no array of different names")
    return names


def _unfolded(key: str, value: Any, number: int) -> IntArray:
    if number > _MAX_NUMBERS:
        raise MalformedTable(f"{key} would have {number:,} elements")
    told = _parsed(key, value)
    if len(told) not in (1, number):
        raise MalformedTable(f"{key} has {len(told):,} elements, not {number:,}")
    numbers = _integers(key, told)
    if int(numbers.min()) < semconv.RESOURCES_ABSENT:
        raise MalformedTable(f"{key} is out of range")
    return np.full(number, numbers[0]) if len(numbers) == 1 else numbers


def _integers(key: str, told: list[Any]) -> IntArray:
    """Return the integers of a list, in which some servers have texts."""
    try:
        found = np.array(told)
        if found.dtype != np.int64 or found.ndim != 1:
            found = np.array([int(each) for each in told], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise MalformedTable(f"{key} is no array of integers") from None
    return found
