# SPDX-License-Identifier: Apache-2.0
"""What other tools wrote into CSV files, as series; docs/resources.md has the columns."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import numpy as np

from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.resource_model import naming, units
from grademl_otel.analyzers.resource_model.gathering import Told
from grademl_otel.analyzers.resource_model.series import (
    MOST,
    Place,
    Series,
    averages,
    is_told,
    of_counter,
    of_samples,
)
from grademl_otel.analyzers.suggest import or_near
from grademl_otel.analyzers.units import count

_NEEDED: Final = ("time", "resource", "metric", "value")
_OPTIONAL: Final = ("host", "id", "unit", "capacity", "kind", "start")
COLUMNS: Final = (*_NEEDED, *_OPTIONAL)
KINDS: Final = ("gauge", "counter")
_MOST: Final = 20_000_000
"""Rows."""
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,12}))?([Zz]|[+-]\d\d:\d\d)")
_EMPTY: Final = ("", "nan", "null", "none", "n/a", "[n/a]")
_S: Final = 10**9
_BY_SIZE: Final = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (0, _S))
"""A time from so much on is in units of so many ns: Unix ns, us, ms, s, of any year from 1973 on."""


@dataclass
class _Rows:
    """Those of one series."""

    unit: str
    kind: str
    line: int
    """Of the first."""
    time: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    capacity: float = 0.0


def of_csv(file: str) -> Told:
    """Return what ``file`` tells. Raises SourceError where it cannot be read, UsageError where it is none."""
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as lines:
            return _read(file, lines)
    except (FileNotFoundError, IsADirectoryError):
        raise SourceError(f"{file}: no such file") from None
    except OSError as error:
        raise SourceError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: not CSV in UTF-8: {error}") from None


def _read(file: str, lines: Iterator[str]) -> Told:
    reader = csv.reader(lines)
    header = next(reader, None)
    if header is None:
        raise UsageError(f"{file}: empty; its first line names the columns: {','.join(_NEEDED)},...")
    place = _columns(file, header)
    rows: dict[tuple[str, str, str, str], _Rows] = {}
    missing = 0
    for number, cells in enumerate(reader, start=1):
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        at = f"{file}:{reader.line_num}"
        if len(cells) != len(header):
            raise UsageError(f"{at}: {count(len(cells), 'cell')}, where the first line has {len(header)}")
        if number > _MOST:
            raise UsageError(f"{file}: more than {_MOST:,} rows")
        missing += not _row(
            at, {name: cells[ix].strip() for name, ix in place.items()}, rows, reader.line_num
        )
    told = Told()
    if missing:
        told.problems.append(
            f"{file}: {count(missing, 'row')} without a value, or with one below 0 or above {MOST:g},"
            " left out"
        )
    for (host, resource, called, metric), one in rows.items():
        _series(file, Place(host or None, resource, called), metric, one, told)
    return told


def _columns(file: str, header: Sequence[str]) -> dict[str, int]:
    names = [name.strip().lower() for name in header]
    for name in names:
        if name not in COLUMNS:
            raise UsageError(f"{file}:1: unknown column {name!r}; {or_near(name, COLUMNS)}")
    if len(set(names)) != len(names):
        raise UsageError(f"{file}:1: a column stands there twice")
    lacking = [name for name in _NEEDED if name not in names]
    if lacking:
        raise UsageError(f"{file}:1: no column {', '.join(lacking)}; needed are {', '.join(_NEEDED)}")
    return {name: ix for ix, name in enumerate(names)}


def _row(at: str, cells: Mapping[str, str], rows: dict[tuple[str, str, str, str], _Rows], line: int) -> bool:
    """Take a row; return whether it has a value."""
    for name in ("time", "resource", "metric"):
        if not cells[name]:
            raise UsageError(f"{at}: no {name}")
    if any(char in cells["resource"] for char in "/[]. "):
        raise UsageError(
            f"{at}: resource {cells['resource']!r} is the type of one, as gpu, without / [ ] . and spaces;"
            " which of them it is stands in the column id"
        )
    kind = cells.get("kind", "") or KINDS[0]
    if kind not in KINDS:
        raise UsageError(f"{at}: kind {kind!r} is none of {', '.join(KINDS)}")
    unit = cells.get("unit", "")
    if unit and not units.is_known(unit):
        raise UsageError(f"{at}: unknown unit {unit!r}; known are {units.KNOWN}, a / between two, {{things}}")
    key = (cells.get("host", ""), cells["resource"], cells.get("id", ""), cells["metric"])
    found = rows.setdefault(key, _Rows(unit, kind, line))
    if (found.unit, found.kind) != (unit, kind):
        raise UsageError(
            f"{at}: {key[1]} {key[3]} is a {kind} in {unit or 'no unit'}; in line {found.line} it is a"
            f" {found.kind} in {found.unit or 'no unit'}"
        )
    if cells.get("capacity"):
        capacity = _number(at, "capacity", cells["capacity"])
        if capacity > 0:
            found.capacity = max(found.capacity, capacity)
    time = _time(at, "time", cells["time"])
    begun = cells.get("start", "")
    if begun and kind == "counter":
        raise UsageError(f"{at}: a counter has no start: it counts since the row before")
    start = _time(at, "start", begun) if begun else -1
    if begun and start >= time:
        raise UsageError(f"{at}: start is not before time")
    value = math.nan if cells["value"].lower() in _EMPTY else _number(at, "value", cells["value"])
    found.time.append(time)
    found.start.append(start)
    found.value.append(value)
    return 0 <= value <= MOST


def _series(file: str, place: Place, metric: str, rows: _Rows, told: Told) -> None:
    meaning = naming.of_type(f"{place.type}.{metric}")
    counter = rows.kind == "counter"
    source = f"csv {file}"
    given = f"{rows.unit or (meaning.unit if meaning else '1')}/s" if counter else rows.unit or "1"
    gives, factor = given, 1.0
    if meaning is not None:
        gives = meaning.gives
        found = units.factor(given, gives) if rows.unit or counter else 1.0
        if found is None:
            told.problems.append(
                f"{file}:{rows.line}: {place.type}.{metric} in {given}, which is no {gives}: left out"
            )
            return
        factor = found
    time, value = np.array(rows.time, np.int64), np.array(rows.value, np.float64)
    start = np.array(rows.start, np.int64)
    if counter:
        seen = of_counter(time, value)
    elif (start >= 0).all():
        seen, overlapping = averages(start, time, value)
        overlapping -= int((~is_told(value)).sum())
        if overlapping > 0:
            told.problems.append(
                f"{file}: {count(overlapping, 'row')} of {place.type}.{metric} left out:"
                " they begin before the one before ends"
            )
    elif (start < 0).all():
        seen = of_samples(time, value)
    else:
        raise UsageError(
            f"{file}:{rows.line}: some rows of {place.type} {metric} have a start, and some none"
        )
    if not len(seen):
        told.problems.append(
            f"{file}: {place.type}.{metric}: {count(len(time), 'row')} say nothing of any time;"
            " two samples are the least, or a column start"
        )
        return
    capacity = rows.capacity * factor or math.inf
    told.series.append(
        Series(place, metric, gives, seen.scaled(factor), source, capacity, sampled=not counter)
    )


def _number(at: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{at}: {name} {text!r} is no number") from None


def _time(at: str, name: str, text: str) -> int:
    """Return Unix ns of a number of s, ms, us or ns, whichever its size says, or of an ISO 8601 time."""
    whole = text.lstrip("+-").isdigit()
    try:
        if whole:
            number = int(text)
            scale = next(scale for least, scale in _BY_SIZE if number >= least)
            found = number * scale
        else:
            found = _with_fraction(text)
    except (ValueError, OverflowError, StopIteration):
        raise UsageError(
            f"{at}: {name} {text!r} is neither Unix time (s, ms, us, ns) nor ISO 8601 with a zone, as"
            " 2026-12-02T07:30:00Z"
        ) from None
    if not 0 < found < 1 << 62:
        raise UsageError(f"{at}: {name} {text!r} is no time that there was")
    return found


def _of_iso(text: str) -> int:
    # With up to nine digits of a second, which the standard library's own reading is not for.
    found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError("no time with a zone")
    zone = "+00:00" if found[3] in "Zz" else found[3]
    since = datetime.fromisoformat(found[1] + zone) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * _S + int((found[2] or "0").ljust(9, "0")[:9])


def _with_fraction(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        return _of_iso(text)
    scale = next(scale for least, scale in _BY_SIZE if number >= least)
    whole, _, fraction = text.partition(".")
    if fraction.isdigit() and whole.lstrip("+-").isdigit():  # a float has no ns of today
        return int(whole) * scale + int(fraction) * scale // int("1" + "0" * len(fraction))
    return round(number * scale)
