# SPDX-License-Identifier: Apache-2.0
"""The way of marks out of this process: a relay that reads the ring, or a thread here that does the same.

Everything runs in the training process and must cost it nothing: `Transport.tick` compares a few integers.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Final, Literal

from grademl_otel.config import Settings, with_absolute_paths
from grademl_otel.messages import warn
from grademl_otel.relay.calls import call, open_caller
from grademl_otel.relay.launch import START_TIMEOUT_S, RelayUnavailable, ensure_relay
from grademl_otel.ring.reader import RingReader
from grademl_otel.ring.writer import RingWriter

Mode = Literal["relay", "in-process"]

_READY_WITHIN_NS: Final = 5_000_000_000
_STARTING_NS: Final = 2_000_000_000
_OVERDUE_NS: Final = 1_000_000_000
"""At the exit there is less time for a relay to start."""
_MAX_RESTARTS: Final = 3
_STEADY_NS: Final = 600_000_000_000
"""A relay that lived so long is no sign that none stays alive."""
_PAIR_CLOCKS_EVERY_NS: Final = 60_000_000_000
_POLL_S: Final = 0.002


class Transport:
    """Keeps somebody reading the ring, and sees to it at the end that everything was read."""

    def __init__(self, writer: RingWriter, settings: Settings, mode: Mode, provider: Any = None):
        self._writer = writer
        self._settings = settings
        self._provider = provider
        # As the ring's digest saw it: a restarted relay must get the same.
        self._environ = with_absolute_paths(os.environ)
        self._worker: Any = None
        self._watcher: Any = None
        self._socket: socket.socket | None = None
        now = time.perf_counter_ns()
        self._started_at = now
        self._deaths = 0
        self._clocks_paired = now
        self._closed = False
        if mode == "relay" and writer.path is not None:
            self._start_relay()
        else:
            self._convert_here()

    @property
    def mode(self) -> Mode:
        """Who reads the ring now."""
        return "relay" if self._worker is None else "in-process"

    def tick(self, now_ns: int) -> None:
        """Show a sign of life and look after the reader; call about once a second. Never raises."""
        if self._closed:
            return
        self._writer.beat(now_ns)
        if now_ns - self._clocks_paired > _PAIR_CLOCKS_EVERY_NS:
            self._clocks_paired = now_ns
            self._writer.pair_clocks()
        if self._worker is None:
            self._look_after_relay(now_ns)

    def wake(self) -> None:
        """Ask the reader to read now; never blocks, never raises."""
        if self._worker is not None:
            self._worker.wake()
            return
        self._call_relay()

    def share(self, provider: Any) -> None:
        """Have the processors of ``provider``, which came late, receive the spans from now on as well."""
        from grademl_otel.inprocess import InProcessWorker

        self._watcher = InProcessWorker(_Watched(self._writer), self._settings, provider)
        self._watcher.start()

    def close(self, wait_s: float) -> bool:
        """Declare the last mark written and wait until all are delivered; return whether they are.

        Waits ``wait_s`` seconds at most. What is not delivered by then stays in the ring, which a relay
        adopts.
        """
        if self._closed:
            return True
        self._closed = True
        final = self._writer.mark_closing()
        deadline = time.monotonic() + wait_s
        if self._watcher is not None:
            self._watcher.close(wait_s)
        if self._worker is not None:
            delivered = bool(self._worker.close(wait_s))
            self._tell_problem()
            self._writer.close(unlink=False)
            return delivered
        self.wake()
        while self._writer.acked < final and time.monotonic() < deadline:
            self._replace_relay(time.perf_counter_ns(), deadline - time.monotonic())
            time.sleep(_POLL_S)
        delivered = self._writer.acked >= final
        if not delivered and not self._writer.relay_alive(time.perf_counter_ns()):
            self._writer.leave_copy()
        self._tell_problem()
        # The relay removes the files of a ring that it has finished; one that nobody read yet must stay.
        self._writer.close(unlink=False)
        self._close_socket()
        return delivered

    def abandon(self) -> None:
        """Forget everything in a forked child: the ring, its files and its reader are the parent's."""
        self._closed = True
        self._worker = self._watcher = None
        self._close_socket()
        self._writer.close(unlink=False)

    # --- Relay ------------------------------------------------------------------------------------------

    def _look_after_relay(self, now_ns: int) -> None:
        reachable = self._reachable()
        if self._writer.relay_alive(now_ns):
            if now_ns - self._started_at > _STEADY_NS:
                self._deaths = 0
            return
        waited = now_ns - self._started_at
        if not reachable:
            self._convert_here("the ring's file is gone")
        elif self._was_ready and self._deaths == _MAX_RESTARTS:
            self._convert_here("none stays alive")
        elif self._was_ready:
            self._deaths += 1
            self._started_at = now_ns
            self._start_relay()
        elif waited > _READY_WITHIN_NS:
            self._convert_here("none answers")
        elif waited > _STARTING_NS:
            self._start_relay()  # the one that was there may have been about to leave

    def _replace_relay(self, now_ns: int, within_s: float) -> None:
        """At the end: start another relay when the one there was has died, or has not come in good time."""
        overdue = self._was_ready or now_ns - self._started_at > _OVERDUE_NS
        if overdue and not self._writer.relay_alive(now_ns):
            self._started_at = now_ns
            self._start_relay(within_s)

    @property
    def _was_ready(self) -> bool:
        """The relay that was started last has looked at the ring."""
        return self._writer.relay_heartbeat > self._started_at

    def _reachable(self) -> bool:
        try:
            return self._writer.keep_reachable()
        except OSError:
            return False

    def _start_relay(self, within_s: float = START_TIMEOUT_S) -> None:
        path = self._writer.path
        if path is None:
            return
        try:
            ring, digest = self._writer.descriptor, self._writer.digest
            if not ensure_relay(path.parent, digest, self._environ, ring, within_s):
                self._call_relay(ring)  # nothing is lost if this process dies at once
        except (RelayUnavailable, OSError, ValueError) as error:
            if not self._closed:
                self._convert_here(f"{error}")

    def _call_relay(self, ring: int | None = None) -> None:
        path = self._writer.path
        if path is None:
            return
        try:
            self._socket = self._socket or open_caller()
        except OSError:  # no descriptors left: it polls anyway
            return
        call(self._socket, path.parent, self._writer.digest, ring)

    def _convert_here(self, no_relay: str = "") -> None:
        # Encoders and exporters are imported only where they are needed.
        from grademl_otel.inprocess import InProcessWorker

        if no_relay:
            warn(f"no relay process ({no_relay}): the training process exports its telemetry itself")
        self._writer.take_back()
        self._worker = InProcessWorker(self._writer, self._settings, self._provider)
        self._worker.start()

    def _tell_problem(self) -> None:
        problem = self._writer.problem
        if problem:
            warn(problem)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Watched:
    """A ring that somebody else serves."""

    def __init__(self, writer: RingWriter) -> None:
        self._writer = writer

    def reader(self) -> RingReader:
        return self._writer.reader(watching=True)


def open_transport(writer: RingWriter, settings: Settings, mode: Mode, provider: Any = None) -> Transport:
    """Start reading ``writer``'s ring in the given mode; falls back to in-process, never raises OSError.

    ``provider`` is the OpenTelemetry tracer provider in place when its processors are to receive the spans;
    without it the in-process mode exports as the ring's `marks.RunInfo` says.
    """
    return Transport(writer, settings, mode, provider)
