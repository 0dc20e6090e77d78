# SPDX-License-Identifier: Apache-2.0
"""From one ring to its sinks: read, convert, hand on, acknowledge. The relay and the in-process thread both
run it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grademl_otel import marks, semconv
from grademl_otel.convert import cuts
from grademl_otel.convert.converter import Converter, How
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.spans import Metric, Span
from grademl_otel.convert.totals import metrics_of
from grademl_otel.export.interval import DEFAULT_METRICS_EVERY_NS
from grademl_otel.export.ledger import Counts, lost_of
from grademl_otel.plausible import (
    NOTHING,
    believable,
    believable_phases,
    believable_progress,
    believable_totals,
)
from grademl_otel.ring.layout import CUTS_BYTES, PROGRESS_BYTES
from grademl_otel.ring.reader import Mark, RingReader

MAX_HELD_SPANS: Final = 512


class Sink(Protocol):
    """Somewhere that spans and metrics of one process go. Takes quickly, may deliver later; never raises."""

    @property
    def taken(self) -> int:
        """Number of the last delivery taken."""

    @property
    def delivered(self) -> int:
        """Deliveries up to and with this number are out of danger: exported, stored, spooled, or refused for
        good.
        """

    @property
    def problem(self) -> str | None:
        """Why telemetry does not get where it should, in one line; None while all goes well."""

    @property
    def unsent(self) -> Counts:
        """Spans of this process that did not simply arrive."""

    def take_spans(self, spans: Sequence[Span]) -> None: ...

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        """Take cumulative metrics; ``final`` ones are not followed by others."""

    def close(self) -> None: ...


class Beside(Protocol):
    """What is recorded beside the marks of one ring: of its host and its process. Nothing of it raises."""

    def begin(self, info: marks.RunInfo, run_start_ns: int) -> None:
        """It is known whose marks these are, and when the run began, in ns of ``perf_counter``."""

    def attach(self, spans: Sequence[Span], ending: bool) -> None:
        """Add to ``spans``, which are about to be sent for the first time; ``ending``: they are the last."""

    def metrics(self) -> Sequence[Metric]:
        """Metrics of the process, to go with those of the run."""

    def end(self) -> None:
        """All of the run is told; called once more at the end of the ring."""


class Alone:
    """Nothing is recorded beside the marks."""

    def begin(self, info: marks.RunInfo, run_start_ns: int) -> None: ...

    def attach(self, spans: Sequence[Span], ending: bool) -> None: ...

    def metrics(self) -> Sequence[Metric]:
        return ()

    def end(self) -> None: ...


OpenSinks = Callable[[marks.RunInfo, int], list[Sink]]
"""Opens the sinks of a run, given its info and its start in Unix ns."""


class Pump:
    """Serves one ring from its first mark to its last.

    ``hold_ns`` is how long finished spans may wait for others to travel with, ``metrics_every_ns`` how often
    metrics are sent; ``recovered`` says that the process was gone before anybody served its ring here.
    ``before_last_ack`` is called when everything is delivered and the owner is about to learn it. ``beside``
    is what goes with its spans and metrics.
    """

    def __init__(
        self,
        reader: RingReader,
        open_sinks: OpenSinks,
        hold_ns: int = 0,
        metrics_every_ns: int = DEFAULT_METRICS_EVERY_NS,
        recovered: bool = False,
        before_last_ack: Callable[[], None] = lambda: None,
        beside: Beside | None = None,
    ):
        self.reader = reader
        self._open_sinks = open_sinks
        self._sinks: list[Sink] | None = None
        progress = Progress.from_bytes(reader.load_progress())
        if progress is not None and not believable_progress(progress, time.perf_counter_ns()):
            progress = None
        self._cuts = reader.load_cuts()
        self._converter = Converter(reader.strings, progress, cuts.from_bytes(self._cuts))
        self._lost_before = progress.lost if progress else 0
        self._not_believed = 0
        self._unacknowledged: deque[tuple[Progress, list[int]]] = deque()
        self._hold_ns = hold_ns
        self._recovered = recovered
        self._before_last_ack = before_last_ack
        self._beside: Beside = beside or Alone()
        self._begun = False
        self._unsent_before = reader.load_unsent()
        self._unsent: Counts = self._unsent_before
        self._problem = ""
        self._held: list[Span] = []
        self._fresh: list[Span] = []
        """Those of them that no relay before this one may have sent."""
        self._held_since = 0
        self._metrics_every_ns = metrics_every_ns
        self._metrics_at = time.perf_counter_ns()
        self._last_metrics_sent = False
        self.finished = False

    def turn(self, limit: int, now_ns: int) -> int:
        """Read and convert up to ``limit`` marks, hand on what they complete, and return how many they were.

        Raises `RingCorrupt` or OSError when the ring cannot be read.
        """
        batch = self.reader.read(limit)
        self._convert(batch)
        if len(batch) < limit:  # else ``now_ns`` is long after these marks
            self._hold(self._converter.flush(now_ns, self.reader.open_phases()))
        waited = time.perf_counter_ns() - self._held_since  # ``now_ns`` is of before they were made
        if self._held and (waited >= self._hold_ns or len(self._held) >= MAX_HELD_SPANS):
            self._hand_on()
        if now_ns - self._metrics_at >= self._metrics_every_ns:
            self._metrics_at = now_ns
            self._send_metrics(final=False)
        self.acknowledge()
        return len(batch)

    def finish(self, how: How, now_ns: int) -> None:
        """Read what is left, close what is open, and hand on the end of the run."""
        if self.finished:
            return
        self.finished = True
        while batch := self.reader.read(4096, final=True):
            self._convert(batch)
        self._count_lost()
        now = time.perf_counter_ns()
        phases = believable_phases(self.reader.open_phases(), now)
        spans = self._converter.finish(how, phases, now_ns, self._totals(now))
        for span in spans:
            if span.name == semconv.RUN:
                self._count_unsent()
                span.attributes[semconv.TRACER_UNSENT] = lost_of(self._unsent)
                if self._recovered:
                    span.attributes[semconv.RECOVERED] = True
        self._hold(spans)
        if how == "exit" and self._waits_for_work():
            self._held.clear()
            self._fresh.clear()
            self._last_metrics_sent = True
        self._hand_on(at_the_end=True)
        self.acknowledge()

    def flush(self) -> None:
        """Hand on what is finished and held, and the part of a window that is open."""
        if not self.finished:
            self._hold(self._converter.cut())
            self._hand_on()
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the owner how far its marks are delivered, and what is in the way."""
        self._count_unsent()
        if self.finished and not self._last_metrics_sent and self._all_settled():
            # Only now is it known what became of the last spans.
            self._last_metrics_sent = True
            self._send_metrics(final=True)
            self._await_delivery()
            self._beside.end()
        reached = None
        while self._unacknowledged:
            progress, tickets = self._unacknowledged[0]
            if any(sink.delivered < ticket for sink, ticket in zip(self._sinks or (), tickets, strict=False)):
                break
            reached = progress
            self._unacknowledged.popleft()
        problem = next((sink.problem for sink in self._sinks or () if sink.problem), "")
        if problem != self._problem:
            self._problem = problem
            self.reader.report(problem)
        if reached is None:
            return
        # Progress first: a successor must never find marks acknowledged that it would tell once more.
        self.reader.save_progress(reached.to_bytes(PROGRESS_BYTES))
        last = self.finished and self.delivered
        if last:
            self._before_last_ack()
        # The owner may exit when its last mark is acknowledged, and a container dies with it.
        self.reader.acknowledge(
            self.reader.next - 1 if last else max(0, min(reached.told, self.reader.next - 2))
        )

    @property
    def delivered(self) -> bool:
        """True once all that was read is out of danger."""
        return not self._unacknowledged and (self._last_metrics_sent or not self.finished)

    def close(self) -> None:
        """Let go of the sinks and the ring; the ring's files stay."""
        for sink in self._sinks or ():
            sink.close()
        self._sinks = []
        self._beside.end()
        self.reader.close()

    def _convert(self, batch: Sequence[Mark]) -> None:
        self._count_lost()
        now = time.perf_counter_ns()
        believed = [mark if believable(mark, now) else NOTHING for mark in batch]
        self._not_believed += believed.count(NOTHING)
        again = not self._converter.caught_up
        self._hold(self._converter.feed(believed, self.reader.next - len(batch)), again)
        if not self._begun and (info := self._converter.info) is not None:
            self._begun = True
            self._beside.begin(info, self._converter.run_start_unix_ns - info.perf_to_unix_ns)
        if batch and not self._held and self._converter.caught_up:
            self._await_delivery()  # state only

    def _await_delivery(self) -> None:
        """Note that everything handed on so far must be delivered before it counts as told."""
        progress = self._converter.progress
        progress.lost = self._lost
        self._unacknowledged.append((progress, self._tickets()))

    def _count_lost(self) -> None:
        totals = self._totals(time.perf_counter_ns())
        if totals is not None:
            self._converter.learn_names(totals)
        self._converter.lost = self._lost + (totals[marks.ACC_LOST] if totals is not None else 0)

    @property
    def _lost(self) -> int:
        return self._lost_before + self.reader.lost + self._not_believed

    def _count_unsent(self) -> None:
        """Keep the count where the relay after this one finds it, before a metric tells it."""
        sinks = [sink.unsent for sink in self._sinks or ()]
        unsent = tuple(map(sum, zip(self._unsent_before, *sinks, strict=True)))
        if unsent != self._unsent:
            self._unsent = unsent
            self.reader.save_unsent(unsent)

    def _all_settled(self) -> bool:
        return all(sink.delivered >= sink.taken for sink in self._sinks or ())

    def _totals(self, now_ns: int) -> Sequence[int] | None:
        """Return the ring's totals, None when they cannot be."""
        totals = self.reader.accumulators()
        return totals if believable_totals(totals, now_ns) else None

    def _hold(self, spans: Sequence[Span], again: bool = False) -> None:
        """Take ``spans`` that are to be sent; ``again``: a relay before this one has, or nearly so."""
        if spans and not self._held:
            self._held_since = time.perf_counter_ns()
        self._held += spans
        if not again:
            self._fresh += spans

    def _hand_on(self, at_the_end: bool = False) -> None:
        if self._waits_for_work() and not at_the_end:
            return
        spans, self._held = self._held, []
        fresh, self._fresh = self._fresh, []
        self._leave_cuts()
        info = self._converter.info
        if spans and info is not None and info.traces:
            self._beside.attach(fresh, at_the_end)
            for sink in self._opened(info):
                sink.take_spans(spans)
        if at_the_end or self._converter.caught_up:
            self._await_delivery()

    def _leave_cuts(self) -> None:
        """A successor that sends once more what is about to be sent must find them."""
        made = cuts.to_bytes(self._converter.cuts, CUTS_BYTES)
        if made != self._cuts:
            self._cuts = made
            self.reader.save_cuts(made)

    def _send_metrics(self, final: bool) -> None:
        info = self._converter.info
        now = time.perf_counter_ns()
        totals = self._totals(now)
        if info is None or not info.metrics or totals is None or (self._waits_for_work() and not final):
            return
        start = self._converter.run_start_unix_ns
        self._count_unsent()
        at = now + info.perf_to_unix_ns
        metrics = metrics_of(totals, self._converter.lost, self._unsent, start, at, self._converter.name_of)
        metrics += self._beside.metrics()
        for sink in self._opened(info):
            sink.take_metrics(metrics, final)

    def _opened(self, info: marks.RunInfo) -> list[Sink]:
        if self._sinks is None:
            self._sinks = self._open_sinks(info, self._converter.run_start_unix_ns)
        return self._sinks

    def _waits_for_work(self) -> bool:
        """Whether nobody hears of this run yet, see `marks.RunInfo.needs_work`."""
        info = self._converter.info
        if info is None or not info.needs_work or self._sinks is not None:
            return False
        totals = self._totals(time.perf_counter_ns())
        return totals is not None and not marks.has_worked(totals)

    def _tickets(self) -> list[int]:
        return [sink.taken for sink in self._sinks or ()]
