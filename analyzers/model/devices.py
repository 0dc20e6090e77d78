# SPDX-License-Identifier: Apache-2.0
"""What the windows of a run say of its devices: their memory, and times that were given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.analyzers.model.evidence import count_of
from grademl_otel.analyzers.model.facts import DeviceMemory
from grademl_otel.analyzers.model.tables import MalformedTable, TablePart, int_array

_KEYS: Final = (
    semconv.DEVICE_MEMORY_INDEX,
    semconv.DEVICE_MEMORY_ALLOCATED,
    semconv.DEVICE_MEMORY_RESERVED,
    semconv.DEVICE_MEMORY_PEAK,
)


def memory_of(parts: Sequence[TablePart]) -> list[DeviceMemory]:
    """Return what the last window of each rank says, by (rank, device); ``parts`` in order."""
    latest: dict[int, list[DeviceMemory]] = {}
    for part in parts:
        if found := _memory(part.rank, part.attributes):
            latest[part.rank] = found
    return [memory for _, found in sorted(latest.items()) for memory in found]


def _memory(rank: int, attributes: Mapping[str, Any]) -> list[DeviceMemory]:
    if not all(key in attributes for key in _KEYS):
        return []
    try:
        columns = [int_array(key, attributes[key]).tolist() for key in _KEYS]
    except MalformedTable:
        return []
    if len({len(column) for column in columns}) != 1 or min(map(min, columns)) < 0:
        return []
    return [DeviceMemory(rank, *numbers) for numbers in zip(*columns, strict=True)]


def given_up(parts: Sequence[TablePart]) -> list[str]:
    """Return a line on phases without a device time."""
    lost = sum(count_of(part.attributes, semconv.DEVICE_DROPPED) for part in parts)
    if not lost:
        return []
    what = "1 phase has" if lost == 1 else f"{lost:,} phases have"
    return [f"{what} no device time: the device was too far behind, or the stream changed"]
