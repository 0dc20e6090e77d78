# SPDX-License-Identifier: Apache-2.0
"""From requests to a collector, whatever state it is in: a bounded queue, one thread that sends, and the
spool.

A request that fails for now goes to the spool at once, and so do those behind it while the collector is known
to be away: a training that ends must not wait for a collector that does not answer. The thread tries again
with growing pauses, and resends the spool when it gets through.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from grademl_otel.config import Settings, without_credentials
from grademl_otel.digest import spool_digest
from grademl_otel.export.otlp import Request
from grademl_otel.export.senders import Sender, Verdict, open_sender, refuses_signal
from grademl_otel.export.settings import METRICS, TRACES, OtlpSettings
from grademl_otel.export.spool import Entry, Spool

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024
STALLED_S: Final = 1.0
"""A request under way for so long: those behind it are spooled rather than kept waiting."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_OTHER_RESENDS_S: Final = 5.0


class _Queued(NamedTuple):
    ticket: int
    request: Request
    priority: int
    durable: bool


class _Destination:
    """One signal's sender and what is known of the other end."""

    def __init__(self, settings: OtlpSettings, sender: Sender | None):
        self.settings = settings
        self.sender = sender
        """None: the signal is off, its requests are dropped."""
        self.away = False
        self.reason = ""
        self._pause = _FIRST_PAUSE_S
        self._next_attempt = 0.0

    def may_send(self) -> bool:
        """Return True when the other end is there, or it is time to look again."""
        return self.seconds_until_attempt() == 0.0

    def seconds_until_attempt(self) -> float:
        """Return in how many seconds a request may be sent; 0 when the other end is there."""
        return max(0.0, self._next_attempt - time.monotonic()) if self.away else 0.0

    def complaint(self, fate: str, reason: str) -> str:
        """Return one line that says what becomes of the requests."""
        endpoint = without_credentials(self.settings.endpoint)
        return f"collector at {endpoint}: {self.settings.signal} are {fate}: {reason}"

    def note(self, verdict: Verdict) -> None:
        """Learn from a verdict."""
        self.reason = verdict.reason
        if verdict.outcome != "retry":
            self.away = False
            self._pause = _FIRST_PAUSE_S
            return
        self.away = True
        pause = self._pause if verdict.retry_after_s is None else max(verdict.retry_after_s, self._pause)
        self._next_attempt = time.monotonic() + pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


class Pipeline:
    """Takes requests from any thread and never makes it wait for the network."""

    def __init__(self, destinations: Mapping[str, _Destination], spool: Spool):
        self._destinations = dict(destinations)
        self._spool = spool
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._backlog = set(destinations)
        """Signals of which the spool holds requests; of all, before it was looked at."""
        self._resend_at = 0.0
        self._last_ticket = 0
        self._settled: list[int] = []
        self._delivered = 0
        self._sending_since: float | None = None
        self._closed = False
        self._condition = threading.Condition()
        self.refused = 0
        """Requests that a collector will never take."""
        self.sent = 0
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run, name="grademl-otlp", daemon=True)
        self._thread.start()

    @property
    def delivered(self) -> int:
        """Requests up to and with this ticket are sent, spooled, or given up for good."""
        return self._delivered

    @property
    def problem(self) -> str | None:
        """What collectors do not take, in one line; None while they take all."""
        if self._refusal is not None:
            return self._refusal
        away = next((d for d in self._destinations.values() if d.away and d.sender), None)
        return away.complaint("kept until it answers", away.reason) if away else self._spool.problem

    def submit(self, request: Request, priority: int, durable: bool = True) -> int:
        """Take a request and return its ticket; one that is not ``durable`` is not worth the spool."""
        with self._condition:
            self._last_ticket += 1
            queued = _Queued(self._last_ticket, request, priority, durable)
            full = self._queued_bytes + len(request.body) > MAX_QUEUED_BYTES
            if not full and not self._closed:
                self._queue.append(queued)
                self._queued_bytes += len(request.body)
                self._condition.notify()
        if full or self._closed:
            self._keep(queued)
        return queued.ticket

    def relieve(self) -> None:
        """Spool what waits behind a request that hangs; to be called now and then."""
        with self._condition:
            since = self._sending_since
            if since is None or time.monotonic() - since < STALLED_S:
                return
            waiting = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        for queued in waiting:
            self._keep(queued)

    def close(self, wait_s: float) -> None:
        """Send or spool what is queued, for ``wait_s`` seconds at most, and stop."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(wait_s)
        with self._condition:
            waiting = list(self._queue)
            self._queue.clear()
        for queued in waiting:
            self._keep(queued)

    # --- The thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            queued = self._take()
            if queued is not None:
                self._deliver(queued)
            elif self._closed:
                break
            else:
                self._resend()
        for destination in self._destinations.values():
            if destination.sender is not None:
                destination.sender.close()

    def _take(self) -> _Queued | None:
        """Return the next request; None when it is time to end or to resend the spool."""
        with self._condition:
            if not self._queue and not self._closed:
                self._condition.wait(self._patience())
            if not self._queue:
                return None
            queued = self._queue.popleft()
            self._queued_bytes -= len(queued.request.body)
            return queued

    def _patience(self) -> float | None:
        """Return in how many seconds the spool is to be looked at; None when nothing is in it."""
        waits = [self._destinations[signal].seconds_until_attempt() for signal in tuple(self._backlog)]
        if not waits:
            return None
        return max(0.0, min(waits), self._resend_at - time.monotonic())

    def _deliver(self, queued: _Queued) -> None:
        destination = self._destinations[queued.request.signal]
        if destination.sender is None:
            self._settle(queued.ticket)
            return
        if not destination.may_send():
            self._keep(queued)
            return
        if self._send(destination, queued.request.body).outcome == "retry":
            self._keep(queued)
        else:
            self._settle(queued.ticket)

    def _send(self, destination: _Destination, body: bytes) -> Verdict:
        assert destination.sender is not None
        self._sending_since = time.monotonic()
        try:
            verdict = destination.sender.send(body)
        except Exception as error:  # a sender's fault must not end the thread
            verdict = Verdict("refused", f"{type(error).__name__}: {error}")
        finally:
            self._sending_since = None
        destination.note(verdict)
        if verdict.outcome == "ok":
            self.sent += 1
        elif refuses_signal(destination.settings, verdict):
            destination.sender.close()
            destination.sender = None
        elif verdict.outcome != "retry":
            self.refused += 1
            self._refusal = self._refusal or destination.complaint("refused", verdict.reason)
        if verdict.outcome != "ok":
            _log.debug("%s", destination.complaint(verdict.outcome, verdict.reason))
        return verdict

    def _resend(self) -> None:
        """Send what the spool holds, oldest first, while the collector takes it and nothing newer waits."""
        self._backlog.clear()
        if not self._spool.entries():
            return
        with self._spool.resending() as allowed:
            if not allowed:  # another process of this destination is at it
                self._backlog.update(self._destinations)
                self._resend_at = time.monotonic() + _OTHER_RESENDS_S
                return
            for entry in self._spool.entries():
                if self._closed or self._queue:
                    self._backlog.update(self._destinations)
                    return
                destination = self._destinations[entry.signal]
                if destination.sender is None:
                    self._spool.remove(entry)
                elif not destination.may_send():
                    self._backlog.add(entry.signal)
                elif (body := self._spool.read(entry)) is not None:
                    self._resend_one(destination, entry, body)

    def _resend_one(self, destination: _Destination, entry: Entry, body: bytes) -> None:
        if self._send(destination, body).outcome == "retry":
            self._backlog.add(entry.signal)
        else:
            self._spool.remove(entry)

    def _keep(self, queued: _Queued) -> None:
        if queued.durable and self._spool.put(queued.request.signal, queued.priority, queued.request.body):
            self._backlog.add(queued.request.signal)
        self._settle(queued.ticket)

    def _settle(self, ticket: int) -> None:
        with self._condition:
            heapq.heappush(self._settled, ticket)
            while self._settled and self._settled[0] == self._delivered + 1:
                self._delivered = heapq.heappop(self._settled)


def open_pipeline(
    settings: Settings,
    environ: Mapping[str, str],
    opener: Callable[[OtlpSettings], Sender] = open_sender,
) -> Pipeline:
    """Return the pipeline to the destination in ``environ``.

    Raises `OtlpSettingsError` when its settings are impossible, OSError when a certificate cannot be read.
    """
    destinations = {}
    for signal in (TRACES, METRICS):
        signal_settings = OtlpSettings.from_env(signal, environ)
        destinations[signal] = _Destination(signal_settings, opener(signal_settings))
    return Pipeline(destinations, Spool(settings.spool_dir / spool_digest(environ)))
