# SPDX-License-Identifier: Apache-2.0
"""Collectives under way: how their end is learned of, and what a thread waits for them.

* The caller waits in the call (``dist.all_reduce(t)``): the collective ends when that ``Work.wait`` returns.
* It goes on by itself, in memory of the CPU: a callback on the work's future, in a thread of the backend,
  tells its end. The future alone knows the callback, and the callback knows no tensor. Not so for the first
  kind: a backend runs the callbacks before it wakes the thread that waits for the work.
* Calls between two ranks have no such future on gloo: their end is that of ``Work.wait``.
* On another device the host does not learn of it: the end of the call is told, as what it is.

What a thread waits for a collective that goes on by itself is a phase of the thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from torch.distributed import Work

from grademl_otel import marks, semconv
from grademl_otel.governor import ROOTS
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.groups import Group
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

COLLECTIVE: Final = marks.phase_kind(semconv.COLLECTIVE)
WAIT: Final = marks.phase_kind(semconv.COLLECTIVE_WAIT)
COMM_LANE: Final = "comm"
"""Of collectives that run beside the thread which issued them."""


class Issued(NamedTuple):
    """A collective whose end `Work.wait` tells."""

    recorder: Recorder
    machine: StepMachine | None
    """Of the thread that it is part of the work of; None where no thread that trains is known."""
    row: int
    t0: int
    returned: int
    """When the call returned that issued it."""
    item: int
    size: int
    """Bytes."""
    operation: int
    host: bool
    """The data is in memory of the CPU: it is complete when nobody has to wait any more."""
    blocking: bool
    """The thread is about to wait for it."""
    counts: list[int] | None
    """Of the row, where the collective goes on beside the thread, see `Recorder.goes_on`."""
    sender: tuple[Group, int] | None
    """Where it receives from any rank: its group and tag. Who sent is known at the end."""

    def over(self, t1: int, completed: bool, work: Any = None) -> None:
        """It ended at ``t1``, in success with ``completed``; ``work`` is what was waited for."""
        recorder, machine, row, t0, _, item, size, operation, host, blocking, counts, sender = self
        if sender is not None and completed:
            group, tag = sender
            text, number = group.count_between(int(work._source_rank()), group.rank, tag)
            item = marks.pack_item(recorder.text(text), number)
        own = marks.pack_collective(size, completed and host, blocking)
        if blocking and machine is not None:
            machine.inner(COLLECTIVE, t0, t1, own, operation, item)
        else:
            recorder.phase(COLLECTIVE, recorder.lane(COMM_LANE), t0, t1, row, item, own, operation)
        if counts is not None:
            counts[1] += 1

    def left(self) -> None:
        """Nobody saw its end."""
        try:
            self.over(self.returned, False)
        except Exception:
            self.recorder.lost()


class Method(NamedTuple):
    """A wrapped method of a group that is under way: it knows what a hook is not told."""

    tag: int
    """Of a call between two ranks, else 0."""
    blocking: bool
    """Whether its caller will wait for the work."""


class Here(threading.local):
    """What a thread has issued, until it is known what becomes of it."""

    method: Method | None = None

    blocking: Issued | None = None
    """It is about to wait for this one."""
    returning: Issued | None = None
    """The call that issued this one is about to return its work."""


here: Final = Here()
_tracked: dict[int, tuple[weakref.ref[Any], Issued]] = {}
"""By the id of the work."""


def install(patches: Patches) -> None:
    """Wrap ``Work.wait``, while what is inside a step is measured."""
    patches.replace(Work, "wait", _wrap_wait(vars(Work)["wait"]), ROOTS)
    patches.on_restore(_tracked.clear)


def future_of(work: Any) -> Any:
    """The future of ``work``; None where there is none, as of some operations."""
    try:
        return work.get_future()
    except (AttributeError, RuntimeError):
        return None


def follow(future: Any, recorder: Recorder, row: int, t0: int, item: int, size: int, operation: int) -> None:
    """A collective goes on beside the thread until its ``future`` is done."""
    counts, lane = recorder.goes_on(row), recorder.lane(COMM_LANE)
    future.add_done_callback(partial(_completed, recorder, counts, lane, row, t0, item, size, operation))


def _completed(
    recorder: Recorder,
    counts: list[int],
    lane: int,
    row: int,
    t0: int,
    item: int,
    size: int,
    operation: int,
    future: Any,
) -> None:
    """Callback of a future, in a thread of the backend; what it raises would be printed."""
    t1 = perf_counter_ns()
    try:
        own = marks.pack_collective(size, _succeeded(future), False)
        recorder.phase(COLLECTIVE, lane, t0, t1, row, item, own, operation)
        counts[1] += 1
    except Exception:
        recorder.lost()


def _succeeded(future: Any) -> bool:
    try:
        future.value()
        return True
    except Exception:
        return False


def returned(work: Any) -> None:
    """``work`` is what the call returns to the program that issued `Here.returning`."""
    issued, here.returning = here.returning, None
    if issued is None or work is None:
        return
    number = id(work)

    def gone(_: object) -> None:
        if _tracked.pop(number, None) is not None:
            issued.left()  # nobody waited for it

    _tracked[number] = weakref.ref(work, gone), issued


def leave() -> None:
    """The end of what this thread had issued will not be seen any more."""
    for issued in (here.blocking, here.returning):
        if issued is not None:
            issued.left()
    here.blocking = here.returning = None


def _wrap_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: waits for collectives")

    @pass_over
    @wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        waiting, completed = None, False
        try:
            waiting = begin_wait(self, guard)
            result = original(self, *args, **kwargs)
            completed = True
            return result
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if waiting is not None:
                end_wait(waiting, self, completed, guard)

    return wait


Waiting = tuple[Issued | None, Recorder, StepMachine | None, int]
"""A thread that waits for a collective, one that was issued here if that is known, since a time."""


def begin_wait(work: Any, guard: Guard) -> Waiting | None:
    if not guard.on:
        return None
    try:
        t0 = perf_counter_ns()
        issued = here.blocking
        if issued is not None:
            here.blocking = None
            if issued.machine is not None:
                issued.machine.begin_inner(COLLECTIVE, issued.t0)
            return issued, issued.recorder, issued.machine, t0
        found = _tracked.pop(id(work), None) if _tracked else None
        recorder = session.recorder
        if recorder is None:
            return None
        machine = recorder.known()
        if machine is not None:
            machine.begin_inner(WAIT, t0)
        return None if found is None else found[1], recorder, machine, t0
    except Exception as error:
        guard.failed(error)
        return None


def end_wait(waiting: Waiting, work: Any, completed: bool, guard: Guard) -> None:
    try:
        t1 = perf_counter_ns()
        issued, recorder, machine, t0 = waiting
        if machine is not None and (issued is None or not issued.blocking):
            machine.inner(WAIT, t0, t1)
        if issued is not None:
            issued.over(t1, completed, work)
        if recorder.measuring:
            recorder.spent(t1)
    except Exception as error:
        guard.failed(error)
