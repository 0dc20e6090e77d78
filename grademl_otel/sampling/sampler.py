# SPDX-License-Identifier: Apache-2.0
"""Samples the sources of providers: one that hangs stops nobody else.

A thread is what it takes: calls into drivers, and reads of ``/sys``, cannot be interrupted. A `Crew` has as
many as are needed for that, one on most hosts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from grademl_otel.catalog.metric import Metric
from grademl_otel.catalog.sampler import COST, FAILURES, LATE
from grademl_otel.convert.spans import Attributes
from grademl_otel.sampling.alarm import Alarm
from grademl_otel.sampling.crew import Crew
from grademl_otel.sampling.faults import FIND, Faults, Tell
from grademl_otel.sampling.reader import LONGEST_PAUSE_NS, Listener, SourceReader
from grademl_otel.sampling.source import Provider, Series, Source

RESCAN_S: Final = 30.0
"""So often providers are asked what there is."""
_LEAST_DEADLINE_NS: Final = 2_000_000_000
_MOST_SOURCES: Final = 256
"""Of one provider; no host has so many devices of a kind that each need a reading of their own."""
_OWN: Final = "sampler"


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a series at a time; both times in ns of perf_counter."""

    series: Series
    value: int | float
    time_ns: int
    start_ns: int
    """When the series was first read; of a counter the time at which it was 0."""


class Sampler:
    """Reads all sources of ``providers`` every ``interval_s`` seconds between `start` and `stop`.

    ``tell`` gets one line for each kind of trouble, from any thread. Nothing here raises.

    A series is in `latest` as long as its last reading is younger than two intervals, and two seconds. In a
    forked child there is nothing: threads do not survive a fork.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        interval_s: float = 1.0,
        tell: Tell = lambda line: None,
        rescan_s: float = RESCAN_S,
    ) -> None:
        self._faults = Faults(tell)
        self._listeners: list[Listener] = []
        self._rescan_s = rescan_s
        self._scans: list[_Scan] = []
        self._crew = Crew("grademl sampler")
        self._pid = 0
        """Of the process in which it runs; 0 before the start and after the end."""
        self._start_ns = 0
        self._own: dict[tuple[str, ...], Series] = {}
        self.add(providers, interval_s)

    def add(self, providers: Iterable[Provider], interval_s: float) -> None:
        """Sample these as well, at a pace of their own; before the start."""
        for provider in providers:
            interval = max(1, round(interval_s * 1e9))
            scan = _Scan(provider, interval, self._rescan_s, self._crew, self._faults, self._listeners)
            self._scans.append(scan)

    def listen(self, listener: Listener) -> None:
        """Have each reading handed to ``listener`` too, in the thread that read it; before the start."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin to sample; returns at once. Once only: sources that were let go are not to be had again."""
        if self._start_ns:
            return
        self._pid, self._start_ns = os.getpid(), time.perf_counter_ns()
        for scan in self._scans:
            try:
                scan.start()
            except RuntimeError as error:  # no more threads
                self._faults.failed(scan.name, error, "cannot be sampled")

    def stop(self, within_s: float = 1.0) -> bool:
        """End all of it and wait so long at most; return False where something hangs, which stays behind."""
        if self._pid != os.getpid():
            return True
        self._pid = 0
        for scan in self._scans:
            scan.stop()
        self._crew.end()
        until = time.monotonic() + within_s
        ended = [scan.join(max(0.0, until - time.monotonic())) for scan in self._scans]
        return all(ended)

    def latest(self) -> list[Sample]:
        """Return the last sample of each series that is still fresh, and what the sampler says of itself."""
        if self._pid != os.getpid():
            return []
        now = time.perf_counter_ns()
        samples: list[Sample] = []
        for scan in self._scans:
            for reader in scan.current():
                at, readings = reader.latest
                if readings and now - at <= scan.deadline_ns:
                    samples += [Sample(series, value, at, series.start_ns) for series, value in readings]
            scan.tell_of_silence(now)
        samples += self._of_itself(now)
        return samples

    def _of_itself(self, now: int) -> list[Sample]:
        failures, late, any_source = self._faults.counts(), [], False
        cost = self._crew.cost_ns()
        for scan in self._scans:
            late += scan.late(now)
            cost += scan.cost_ns
            any_source = any_source or scan.found
        if not (any_source or failures):
            return []
        samples = [self._own_sample(FAILURES, count, now, source, kind) for source, kind, count in failures]
        samples += [self._own_sample(LATE, count, now, name) for name, count in late if count]
        samples.append(self._own_sample(COST, cost / 1e9, now))
        return samples

    def _own_sample(self, metric: Metric, value: int | float, now: int, *values: str) -> Sample:
        key = (metric.name, *values)
        series = self._own.get(key)
        if series is None:
            attributes: Attributes = dict(zip(metric.attributes, values, strict=True))
            series = self._own[key] = Series(metric, attributes, _OWN)
        return Sample(series, value, now, self._start_ns)


class _Scan:
    """The sources of one provider, and the thread that asks it for them; which may hang as well."""

    def __init__(
        self,
        provider: Provider,
        interval_ns: int,
        rescan_s: float,
        crew: Crew,
        faults: Faults,
        listeners: list[Listener],
    ) -> None:
        self.name = provider.name
        self.found = False
        """There has been a source."""
        self.deadline_ns = max(_LEAST_DEADLINE_NS, 2 * interval_ns)
        self._provider = provider
        self._interval = interval_ns
        self._rescan_ns = round(rescan_s * 1e9)
        self._crew = crew
        self._faults = faults
        self._listeners = listeners
        self._alarm = Alarm()
        self._stopped = False
        self._asked_at = 0
        """When the provider was asked that has not answered yet; 0: it has."""
        self._readers: dict[str, SourceReader] = {}
        self._gone_at: dict[str, int] = {}
        self._late: dict[str, int] = {}
        """Of readers that have ended."""
        self.cost_ns = 0
        """CPU time of asking."""
        self._books = threading.Lock()
        """Held where readers come and go, so that what they counted is counted once."""
        self._thread = threading.Thread(target=self._run, name=f"grademl {self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        for reader in tuple(self._readers.values()):
            reader.stop(self._crew)
        self._alarm.ring()

    def join(self, within_s: float) -> bool:
        if not self._thread.is_alive():
            return True
        if self._thread is threading.current_thread():
            return False
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def current(self) -> list[SourceReader]:
        return [reader for reader in tuple(self._readers.values()) if not reader.leaving]

    def late(self, now: int) -> list[tuple[str, int]]:
        with self._books:
            counts = dict(self._late)
            for name, reader in self._readers.items():
                counts[name] = counts.get(name, 0) + reader.late(now if reader.alive else 0)
        return list(counts.items())

    def tell_of_silence(self, now: int) -> None:
        for reader in self.current():
            silent = reader.silent_ns(now)
            if silent > self.deadline_ns and reader.alive:
                self._faults.silent(reader.name, silent / 1e9)
        if self._asked_at and now - self._asked_at > self._rescan_ns:
            self._faults.silent(self.name, (now - self._asked_at) / 1e9)

    def _run(self) -> None:
        failures = 0
        while not self._stopped:
            self._asked_at = time.perf_counter_ns()
            try:
                self._keep(self._provider.sources())
                self._faults.recovered(self.name)
                failures = 0
            except BaseException as error:
                failures += 1
                self._faults.failed(self.name, error, FIND)
            self._asked_at = 0
            self._crew.look()
            pause = self._rescan_ns
            if failures:
                pause = min(LONGEST_PAUSE_NS, self._interval << min(failures - 1, 40))
            self.cost_ns = time.thread_time_ns()
            if self._alarm.wait(pause / 1e9):
                self._alarm.wait(0 if self._stopped else self._interval / 1e9)
        for reader in self._readers.values():
            reader.stop(self._crew)
        for reader in self._readers.values():
            reader.join()
        try:
            self._provider.close()
        except BaseException as error:
            self._faults.failed(self.name, error, "cannot be closed")

    def _keep(self, found: Iterable[Source]) -> None:
        """Read what is new of ``found``, and no more what is not among it."""
        sources = {id(source): source for source in found}
        for name, reader in tuple(self._readers.items()):
            if not reader.alive:
                self._forget(name, reader)
            elif id(reader.source) in sources:
                del sources[id(reader.source)]
            else:
                reader.stop(self._crew)
        for source in sources.values():
            try:
                self._begin(source)
            except Exception as error:  # no more threads; the others are read all the same
                self._faults.failed(self.name, error, "cannot be sampled")

    def _begin(self, source: Source) -> None:
        if source.name in self._readers or self._stopped:  # its predecessor hangs, or is about to end
            return
        if len(self._readers) >= _MOST_SOURCES:
            raise OverflowError(f"more than {_MOST_SOURCES} sources")
        reader = SourceReader(source, self._interval, self._faults, self._listeners, self._ended)
        self._crew.add(reader)
        with self._books:
            self._readers[reader.name] = reader
        self.found = True

    def _forget(self, name: str, reader: SourceReader) -> None:
        with self._books:
            late = self._late.get(name, 0) + reader.late(0)
            if late and (name in self._late or len(self._late) < _MOST_SOURCES):
                self._late[name] = late
            del self._readers[name]

    def _ended(self, name: str, gone: bool) -> None:
        """At the end of a reader: ask the provider soon, unless that went wrong just now."""
        if not gone or self._stopped:
            return
        now, before = time.perf_counter_ns(), self._gone_at.get(name)
        if len(self._gone_at) >= _MOST_SOURCES:
            self._gone_at.clear()
        self._gone_at[name] = now
        if before is None or now - before > self._rescan_ns:
            self._alarm.ring()
