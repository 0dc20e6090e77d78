# SPDX-License-Identifier: Apache-2.0
"""The recorder: the front of the hot path, between the hooks and the ring.

A hook asks for its thread's machine (`Recorder.here`), tells it what happened, and the machine's results come
back to the recorder as a `steps.Sink`: each becomes one mark in the ring and a few additions to the totals in
the ring's header. What comes several times in a step goes from the machine right to the ring's core. Once per
row it is looked after whether this is still the process that opened the ring, and at most once a second after
the heartbeat and the transport.

Nothing here may reach the user's program: hooks call under a `guard.Guard`.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import Any, Final, Protocol

from grademl_otel import marks, semconv
from grademl_otel.governor import (
    BOUNDARIES,
    EVERYTHING,
    ROOTS,
    STEPS_PER_ROW,
    UPDATES,
    Governor,
    levels,
    median_low,
)
from grademl_otel.loops import LoaderFacts
from grademl_otel.steps import EVALUATION, TRAIN, StepMachine, Totals
from grademl_otel.tally import Tally
from grademl_otel.vocabulary import Vocabulary

MAIN_LANE: Final = "main"
NEVER: Final = 1 << 63
MEASURE_EVERY: Final = 64
"""The tracer's own time is measured in one row of so many, and stands for the rows between."""
MEASURED_FIRST: Final = 8
"""Rows at the start of a level in which it is always measured; and so many measurements are kept."""
_MEASURED_LATER: Final = range(24, 32)
"""Rows of a level in which it is measured again: the first ones are like no others."""
_COUNTING_NS: Final = 700
"""What counting one update takes, where that is all that is done."""
_LEARNING_ROWS: Final = 2
_NESTING: Final = 16
"""Phases that are open in each other at most."""
_LONGEST_NAME: Final = 256
_TRIAL: Final = marks.SCOPE_INDEX[semconv.TRIAL]
_TICK_NS: Final = 1_000_000_000
_MOST_BESIDE: Final = 64
_NONE_BESIDE: Final = (0, 0)
_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in semconv.STEP_DURATION_BOUNDS_S)


class Writer(Protocol):
    """What the recorder needs of a ring; see `ring.RingWriter`."""

    @property
    def write(self) -> Callable[..., None]: ...
    @property
    def phase(self) -> Callable[..., None]: ...
    @property
    def row(self) -> Callable[..., None]: ...
    @property
    def began(self) -> Callable[[int, int, int], None]: ...
    @property
    def ended(self) -> Callable[[int], None]: ...
    @property
    def measure_all_but(self) -> Callable[[int], None]: ...
    @property
    def process(self) -> Callable[[], int]: ...
    @property
    def bind(self) -> Callable[[StepMachine], None]: ...
    @property
    def mine(self) -> Callable[[Callable[[], StepMachine]], StepMachine]: ...
    @property
    def totals(self) -> memoryview[int] | array[int]: ...
    @property
    def ids(self) -> dict[str, int]: ...
    def intern(self, text: str) -> int: ...


class Keeper(Protocol):
    """What the recorder needs of a transport; see `transport.Transport`."""

    def tick(self, now_ns: int) -> None: ...


class StepContext(Protocol):
    """What the recorder needs of OpenTelemetry's side; see `context.StepContexts`."""

    def inside(self, machine: StepMachine, serial: int) -> None: ...
    def over(self, lane: int, serial: int, kind: int, number: int) -> bool: ...
    def mute(self) -> None: ...


class AsynchronousDevice(Protocol):
    """What the recorder needs to know when a device did what a phase enqueued; see `devicetime`."""

    def began(self, lane: int, kind: int) -> None: ...
    def ended(self, lane: int, kind: int, t0: int, row: int) -> None: ...
    def row_ends(self, serial: int) -> bool: ...
    def finish(self) -> None: ...


class _Local(threading.local):
    machine: StepMachine | None = None


def _started_by_python() -> bool:
    """Whether Python made this thread: those of autograd it does not know, at most under a stand-in."""
    here = threading.get_ident()
    thread = next((each for each in threading.enumerate() if each.ident == here), None)
    return thread is not None and not isinstance(thread, threading._DummyThread)


class Recorder:
    """Writes the marks of this process; see the module's text.

    What hooks touch in each step lies in slots, side by side; the rest may be anywhere.

    ``scopes`` numbers the scopes of the process; the run's own scope has been taken from it. ``forked`` is
    called in a child that forked without Python's knowledge, where nothing may be written any more.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_boundary", "_cost", "_keeper", "_learning_until", "_level_since",
        "_rows", "_ticked", "_typical_cost", "_write_row", "backward_owner", "began", "context", "device",
        "ended", "forward_owner", "here", "idle_at", "idle_ns", "ids", "level", "measuring", "phase", "pid",
        "text", "totals", "unnamed",
    )  # fmt: skip

    def __init__(
        self, writer: Writer, keeper: Keeper, scopes: count[int], forked: Callable[[], None] = lambda: None
    ) -> None:
        self.totals = Totals()
        self.pid = os.getpid()
        self.backward_owner: StepMachine | None = None
        """The machine whose thread began a backward last; autograd's own threads work for it meanwhile."""
        self.forward_owner: StepMachine | None = None
        """The machine of a thread inside a root module, which may have others work for it (DataParallel)."""
        self.context: StepContext | None = None
        """What makes spans of the user nest in the steps; None where there is no OpenTelemetry to do so."""
        self.device: AsynchronousDevice | None = None
        """What times an asynchronous device; None where none is in use."""
        self._beside: dict[int, list[int]] = {}
        """By row: how many collectives of it go on beside the thread, and how many of these are over."""
        self._forked = forked
        self._keeper = keeper
        self._scopes = scopes
        self._local = _Local()
        self._machines: list[tuple[threading.Thread, StepMachine]] = []
        self._new_machine = threading.RLock()  # a signal handler may evaluate, or save, too
        self._lanes: dict[str, int] = {}
        self._ticked = 0
        self._rows = 0
        self.measuring = True
        """Hooks are to call `spent` when they are done: this row is one of those in which that is counted."""
        self._cost = 0
        # Median of several: a hook that another process interrupts seems to cost that process' time.
        self._measured: deque[int] = deque(maxlen=MEASURED_FIRST)
        self._typical_cost = 0
        self.governor = Governor()
        self.level = EVERYTHING
        """How much is measured; see `governor`."""
        self._level_since = 0
        self._boundary = semconv.window_first_step(1)
        """Number of the step that begins the next window."""
        self._learning_until = 0
        self._tallies: dict[StepMachine, Tally] = {}
        levels.set(EVERYTHING)
        self.unnamed = False
        """The run's name is not firm: the keeper is called after each row."""
        self.idle_ns = NEVER
        self.idle_at = NEVER
        """An event that begins later may be another run's: `idle_ns` after the last row."""
        self._attach(writer)

    def _attach(self, writer: Writer) -> None:
        self._writer = writer
        self.write = self._write = writer.write
        self._write_row = writer.row
        self._process = writer.process
        self._bind = writer.bind
        self.here: Callable[[], StepMachine] = partial(writer.mine, self._arrive)
        """The machine of this thread; inside a backward, autograd's threads get the one that waits for it."""
        self._acc = writer.totals
        self.phase = writer.phase
        self.began = writer.began
        self.ended = writer.ended
        self.text = writer.intern
        self.ids = writer.ids
        self.vocabulary = Vocabulary(writer.totals, writer.intern)
        """Names of the program's own phases."""

    # --- For hooks -------------------------------------------------------------------------------------

    def _arrive(self) -> StepMachine:
        """A thread asks for its machine that is not remembered: the first time, or always."""
        machine = self.known()
        if machine is None:
            with self._new_machine:
                machine = self._machine_for(threading.current_thread())
            self._local.machine = machine
            self._bind(machine)
        return machine

    def known(self) -> StepMachine | None:
        """The machine that `here` gives, where there is one: for what makes no thread one that trains."""
        if self._process() != self.pid:
            self._leave()
        machine = self._local.machine
        if machine is not None:
            return machine
        owner = self.backward_owner
        return owner if owner is not None and owner.in_backward and not _started_by_python() else None

    def paused(self, t0: int, t1: int) -> None:
        """All threads stood still for a garbage collection in this one; safe in the middle of anything."""
        machine = self._local.machine
        if machine is None and self._machines:
            machine = self._machines[0][1]
        if machine is not None:
            machine.paused(t0, t1)

    def _leave(self) -> None:
        """Let go of ring and run in a child that C code forked, unknown to Python: they are the parent's."""
        forked = self._forked
        self.mute()
        forked()

    def is_helper(self) -> bool:
        """Whether this thread, unknown so far, runs while another one is inside a root module."""
        if self._local.machine is not None or self.forward_owner is None:
            return False
        return self.backward_owner is None or not self.backward_owner.in_backward

    def _machine_for(self, thread: threading.Thread) -> StepMachine:
        for index, (former, machine) in enumerate(self._machines):
            if not former.is_alive():
                # A program that makes a thread for each request has few lanes, not one for each.
                self._end_tally(machine)
                machine.finish()
                self._machines[index] = thread, machine
                return machine
        number = len(self._machines)
        lane = MAIN_LANE if number == 0 else f"thread-{number}"
        machine = StepMachine(self, self.totals, self._scopes, self.lane(lane))
        self._machines.append((thread, machine))
        return machine

    def lane(self, name: str) -> int:
        """The string id of lane ``name``."""
        number = self._lanes.get(name)
        if number is None:
            number = self._lanes[name] = self.text(name)
        return number

    def spent(self, since: int) -> None:
        """Count the time since ``since`` as the tracer's own; for a hook whose own work began then."""
        self._cost += perf_counter_ns() - since

    def time_device(self, device: AsynchronousDevice) -> None:
        """Have ``device`` time the phases of steps from now on."""
        self.device = device
        self.began, self.phase = self._began_with_device, self._phase_with_device

    def _began_with_device(self, lane: int, kind: int, t0: int) -> None:
        self._writer.began(lane, kind, t0)
        if self.device is not None and self.measures(kind):
            self.device.began(lane, kind)

    def _phase_with_device(
        self, kind: int, lane: int, t0: int, t1: int, row: int, item: int, own: int, detail: int
    ) -> None:
        self._writer.phase(kind, lane, t0, t1, row, item, own, detail)
        if self.device is not None and self.measures(kind):
            self.device.ended(lane, kind, t0, row)

    def measures(self, kind: int) -> bool:
        """Whether marks of ``kind`` are written at this level."""
        return not _UNMEASURED[self.level] >> kind & 1

    def outside_rows(self, now: int) -> None:
        """Look after what is due after something outside of rows, of which there may be none."""
        self._look_up(now)

    def goes_on(self, row: int) -> list[int]:
        """Count a collective of ``row`` that goes on beside the thread; in the second of what is returned its
        end is to be counted, after its mark was written.
        """
        counts = self._beside.get(row)
        if counts is None:
            if len(self._beside) >= _MOST_BESIDE:
                self._beside.clear()  # of rows that never came
            counts = self._beside[row] = [0, 0]
        counts[0] += 1
        return counts

    def lost(self) -> None:
        """Count a mark that could not be made."""
        self._acc[marks.ACC_LOST] += 1

    def finish(self) -> None:
        """Close all rows and passes of all threads and publish the totals."""
        for _, machine in self._machines:
            try:
                self._end_tally(machine)
                machine.finish()
            except Exception:  # a daemon thread still trains with it
                self.lost()
        if self.device is not None:
            self.device.finish()
        levels.set(EVERYTHING)

    def finished_steps(self) -> int:
        """Training steps so far."""
        return self.totals.steps

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._rows

    def resting_since(self) -> int | None:
        """When the last event was; None before the first row and while a loop is live in any thread."""
        if not self._rows or self.forward_owner is not None:
            return None
        since = [machine.resting_since() for _, machine in list(self._machines)]
        known = [at for at in since if at is not None]
        return max(known, default=None) if len(known) == len(since) else None

    def name_run(self, name: str) -> None:
        """Put the user's own name on the run's span."""
        self._name(RUN_SCOPE, name)

    def open_trial(self, name: str, at: int) -> int:
        """Open a trial inside that of this thread; return its serial.

        Passes over loaders that this thread begins from now on lie in it.
        """
        serial = next(self._scopes)
        machine = self.here()
        self._write(
            marks.SCOPE_OPEN, machine.lane, at, at, serial, machine.scopes[-1] or RUN_SCOPE, _TRIAL, -1
        )
        if name:
            self._name(serial, name)
        machine.scopes.append(serial)
        return serial

    def close_trial(self, serial: int, error: str | None) -> None:
        """Close a trial; ``error`` is the name of the exception that ended it."""
        machine = self.here()
        machine.pause()
        if serial in machine.scopes:
            machine.scopes.remove(serial)
        now = perf_counter_ns()
        kind = self.text(error) if error else 0
        self._write(marks.SCOPE_CLOSE, machine.lane, now, now, serial, 1 if error else 0, _TRIAL, kind)

    def _name(self, scope: int, name: str) -> None:
        self._say(scope, semconv.RUN_NAME, name[:_LONGEST_NAME])

    def say_of_run(self, key: str, text: str) -> None:
        """Set an attribute of the run's span."""
        self._say(RUN_SCOPE, key, text)

    def _say(self, scope: int, key: str, text: str) -> None:
        now = perf_counter_ns()
        self._write(marks.SCOPE_TEXT, self.lane(MAIN_LANE), now, now, scope, self.text(key), self.text(text))

    def pause(self) -> None:
        """End the rows that are done: what comes next may be long in coming."""
        self._see_rows(perf_counter_ns())
        for _, machine in list(self._machines):
            machine.pause()

    def has_worked(self) -> bool:
        """Whether this is a run to tell of where a look at one batch is none, see `marks.RunInfo`."""
        return marks.has_worked(self._acc)

    def last_event(self) -> int:
        """When something was recorded last."""
        return max((machine.last_event() for _, machine in list(self._machines)), default=0)

    def is_looping(self, since: int) -> bool:
        """Whether a loop may go on by itself: it has an iterator, or a thread that worked after ``since``."""
        here = threading.current_thread()
        for thread, machine in list(self._machines):
            if machine.resting_since() is None:
                return True
            if thread is not here and thread.is_alive() and machine.last_event() > since:
                return True
        return False

    # --- Sink ------------------------------------------------------------------------------------------

    def row(
        self,
        serial: int,
        lane: int,
        t0: int,
        t1: int,
        step: int,
        kind: int,
        micro: int,
        pass_: int,
        samples: int,
    ) -> None:
        if os.getpid() != self.pid:
            self._leave()
            return
        self._rows += 1
        flags = kind
        if self.context is not None:
            number = step if kind == TRAIN else self.totals.eval_steps - 1 if kind == EVALUATION else serial
            if not self.context.over(lane, serial, kind, number):
                flags |= marks.UNSAMPLED
        if self.device is not None and self.device.row_ends(serial):
            flags |= marks.DEVICE_LATER
        if self._beside:
            issued, over = self._beside.pop(serial, _NONE_BESIDE)
            if over < issued:
                self._write(marks.ROW_BESIDE, lane, t1, t1, serial, issued, 0, 0)
        cost = self._cost_of_row(t1 - t0 if kind == TRAIN else 0) if self.measuring else self._typical_cost
        self._write_row(serial, lane, t0, t1, step, flags, micro, pass_, samples, cost)
        age = self._rows - self._level_since
        self.measuring = age < MEASURED_FIRST or age % MEASURE_EVERY == 1 or age in _MEASURED_LATER
        if t1 - self._ticked > _TICK_NS or self.unnamed:
            self._look_up(t1)
        else:
            self.idle_at = t1 + self.idle_ns
        if kind == TRAIN and step + 1 >= self._boundary:
            self._window_ends(step + 1, t1)
        elif self._learning_until and self._rows >= self._learning_until:
            self._learning_until = 0
            levels.set(self.level)

    def _cost_of_row(self, step: int) -> int:
        """What the row cost that is over; ``step`` is its length, 0 if it was no training step."""
        cost, self._cost = self._cost, 0
        if self._rows > 1:  # the first row pays for start-up, and is like no other
            self._measured.append(cost)
            if step:
                self.governor.sample(cost, step)
            self._typical_cost = median_low(self._measured)
        return cost

    def _look_up(self, now: int) -> None:
        """A row has ended: do what is due now and then."""
        self.idle_at = now + self.idle_ns
        if now - self._ticked > _TICK_NS or self.unnamed:
            self._ticked = now
            self._keeper.tick(perf_counter_ns())

    def pass_opened(
        self, pass_: int, lane: int, parent: int, kind: int, number: int, at: int, facts: LoaderFacts
    ) -> None:
        self._write(marks.SCOPE_OPEN, lane, at, at, pass_, parent or RUN_SCOPE, kind, number)
        integers = (
            (semconv.LOADER_ID, facts.loader),
            (semconv.LOADER_WORKERS, facts.workers),
            (semconv.LOADER_PREFETCH, facts.prefetch),
            (semconv.LOADER_BATCH_SIZE, facts.batch_size),
        )
        for key, value in integers:
            if value is not None:
                self._write(marks.SCOPE_INT, lane, at, at, pass_, self.text(key), value)
        for key, flag in (
            (semconv.LOADER_PERSISTENT, facts.persistent),
            (semconv.LOADER_IN_ORDER, facts.in_order),
        ):
            self._write(marks.SCOPE_BOOL, lane, at, at, pass_, self.text(key), int(flag))

    def pass_closed(self, pass_: int, lane: int, kind: int, at: int, steps: int, eval_steps: int) -> None:
        for key, value in ((semconv.STEPS_TOTAL, steps), (semconv.EVAL_STEPS_TOTAL, eval_steps)):
            self._write(marks.SCOPE_INT, lane, at, at, pass_, self.text(key), value)
        self._write(marks.SCOPE_CLOSE, lane, at, at, pass_, 0, kind)

    def inside(self, machine: StepMachine, serial: int) -> None:
        if self.context is not None:
            self.context.inside(machine, serial if self.level < UPDATES else 0)

    def note(self, kind: int, at: int, row: int, x: int, y: int, z: int, lane: int = 0) -> None:
        """Write a mark about a row or a scope that is no time of it."""
        self._write(kind, lane or self.lane(MAIN_LANE), at, at, row, x, y, z)

    def open_beside(self, kind: int, lane: str, at: int, number: int) -> int:
        """Open a scope of what goes on beside the threads, in a lane of its own; return its serial."""
        serial, around = next(self._scopes), self.here().scopes[-1] or RUN_SCOPE
        self._write(marks.SCOPE_OPEN, self.lane(lane), at, at, serial, around, kind, number)
        return serial

    # --- Levels ----------------------------------------------------------------------------------------

    def pass_made(self, at: int) -> None:
        self._see_rows(at)  # whether it is another epoch or an evaluation
        self._learn()

    def _see_rows(self, at: int) -> None:
        """Where only updates are counted, go to the level above."""
        if self.level == UPDATES:
            self.governor.rise(BOUNDARIES)
            self._work_at(BOUNDARIES, at)

    def updated(self, optimizer: int, at: int) -> None:
        """An optimizer has stepped, of which only updates are counted."""
        machine = self.here()
        machine.optimizer_steps += 1
        tally = self._tallies.get(machine)
        if tally is None:
            tally = self._tallies[machine] = Tally(at, optimizer)
        if tally.stepped(optimizer, at):
            self.totals.steps += 1
            if self.totals.steps % STEPS_PER_ROW == 0:
                self._close_tally(machine, tally)
                if self.totals.steps >= self._boundary:
                    self._window_ends(self.totals.steps, at)

    def _end_tally(self, machine: StepMachine) -> None:
        """Write what was counted of ``machine``, whose rows are seen again."""
        tally = self._tallies.pop(machine, None)
        if tally is not None:
            self._close_tally(machine, tally)
            machine.forget_rows()

    def _close_tally(self, machine: StepMachine, tally: Tally) -> None:
        """Write the row of the updates that were counted, if there were any."""
        steps, t0, t1 = tally.updates, tally.start, tally.last
        if not steps:
            return
        tally.next_row()
        self._rows += 1
        packed = marks.pack_row(TRAIN | marks.SEVERAL, 0, machine.current_pass)
        serial, first = next(self.totals.rows), self.totals.steps - steps
        self._write(marks.ROW, machine.lane, t0, t1, serial, first, packed, steps)
        machine.stepped_unseen(steps, t1)
        acc, mean = self._acc, (t1 - t0) // steps
        acc[marks.ACC_STEPS] += steps
        acc[marks.ACC_STEP_SUM_NS] += t1 - t0
        acc[marks.ACC_HISTOGRAM + bisect_left(_BOUNDS_NS, mean)] += steps
        acc[marks.ACC_COST_NS] += steps * _COUNTING_NS
        self.governor.sample(0, mean)
        self._look_up(t1)

    def _window_ends(self, steps: int, now: int) -> None:
        self._boundary = semconv.window_first_step(semconv.window_of_step(steps) + 1)
        several = sum(thread.is_alive() for thread, _ in self._machines) > 1
        if self.governor.window_ends(steps, BOUNDARIES if several else UPDATES):
            self._work_at(self.governor.level, now)
        else:
            self._learn()

    def _learn(self) -> None:
        """Have the hooks look for what is new, for a few rows."""
        if ROOTS <= self.level <= BOUNDARIES:
            self._learning_until = self._rows + _LEARNING_ROWS
            levels.set(self.level, learning=True)

    def _work_at(self, level: int, now: int) -> None:
        """Go to another level, between two rows of this thread."""
        former, self.level = self.level, level
        self._writer.measure_all_but(_UNMEASURED[level])
        if level >= BOUNDARIES:
            here = self.here()
            for _, machine in self._machines:  # their ends may not be told any more
                for _ in range(_NESTING if machine is not here else 0):
                    self.ended(machine.lane)
        if former == UPDATES:
            for machine in tuple(self._tallies):
                self._end_tally(machine)
        self._level_since, self._learning_until = self._rows, 0
        self._measured.clear()
        self._cost = 0
        self.measuring = level < UPDATES
        lane = self.lane(MAIN_LANE)
        key, why = self.text(semconv.WINDOW_RECORD_LEVEL), self.text(semconv.WINDOW_RECORD_REASON)
        self._write(marks.SCOPE_INT, lane, now, now, RUN_SCOPE, key, level)
        self._write(marks.SCOPE_TEXT, lane, now, now, RUN_SCOPE, why, self.text(self.governor.reason))
        if level == UPDATES:
            machine = self.here()
            self._tallies[machine] = Tally(now, machine.last_optimizer)
        levels.set(level)

    # --- After a fork ----------------------------------------------------------------------------------

    def mute(self) -> None:
        """Write nothing any more: the run is over, or this is a forked child and the ring is its parent's."""
        self.device = None
        self._forked = _nothing  # a block of the parent's that is left in the child, whose run is another
        self._attach(_Nothing())
        self._keeper = _Nothing()
        if self.context is not None:
            self.context.mute()


def _nothing() -> None: ...


class _Nothing:
    """Stands for ring and transport where nothing may be written."""

    def __init__(self) -> None:
        self.totals = array("q", bytes(8 * marks.ACC_SLOTS))
        self.ids: dict[str, int] = {}

    def write(self, *_: Any) -> None: ...

    phase = row = began = ended = measure_all_but = bind = tick = write

    def mine(self, otherwise: Callable[[], StepMachine]) -> StepMachine:
        return otherwise()

    def process(self) -> int:
        return os.getpid()

    def intern(self, text: str) -> int:
        return 0


def _kinds(*names: str) -> int:
    """The kinds of phases as a set of bits."""
    return sum(1 << marks.phase_kind(name) for name in names)


_INSIDE_A_STEP: Final = _kinds(
    semconv.DATA_FETCH, semconv.DATA_COLLATE, semconv.DATA_TRANSFER, semconv.FORWARD, semconv.RECOMPUTE,
    semconv.BACKWARD, semconv.OPTIMIZER, semconv.ZERO_GRAD, semconv.DEVICE_SYNC, semconv.COLLECTIVE,
    semconv.COLLECTIVE_WAIT,
)  # fmt: skip
_UNMEASURED: Final[tuple[int, ...]] = (
    0,
    0,
    _INSIDE_A_STEP,
    _INSIDE_A_STEP | _kinds(semconv.DATA_WAIT, semconv.GC),
)
"""Kinds of phases that no mark is written of, by level."""

RUN_SCOPE: Final = marks.RUN_SCOPE
