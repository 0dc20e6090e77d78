# SPDX-License-Identifier: Apache-2.0
"""From one ring to its sinks: read, convert, hand on, acknowledge. The relay and the in-process thread both
run it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grademl_otel import marks
from grademl_otel.convert import Converter, How
from grademl_otel.ringreader import RingReader
from grademl_otel.spans import Metric, Span
from grademl_otel.totals import metrics_of

METRICS_EVERY_NS: Final = 10_000_000_000


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

    def take_spans(self, spans: Sequence[Span]) -> None: ...

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        """Take cumulative metrics; ``final`` ones are not followed by others."""

    def close(self) -> None: ...


OpenSinks = Callable[[marks.RunInfo, int], list[Sink]]
"""Opens the sinks of a run, given its info and its start in Unix ns."""


class Pump:
    """Serves one ring from its first mark to its last."""

    def __init__(self, reader: RingReader, open_sinks: OpenSinks):
        self.reader = reader
        self._open_sinks = open_sinks
        self._sinks: list[Sink] | None = None
        self._converter = Converter(reader.strings)
        self._unacknowledged: deque[tuple[int, list[int]]] = deque()
        self._acked = reader.acked
        self._metrics_at = 0
        self.finished = False

    def turn(self, limit: int, now_ns: int) -> int:
        """Read and convert up to ``limit`` marks, hand on what they complete, and return how many they were.

        Raises `RingCorrupt` or OSError when the ring cannot be read.
        """
        batch = self.reader.read(limit)
        self._convert(batch)
        self._hand_on(self._converter.flush(now_ns))
        if now_ns - self._metrics_at >= METRICS_EVERY_NS:
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
        self._hand_on(
            self._converter.finish(how, self.reader.open_phases(), now_ns, self.reader.accumulators())
        )
        self._send_metrics(final=True)
        self._unacknowledged.append((self.reader.next - 1, self._tickets()))
        self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the owner how far its marks are delivered."""
        reached = None
        while self._unacknowledged:
            sequence, tickets = self._unacknowledged[0]
            if any(sink.delivered < ticket for sink, ticket in zip(self._sinks or (), tickets, strict=False)):
                break
            reached = sequence
            self._unacknowledged.popleft()
        if reached is not None and reached > self._acked:
            self._acked = reached
            self.reader.acknowledge(reached)

    @property
    def delivered(self) -> bool:
        """True once all that was read is out of danger."""
        return not self._unacknowledged

    def close(self) -> None:
        """Let go of the sinks and the ring; the ring's files stay."""
        for sink in self._sinks or ():
            sink.close()
        self._sinks = []
        self.reader.close()

    def _convert(self, batch: Sequence[tuple[int, int, int, int, int, int, int, int]]) -> None:
        self._count_lost()
        spans = self._converter.feed(batch, self.reader.next - len(batch))
        self._hand_on(spans)
        if batch:
            safe = self._converter.safe_sequence
            last = self._unacknowledged[-1][0] if self._unacknowledged else self._acked
            if safe > last:
                self._unacknowledged.append((safe, self._tickets()))

    def _count_lost(self) -> None:
        self._converter.lost = self.reader.lost + self.reader.accumulators()[marks.ACC_LOST]

    def _hand_on(self, spans: Sequence[Span]) -> None:
        info = self._converter.info
        if not spans or info is None or not info.traces:
            return
        for sink in self._opened(info):
            sink.take_spans(spans)

    def _send_metrics(self, final: bool) -> None:
        info = self._converter.info
        if info is None or not info.metrics:
            return
        start = self._converter.run_start_unix_ns
        now = time.perf_counter_ns() + info.perf_to_unix_ns
        metrics = metrics_of(self.reader.accumulators(), self._converter.lost, start, now)
        for sink in self._opened(info):
            sink.take_metrics(metrics, final)

    def _opened(self, info: marks.RunInfo) -> list[Sink]:
        if self._sinks is None:
            self._sinks = self._open_sinks(info, self._converter.run_start_unix_ns)
        return self._sinks

    def _tickets(self) -> list[int]:
        return [sink.taken for sink in self._sinks or ()]
