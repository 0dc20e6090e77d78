# SPDX-License-Identifier: Apache-2.0
"""Resource tables: bins of devices and the host as attributes of a span, within a number of bytes.

docs/telemetry.md says what the attributes mean. Pure: rows in, attributes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from grademl_otel import semconv
from grademl_otel.convert.spans import Attributes, Value
from grademl_otel.sampling.bins import Row
from grademl_otel.semconv import RESOURCES_ABSENT as ABSENT

TABLE_VERSION: Final = 1
FACTORS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 7200)
"""Seconds that bins are merged to where there is no room for those of one."""
MAX_DEVICES: Final = 64
"""Of one kind in a table; fewer where these have no room, the first ones in the order of their names."""
_MAX_ID: Final = 128
_OF_NUMBER: Final = 3
"""Bytes around a number in an OTLP array: two tags and a length."""
_OF_ATTRIBUTE: Final = 24
"""Tags and lengths around a key and its value, at most."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that has room, and how far it goes."""

    rows: list[Row]
    factor: int
    """Seconds in a bin."""
    bins: int
    end: int
    """Number of the first second that is not in it."""

    def attributes(self, start_us: int) -> Attributes:
        """Return the attributes of a span that starts ``start_us`` before its first bin."""
        attributes: Attributes = {
            semconv.RESOURCES_VERSION: TABLE_VERSION,
            semconv.RESOURCES_START: start_us,
            semconv.RESOURCES_BIN: self.factor * 1000,
            semconv.RESOURCES_BINS: self.bins,
        }
        for kind, rows in groupby(self.rows, key=lambda row: row.kind):
            attributes.update(_of_kind(f"{semconv.RESOURCES_PREFIX}{kind}.", list(rows), self.bins))
        return attributes


def fitting(rows: Sequence[Row], first: int, end: int, room: int, spans: int, closing: bool) -> Table | None:
    """Return a table of the seconds from ``first`` on, up to ``end``, that takes up to ``room`` bytes.

    ``rows`` hold exactly these seconds. ``spans`` is how many spans of this kind what is left may wait for:
    where they would not do, seconds are merged. ``closing``: there is no other span after this one. None
    when there is nothing to tell, or no room for anything.
    """
    if not rows or end <= first:
        return None
    for devices in (MAX_DEVICES, 16, 4, 1):
        few = _first_devices(rows, devices)
        left = room - _overhead(few)
        most = left // (len(few) * (_OF_NUMBER + 1))  # bins, if all their numbers were small
        for factor in FACTORS:
            groups = -(-(end - first) // factor) if closing else (end - first) // factor
            if groups == 0:
                break
            needed = groups if closing else -(-groups // max(1, spans))
            if needed > most:
                continue
            merged = _merged(few, factor, min(groups, most))
            bins = _fit(merged, left)
            if bins >= needed:
                cut = [replace(row, values=row.values[:bins]) for row in merged]
                known = [row for row in cut if any(value != ABSENT for value in row.values)]
                return Table(known, factor, bins, min(end, first + bins * factor))
    return None


def encoded_size(attributes: Mapping[str, Value]) -> int:
    """Return at most how many bytes ``attributes`` take in OTLP."""
    size = 0
    for key, value in attributes.items():
        size += _OF_ATTRIBUTE + len(key)
        if isinstance(value, int):
            size += _OF_NUMBER + _varint(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            size += sum(_text(each) if isinstance(each, str) else _number(int(each)) for each in value)
    return size


def _of_kind(prefix: str, rows: list[Row], bins: int) -> Iterable[tuple[str, list[int] | list[str]]]:
    devices = list(dict.fromkeys(row.device for row in rows))
    yield f"{prefix}id", [device[:_MAX_ID] for device in devices]
    columns: dict[str, dict[str, Row]] = {}
    for row in rows:
        columns.setdefault(row.column, {})[row.device] = row
    nothing = [ABSENT] * bins
    for column, own in columns.items():
        values = [value for device in devices for value in (own[device].values if device in own else nothing)]
        yield f"{prefix}{column}", _folded(values)
        capacities = [own[device].capacity if device in own else ABSENT for device in devices]
        if any(capacity != ABSENT for capacity in capacities):
            yield f"{prefix}{column}.capacity", _folded(capacities)


def _folded(values: list[int]) -> list[int]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _first_devices(rows: Sequence[Row], number: int) -> list[Row]:
    """Return the rows of up to ``number`` devices of each kind."""
    kept: list[Row] = []
    for _, of_kind in groupby(rows, key=lambda row: row.kind):
        seen: set[str] = set()
        for row in of_kind:
            if row.device in seen or len(seen) < number:
                seen.add(row.device)
                kept.append(row)
    return kept


def _merged(rows: Sequence[Row], factor: int, groups: int) -> list[Row]:
    if factor == 1:
        return [replace(row, values=row.values[:groups]) for row in rows]
    result = []
    for row in rows:
        values = []
        for start in range(0, groups * factor, factor):
            known = [value for value in row.values[start : start + factor] if value != ABSENT]
            if not known:
                values.append(ABSENT)
            elif row.adds:
                values.append(sum(known))
            else:
                values.append((2 * sum(known) + len(known)) // (2 * len(known)))
        result.append(replace(row, values=values))
    return result


def _fit(rows: Sequence[Row], room: int) -> int:
    """Return how many bins from the first on have room.

    Of a device without a column that others of its kind have, absent numbers are written.
    """
    holes = 0
    for _, of_kind in groupby(rows, key=lambda row: row.kind):
        own = list(of_kind)
        holes += len({row.device for row in own}) * len({row.column for row in own}) - len(own)
    around = holes * _number(ABSENT) + len(rows) * _OF_NUMBER
    fit = 0
    for numbers in zip(*(row.values for row in rows), strict=True):
        room -= around + sum([((n.bit_length() + 6) // 7 or 1) if n >= 0 else 10 for n in numbers])
        if room < 0:
            break
        fit += 1
    return fit


def _overhead(rows: Sequence[Row]) -> int:
    """Return the bytes of all that does not grow with the bins, at most."""
    size = 4 * (_OF_ATTRIBUTE + 40)
    for kind, of_kind in groupby(rows, key=lambda row: row.kind):
        own = list(of_kind)
        devices, columns = {row.device for row in own}, {row.column for row in own}
        size += _OF_ATTRIBUTE + 40 + sum(_text(device[:_MAX_ID]) for device in devices)
        for column in columns:
            size += 2 * (_OF_ATTRIBUTE + len(semconv.RESOURCES_PREFIX) + len(kind) + len(column) + 16)
            size += len(devices) * _number(_MOST)
    return size


_MOST: Final = (1 << 63) - 1


def _number(value: int) -> int:
    return _OF_NUMBER + _varint(value)


def _varint(value: int) -> int:
    return 10 if value < 0 else max(1, (value.bit_length() + 6) // 7)


def _text(text: str) -> int:
    return 8 + len(text.encode("utf-8", "replace"))
