# SPDX-License-Identifier: Apache-2.0
"""The thread that reads one source at a steady pace, whatever that source does.

It reads at whole multiples of its interval of perf_counter, as all others do, so that what is read fits into
common bins. Ticks that pass while a reading blocks are skipped and counted. After a failure it comes again at
the next tick, after more of them with growing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.sampling.alarm import Alarm
from grademl_otel.sampling.faults import NONSENSE, Faults
from grademl_otel.sampling.source import Reading, Series, Source, SourceGone

Listener = Callable[[str, int, Sequence[Reading]], object]
"""Called with the source's name, the time of a reading (ns of perf_counter) and what was read."""

LONGEST_PAUSE_NS: Final = 60_000_000_000
_NUMBERS: Final = (int, float)
_LEAST, _MOST = -(1 << 63), 1 << 63
"""What telemetry can carry as an integer; no hardware counts further."""


class SourceThread:
    """Reads ``source`` until it is gone, or until it is told to stop; closes it then.

    ``ended`` is called at the end from the thread itself with whether the source is gone.
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
        self.cost_ns = 0
        """CPU time that the thread took."""
        self.latest: tuple[int, Sequence[Reading]] = (0, ())
        """When it was read last, and what; replaced as a whole."""
        self._interval = interval_ns
        self._faults = faults
        self._listeners = listeners
        self._ended = ended
        self._alarm = Alarm()
        self._pace = (0, time.perf_counter_ns())
        """Ticks missed until now, and the next one; replaced as a whole."""
        self._told_late = 0
        self._thread = threading.Thread(target=self._run, name=f"grademl {self.name}", daemon=True)

    def start(self) -> None:
        """Begin; raises RuntimeError where there can be no more threads."""
        self._thread.start()

    def stop(self) -> None:
        """Have it end after the reading that goes on; does not wait."""
        self.leaving = True
        self._alarm.ring()

    def join(self, within_s: float | None = None) -> bool:
        """Wait for its end, at most so long; return whether it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(within_s)
        return not self.alive

    @property
    def alive(self) -> bool:
        """Whether it still holds its source; a source that hangs cannot be let go."""
        return self._thread.is_alive()

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

    def _run(self) -> None:
        gone = False
        try:
            gone = self._read_on()
        finally:
            self.latest = (0, ())
            try:
                self.source.close()
            except BaseException as error:
                self._faults.failed(self.name, error, "cannot be closed")
            self.cost_ns = time.thread_time_ns()
            self._ended(self.name, gone)

    def _read_on(self) -> bool:
        """Read until told to stop; return True when the source is gone before."""
        interval, failures, missed = self._interval, 0, 0
        due = time.perf_counter_ns() // interval * interval
        while not self.leaving:
            self._pace = (missed, due)
            try:
                readings = self.source.read()
                now = time.perf_counter_ns()
                self._take(now, readings)
                failures = 0
            except SourceGone:
                now = time.perf_counter_ns()
                self._pace = (missed + (now - due) // interval, now)
                return True
            except BaseException as error:
                now = time.perf_counter_ns()
                failures += 1
                self._faults.failed(self.name, error)
            missed += (now - due) // interval
            pause = min(LONGEST_PAUSE_NS, interval << min(failures - 1, 40)) if failures > 1 else 0
            due = max(due + interval, ((now + pause) // interval + 1) * interval)
            self._pace = (missed, due)
            self.cost_ns = time.thread_time_ns()
            self._alarm.wait((due - now) / 1e9)
        return False

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
