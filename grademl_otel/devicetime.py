# SPDX-License-Identifier: Apache-2.0
"""When an asynchronous device did what a host phase enqueued, without synchronizing with it.

A host phase ends when its work is enqueued. So an event is recorded on the current stream at both of its
edges; later, where both are known to be over, their times become a mark in the lane of that stream. Events
come from a pool; where it is empty the phase has no device time, which is counted.

A device's clock is tied to the host's by what is certain of each event: it was reached after it was recorded,
and before it was seen to be over. The tie moves when an event contradicts it, so it follows the drift of the
clocks, and is tight where the program itself waits for the device. Lengths are of the device's clock alone.

While a graph is being captured nothing is recorded and nothing is asked: both would spoil the capture. Nor
where the current device is one that the program does not use.

Nothing of a framework is known here; see `Device`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep
from typing import Any, Final, NamedTuple, Protocol

from grademl_otel import marks, semconv
from grademl_otel.deviceclock import Event, Timeline
from grademl_otel.guard import Guard
from grademl_otel.recorder import MAIN_LANE

EVERY_NS: Final = 50_000_000
"""Of rows that are shorter than this, one in this time is timed: its events take the host some 0.1 ms."""
EVENTS_PER_DEVICE: Final = 512
"""Those of 64 steps with four phases: a device is seldom further behind its host."""
MAX_STREAMS: Final = 64
"""That get a lane; a program that makes ever new ones would fill the ring with their names."""
_START_WAIT_NS: Final = 20_000_000
"""Longest look at the first event of a device, until it is over: the clocks are tied tightly then."""
_END_WAIT_NS: Final = 50_000_000
"""Longest look at the end of the run for what is still being done."""
_MAX_ROWS: Final = 1024
"""That have not ended, or are not told in full."""
_SPIN_NS: Final = 100_000
"""Longest look without a pause: an idle device is there in some us."""
_TIE_EVERY_NS: Final = 1_000_000_000
_PAUSE_S: Final = 0.0001

DEVICE_KINDS: Final = frozenset(marks.phase_kind(name) for name in semconv.DEVICE_PHASES)
"""Marks of host phases whose device time is recorded."""
_TRANSFER: Final = marks.phase_kind(semconv.DATA_TRANSFER)
_SYNC: Final = marks.phase_kind(semconv.DEVICE_SYNC)
_SHIFT: Final = marks.DEVICE_BASE - marks.PHASE_BASE


class Stream(NamedTuple):
    """Where a device works off what it is given, one after the other."""

    device: int
    number: int
    """As the framework counts; 0 is the default stream."""
    handle: Any


class Device(Protocol):
    """The devices of one framework. Any call may raise: then nothing more is asked."""

    def hands_off(self) -> bool:
        """Whether nothing may be asked or recorded now: a graph is being captured, in whatever thread, or the
        current device is none that the program uses."""

    def stream(self) -> Stream:
        """The current stream of this thread, on its current device."""

    def event(self) -> Event:
        """A new event that keeps time; a device is not to be touched before it is recorded."""

    def record(self, event: Any, stream: Stream, /) -> None:
        """Put ``event`` at the end of ``stream``; if it was elsewhere before, it is there no more."""


class Book(Protocol):
    """Where times are written; see `recorder.Recorder`."""

    @property
    def write(self) -> Callable[..., None]: ...
    def lane(self, name: str) -> int: ...


@dataclass(slots=True)
class _Edge:
    """The start of a phase that runs; without an event its device time is lost."""

    event: Event | None
    stream: Stream
    issued: int
    """Host time just before it was recorded."""


class _Phase(NamedTuple):
    """A phase that the host is done with, and the device perhaps not."""

    kind: int
    lane: int
    row: int
    host_start: int
    start: Event
    end: Event
    issued: int
    """Host time just before the start was recorded."""
    until: int
    """The same of the end; later, when it was last seen not to be over."""


@dataclass(slots=True)
class _Row:
    """What is known of the device times of a row. Each count is written by one thread at a time only."""

    asked: int = 0
    told: int = 0
    lost: int = 0
    closed: bool = False

    @property
    def pending(self) -> bool:
        return self.told < self.asked


@dataclass(slots=True)
class _Pool:
    """The events of one device."""

    free: list[Event]
    timeline: Timeline = field(default_factory=Timeline)

    def take(self) -> Event | None:
        """An event that is not in use; None where all are."""
        try:
            return self.free.pop()
        except IndexError:
            return None


class DeviceTimes:
    """The device times of one run.

    All methods are called by the threads that train, between two calls of the program's own; none raises.
    ``clock`` is in ns; ``pause`` waits for some s.
    """

    def __init__(
        self,
        device: Device,
        book: Book,
        guard: Guard,
        clock: Callable[[], int] = perf_counter_ns,
        pause: Callable[[float], None] = sleep,
        events: int = EVENTS_PER_DEVICE,
        every: int = EVERY_NS,
    ) -> None:
        self.guard = guard
        self._device = device
        self._book = book
        self._clock = clock
        self._pause = pause
        self._events = events
        self._every = every
        self._timing = True
        """Whether phases that begin now are timed."""
        self._timed = 0
        """When it was chosen that they are."""
        self._tied = 0
        """When a clock was tied last, or could not be."""
        self._pools: dict[int, _Pool] = {}
        self._running: dict[tuple[int, int], _Edge] = {}
        """By lane and kind of the host's phase."""
        self._pending: dict[tuple[int, int], deque[_Phase]] = {}
        """By device and stream, in the order in which they end."""
        self._lanes: dict[tuple[int, int], int] = {}
        self._rows: dict[int, _Row] = {}
        self._resolving = threading.Lock()

    # --- Edges -----------------------------------------------------------------------------------------

    def began(self, lane: int, kind: int) -> None:
        """A phase begins in the host's ``lane``."""
        if not self._timing or kind not in DEVICE_KINDS or not self.guard.on:
            return
        try:
            self._forget(self._running.pop((lane, kind), None))  # that one raised, and was never told
            if self._device.hands_off():
                return
            stream = self._device.stream()
            if kind == _TRANSFER and self._is_short(stream.device):
                return  # there may be hundreds in a step
            event = self._take(stream)
            issued = self._clock()
            if event is not None:
                self._device.record(event, stream)
            self._running[lane, kind] = _Edge(event, stream, issued)
        except Exception as error:
            self._stop(error)

    def ended(self, lane: int, kind: int, t0: int, row: int) -> None:
        """It has ended in the row ``row``; ``t0`` is when it began."""
        if kind not in DEVICE_KINDS:
            if kind == _SYNC and any(self._pending.values()):
                self.resolve()  # the program has waited for the device: never is more known of its clock
            return
        edge = self._running.pop((lane, kind), None)
        if edge is None or not self.guard.on:
            return
        try:
            if row <= 0 or self._device.hands_off():
                self._forget(edge)
                return
            stream = self._device.stream()
            event, number = None, self._lane(stream)
            if edge.event is not None and number is not None and stream[:2] == edge.stream[:2]:
                event = self._take(stream)
            if event is None or number is None:
                self._forget(edge)
                self._row(row).lost += 1
                return
            until = self._clock()
            self._device.record(event, stream)
            assert edge.event is not None
            phase = _Phase(kind + _SHIFT, number, row, t0, edge.event, event, edge.issued, until)
            self._row(row).asked += 1
            self._pending.setdefault(stream[:2], deque()).append(phase)
        except Exception as error:
            self._stop(error)

    def row_ends(self, serial: int) -> bool:
        """The row ``serial`` ends; return whether device times of it will be told later."""
        if not self.guard.on:
            return False
        now = self._clock()
        self._timing = now - self._timed >= self._every
        if self._timing:
            self._timed = now
        if any(self._pending.values()) or now - self._tied > _TIE_EVERY_NS:
            self.resolve()
        row = self._rows.get(serial)
        if row is None:
            return False
        row.closed = True
        if row.pending:
            return True
        self._close(serial)
        return False

    # --- Later -----------------------------------------------------------------------------------------

    def resolve(self) -> None:
        """Write what the device is done with by now."""
        if not self.guard.on or not self._resolving.acquire(blocking=False):
            return
        try:
            if not self._device.hands_off():
                for (device, _), phases in tuple(self._pending.items()):
                    self._tell_finished(self._pools[device], phases)
                self._tie_again()
        except Exception as error:
            self._stop(error)
        finally:
            self._resolving.release()

    def finish(self) -> None:
        """The run ends: write what is done within some ms; the rest is lost."""
        self.resolve()
        until = self._clock() + _END_WAIT_NS
        while self.guard.on and any(self._pending.values()) and self._clock() < until:
            self._pause(_PAUSE_S)
            self.resolve()
        self._give_up()

    # --- Helpers ---------------------------------------------------------------------------------------

    def _take(self, stream: Stream) -> Event | None:
        """An event of the pool of the stream's device; None where all are in use."""
        pool = self._pools.get(stream.device)
        if pool is None:
            pool = self._meet(stream)
        event = pool.take()
        if event is None:
            self.resolve()
            event = pool.take()
        return event

    def _is_short(self, device: int) -> bool:
        """Whether more than half of the events of a device are in use."""
        pool = self._pools.get(device)
        return pool is not None and 2 * len(pool.free) < self._events

    def _meet(self, stream: Stream) -> _Pool:
        """The pool of a device that is seen for the first time, its clock tied to ours if it is idle."""
        pool = self._pools[stream.device] = _Pool([self._device.event() for _ in range(self._events)])
        self._tie(pool, stream, _START_WAIT_NS)
        return pool

    def _tie_again(self) -> None:
        """Tie the clock of the current device once more where nothing of ours is under way in its stream.

        Else the ties would only bound it where the program never waits for the device: by a whole step.
        """
        if self._clock() - self._tied <= _TIE_EVERY_NS:
            return
        stream = self._device.stream()
        pool = self._pools.get(stream.device)
        if pool is not None and not self._pending.get(stream[:2]):
            self._tie(pool, stream, _SPIN_NS)

    def _tie(self, pool: _Pool, stream: Stream, longest: int) -> None:
        """Watch when an event that is recorded now is reached, for ``longest`` ns."""
        anchor, clock = pool.take(), self._clock
        if anchor is None:
            return
        self._tied = earliest = asked = clock()
        self._device.record(anchor, stream)
        while not anchor.query():
            if asked - self._tied > longest:
                pool.free.append(anchor)
                return
            if asked - self._tied > _SPIN_NS:
                self._pause(_PAUSE_S)
            earliest, asked = asked, clock()
        pool.free += pool.timeline.tie(anchor, earliest, clock())

    def _row(self, serial: int) -> _Row:
        """What is known of a row; of one that never comes to be nothing is kept for long."""
        row = self._rows.get(serial)
        if row is None:
            row = self._rows[serial] = _Row()
            if len(self._rows) > _MAX_ROWS:
                self._close(next(iter(self._rows)))
        return row

    def _lane(self, stream: Stream) -> int | None:
        """The lane of a stream; None where there are too many."""
        number = self._lanes.get(stream[:2])
        if number is None and len(self._lanes) < MAX_STREAMS:
            before = sum(device == stream.device and other != 0 for device, other in self._lanes)
            place = 0 if stream.number == 0 else before + 1
            number = self._book.lane(f"stream-{stream.device}.{place}")
            self._lanes[stream[:2]] = number
        return number

    def _tell_finished(self, pool: _Pool, phases: deque[_Phase]) -> None:
        """Write those of the ``phases`` of a stream that are over."""
        while phases:
            asked = self._clock()
            if not phases[0].end.query():
                phases[0] = phases[0]._replace(until=asked)
                return
            self._tell(pool, phases.popleft(), self._clock())

    def _tell(self, pool: _Pool, phase: _Phase, seen: int) -> None:
        """Write a phase that was over at ``seen``."""
        t0, t1, free = pool.timeline.place(phase.start, phase.end, phase.issued, phase.until, seen)
        pool.free += free
        t0 = max(t0, 0)
        self._book.write(phase.kind, phase.lane, t0, max(t0, t1), phase.row, -1, phase.host_start)
        row = self._rows.get(phase.row)
        if row is None:
            return
        row.told += 1
        if row.closed and not row.pending:
            self._close(phase.row)

    def _close(self, serial: int) -> None:
        """Say that all is told of a row."""
        row = self._rows.pop(serial, None)  # another thread may be as far
        if row is not None:
            now = self._clock()
            self._book.write(marks.ROW_DEVICE, self._book.lane(MAIN_LANE), now, now, serial, row.lost)

    def _forget(self, edge: _Edge | None) -> None:
        if edge is not None and edge.event is not None:
            self._pools[edge.stream.device].free.append(edge.event)

    def _give_up(self) -> None:
        """Nothing more will be known."""
        self._running.clear()
        self._pending.clear()
        for serial, row in tuple(self._rows.items()):
            row.lost += row.asked - row.told
            if row.closed:
                self._close(serial)
        self._rows.clear()

    def _stop(self, error: Exception) -> None:
        """Ask no more: a device that failed once is not to be touched by us."""
        if self.guard.on:
            first = str(error).partition("\n")[0]
            self.guard.off(f"{type(error).__name__}: {first}")
        try:
            self._give_up()
        except Exception:
            pass  # what is not told is not there
