# SPDX-License-Identifier: Apache-2.0
"""What the observable instruments of a process tell of GPUs, and whether this process is the one to tell it.

At first there is one instrument that never has a value. When metrics are collected for the first time it has
a thread make those of the catalog, and start to sample; what was read is there for the next collection.
Nothing is loaded before, so that programs that end soon pay nothing. Silent are

* a process whose training is recorded by a relay, which samples for all ranks, and workers of its loaders;
* a process beside a relay that sends metrics of GPUs to the same place;
* all but one of the processes that report to the same place, as the workers of a server do;
* a program without a collector: where none was named, and none is there;
* a program at its end: with a collector that does not answer, anything to send would keep it for seconds.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from grademl_otel.instrumentations.gpu import exporters
from grademl_otel.messages import complain, warn

if TYPE_CHECKING:
    from grademl_otel.catalog.metric import Metric
    from grademl_otel.config import Settings
    from grademl_otel.sampling.election import Elections
    from grademl_otel.sampling.sampler import Sample, Sampler

_TRIGGER: Final = "grademl.gpu.collection"
_LIBRARIES: Final = ("pynvml", "amdsmi")
_PATIENCE_NS: Final = 600_000_000_000
"""So long without a collection, and sampling ends: the meter provider was shut down, or nobody scrapes."""
_STOP_S: Final = 0.1
"""A reading that goes on may end before its library is unloaded; a program's end is not held up for more."""


class Observer:
    """Gives each collection the latest samples. Never raises, never waits for a device."""

    def __init__(self) -> None:
        self._on = False
        self._over = False
        self._meter: Meter | None = None
        self._prepared = False
        """A thread makes the instruments in `_meter`, or has made them."""
        self._lock = threading.Lock()
        self._sampler: Sampler | None = None
        self._elections: Elections | None = None
        self._settings: Settings | None = None
        self._found: dict[str, list[Observation]] = {}
        self._told: set[str] = set()
        """Names of the instruments that have been given what is in `_found`."""
        self._totals = _Totals()
        self._collected_ns = self._gap_ns = 0
        """When metrics were collected last, and the time between the last two."""
        self._inherited: list[Any] = []
        """Of the parent, before a fork: kept, because letting go of it would act on what is the parent's."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def resume(self, meter: Meter) -> None:
        """Answer from now on, through instruments of ``meter``."""
        self._meter, self._prepared = meter, False
        self._on = True
        self._watch_end()
        meter.create_observable_gauge(_TRIGGER, [self._collected], "1", "Never has a value.")

    def pause(self) -> None:
        """Answer nothing from now on, and let go of everything."""
        self._on = False
        atexit.unregister(self._end)
        with self._lock:
            self._rest(_STOP_S)
            self._found = {}

    def observe(self, name: str, options: CallbackOptions) -> Sequence[Observation]:
        """Return what is known of the metric ``name``; the callback of its instrument."""
        if not self._is_on():
            return ()
        try:
            with self._lock:
                if name in self._told or not self._told:
                    self._collect()
                    self._told.clear()
                self._told.add(name)
                return self._found.get(name, ())
        except Exception as error:
            self._give_up(error)
            return ()

    def _is_on(self) -> bool:
        return self._on and not self._over and not _program_ends()

    def _give_up(self, error: Exception) -> None:
        self._on = False
        warn(f"GPUs are not sampled: {type(error).__name__}: {error}")

    # --- The first collection ---------------------------------------------------------------------------

    def _collected(self, options: CallbackOptions) -> Sequence[Observation]:
        """Metrics are being collected; the callback of the instrument that is there from the start."""
        if self._prepared or not self._is_on() or _of_a_relay():
            return ()
        try:
            if _libraries():
                self._prepared = True
                # Not here: whoever collects has locked the list of instruments, and should not wait.
                threading.Thread(target=self._prepare, name="grademl gpu", daemon=True).start()
            else:
                self._on = False
        except Exception as error:
            self._give_up(error)
        return ()

    def _prepare(self) -> None:
        """In a thread of its own: make the instruments, and begin to sample."""
        try:
            from grademl_otel.catalog import gpu, sampler

            # One for each name, with the description of the first row.
            for metric in {row.name: row for row in reversed(gpu.METRICS + sampler.METRICS)}.values():
                self._create(metric)
            with self._lock:
                if self._is_on():
                    self._collect()
        except Exception as error:
            self._give_up(error)

    def _create(self, metric: Metric) -> None:
        from grademl_otel.catalog.metric import COUNTER, GAUGE

        meter, callbacks = self._meter, [partial(self.observe, metric.name)]
        if meter is None:
            return
        if metric.kind == GAUGE:
            meter.create_observable_gauge(metric.name, callbacks, metric.unit, metric.description)
        elif metric.kind == COUNTER:
            meter.create_observable_counter(metric.name, callbacks, metric.unit, metric.description)
        else:
            meter.create_observable_up_down_counter(metric.name, callbacks, metric.unit, metric.description)

    # --- Who samples ------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """A collection begins: see who samples, and note what was read last."""
        self._found = {}
        now = time.perf_counter_ns()
        self._gap_ns, self._collected_ns = now - self._collected_ns, now
        if _of_a_relay() or exporters.nobody_listens(self._meter) or self._others_tell():
            self._rest(0.0)
            return
        if self._sampler is None:
            self._start()
        elif samples := self._sampler.latest():
            self._found = self._totals.observations(samples)

    def _others_tell(self) -> bool:
        """Whether another process of this host reports to the same place."""
        try:
            from grademl_otel.sampling import election
        except ImportError:  # a system without such locks
            return False

        elections = self._elections = self._elections or self._ballot()
        if elections is None:
            return False
        if elections.others(election.SENDS_GPUS):
            elections.give_back(election.SENDS_OF_ITS_OWN)
            return True
        return not elections.mine(election.SENDS_OF_ITS_OWN)

    def _ballot(self) -> Elections | None:
        """The elections of those who report to the same place; None where there is no folder for them."""
        from grademl_otel.digest import destination_digest
        from grademl_otel.ring.place import meeting_places, places, private_folder
        from grademl_otel.sampling.election import Elections

        settings = self._read_settings()
        for folder in dict.fromkeys((*places(settings.ring_dir, settings.ring_bytes), *meeting_places())):
            try:
                return Elections(private_folder(Path(folder)), destination_digest(os.environ))
            except OSError:
                continue
        return None

    def _read_settings(self) -> Settings:
        if self._settings is None:
            from grademl_otel.config import Settings

            self._settings = Settings.from_env()
            complain(self._settings.complaints)
        return self._settings

    # --- The sampler ------------------------------------------------------------------------------------

    def _start(self) -> None:
        from grademl_otel.instrumentations.gpu import providers
        from grademl_otel.sampling.sampler import Sampler

        self._watch_end()  # before the end of a provider that came after us
        self._sampler = Sampler(providers(), self._read_settings().gpu_interval_s, warn)
        self._sampler.listen(self._look_at_the_clock)
        self._sampler.start()

    def _look_at_the_clock(self, *_: object) -> None:
        """After a reading: end sampling when nobody collects any more; a collection begins it anew.

        How long that may take is known after two collections.
        """
        idle_ns = time.perf_counter_ns() - self._collected_ns
        if idle_ns > max(_PATIENCE_NS, 3 * self._gap_ns) and self._lock.acquire(blocking=False):
            try:
                self._rest(0.0)
            finally:
                self._lock.release()

    def _rest(self, within_s: float) -> None:
        """Let go of devices and of the right to report on them."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            self._totals.carry()
            sampler.stop(within_s)
        if self._elections is not None:
            self._elections.close()

    # --- The end, and forks -----------------------------------------------------------------------------

    def _watch_end(self) -> None:
        """Be told of the program's end before those that are registered by now: atexit runs backwards."""
        atexit.unregister(self._end)
        atexit.register(self._end)

    def _end(self) -> None:
        self._over = True
        try:
            sampler = self._sampler
            if sampler is not None:
                exporters.give_up_waiting(self._meter)
                sampler.stop(_STOP_S)
        except Exception:
            pass  # nobody is left who would want to know

    def _forked(self) -> None:
        """In a forked child: threads and devices are the parent's; ours start with our own collections."""
        self._inherited.append((self._sampler, self._lock))
        self._lock = threading.Lock()
        self._prepared = False  # the parent's thread may have been at it
        if self._sampler is not None:
            self._totals.carry()
        self._sampler = None
        self._found, self._told = {}, set()


class _Totals:
    """Counters go on where they were when sampling is taken up again: their series are still the same."""

    def __init__(self) -> None:
        self._before: dict[Any, int | float] = {}
        self._last: dict[Any, int | float] = {}

    def observations(self, samples: Iterable[Sample]) -> dict[str, list[Observation]]:
        """Return ``samples`` by the name of their metric."""
        from grademl_otel.catalog.metric import COUNTER

        found: dict[str, list[Observation]] = {}
        for sample in samples:
            series, value = sample.series, sample.value
            name = series.metric.name
            if series.metric.kind == COUNTER:
                key = (name, *series.attributes.items())
                value += self._before.get(key, 0)
                self._last[key] = value
            found.setdefault(name, []).append(Observation(value, series.attributes))
        return found

    def carry(self) -> None:
        """Sampling ends: what comes next is added to what there was."""
        self._before.update(self._last)


def _of_a_relay() -> bool:
    """Whether a relay samples for this process, or for the one of which it is a worker."""
    lifecycle = sys.modules.get("grademl_otel.lifecycle")
    return lifecycle is not None and (lifecycle.session.has_relay or lifecycle.session.in_worker)


def _libraries() -> bool:
    """Whether a library is installed that tells of GPUs; loads none."""
    return any(name in sys.modules or find_spec(name) is not None for name in _LIBRARIES)


def _program_ends() -> bool:
    """Whether the interpreter is about to end: the user's threads are joined, what is left runs at the exit.

    The last collection of a meter provider comes then.
    """
    return not threading.main_thread().is_alive()
