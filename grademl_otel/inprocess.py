# SPDX-License-Identifier: Apache-2.0
"""Conversion in the training process, where no relay can run or the user's own provider is to get the spans.

A daemon thread takes the ring in slices of a hundred marks with a short sleep between them: holding the
interpreter lock for longer shows in the slowest steps of the training.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import Any, Final, Protocol

from grademl_otel import marks
from grademl_otel.config import Settings
from grademl_otel.export.sinks import ProviderSink, Sinks
from grademl_otel.messages import warn
from grademl_otel.pump import Pump, Sink
from grademl_otel.ring.reader import RingCorrupt, RingReader

SLICE: Final = 100
_BETWEEN_SLICES_S: Final = 0.002
_IDLE_S: Final = 0.25
_HOLD_NS: Final = 1_000_000_000
"""Each export costs the interpreter lock some time, so that spans travel together."""
_SETTLE_S: Final = 0.01


class Readable(Protocol):
    """What the worker needs of a ring; see `ring.RingWriter`."""

    def reader(self) -> RingReader: ...


def _keep_our_log_to_ourselves() -> None:
    """What a relay writes to its log has no place in the user's, nor on stderr."""
    log = logging.getLogger("grademl_otel")
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())


class InProcessWorker:
    """Empties the ring of this very process."""

    def __init__(self, writer: Readable, settings: Settings, provider: Any = None):
        _keep_our_log_to_ourselves()
        self._sinks = Sinks(settings, os.environ)
        self._provider = provider
        self._owner = os.getpid()
        self._pump = Pump(writer.reader(), self._open_sinks, _HOLD_NS, self._sinks.metrics_every_ns)
        self._woken = threading.Event()
        self._closing = False
        self._hurry_at = math.inf
        """Monotonic time in s from which a collector is waited for no longer."""
        self._delivered = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grademl-export", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Read now instead of at the next poll."""
        self._woken.set()

    def close(self, wait_s: float) -> bool:
        """Deliver the rest within ``wait_s`` seconds; return whether it was; False in a forked child."""
        if os.getpid() != self._owner:
            return False
        self._hurry_at = time.monotonic() + wait_s / 2  # the other half is for the spool
        self._closing = True
        self._woken.set()
        self._ended.wait(wait_s)
        return self._delivered

    def _run(self) -> None:
        try:
            while not self._closing:
                self._sinks.relieve()
                if self._pump.turn(SLICE, time.perf_counter_ns()) == SLICE:
                    time.sleep(_BETWEEN_SLICES_S)
                else:
                    self._woken.wait(_IDLE_S)
                    self._woken.clear()
            self._pump.finish("exit", time.perf_counter_ns())
            while not self._pump.delivered:
                self._sinks.relieve(urgent=time.monotonic() > self._hurry_at)
                time.sleep(_SETTLE_S)
                self._pump.acknowledge()
            self._pump.close()
            self._delivered = True
            self._ended.set()
            self._sinks.close(0.0)
        except (RingCorrupt, OSError) as error:
            warn(f"the telemetry of this run is cut short: {error}")
        except Exception as error:  # a fault of ours must not print a traceback into the user's program
            warn(f"the telemetry of this run is cut short: {type(error).__name__}: {error}")
        finally:
            self._ended.set()

    def _open_sinks(self, info: marks.RunInfo, start_unix_ns: int) -> list[Sink]:
        if self._provider is not None:
            return [ProviderSink(self._provider, info)]
        return self._sinks.open(info, start_unix_ns)
