# SPDX-License-Identifier: Apache-2.0
"""From requests to a collector, whatever state it is in: a bounded queue, one thread that sends, and the
spool.

A request that fails for now goes to the spool at once, and so do those behind it while the collector is known
to be away: a training that ends must not wait for a collector that does not answer. The thread tries again
with growing pauses, and resends the spool when it gets through. One that was refused for good, or too large
alone, is counted and gone.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from grademl_otel.config import Settings
from grademl_otel.export.books import Books
from grademl_otel.export.destination import Destination
from grademl_otel.export.ledger import Ledger
from grademl_otel.export.otlp import Request
from grademl_otel.export.senders import NO_ANSWER_YET, Sender, Verdict, open_sender, refuses_signal
from grademl_otel.export.settings import METRICS, TRACES, OtlpSettings, destination_name
from grademl_otel.export.spool import Entry, Spool

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024
STALLED_S: Final = 1.0
"""What has waited for so long, under way or for its turn, is put into the spool: a container may die."""
_OTHER_RESENDS_S: Final = 5.0
_PATIENCE: Final = 3


@dataclass(eq=False, slots=True)
class _Queued:
    """A request on its way."""

    ticket: int
    request: Request
    priority: int
    durable: bool
    """Worth the spool."""
    ledger: Ledger
    since: float
    """Monotonic time in s from which it waits, for its turn or for an answer."""
    settled: bool = False
    entry: Entry | None = None
    """Its copy in the spool."""


class Pipeline:
    """Takes requests from any thread and never makes it wait for the network."""

    def __init__(
        self,
        destinations: Mapping[str, Destination],
        open_spool: Callable[[Callable[[Entry, str], None]], Spool],
    ):
        self._destinations = dict(destinations)
        self._spool = open_spool(self._lost_from_spool)
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._backlog = set(destinations)
        """Signals of which the spool holds requests; of all, before it was looked at."""
        self._resend_at = 0.0
        self._failed: Counter[str] = Counter()
        """How often a spool file did not get through since another one did, by name."""
        self._owners: dict[str, Ledger] = {}
        """Whose spans a spool file holds, by name; those of other processes are not in it."""
        self._last_ticket = 0
        self._settled: list[int] = []
        self._delivered = 0
        self._under_way: _Queued | None = None
        self._closed = False
        self._condition = threading.Condition()
        self._securing = threading.Lock()
        """Held while what is under way is copied to the spool, or its end is looked into."""
        self._spooling = threading.RLock()
        """Held until it is known whose a spool file is: another thread may drop it at once."""
        self.books = Books()
        self._thread = threading.Thread(target=self._run, name="grademl-otlp", daemon=True)
        self._thread.start()

    @property
    def delivered(self) -> int:
        """Requests up to and with this ticket are sent, spooled, or given up for good."""
        return self._delivered

    @property
    def problem(self) -> str | None:
        """What does not get where it should, of all runs; see `problem_of`."""
        return self.problem_of(self.books.total)

    def problem_of(self, ledger: Ledger) -> str | None:
        """Return what of the run with ``ledger`` does not get where it should, in one line, if anything."""
        return self.books.loss_of(ledger) or self._waiting() or self.books.loss_of_earlier

    def _waiting(self) -> str | None:
        away, verdict = self._away()
        if away is None:
            return None
        where = f"they wait in {self._spool.folder} and go with this or a later run"
        return away.complaint("kept until it takes them", verdict, where)

    def _away(self) -> tuple[Destination | None, Verdict]:
        """Return a destination that does not take what it is sent, and why; None when all do."""
        for destination in self._destinations.values():
            if destination.away and destination.sender is not None:
                return destination, destination.last
        under_way = self._under_way
        if under_way is not None and under_way.settled:
            return self._destinations[under_way.request.signal], NO_ANSWER_YET
        return None, NO_ANSWER_YET

    def submit(self, request: Request, priority: int, ledger: Ledger, durable: bool = True) -> int:
        """Take a request and return its ticket; one that is not ``durable`` is not worth the spool.

        ``ledger`` is told of its spans unless they arrive.
        """
        with self._condition:
            self._last_ticket += 1
            queued = _Queued(self._last_ticket, request, priority, durable, ledger, time.monotonic())
            full = self._queued_bytes + len(request.body) > MAX_QUEUED_BYTES
            if not full and not self._closed:
                self._queue.append(queued)
                self._queued_bytes += len(request.body)
                self._condition.notify()
        if full or self._closed:
            self._keep(queued)
        return queued.ticket

    def relieve(self, urgent: bool = False) -> None:
        """Spool what has waited too long for a collector that is slow or hangs; to be called now and then.

        ``urgent``: there is no time left to wait at all.
        """
        self._secure(0.0 if urgent else STALLED_S)

    def close(self, wait_s: float) -> None:
        """Send what is queued, for ``wait_s`` seconds at most, spool the rest, and stop."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(wait_s)
        self._secure(0.0)

    def _secure(self, age_s: float) -> None:
        """Spool what has waited for ``age_s`` seconds; what is under way then may still arrive."""
        limit = time.monotonic() - age_s
        with self._securing:
            under_way = self._under_way
            if under_way is not None and under_way.since <= limit:
                if not under_way.settled:
                    self._copy(under_way)
                limit = time.monotonic()  # nothing behind it will be quicker
        waiting = []
        with self._condition:
            while self._queue and self._queue[0].since <= limit:
                waiting.append(self._queue.popleft())
                self._queued_bytes -= len(waiting[-1].request.body)
        for queued in waiting:
            self._keep(queued)

    # --- The thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        with suppress_instrumentation():  # in the training process: our requests are no spans of the user's
            try:
                self._spool.clean()
                while (queued := self._take()) is not None or not self._closed:
                    if queued is not None:
                        self._deliver(queued)
                    else:
                        self._resend()
            finally:
                for destination in self._destinations.values():
                    destination.close()

    def _take(self) -> _Queued | None:
        """Return the next request; None when it is time to end or to resend the spool."""
        with self._condition:
            if not self._queue and not self._closed:
                self._condition.wait(self._patience())
            return self._next()

    def _next(self) -> _Queued | None:
        with self._condition:
            if not self._queue:
                return None
            queued = self._queue.popleft()
            self._queued_bytes -= len(queued.request.body)
            self._under_way = queued
            return queued

    def _patience(self) -> float | None:
        """Return in how many seconds the spool is to be looked at; None when nothing is in it."""
        waits = [self._destinations[signal].seconds_until_attempt() for signal in tuple(self._backlog)]
        if not waits:
            return None
        return max(0.0, min(waits), self._resend_at - time.monotonic())

    def _deliver(self, queued: _Queued) -> None:
        destination = self._destinations[queued.request.signal]
        rest = self._send(destination, queued.request, queued.ledger)
        with self._securing:
            self._under_way = None
            if queued.entry is not None:
                self._replace(queued.entry, rest, queued.ledger)
            elif not queued.settled:
                self._keep(queued, rest)

    def _send(self, destination: Destination, request: Request, ledger: Ledger) -> list[Request]:
        """Send a request, in halves where it is too large; return what is to be tried again, if anything."""
        parts = deque([request])
        while parts and destination.sender is not None:
            if not destination.may_send():
                return list(parts)
            part = parts.popleft()
            if self._under_way is not None:
                self._under_way.since = time.monotonic()
            verdict = self._try(destination, part)
            if verdict.outcome == "retry":
                return [part, *parts]
            if verdict.outcome == "too large" and (halves := part.halves()):
                parts.extendleft(reversed(halves))
            elif refuses_signal(destination.settings, verdict):
                destination.give_up_signal()
            elif verdict.outcome != "ok" or verdict.rejected:
                self.books.refused(destination, verdict, part, ledger)
        return []

    def _try(self, destination: Destination, request: Request) -> Verdict:
        assert destination.sender is not None
        try:
            verdict = destination.sender.send(request.body)
        except Exception as error:  # a sender's fault must not end the thread
            verdict = Verdict("refused", f"{type(error).__name__}: {error}")
        destination.note(verdict)
        if verdict.outcome != "ok":
            _log.debug("%s", destination.complaint(verdict.outcome, verdict))
        return verdict

    def _resend(self) -> None:
        """Send what the spool holds, oldest first, while the collector takes it; what is new goes first."""
        self._backlog.clear()
        entries = self._spool.entries()
        if not entries:
            return
        with self._spool.resending() as allowed:
            if not allowed:  # another process of this destination is at it
                self._backlog.update(self._destinations)
                self._resend_at = time.monotonic() + _OTHER_RESENDS_S
                return
            # The oldest first; but one that a collector chokes on again and again must not keep the others.
            for entry in sorted(entries, key=lambda entry: self._failed[entry.path.name] // _PATIENCE):
                while (queued := self._next()) is not None:
                    self._deliver(queued)
                if self._closed:
                    return
                self._resend_one(entry)

    def _resend_one(self, entry: Entry) -> None:
        destination = self._destinations[entry.signal]
        if not destination.may_send():
            self._backlog.add(entry.signal)
            return
        with self._spooling:
            request = self._spool.read(entry)
            if request is None:
                return
            self._spool.hold(entry)
        ledger = self._owners.get(entry.path.name, self.books.earlier)
        rest = self._send(destination, request, ledger)
        if rest:
            self._failed[entry.path.name] += 1
        else:
            self._failed.clear()
        self._replace(entry, rest, ledger)

    # --- The spool --------------------------------------------------------------------------------------

    def _keep(self, queued: _Queued, rest: list[Request] | None = None) -> None:
        """Put a request into the spool, or the ``rest`` of it that is to be tried again, and settle it."""
        for request in [queued.request] if rest is None else rest:
            if queued.durable and self._spool_request(request, queued.priority, queued.ledger):
                self.books.spooled(request, queued.ledger)
            elif queued.durable:
                self._lost_without_spool(request, queued.ledger)
        self._settle(queued)

    def _copy(self, queued: _Queued) -> None:
        """Put a request that is under way into the spool, and settle it; where that cannot be it goes on."""
        if queued.durable:
            with self._spooling:
                queued.entry = self._spool_request(queued.request, queued.priority, queued.ledger)
                if queued.entry is None:
                    return
                self._spool.hold(queued.entry)
            self.books.spooled(queued.request, queued.ledger)
        self._settle(queued)

    def _replace(self, entry: Entry, rest: list[Request], ledger: Ledger) -> None:
        """Leave of a spooled request what is to be tried again."""
        if rest:
            self._backlog.add(entry.signal)
            if sum(request.count for request in rest) == entry.spans:
                self._spool.release(entry)
                return
        left = [request for request in rest if self._respool(request, entry, ledger) is None]
        self._spool.remove(entry)
        self._owners.pop(entry.path.name, None)
        for request in left:  # there was no room beside the whole
            if self._respool(request, entry, ledger) is None:
                self._lost_without_spool(request, ledger)

    def _respool(self, part: Request, entry: Entry, ledger: Ledger) -> Entry | None:
        return self._spool_request(part, entry.priority, ledger, entry.written_ns)

    def _spool_request(
        self, request: Request, priority: int, ledger: Ledger, written_ns: int | None = None
    ) -> Entry | None:
        with self._spooling:
            entry = self._spool.put(request, priority, written_ns)
            if entry is not None and ledger is not self.books.earlier:
                self._owners[entry.path.name] = ledger
        if entry is not None:
            self._backlog.add(request.signal)
        return entry

    def _lost_without_spool(self, request: Request, ledger: Ledger) -> None:
        why = f"no room in the spool: {self._spool.problem}"
        self.books.dropped(self._destinations[request.signal], why, request, ledger)

    def _lost_from_spool(self, entry: Entry, why: str) -> None:
        why = f"{entry.path.parent}: {why}"
        with self._spooling:
            ledger = self._owners.pop(entry.path.name, None)
        if ledger is not None:
            request = Request(entry.signal, b"", entry.spans)
            self.books.dropped(self._destinations[entry.signal], why, request, ledger)
        elif entry.signal == TRACES:
            self.books.dropped_of_earlier(why, entry.spans)

    def _settle(self, queued: _Queued) -> None:
        with self._condition:
            queued.settled = True
            heapq.heappush(self._settled, queued.ticket)
            while self._settled and self._settled[0] == self._delivered + 1:
                self._delivered = heapq.heappop(self._settled)


def open_pipeline(
    settings: Settings,
    environ: Mapping[str, str],
    opener: Callable[[OtlpSettings], Sender] = open_sender,
) -> Pipeline:
    """Return the pipeline to the destination in ``environ``.

    Raises `OtlpSettingsError` when its settings are impossible.
    """
    signals = {signal: OtlpSettings.from_env(signal, environ) for signal in (TRACES, METRICS)}
    destinations = {signal: Destination(each, opener(each)) for signal, each in signals.items()}
    name = destination_name(signals.values())
    return Pipeline(destinations, lambda lost: Spool(settings.spool_dir, name, settings.spool_bytes, lost))
