# SPDX-License-Identifier: Apache-2.0
"""What a relay samples beside the rings: GPUs, the host, its network, and the processes of the jobs.

One sampler serves all runs. What it reads goes two ways: as metrics of the host, once per host and
destination, and into the resource tables of window and run spans, where each bin is told once per run.
Nothing here keeps the relay waiting: sources are found and read in threads of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.config import FILE, OTLP, Settings
from grademl_otel.convert.bounds import table_bytes_of_run, table_bytes_per_part
from grademl_otel.convert.spans import Metric, Resource, Span
from grademl_otel.export.filestore import METRICS, FileStore, existing_folder
from grademl_otel.export.interval import Thinning
from grademl_otel.export.otlpjson import metric_line
from grademl_otel.export.sinks import Sinks
from grademl_otel.pump import Alone, Beside, Sink
from grademl_otel.relay.hostresource import host_resource
from grademl_otel.relay.processes import JobProcesses
from grademl_otel.sampling.bins import LONGEST_KEPT, SECOND, Bins
from grademl_otel.sampling.election import SENDS, SENDS_GPUS, Elections
from grademl_otel.sampling.export import metrics_of_samples
from grademl_otel.sampling.resource_table import fitting
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.sampler import Sample, Sampler
from grademl_otel.sampling.source import Provider, Reading, Source

_log = logging.getLogger(__name__)

_KEPT_FOR_LATER: Final = 120
"""Bins that are kept for a run that has begun and whose ring is found a little later."""
_REMEMBERED: Final = 256
"""Runs that have ended, of which it is known how far they were told."""
_FORGET_EVERY_NS: Final = 10 * SECOND
_STOP_S: Final = 0.1
_CLOCK_WAS_SET_NS: Final = SECOND
"""Less is a clock that is steered, and looking at two clocks one after the other."""

FindProviders = Callable[[Settings], "Sequence[tuple[Provider, float]]"]
"""Returns providers and the interval of each, in s."""


def find_providers(settings: Settings) -> list[tuple[Provider, float]]:
    """Return the providers of everything that ``settings`` want sampled.

    A package of ours that cannot be loaded is as good as no such device; the log says why.
    """
    found: list[tuple[Provider, float]] = []
    roots = Roots(settings.proc_dir, settings.sys_dir)
    if settings.gpu_interval_s:
        try:
            from grademl_otel.instrumentations import gpu

            found += [(provider, settings.gpu_interval_s) for provider in gpu.providers()]
        except Exception:
            _log.warning("GPUs cannot be sampled", exc_info=True)
    if settings.host_interval_s:
        try:
            from grademl_otel.instrumentations import host, interconnect

            of_host = [*host.providers(roots), *interconnect.providers(roots)]
            found += [(provider, settings.host_interval_s) for provider in of_host]
        except Exception:
            _log.warning("the host cannot be sampled", exc_info=True)
    return found


def open_process_tree(pid: int, device: str, /) -> Source:
    """Return the source of a process of this PID namespace, of which its own ``/proc`` tells.

    Its points need no attributes: they go with the resource of the process.
    """
    from grademl_otel.instrumentations.host.processes import ProcessTree

    return ProcessTree(pid, Roots(), {}, device)


class Hardware:
    """All that one relay samples. For the relay's thread, but for what its own threads do."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        sinks: Sinks,
        folder: Path,
        digest: str,
        find: FindProviders = find_providers,
    ):
        self._settings = settings
        self._environ = environ
        self._sinks = sinks
        self._find = find
        self._bins = Bins()
        self._runs: dict[Hashable, _Run] = {}
        self._told: dict[Hashable, int] = {}
        """How far runs were told whose rings are all gone: a rank of one may be late."""
        self._elections = Elections(folder, digest)
        self._intervals: dict[str, int] = {}
        """Of sources, by name, in ns."""
        self._unix_offset = _unix_offset()
        """Of what goes to a collector, in ns; a run's own folder has the time of that run."""
        self._resource: Resource | None = None
        self._otlp: Sink | None = None
        self._sampler: Sampler | None = None
        self._starting: threading.Thread | None = None
        self._closed = threading.Event()
        self._metrics_at = self._forgot_at = time.perf_counter_ns()
        interval = round(settings.host_interval_s * 1e9)
        self._processes = JobProcesses(open_process_tree, self._bins, interval) if interval else None

    @property
    def wanted(self) -> bool:
        """Whether anything is sampled at all."""
        return self._settings.gpu_interval_s > 0 or self._settings.host_interval_s > 0

    def beside(self, pid: int, alive: bool) -> Beside:
        """Return what goes with the ring of the process ``pid``, which may be ``alive`` in this namespace."""
        return _OfRing(self, pid if alive else None) if self.wanted else Alone()

    def turn(self, now: int) -> None:
        """Send metrics when it is time; to be called often."""
        if now - self._metrics_at >= self._sinks.metrics_every_ns:
            self._metrics_at = now
            self._keep_metrics(self._runs.values())
            self._send_metrics()
        if now - self._forgot_at >= _FORGET_EVERY_NS:
            self._forgot_at = now
            self._bins.forget(self._needed_from(now), now)

    def close(self) -> None:
        """Stop, without waiting for what hangs."""
        self._closed.set()
        if self._starting is not None:
            self._starting.join(_STOP_S)
        if self._sampler is not None:
            self._sampler.stop(_STOP_S)
        self._elections.close()

    # --- Rings ------------------------------------------------------------------------------------------

    def join(self, ring: _OfRing, info: marks.RunInfo, run_start: int) -> _Run:
        """Have ``ring``, of the run of ``info`` that began at ``run_start``, be among those of its run."""
        self._start(info)
        key = (info.run_id, info.attempt)
        if not self._runs:
            self._look_at_the_clock()
        run = self._runs.get(key)
        if run is None:
            first = max(run_start // SECOND, self._told.pop(key, 0))
            run = self._runs[key] = _Run(key, info, self._bins, first)
        if ring.pid is not None and self._processes is not None:
            self._processes.follow(ring, ring.pid, run.name_of(info.rank, ring.pid), key)
        run.rings.add(ring)
        return run

    def leave(self, ring: _OfRing, run: _Run) -> None:
        """``ring`` is told to its end; with the last one of a run what is known of the host goes out."""
        run.rings.discard(ring)
        if self._processes is not None:
            self._processes.leave(ring)
        if run.rings or self._runs.get(run.key) is not run:
            return
        del self._runs[run.key]
        self._told[run.key] = run.cursor
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        self._bins.disown(run.key)
        self._keep_metrics([run], final=True)
        self._send_metrics(run.info)
        if not self._runs:
            self._elections.give_back(SENDS)  # another relay may have runs, and this one has nothing to send
        if run.store is not None:
            self._elections.give_back(f"files {run.store.folder}")
            run.store.close()

    def process_metrics(self, ring: _OfRing, unix_offset: int) -> Sequence[Metric]:
        """Return the metrics of the process of ``ring`` and its descendants."""
        if self._processes is None:
            return ()
        return metrics_of_samples(self._processes.latest(ring), unix_offset)

    # --- Sampling ---------------------------------------------------------------------------------------

    def _start(self, info: marks.RunInfo) -> None:
        if self._starting is not None or not (info.traces or info.metrics):
            return
        self._resource = host_resource(self._environ, info.resource)
        starting = threading.Thread(target=self._find_and_start, name="grademl-hardware", daemon=True)
        try:
            starting.start()
        except RuntimeError as error:  # no more threads: tried again with the next ring
            _log.warning("nothing is sampled: %s", error)
        else:
            self._starting = starting

    def _look_at_the_clock(self) -> None:
        """See whether the clock was set since it was looked at last: a relay may outlive many runs.

        By less it is left alone, so that counters keep their start to the nanosecond.
        """
        offset = _unix_offset()
        if abs(offset - self._unix_offset) > _CLOCK_WAS_SET_NS:
            self._unix_offset = offset

    def _find_and_start(self) -> None:
        """In a thread of its own: packages are loaded here, and drivers."""
        try:
            sampler = Sampler([], tell=lambda line: _log.warning("%s", line))
            found = self._find(self._settings)
            if self._closed.is_set():  # meanwhile: what never starts lets go of nothing
                for provider, _ in found:
                    provider.close()
                return
            for provider, interval in found:
                sampler.add([_Known(provider, self._intervals, round(interval * 1e9))], interval)
            if self._processes is not None:
                sampler.add([self._processes], self._settings.host_interval_s)
            sampler.listen(self._take)
            self._sampler = sampler
            sampler.start()
            if self._closed.is_set():  # meanwhile, when nobody waited for this any more
                sampler.stop(0)
        except Exception:
            _log.warning("nothing is sampled", exc_info=True)

    def _take(self, source: str, time_ns: int, readings: Sequence[Reading]) -> None:
        interval = self._intervals.get(source)
        if interval is not None:
            self._bins.add(interval, time_ns, readings)

    def _needed_from(self, now: int) -> int:
        cursors = [run.cursor for run in self._runs.values() if run.info.traces]
        return max(min([*cursors, now // SECOND - _KEPT_FOR_LATER]), now // SECOND - LONGEST_KEPT)

    # --- Metrics of the host ----------------------------------------------------------------------------

    def _samples(self) -> list[Sample]:
        return self._sampler.latest() if self._sampler else []

    def _own(self, samples: Iterable[Sample], place: str) -> tuple[list[Sample], list[str]]:
        """Return those of ``samples`` that this relay is to tell at ``place``, and what they are of.

        The host is told by one relay, and so is each GPU: a container may have been given others than its
        neighbours.
        """
        is_own: dict[str, bool] = {}
        own = []
        for sample in samples:
            attributes = sample.series.attributes
            what = f"{place} {attributes.get('hw.id')}" if attributes.get("hw.type") == "gpu" else place
            if what not in is_own:
                is_own[what] = self._elections.mine(what)
            if is_own[what]:
                own.append(sample)
        return own, [what.removeprefix(place) for what, mine in is_own.items() if mine]

    def _send_metrics(self, of_last: marks.RunInfo | None = None) -> None:
        """Send what is known to the collector, once per host, if a run wants that."""
        infos = [run.info for run in self._runs.values()] + ([of_last] if of_last else [])
        if not any(info.metrics and OTLP in info.exporters for info in infos) or self._resource is None:
            return
        samples, things = self._own(self._samples(), SENDS)
        if any(things):
            self._elections.mine(SENDS_GPUS)
        if samples:
            if self._otlp is None:
                self._otlp = self._sinks.open_otlp(self._resource)
            self._otlp.take_metrics(metrics_of_samples(samples, self._unix_offset), final=False)

    def _keep_metrics(self, runs: Iterable[_Run], final: bool = False) -> None:
        """Append what is known to the folders of ``runs``, of those that have one by now and are due."""
        samples: list[Sample] = []
        lines: dict[tuple[int, tuple[str, ...]], bytes] = {}
        for run in runs:
            if not run.info.metrics or FILE not in run.info.exporters or self._resource is None:
                continue
            if not run.has_store() or run.store is None:
                continue
            if not run.thinning.takes(time.perf_counter_ns()) and not final:
                continue
            samples = samples or self._samples()
            own, things = self._own(samples, f"files {run.store.folder}")
            if own:
                offset = run.info.perf_to_unix_ns
                key = offset, tuple(things)
                if key not in lines:
                    lines[key] = metric_line(self._resource, metrics_of_samples(own, offset))
                run.store.append(METRICS, lines[key])


class _Run:
    """One run, with those of its rings that are here."""

    def __init__(self, key: Hashable, info: marks.RunInfo, bins: Bins, first: int):
        self.key = key
        self.info = info
        self.rings: set[_OfRing] = set()
        self.cursor = first
        """Number of the first bin that no span of this run has told."""
        self.store: FileStore | None = None
        """The run's folder, once a rank has made it."""
        self.thinning = Thinning()
        self._bins = bins
        self._end_ns = 0
        """The latest end of a run span, in ns of perf_counter."""

    def name_of(self, rank: int, pid: int) -> str:
        """Return what a process is called in tables; two that say that they are one rank are kept apart."""
        taken = any(ring.rank == rank and ring.pid != pid for ring in self.rings)
        return f"rank {rank} process {pid}" if taken else f"rank {rank}"

    def has_store(self) -> bool:
        """Look for the run's folder; whether there is one."""
        if self.store is None:
            try:
                folder = existing_folder(Path(self.info.store), self.info.run_id)
            except OSError:
                return False
            self.store = FileStore(folder) if folder is not None else None
        return self.store is not None

    def ended(self, at_ns: int) -> None:
        """A rank has ended at ``at_ns`` of perf_counter: the run goes on to there at least."""
        self._end_ns = max(self._end_ns, at_ns)

    def attach(self, span: Span, info: marks.RunInfo, closing: bool) -> None:
        """Add a table of what is known and not told to a span of the rank of ``info``.

        ``closing``: this is the last span of the run on this host, a run span.
        """
        now = time.perf_counter_ns()
        end = now // SECOND if closing else self._bins.ready(now, self.key)
        if closing:
            end = min(end, -(-self._end_ns // SECOND))
            room = table_bytes_of_run(info.rank, info.world_size)
        else:
            room = table_bytes_per_part(info.world_size)
        earliest = self._bins.earliest(self.key)
        if earliest is None:
            return
        first = max(self.cursor, earliest, end - LONGEST_KEPT)
        rows = self._bins.rows(first, end, self.key)
        table = fitting(rows, first, end, room, max(2, len(self.rings)), closing)
        if table is None:
            return
        self.cursor = table.end
        start = first * SECOND + info.perf_to_unix_ns
        span.attributes.update(table.attributes((start - span.start_ns) // 1000))


class _OfRing:
    """What goes with one ring; a fault of ours here costs what is sampled, never the ring."""

    def __init__(self, hardware: Hardware, pid: int | None):
        self._hardware = hardware
        self.pid = pid
        """None where the process is gone, or not of this namespace."""
        self._info: marks.RunInfo | None = None
        self._run: _Run | None = None
        self._ending = False

    @property
    def rank(self) -> int:
        """-1 as long as it is not known."""
        return -1 if self._info is None else self._info.rank

    def begin(self, info: marks.RunInfo, run_start_ns: int) -> None:
        self._info = info
        with _ours():
            self._run = self._hardware.join(self, info, run_start_ns)

    def attach(self, spans: Sequence[Span], ending: bool) -> None:
        run, info = self._run, self._info
        if run is None or info is None:
            return
        self._ending = self._ending or ending
        last = all(ring._ending for ring in run.rings)
        with _ours():
            for span in spans:
                if span.name == semconv.WINDOW:
                    run.attach(span, info, closing=False)
            for span in spans:
                if span.name == semconv.RUN:
                    run.ended(span.end_ns - info.perf_to_unix_ns)
                    if last:
                        run.attach(span, info, closing=True)

    def metrics(self) -> Sequence[Metric]:
        if self.pid is not None and self._info is not None:
            with _ours():
                return self._hardware.process_metrics(self, self._info.perf_to_unix_ns)
        return ()

    def end(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with _ours():
                self._hardware.leave(self, run)


def _unix_offset() -> int:
    """Return what makes a time of perf_counter one of Unix, in ns, as the clock stands now."""
    return time.time_ns() - time.perf_counter_ns()


@contextmanager
def _ours() -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.warning("a sample is lost", exc_info=True)


class _Known:
    """A provider whose sources are known by name, with the interval that they are read at."""

    def __init__(self, provider: Provider, intervals: dict[str, int], interval_ns: int):
        self.name = provider.name
        self._provider = provider
        self._intervals = intervals
        self._interval = interval_ns

    def sources(self) -> Sequence[Source]:
        found = self._provider.sources()
        for source in found:
            self._intervals[source.name] = self._interval
        return found

    def close(self) -> None:
        self._provider.close()
