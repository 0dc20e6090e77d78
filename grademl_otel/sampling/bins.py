# SPDX-License-Identifier: Apache-2.0
"""What devices and the host did in each second: readings in, bins of one second out.

A bin is a whole second of ``perf_counter``, named by its number. A counter's bin holds what was added in it,
spread evenly between two readings; a gauge's the mean of its values, weighted by how long each held, where a
reading tells what held since the one before. All numbers are integers (the metric's value times its scale),
so that the bins of a counter add up to exactly what was added between their edges.

A bin that nobody can tell of is absent: of a counter one that was not watched from edge to edge, of a gauge
one in which no reading tells anything, as after a pause of more than two and a half intervals.
"""

from __future__ import annotations

import math
import re
import threading
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from grademl_otel.catalog.metric import COUNTER
from grademl_otel.sampling.source import Reading, Series
from grademl_otel.semconv import RESOURCES_ABSENT as ABSENT

SECOND: Final = 1_000_000_000
LONGEST_KEPT: Final = 7200
"""Bins of a series that are kept at most: two hours."""
_GAP: Final = 5, 2
"""Intervals after which nobody knows what a gauge was, as a fraction."""
_LATE_NS: Final = SECOND
"""A source that is late by so much more is not waited for."""
_MOST: Final = (1 << 63) - 1
MAX_SERIES: Final = 20_000
"""Series in all: what a host with thousands of devices has more goes into no table."""


@dataclass(frozen=True, slots=True)
class Row:
    """One column of one device, over some bins."""

    kind: str
    column: str
    device: str
    adds: bool
    """A counter: what two bins hold can be added; else it is a mean."""
    capacity: int
    """In the unit of the values, of a counter per second; -1 where nobody knows."""
    values: list[int]


class Bins:
    """The bins of all series with a column. Threads that sample add to it, one thread reads.

    A series may have an owner, such as a run whose processes it is about; others are everybody's.
    """

    def __init__(self) -> None:
        self._tracks: dict[tuple[Hashable, str, str], _Track] = {}
        self._of_series: dict[Series, _Track] = {}
        """The same by what is read, the quick way to them."""
        self._lock = threading.Lock()

    def add(
        self, interval_ns: int, time_ns: int, readings: Iterable[Reading], owner: Hashable = None
    ) -> None:
        """Take what a source, read each ``interval_ns``, said at ``time_ns`` of ``perf_counter``."""
        with self._lock:
            for series, value in readings:
                if not series.metric.column or not 0 <= value < math.inf:  # no number is not
                    continue
                track = self._of_series.get(series) or self._track_of(series, owner)
                if track is not None:
                    track.add(series, value, time_ns, interval_ns)

    def _track_of(self, series: Series, owner: Hashable) -> _Track | None:
        key = (owner, series.metric.column, series.device)
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= MAX_SERIES:
                return None
            made = _Counter if series.metric.kind == COUNTER else _Gauge
            track = self._tracks[key] = made(series)
        else:
            self._of_series.pop(track.series, None)
        self._of_series[series] = track
        return track

    def _drop(self, key: tuple[Hashable, str, str]) -> None:
        self._of_series.pop(self._tracks.pop(key).series, None)

    def ready(self, now_ns: int, owner: Hashable = None) -> int:
        """Return the number of the first bin to which something may still be added for ``owner``."""
        with self._lock:
            lasts = [
                track.last
                for (whose, _, _), track in self._tracks.items()
                if whose in (None, owner) and now_ns - track.last <= _longest(track.interval) + _LATE_NS
            ]
        return min(lasts, default=now_ns - 3 * SECOND) // SECOND

    def rows(self, first: int, end: int, owner: Hashable = None) -> list[Row]:
        """Return what is known of the bins from ``first`` up to ``end``, in a fixed order of devices."""
        with self._lock:
            found = [
                track.row(column, device, first, end)
                for (whose, column, device), track in self._tracks.items()
                if whose in (None, owner)
            ]
        known = [row for row in found if row is not None]
        known.sort(key=lambda row: (row.kind, _natural(row.device)))  # stable: columns stay as they came
        return known

    def earliest(self, owner: Hashable = None) -> int | None:
        """Return the number of the first bin that anything is known of for ``owner``; None without any."""
        with self._lock:
            starts = [
                track.start
                for (whose, _, _), track in self._tracks.items()
                if whose in (None, owner) and track.start is not None and track.values
            ]
        return min(starts, default=None)

    def forget(self, before: int, now_ns: int) -> None:
        """Let go of the bins before ``before``, and of series that are no more."""
        with self._lock:
            for key, track in tuple(self._tracks.items()):
                track.forget(before)
                if not track.values and now_ns - track.last > _longest(track.interval) + 60 * SECOND:
                    self._drop(key)

    def disown(self, owner: Hashable) -> None:
        """Let go of all that belongs to ``owner``."""
        with self._lock:
            for key in [key for key in self._tracks if key[0] == owner]:
                self._drop(key)

    @property
    def size(self) -> int:
        """Numbers that are kept."""
        with self._lock:
            return sum(len(track.values) for track in self._tracks.values())


class _Track:
    """The bins of one column of one device, one after the other from `start` on."""

    __slots__ = ("interval", "last", "scale", "series", "start", "values")
    adds = False

    def __init__(self, series: Series):
        self.series = series
        self.scale = series.metric.scale
        self.interval = SECOND
        self.last = -1
        """Time of the last reading."""
        self.start: int | None = None
        self.values = array("q")

    def add(self, series: Series, value: int | float, time: int, interval: int) -> None:
        self.interval = interval
        if series is not self.series:  # the device was gone, and has come back
            self.series = series
            self._begin(value, time)
        elif self.last < 0:
            self._begin(value, time)
        elif time > self.last:
            self._go_on(value, time)
        else:
            return
        self.last = time

    def _begin(self, value: int | float, time: int) -> None:
        raise NotImplementedError

    def _go_on(self, value: int | float, time: int) -> None:
        raise NotImplementedError

    def _put(self, number: int, value: int) -> None:
        """Set the bin ``number``, which comes after all that are set."""
        if self.start is None or number - self.start - len(self.values) > LONGEST_KEPT:
            self.start = number
            self.values = array("q")
        missing = number - self.start - len(self.values)
        if missing < 0:
            return
        self.values.extend([ABSENT] * missing)
        self.values.append(min(value, _MOST))
        if len(self.values) > LONGEST_KEPT + LONGEST_KEPT // 8:
            self.forget(self.start + len(self.values) - LONGEST_KEPT)

    def forget(self, before: int) -> None:
        if self.start is not None and before > self.start:
            gone = min(before - self.start, len(self.values))
            del self.values[:gone]
            self.start += gone

    def row(self, column: str, device: str, first: int, end: int) -> Row | None:
        if self.start is None or first >= end:
            return None
        before, after = min(max(0, self.start - first), end - first), max(0, first - self.start)
        values = [ABSENT] * before
        values += self.values[after : after + end - first - before]
        if all(value == ABSENT for value in values):
            return None
        values += [ABSENT] * (end - first - len(values))
        kind, _, name = column.partition(".")
        capacity = self.series.capacity
        known = capacity is not None and 0 <= capacity * self.scale < _MOST
        most = round(capacity * self.scale) if known and capacity is not None else ABSENT
        return Row(kind, name, device, self.adds, most, values)


class _Counter(_Track):
    __slots__ = ("_at_edge", "_base", "_total")
    adds = True

    def _begin(self, value: int | float, time: int) -> None:
        self._base: int | float = value
        self._total = 0
        """What was added since, scaled."""
        self._at_edge: int | None = 0 if time % SECOND == 0 else None
        """The same at the beginning of the bin of the last reading; None where that was not watched."""

    def _go_on(self, value: int | float, time: int) -> None:
        total = round((value - self._base) * self.scale)
        if total < self._total:  # against the contract: nobody knows what was added
            self._begin(value, time)
            return
        before, begin, length = self._total, self.last, time - self.last
        first, end = begin // SECOND, time // SECOND
        if end - first > LONGEST_KEPT:
            first, self._at_edge = end - LONGEST_KEPT, None
        for number in range(first, end):
            at_edge = before + (total - before) * ((number + 1) * SECOND - begin) // length
            if self._at_edge is not None:
                self._put(number, at_edge - self._at_edge)
            self._at_edge = at_edge
        self._total = total


class _Gauge(_Track):
    __slots__ = ("_sum", "_weight")

    def _begin(self, value: int | float, time: int) -> None:
        self._sum, self._weight = 0, 0
        """Of the bin of the last reading: values times ns, and ns."""

    def _go_on(self, value: int | float, time: int) -> None:
        first, end = self.last // SECOND, time // SECOND
        held = round(value * self.scale)
        if time - self.last > _longest(self.interval):
            if end > first:
                self._close(first)
            return
        begin = self.last
        for number in range(first, end):
            edge = (number + 1) * SECOND
            self._hold(held, edge - begin)
            self._close(number)
            begin = edge
        self._hold(held, time - begin)

    def _hold(self, held: int, ns: int) -> None:
        self._sum += held * ns
        self._weight += ns

    def _close(self, number: int) -> None:
        if self._weight:
            self._put(number, (2 * self._sum + self._weight) // (2 * self._weight))
        self._sum, self._weight = 0, 0


def _longest(interval: int) -> int:
    return interval * _GAP[0] // _GAP[1]


_DIGITS: Final = re.compile(r"(\d+)")


def _natural(text: str) -> tuple[tuple[str, int], ...]:
    """Return what sorts ``mlx5_10`` after ``mlx5_9``."""
    pieces = _DIGITS.split(text)
    return tuple(
        (word, int(number[:18])) for word, number in zip(pieces[::2], [*pieces[1::2], "0"], strict=True)
    )
