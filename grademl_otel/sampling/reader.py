# SPDX-License-Identifier: Apache-2.0
"""One source, read at a steady pace, whatever that source does.

It is read at whole multiples of its interval of perf_counter, as all others are, so that what is read fits
into common bins. Ticks that pass while a reading blocks are skipped and counted. After a failure it is read
again at the next tick, after more of them with growing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.sampling.crew import Crew
from grademl_otel.sampling.faults import NONSENSE, Faults
from grademl_otel.sampling.source import InParts, Reading, Series, Source, SourceGone

Listener = Callable[[str, int, Sequence[Reading]], object]
"""Called with the source's name, the time of a reading (ns of perf_counter) and what was read."""

LONGEST_PAUSE_NS: Final = 60_000_000_000
_GRID_NS: Final = 5_000_000
"""The rests of readings are read at multiples of it, those of several sources at one time."""
_NUMBERS: Final = (int, float)
_LEAST, _MOST = -(1 << 63), 1 << 63
"""What telemetry can carry as an integer; no hardware counts further."""


class SourceReader:
    """Reads ``source`` until it is gone, or until it is told to stop; closes it then.

    A task of a crew: `turn` reads it once, in whatever thread. ``ended`` is called at the end, with whether
    the source is gone.
    """

    def __init__(
        self,
        source: Source,
        interval_ns: int,
        faults: Faults,
        listeners: Sequence[Listener],
        ended: Callable[[str, bool], object],
    ) -> None:
        self.source = source
        self.name = source.name
        self.leaving = False
        """It has been told to stop."""
        self.due_ns = time.perf_counter_ns()
        self.latest: tuple[int, Sequence[Reading]] = (0, ())
        """When it was read last, and what; replaced as a whole."""
        self._parts = source if isinstance(source, InParts) else None
        self._first: tuple[int, Sequence[Reading]] | None = None
        """Of a reading whose rest is still to be read."""
        self._interval = interval_ns
        self._faults = faults
        self._listeners = listeners
        self._ended = ended
        self._failures = 0
        """In a row."""
        self._tick = self.due_ns // interval_ns * interval_ns
        self._missed = 0
        self._pace = (0, self.due_ns)
        """Ticks missed until now, and the next one; replaced as a whole."""
        self._told_late = 0
        self._over = threading.Event()

    def stop(self, crew: Crew) -> None:
        """Have it end after the reading that goes on; does not wait."""
        self.leaving = True
        crew.hurry(self)

    def join(self) -> None:
        """Wait for its end."""
        self._over.wait()

    @property
    def alive(self) -> bool:
        """Whether it still holds its source; a source that hangs cannot be let go."""
        return not self._over.is_set()

    def late(self, now_ns: int) -> int:
        """Return how many ticks went by without a sample, those of a reading that still goes on included.

        Never falls; for one caller at a time.
        """
        missed, due = self._pace
        # The thread may have looked at the clock before whoever asks, and have written less down since.
        self._told_late = max(self._told_late, missed + max(0, now_ns - due) // self._interval)
        return self._told_late

    def silent_ns(self, now_ns: int) -> int:
        """Return for how long a reading has been due that is not there; 0 between readings."""
        return max(0, now_ns - self._pace[1])

    def turn(self) -> bool:
        """Read it once, or end; see `crew.Task`."""
        goes_on = gone = False
        try:
            if not self.leaving:
                gone = self._is_gone()
            goes_on = not (gone or self.leaving)
        finally:  # also after what cannot even be counted, as where memory is short
            if not goes_on:
                self._end(gone)
        return goes_on

    def _is_gone(self) -> bool:
        """Read it, and say whether it has gone."""
        try:
            self._read()
        except SourceGone:
            now = time.perf_counter_ns()
            self._pace = (self._missed + (now - self._tick) // self._interval, now)
            return True
        except BaseException as error:
            now = time.perf_counter_ns()
            self._first = None
            self._failures += 1
            self._faults.failed(self.name, error)
            self._await_tick(now)
        return False

    def _read(self) -> None:
        """Read it, or the rest of a reading; raises what the source raises."""
        if self._first is None:
            readings = self.source.read()
            at = time.perf_counter_ns()
            after = 0.0 if self._parts is None else self._parts.rest_after_s
        else:
            at, readings = self._first
            readings, after = self._completed(readings)
        now = time.perf_counter_ns()
        if after > 0:
            self._first = (at, readings)
            self.due_ns = -(-(now + round(after * 1e9)) // _GRID_NS) * _GRID_NS
            return
        self._first = None
        self._take(at, readings)
        self._failures = 0
        self._await_tick(now)

    def _completed(self, readings: Sequence[Reading]) -> tuple[Sequence[Reading], float]:
        """Return ``readings`` with their rest, and seconds until there is more of it; where that fails they
        stand by themselves.
        """
        if self._parts is None:
            return readings, 0.0
        try:
            return [*readings, *self._parts.read_rest()], self._parts.rest_after_s
        except SourceGone:
            raise
        except Exception as error:
            self._faults.failed(self.name, error, "cannot be read to the end")
            return readings, 0.0

    def _await_tick(self, now: int) -> None:
        """Be due at the next tick, after failures at a later one."""
        interval, failures = self._interval, self._failures
        self._missed += (now - self._tick) // interval
        pause = min(LONGEST_PAUSE_NS, interval << min(failures - 1, 40)) if failures > 1 else 0
        self._tick = max(self._tick + interval, ((now + pause) // interval + 1) * interval)
        self._pace = (self._missed, self._tick)
        self.due_ns = self._tick

    def _end(self, gone: bool) -> None:
        self.latest = (0, ())
        self._first = None
        try:
            self.source.close()
        except BaseException as error:
            self._faults.failed(self.name, error, "cannot be closed")
        finally:
            self._over.set()
            self._ended(self.name, gone)

    def _take(self, now: int, readings: Sequence[Reading]) -> None:
        """Make what was read the latest, and hand it on; raises where a part of it is nonsense."""
        nonsense: Exception | None = None
        try:
            for series, value in readings:
                if type(value) not in _NUMBERS or not _LEAST <= value < _MOST:
                    raise ValueError(f"{series.metric.name} cannot be {value!r}")
                if not series.start_ns:
                    series.start_ns = now
        except Exception as error:
            nonsense = error
            readings = _sensible(readings, now)
        if self.leaving:
            return
        self.latest = (now, readings)
        if nonsense is not None:
            self._faults.failed(self.name, nonsense, NONSENSE)
        else:
            self._faults.recovered(self.name)
        for listener in self._listeners:
            try:
                listener(self.name, now, readings)
            except Exception as error:
                self._faults.failed(self.name, error, "cannot be handed on")


def _sensible(readings: object, now: int) -> list[Reading]:
    """Return what can be used of readings that are not all what they should be; raises TypeError for none."""
    found: list[Reading] = []
    if not isinstance(readings, Sequence):
        raise TypeError(f"a reading cannot be {type(readings).__name__}")
    for each in readings:
        try:
            series, value = each
        except (TypeError, ValueError):
            continue
        if isinstance(series, Series) and type(value) in _NUMBERS and _LEAST <= value < _MOST:
            series.start_ns = series.start_ns or now
            found.append((series, value))
    return found
