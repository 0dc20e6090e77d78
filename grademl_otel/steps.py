# SPDX-License-Identifier: Apache-2.0
"""Step inference: which stretch of a training loop is one step, from what a script does anyway.

A script never says "this is a step". It asks loaders for batches, calls modules, runs backward and steps
optimizers; from the order of these events the machine below tells training, evaluation and incomplete steps
apart, and passes over loaders (epochs, evaluations). It is pure: every event comes with its time in
``perf_counter_ns``, results go to a :class:`Sink`, no framework is known here. One machine serves one thread.

The thread's loops form a stack: one pass for each loader iterator in use, above a bottom without a loader.
The top of the stack has the open row, and all compute goes there.

* ``next()`` on a pass ends its row when an optimizer has stepped or when there was a forward only; a backward
  without a step is gradient accumulation and the row goes on.
* ``next()`` on a pass further down abandons the passes above it.
* An iterator that is first asked right after another one gave a batch joins that one's row (``zip``).
* A training row whose update is done ends when another loader's pass begins.
* Where no ``next()`` can come (the bottom, an iterator that is gone), the row ends at the first forward after
  every live optimizer has stepped, so that the optimizers of a GAN make one step together; those of models
  that are trained one after another do not wait for each other.

Where the program says itself what a step is (`begin_said`), all that lies in it is that step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from grademl_otel import semconv
from grademl_otel.loops import ACTIVE, CLOSED, JOINED, PENDING, LoaderFacts, Pass, Row
from grademl_otel.marks import SCOPE_INDEX, phase_kind

DATA_WAIT: Final = phase_kind(semconv.DATA_WAIT)
FORWARD: Final = phase_kind(semconv.FORWARD)
RECOMPUTE: Final = phase_kind(semconv.RECOMPUTE)
BACKWARD: Final = phase_kind(semconv.BACKWARD)
OPTIMIZER: Final = phase_kind(semconv.OPTIMIZER)
ZERO_GRAD: Final = phase_kind(semconv.ZERO_GRAD)
GC: Final = phase_kind(semconv.GC)

EPOCH: Final = SCOPE_INDEX[semconv.EPOCH]
EVALUATE: Final = SCOPE_INDEX[semconv.EVALUATE]

TRAIN: Final = 0
INCOMPLETE: Final = semconv.FLAG_INCOMPLETE
EVALUATION: Final = semconv.FLAG_EVALUATE

SKIPPED: Final = 1
"""A phase `OPTIMIZER`'s own number: its update was skipped, as gradients were not finite."""
_MAX_PAUSES: Final = 64

OPTIMIZER_IDLE_STEPS: Final = 16
"""An optimizer that stood still while the others of its thread made so many steps is not part of a step."""
MAX_READ_AHEAD: Final = 8
"""Batches that a wrapper of a loader may hold back; more were skipped, not read ahead."""


class Sink(Protocol):
    """Where a machine's results go; times are ``perf_counter_ns``."""

    def phase(
        self, kind: int, lane: int, t0: int, t1: int, row: int, item: int, own: int, detail: int
    ) -> None:
        """Record one phase: its mark's kind, the serial of its row or 0, its packed item or -1."""

    def began(self, lane: int, kind: int, at: int) -> None:
        """Say that a phase runs, in case the process dies in it."""

    def ended(self, lane: int) -> None:
        """Say that the phase of a lane runs no more."""

    def pass_made(self, at: int) -> None:
        """Say that a loader gave out an iterator; comes before anything is made of it."""

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
        """Record a row; ``kind`` is `TRAIN`, `INCOMPLETE` or `EVALUATION`, ``samples`` 0 when unknown."""

    def pass_opened(
        self, pass_: int, lane: int, parent: int, kind: int, number: int, at: int, facts: LoaderFacts
    ) -> None:
        """Record that a pass exists; ``parent`` 0 is the run, ``kind`` may change until its close."""

    def pass_closed(self, pass_: int, lane: int, kind: int, at: int, steps: int, eval_steps: int) -> None:
        """Record the end of a pass."""

    def inside(self, machine: StepMachine, serial: int) -> None:
        """Say that what the thread of ``machine`` does from now on is part of the row ``serial``; 0: of none.

        Called in that thread. A row may be told before it exists, and never come to be.
        """


class Said(Pass):
    """Stands on the stack for a step that the program says it is in."""

    __slots__ = ("around", "kind", "samples")

    def __init__(self, kind: int, around: Pass, row: Row) -> None:
        super().__init__(0, None, row.start)
        self.state = ACTIVE
        self.kind = kind
        self.around = around
        """The pass whose step it is."""
        self.row = row
        self.samples = 0
        """As the program says; 0: it does not."""


@dataclass
class Totals:
    """Counts of the whole process, shared by the machines of its threads."""

    steps: int = 0
    eval_steps: int = 0
    incomplete: int = 0
    training_passes: int = 0

    def __post_init__(self) -> None:
        self.rows = count(1)


class StepMachine:
    """The state of one thread; see the module's text for its rules.

    ``serials`` numbers the scopes of the process. All methods expect times that do not go back.
    """

    __slots__ = (  # what is touched in each step, side by side; the rest may be anywhere
        "__dict__", "__weakref__", "_bottom", "_coming_at", "_gone", "_in_optimizer", "_inner", "_last_event",
        "_optimizers", "_released", "_reserved", "_said", "_shown", "_sink", "_stack", "_totals", "_used",
        "backwards", "in_backward", "lane", "last_optimizer", "optimizer_steps", "waiting",
    )  # fmt: skip

    def __init__(self, sink: Sink, totals: Totals, serials: count[int], lane: int) -> None:
        self.lane = lane
        self.waiting = False
        """Inside ``next()``: compute there belongs to the fetching of the batch, not to a row."""
        self.in_backward = False
        self.in_series = False
        """Between calls of modules that belong together: none ends a row."""
        self.backwards = 0
        """Backwards that returned."""
        self.optimizer_steps = 0
        """Steps of optimizers, skipped ones included."""
        self.last_optimizer = 0
        """The one that stepped last."""
        self._sink = sink
        self._totals = totals
        self._serials = serials
        self._bottom = Pass(0, None, 0)
        self._bottom.state = ACTIVE
        self._stack = [self._bottom]
        self._optimizers: dict[int, int] = {}
        """Live optimizers and the count of steps at which each stepped last."""
        self._used: dict[int, frozenset[int]] = {}
        """Roots that had been called in its row when each optimizer stepped last."""
        self._former = self._closed = 0
        """Optimizer steps when the last row but one was closed, and the last one."""
        self._last_event = 0
        self.scopes = [0]
        """Serials of the scopes that passes of this thread lie in, the innermost last; 0 is the run."""
        self._in_optimizer = False
        self._released: deque[tuple[Pass, int]] = deque()
        self._gone: deque[int] = deque()
        self._pauses: deque[tuple[int, int]] = deque(maxlen=_MAX_PAUSES)
        self._late = False
        """Something was noted that is to be handled at the next event."""
        self._reserved = 0
        """Serial of the next row of this thread, when it was told before the row exists."""
        self._shown = 0
        """Serial of the row that the sink was told last, see `Sink.inside`."""
        self._coming_at = 0
        """When the first thing began that was told as part of the next row; 0: nothing was."""
        self._inner: list[int] = []
        """Starts of the inner phases that run, the innermost last."""
        self._said: Said | None = None
        """The step that the program says it is in."""
        self.named: list[Any] = []
        """Phases that the program named and that run, the innermost last; see `manual`."""

    # --- Loaders ---------------------------------------------------------------------------------------

    def iterator_made(self, facts: LoaderFacts, at: int) -> Pass:
        """A loader gave out an iterator, or started one over (persistent workers)."""
        self._sink.pass_made(at)
        self._drain()
        self._forget_coming()
        top = self._close_ended(at)
        row = top.row
        if (
            row is not None
            and row.stepped
            and row.said is None
            and (top.facts is None or top.facts.loader != facts.loader)
        ):
            self._close_row(top, row.last if top is self._bottom else at)
        return Pass(next(self._serials), facts, at)

    def begin_wait(self, pass_: Pass, at: int) -> None:
        """``next()`` was called on the iterator of ``pass_``."""
        if self._late:
            self._drain()
        self._forget_coming()
        self.waiting = True
        if self._said is not None:
            if pass_.state != ACTIVE:
                pass_.state, pass_.host = JOINED, self._said
        elif pass_.state == JOINED:
            self._rejoin(pass_, at)
        elif pass_.state == CLOSED:
            self._reappear(pass_, at)
        if pass_.state == PENDING:
            self._enter(pass_, at)
        if pass_.state == ACTIVE and self._said is None:
            while self._stack[-1] is not pass_:
                self._close_pass(self._stack[-1], self._last(self._stack[-1]))
            self._settle(pass_, at)
        self._show(coming=True)
        self._sink.began(self.lane, DATA_WAIT, at)

    def end_wait(self, pass_: Pass, t0: int, t1: int, samples: int) -> int:
        """``next()`` gave a batch of ``samples`` samples (0 when unknown); return the packed item."""
        self.waiting = False
        item = pass_.item
        pass_.batches += 1
        joined = pass_.state == JOINED and self._said is None
        host = self._said or (pass_.host if joined and pass_.host is not None else pass_)
        row = host.row
        if row is None:
            row = host.row = self._new_row(t0)
        if joined:
            if not row.joined:
                row.joined = True
                row.joined_at = t0
            row.joined_samples += samples
        else:
            row.batches += 1
            row.samples += samples
        row.fresh = True
        row.last = t1
        self._sink.ended(self.lane)
        self._sink.phase(DATA_WAIT, self.lane, t0, t1, row.serial, item, 0, 0)
        self._show()
        return item

    def exhausted(self, pass_: Pass, t1: int) -> None:
        """``next()`` said that there is no further batch."""
        self.waiting = False
        self._forget_coming(told=True)
        self._sink.ended(self.lane)
        if pass_.state != ACTIVE:
            pass_.state = CLOSED
            return
        read_ahead = pass_.leading - 1
        pass_.ended = True
        if pass_.row is not None:
            return  # gradients without an update: a step after the loop may still come
        if self._said is not None and self._said.around is pass_:
            return  # the step that runs is its last
        if 0 < read_ahead <= MAX_READ_AHEAD and pass_.batches - pass_.consumed == read_ahead:
            pass_.owed = read_ahead
        else:
            self._close_pass(pass_, t1)
        self._show()

    def wait_failed(self) -> None:
        """``next()`` raised: the user's error, in a dataset or a worker."""
        self.waiting = False
        self._forget_coming(told=True)
        self._sink.ended(self.lane)
        self._show()

    def release(self, pass_: Pass, at: int) -> None:
        """The iterator is gone; handled at the next event, so the garbage collector may call this."""
        self._released.append((pass_, at))
        self._late = True

    def fetched(self, kind: int, lane: int, t0: int, t1: int, item: int, detail: int = 0) -> None:
        """The fetching or collating of ``item``, in a worker's lane or inside the wait of this lane."""
        host = self._stack[-1]
        row = host.row
        self._sink.phase(kind, lane, t0, t1, 0 if row is None else row.serial, item, 0, detail)

    # --- Compute ---------------------------------------------------------------------------------------

    def begin_forward(self, at: int, root: int, grad: bool = True) -> None:
        """A root module is called; ``root`` identifies it, ``grad``: a backward may follow."""
        if self._late:
            self._drain()
        if not self.in_series:
            self._end_row_before(root, grad)
        self._show(coming=True)
        self._sink.began(self.lane, FORWARD, at)

    def begin_series(self, root: int, grad: bool) -> None:
        """Calls of ``root`` and others begin that belong together, as in a generation: one row has them.

        The caller sets `in_series` meanwhile.
        """
        if self._late:
            self._drain()
        self._end_row_before(root, grad)

    def _end_row_before(self, root: int, grad: bool) -> None:
        """End the row that a call of ``root`` cannot belong to."""
        top = self._stack[-1]
        row = top.row
        if row is not None and (top.ended or top is self._bottom) and self._ends_at_forward(row, root):
            self._close_row(top, row.last)
        if not grad and self._coming_at and self._stack[-1].row is None:
            self._forget_coming()  # an evaluation: what was done for a training step before is no part of it

    def end_forward(self, t0: int, t1: int, grad: bool, root: int, detail: int) -> None:
        """The root module returned or raised; ``grad``: a backward may follow."""
        row = self._compute(t0, t1)
        row.forward = True
        row.grad = row.grad or grad
        row.roots.add(root)
        self._sink.ended(self.lane)
        self._sink.phase(FORWARD, self.lane, t0, t1, row.serial, -1, 0, detail)

    def recomputed(self, t0: int, t1: int, detail: int) -> None:
        """A root module was called inside a backward: activation checkpointing."""
        row = self._compute(t0, t1)
        self._sink.phase(RECOMPUTE, self.lane, t0, t1, row.serial, -1, 0, detail)

    def begin_backward(self, at: int) -> None:
        """The outermost backward begins."""
        if self._late:
            self._drain()
        self._show(coming=True)
        self._sink.began(self.lane, BACKWARD, at)

    def end_backward(self, t0: int, t1: int) -> None:
        """The outermost backward returned."""
        row = self._compute(t0, t1)
        row.backward = True
        self.backwards += 1
        top = self._stack[-1]
        if not top.opened and top.serial and not row.joined:
            self._open(top, EPOCH)
        self._sink.ended(self.lane)
        self._sink.phase(BACKWARD, self.lane, t0, t1, row.serial, -1, 0, 0)

    def backward_failed(self, t0: int, t1: int) -> None:
        """The outermost backward raised: its time counts, the step has no gradients."""
        row = self._compute(t0, t1)
        row.failed = True
        self._sink.ended(self.lane)
        self._sink.phase(BACKWARD, self.lane, t0, t1, row.serial, -1, 0, 0)

    def optimizer_made(self, optimizer: int, built: bool = True) -> None:
        """An optimizer was built in this thread; ``optimizer`` identifies it as long as it lives.

        Without ``built`` it was built elsewhere, and is used here.
        """
        self._drain()
        top = self._stack[-1]
        row = top.row
        done = row is not None and row.stepped and self._updated(row)
        if built and done and (top is self._bottom or top.ended):
            assert row is not None
            self._close_row(
                top, row.last
            )  # another training begins: this one does not wait for its optimizer
        self._optimizers[optimizer] = self.optimizer_steps

    def optimizer_gone(self, optimizer: int) -> None:
        """The optimizer is gone. Safe from any thread and from the garbage collector."""
        self._gone.append(optimizer)
        self._late = True

    def begin_optimizer(self, at: int) -> None:
        """The outermost optimizer step begins."""
        if self._in_optimizer:
            self._sink.ended(self.lane)
        self._in_optimizer = True
        self._sink.began(self.lane, OPTIMIZER, at)

    def stepped(self, optimizer: int, t0: int, t1: int, phase: bool = True) -> None:
        """An optimizer stepped; without ``phase``, inside a backward, the step is no time of its own."""
        if self._late:
            self._drain()
        row = self._compute(t0, t1)
        row.stepped.add(optimizer)
        self.last_optimizer = optimizer
        self.optimizer_steps += 1
        self._optimizers[optimizer] = self.optimizer_steps
        self._used[optimizer] = frozenset(row.roots)
        if self._in_optimizer and phase:
            self._in_optimizer = False
            self._sink.ended(self.lane)
            self._sink.phase(OPTIMIZER, self.lane, t0, t1, row.serial, -1, 0, 0)
            self._show()

    def skipped(self, optimizer: int, t0: int, t1: int) -> None:
        """A scaler skipped the step of an optimizer: the batch is used up all the same."""
        self.stepped(optimizer, t0, t1, phase=False)
        row = self._stack[-1].row
        assert row is not None
        self._sink.phase(OPTIMIZER, self.lane, t0, t1, row.serial, -1, SKIPPED, 0)
        self._show()

    def begin_inner(self, kind: int, at: int) -> None:
        """Something inside the step begins that is no boundary of it; `inner` with the same start ends it."""
        self._inner.append(at)
        self._sink.began(self.lane, kind, at)

    def inner(self, kind: int, t0: int, t1: int, own: int = 0, detail: int = 0, item: int = -1) -> None:
        """Something inside the step is over, which need not have been begun; it makes no row by itself.

        It belongs to the open row; without a loader, where that one is done, to the next; in a wait, a
        forward or a backward to the row that it begins; and to none where there is none. The thread may be
        another one that works for this machine's.
        """
        running = self._inner
        if running and t0 in running:
            # Those above raised, and their ends were not told.
            while running:
                self._sink.ended(self.lane)
                if running.pop() == t0:
                    break
        top = self._stack[-1]
        row = top.row
        serial = 0
        if row is None:
            serial = self._told_coming()
            if self.waiting:
                self._coming_at = self._coming_at or t0
        elif row.stepped and top is self._bottom and self._updated(row):
            serial = self._reserved = self._reserved or next(self._totals.rows)
            self._coming_at = self._coming_at or t0
        else:
            serial = row.serial
            if t1 > row.last:
                row.last = t1
        self._sink.phase(kind, self.lane, t0, t1, serial, item, own, detail)

    def row_of(self, at: int) -> int:
        """Serial of the row of something that begins at ``at`` and goes on beside the thread; 0: of none.

        It is the row that `inner` would choose, and where there is none yet, that of the forward or backward
        that the thread is in.
        """
        top = self._stack[-1]
        row = top.row
        if row is None:
            return self._told_coming()
        if row.stepped and top is self._bottom and self._updated(row):
            self._reserved = self._reserved or next(self._totals.rows)
            self._coming_at = self._coming_at or at
            return self._reserved
        if at > row.last:
            row.last = at
        return row.serial

    def _told_coming(self) -> int:
        """Serial of the row that the wait, forward or backward begins that runs; 0: none runs."""
        return self._reserved if self._reserved == self._shown else 0

    # --- What the program says itself -----------------------------------------------------------------------

    def begin_said(self, kind: int, at: int, samples: int) -> Said | None:
        """The program says that a step of ``kind`` begins; None inside another one, which it is part of.

        What has come of a step by now, the batch that was waited for above all, is part of it.
        """
        if self._said is not None:
            return None
        self._drain()
        top = self._stack[-1]
        if top.row is None or self._ends_at_next(top.row):
            top = self._close_ended(at)
        row = top.row
        if row is not None and self._ends_at_next(row):
            self._close_row(top, row.last if top is self._bottom else at)
        row, top.row = top.row or self._new_row(at), None
        row.said = INCOMPLETE  # until it ends as it should
        said = Said(kind, top, row)
        said.samples = samples
        self._stack.append(said)
        self._said = said
        self._show()
        return said

    def end_said(self, said: Said, at: int, failed: bool) -> None:
        """It ends; ``failed``: by an exception."""
        if self._said is not said:
            return
        row = said.row
        if row is not None:
            row.last = max(row.last, at)
            row.said = INCOMPLETE if failed else said.kind
            row.samples = said.samples or row.samples
        self._close_pass(said, at)
        self._show()

    def said_phase(self, kind: int, t0: int, t1: int, own: int, detail: int) -> int:
        """A phase is over that the program named; return the serial of the row that it lies in, 0 for none.

        It may have begun before its row, which then begins with it, and it may hold several rows: then it
        lies in none.
        """
        top = self._stack[-1]
        row = top.row
        if self._last_event > t0:
            serial = 0
        elif row is None:
            serial = self._reserved if self.waiting else 0
        elif row.last <= t0 and row.stepped and top is self._bottom and self._updated(row):
            # A loop without a loader: this begins its next step, if another comes.
            serial = self._reserved = self._reserved or next(self._totals.rows)
            self._coming_at = self._coming_at or t0
        else:
            serial = row.serial
            row.start = min(row.start, t0)
            row.last = max(row.last, t1)
        self._sink.phase(kind, self.lane, t0, t1, serial, -1, own, detail)
        return serial

    # --- Beside steps --------------------------------------------------------------------------------------

    def paused(self, t0: int, t1: int) -> None:
        """The thread stood still for a garbage collection; handled at the next event.

        It may have come in the middle of anything here.
        """
        self._pauses.append((t0, t1))
        self._late = True

    def begin_aside(self, kind: int, at: int) -> None:
        """Something beside the step begins."""
        self._sink.began(self.lane, kind, at)

    def aside(self, kind: int, t0: int, t1: int, own: int, detail: int = 0, item: int = -1) -> None:
        """Something beside the step, as a checkpoint: in the open row unless it follows a finished one."""
        if self._late:
            self._drain()
        top = self._stack[-1]
        row = top.row
        if row is not None and row.stepped and (top is self._bottom or top.ended):
            row = None
            self._forget_coming()
        if row is not None:
            row.last = t1
        self._sink.ended(self.lane)
        self._sink.phase(kind, self.lane, t0, t1, 0 if row is None else row.serial, item, own, detail)

    def resting_since(self) -> int | None:
        """When the last event was; None while a phase or a pass over a loader is live."""
        released = [pass_ for pass_, _ in list(self._released)]
        if self.waiting or self.in_backward or self._in_optimizer:
            return None
        if any(not pass_.ended and pass_ not in released for pass_ in self._stack[1:]):
            return None
        return self.last_event()

    def last_event(self) -> int:
        """When the last event was."""
        return max(self._last(pass_) for pass_ in self._stack)

    def pause(self) -> None:
        """End the rows that the next event would end, at their own last event, in case it comes late.

        A forward alone stays open where gradients were recorded: a backward may be to come.
        """
        self._drain()
        for pass_ in list(self._stack):
            row = pass_.row
            if row is not None and self._ends_at_next(row) and (row.stepped or row.backward or not row.grad):
                self._close_row(pass_, row.last)
        self._forget_coming()
        self._show()

    # --- While only updates are counted ------------------------------------------------------------------

    @property
    def current_pass(self) -> int:
        """Serial of the pass that is going on; 0 where there is none."""
        return self._stack[-1].serial

    def stepped_unseen(self, steps: int, at: int) -> None:
        """``steps`` updates of the current pass were counted elsewhere; the last ended at ``at``."""
        top = self._stack[-1]
        top.steps += steps
        top.batches += steps
        self._last_event = max(self._last_event, at)

    def forget_rows(self) -> None:
        """Rows are seen again from here on: drop what is left of those before."""
        for pass_ in self._stack:
            pass_.row = None
            pass_.consumed = pass_.batches

    # --- The end -----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The run or the thread ends: close all that is open, each at its last event, and forget the rest."""
        self._drain()
        while self._stack[-1] is not self._bottom:
            self._close_pass(self._stack[-1], self._last(self._stack[-1]))
        if self._bottom.row is not None:
            self._close_row(self._bottom, self._bottom.row.last)
        self._optimizers.clear()
        self._used.clear()
        self.named.clear()
        self._show()

    def foresee(self, serial: int, grad: bool) -> tuple[int, int]:
        """Return the kind and the number that the row ``serial`` will have, as far as can be told by now.

        ``grad`` says whether gradients are recorded at present. The number is that of the step among those
        of its kind.
        """
        top = self._stack[-1]
        row = top.row if top.row is not None and top.row.serial == serial else None
        if self._said is not None:
            trains = self._said.kind == TRAIN
        elif row is not None and (row.backward or row.stepped):
            trains = True
        elif top is not self._bottom and (top.steps or top.incomplete or top.eval_steps):
            trains = top.steps + top.incomplete > 0  # what a pass has done it goes on to do
        else:
            trains = grad or (row is not None and row.grad)
        return (TRAIN, self._totals.steps) if trains else (EVALUATION, self._totals.eval_steps)

    def left(self, serial: int) -> bool:
        """Whether the loop of the row ``serial`` was left, by a break or an exception, with its work done.

        Such a row is closed at the next event, as if it had ended then already.
        """
        top = self._stack[-1]
        row = top.row
        if row is None or row.serial != serial or not self._released:
            return False
        return any(pass_ is top for pass_, _ in tuple(self._released)) and self._ends_at_next(row)

    # --- Rules -----------------------------------------------------------------------------------------

    def _ends_at_next(self, row: Row) -> bool:
        if row.said is not None:
            return False
        if row.stepped:
            return True
        if row.backward:
            return not self._optimizers  # the script updates by hand
        return row.forward

    def _ends_at_forward(self, row: Row, root: int) -> bool:
        if row.stepped:
            return self._updated(row, root)
        if row.failed and not row.backward:
            return True
        if row.backward:
            return not self._optimizers
        if row.grad and self._optimizers:
            return False  # a backward is to come
        # An evaluation without a loader: the same module again is the next batch. Another one goes on with
        # this batch: a decoder, a loss, or the student after its teacher.
        return root in row.roots

    def _updated(self, row: Row, root: int = 0) -> bool:
        """Whether every live optimizer that takes part in the steps has stepped.

        One that only ever stepped where other roots were called takes none when it was not in the last row
        or when ``root`` is called again: the folds of a cross-validation, the trainings that a thread of a
        pool is given one after another.
        """
        again = root in row.roots
        return all(
            optimizer in row.stepped
            or self.optimizer_steps - last >= OPTIMIZER_IDLE_STEPS
            or (
                (again or last <= self._former)
                and optimizer in self._used
                and self._used[optimizer].isdisjoint(row.roots)
            )
            for optimizer, last in self._optimizers.items()
        )

    def _kind(self, pass_: Pass, row: Row) -> int:
        if row.backward or row.stepped:
            return TRAIN
        if row.failed:
            return INCOMPLETE
        if row.grad and pass_.steps and pass_ is not self._bottom:
            return INCOMPLETE
        return EVALUATION

    # --- Passes ----------------------------------------------------------------------------------------

    def _enter(self, pass_: Pass, at: int) -> None:
        """Give a pass that is asked for the first time its place."""
        top = self._stack[-1]
        row = top.row
        if row is not None and row.fresh and not row.computed and top is not self._bottom:
            pass_.state = JOINED
            pass_.host = top
            return
        top = self._close_ended(at)
        row = top.row
        if row is not None and (row.stepped or top is self._bottom):
            self._close_row(top, row.last if top is self._bottom else at)
        pass_.state = ACTIVE
        pass_.host = None
        top = self._stack[-1]
        # Made long before it is used, or before the pass around it: then it starts now, or with that one.
        pass_.made_at = at if self._last_event > pass_.made_at else max(pass_.made_at, top.made_at)
        self._stack.append(pass_)

    def _rejoin(self, pass_: Pass, at: int) -> None:
        """A joined iterator is asked again: still a partner, or was it never one?"""
        host = pass_.host
        if host is None or host.state != ACTIVE:
            pass_.state = PENDING
            return
        row = host.row
        if row is None or row.fresh or not row.computed or pass_.interleaved:
            return
        # Its host was not asked in between, so the host's batch was a look at the data and this pass is a
        # loop of its own: the row moves over.
        while self._stack[-1] is not host:
            self._close_pass(self._stack[-1], self._last(self._stack[-1]))
        host.row = None
        row.start = row.joined_at
        row.batches = 1
        row.samples = row.joined_samples
        pass_.host = None
        pass_.state = ACTIVE
        pass_.row = row
        pass_.leading = 1
        pass_.made_at = max(pass_.made_at, host.made_at)
        if host.ended:
            self._close_pass(host, at)
        self._stack.append(pass_)

    def _reappear(self, pass_: Pass, at: int) -> None:
        """An iterator that was taken for abandoned is asked again: two loaders take turns in one loop."""
        top = self._stack[-1]
        trained = pass_.steps > 0
        if trained and top is not self._bottom:
            pass_.state = JOINED
            pass_.host = top
            pass_.interleaved = True
            return
        # An evaluation batch now and then: each turn is a pass.
        pass_.restart(next(self._serials), at)

    def _settle(self, pass_: Pass, at: int) -> None:
        """End, drop or continue the row of a pass that is asked for its next batch."""
        row = pass_.row
        if row is None:
            if not pass_.consumed:
                pass_.leading += 1
        elif self._ends_at_next(row):
            self._close_row(pass_, at)
        elif not row.computed:
            pass_.row = None
            if not pass_.consumed:
                pass_.leading += 1

    def _close_ended(self, at: int) -> Pass:
        """Close the passes on top that cannot go on; return the top that can."""
        top = self._stack[-1]
        while top.ended:
            if top.row is not None and top.row.stepped:
                self._close_row(top, at if not top.owed else top.row.last)
            if top.state == ACTIVE:
                self._close_pass(top, self._last(top))
            top = self._stack[-1]
        return top

    def _open(self, pass_: Pass, kind: int) -> None:
        parent = self.scopes[-1]
        for other in self._stack:
            if other is pass_:
                break
            if other.opened:
                parent = other.serial
        pass_.opened = True
        assert pass_.facts is not None
        self._sink.pass_opened(
            pass_.serial, self.lane, parent, kind, self._totals.training_passes, pass_.made_at, pass_.facts
        )

    def _close_pass(self, pass_: Pass, at: int) -> None:
        """Take a pass off the stack, wherever it is, ending its row first."""
        if pass_.row is not None:
            at = max(at, pass_.row.last)
            self._close_row(pass_, pass_.row.last)
        if pass_.state != ACTIVE:
            return
        pass_.state = CLOSED
        self._stack.remove(pass_)
        if pass_ is self._said:
            self._said = None
        self._last_event = max(self._last_event, at)
        if not pass_.opened:
            return
        kind = EPOCH if pass_.steps or pass_.incomplete else EVALUATE
        if kind == EPOCH:
            self._totals.training_passes += 1
        self._sink.pass_closed(pass_.serial, self.lane, kind, at, pass_.steps, pass_.eval_steps)

    def _close_row(self, pass_: Pass, at: int) -> None:
        """End the open row of ``pass_`` at time ``at``; a row with nothing but data is no row."""
        row = pass_.row
        assert row is not None
        pass_.row = None
        if self._in_optimizer:  # its step raised: the hook after it never came
            self._in_optimizer = False
            self._sink.ended(self.lane)
        if not row.computed and row.said is None:
            return
        totals = self._totals
        if isinstance(pass_, Said):
            pass_ = pass_.around if pass_.around.state == ACTIVE else self._bottom
        kind = self._kind(pass_, row) if row.said is None else row.said
        if not pass_.opened and pass_.serial:
            self._open(pass_, EVALUATE if kind == EVALUATION else EPOCH)
        number = totals.steps
        if kind == TRAIN:
            # Right after the number is read: no two threads that train side by side get the same.
            totals.steps = number + 1
            self._former, self._closed = self._closed, self.optimizer_steps
            pass_.steps += 1
        elif kind == EVALUATION:
            pass_.eval_steps += 1
            totals.eval_steps += 1
        else:
            pass_.incomplete += 1
            totals.incomplete += 1
        pass_.consumed += row.batches
        end = self._last_event = max(row.last, at)
        micro = max(row.batches, 1)
        self._sink.row(row.serial, self.lane, row.start, end, number, kind, micro, pass_.serial, row.samples)
        if pass_.owed:
            pass_.owed -= 1
            if not pass_.owed:
                self._close_pass(pass_, end)
        elif pass_.ended:
            self._close_pass(pass_, end)

    def _last(self, pass_: Pass) -> int:
        """The last event that belongs to ``pass_`` or to a pass inside it."""
        row = pass_.row
        return max(pass_.made_at, self._last_event, 0 if row is None else row.last)

    def _compute(self, t0: int, t1: int) -> Row:
        """The row that compute from ``t0`` to ``t1`` belongs to, made when there is none."""
        top = self._stack[-1]
        row = top.row
        if row is None:
            row = top.row = self._new_row(t0)
        elif t0 < row.start:
            row.start = t0
        row.fresh = False
        row.last = t1
        return row

    def _new_row(self, at: int) -> Row:
        """A row that begins at ``at``, or with what was told as part of it before."""
        serial, self._reserved = self._reserved or next(self._totals.rows), 0
        coming_at, self._coming_at = self._coming_at, 0
        return Row(serial, min(at, coming_at) if coming_at else at)

    def _forget_coming(self, told: bool = False) -> None:
        """What was recorded as part of the next row stands outside of rows: something else came first.

        With ``told``, also where the thread was told that row: it does not come.
        """
        if self._coming_at:
            self._coming_at = 0
            if told or self._reserved != self._shown:
                self._reserved = 0

    def _show(self, coming: bool = False) -> None:
        """Tell the sink which row the thread is in now, with ``coming`` the one that this event begins."""
        top = self._stack[-1]
        row = top.row
        if row is not None:
            serial = row.serial
            if row.stepped and (top.ended or top is self._bottom) and self._updated(row):
                serial = 0  # no event may come that ends it; what follows is not part of it
        elif coming:
            serial = self._reserved = self._reserved or next(self._totals.rows)
        else:
            serial = 0
        if serial != self._shown:
            self._shown = serial
            self._sink.inside(self, serial)

    def _drain(self) -> None:
        """Handle what the garbage collector reported since the last event."""
        self._late = False
        while self._pauses:
            self.inner(GC, *self._pauses.popleft())
        while self._gone:
            gone = self._gone.popleft()
            self._optimizers.pop(gone, None)
            self._used.pop(gone, None)
        while self._released:
            pass_, at = self._released.popleft()
            if pass_.state == ACTIVE:
                row = pass_.row
                if pass_.owed:
                    continue
                if row is None or self._ends_at_next(row):
                    self._close_pass(pass_, at)
                else:
                    pass_.ended = True  # `next(iter(loader))`: its batch is still to be used
            elif pass_.state != CLOSED:
                pass_.state = CLOSED
