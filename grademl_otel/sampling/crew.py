# SPDX-License-Identifier: Apache-2.0
"""A few threads that do what is due, one thing after the other, as long as nothing takes long.

To wake a thread costs more than most readings: its code and its data have left the caches since the last
second. So one worker, the lead, waits for what is due next, and does all that is due then. Another, the
watch, looks a moment later whether anything due is still not done, because the lead hangs in something or is
slow; it then takes over, and is replaced itself. So a call that hangs delays others once, by that moment; to
what was slow the last time the lead goes alone, and another one takes its place at once. (Leader/followers,
Schmidt et al., PLoP 2000, but that followers are promoted when something is late, not with each event.)
"""

from __future__ import annotations

import threading
import time
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from grademl_otel.sampling.alarm import Alarm

_MOMENT_NS: Final = 25_000_000
"""How late the watch looks. What takes longer is slow."""
_IDLE_NS: Final = 60_000_000_000
"""A worker who was not needed for so long ends."""
_NEVER: Final = 1 << 63


class Task(Protocol):
    """Something that is due again and again."""

    due_ns: int
    """When, of perf_counter; `turn` sets it anew."""

    def turn(self) -> bool:
        """Do what is due; return False when there will be no more. May block; raises nothing."""


class _Place:
    """A task in the crew."""

    __slots__ = ("due", "is_hurried", "is_slow", "number", "task")

    def __init__(self, task: Task, number: int) -> None:
        self.task = task
        self.number = number
        self.due = task.due_ns
        self.is_slow = False
        self.is_hurried = False
        """Its next turn is to come at once."""

    def __lt__(self, other: _Place) -> bool:
        return (self.due, self.number) < (other.due, other.number)


class _Worker:
    """A thread of the crew; ``until`` is when it wakes by itself, while it waits."""

    __slots__ = ("alarm", "cost_ns", "until")

    def __init__(self) -> None:
        self.alarm = Alarm()
        self.until = 0
        self.cost_ns = 0


class Crew:
    """Does the turns of tasks; never two of one task at a time. Any thread may call any of this.

    There is no thread before the first task, and none after `end` once all tasks are over.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: list[_Place] = []
        """A heap."""
        self._places: dict[int, _Place] = {}
        """Of all tasks by their ids, those in hand included."""
        self._added = 0
        self._workers: set[_Worker] = set()
        self._lead: _Worker | None = None
        self._watch: _Worker | None = None
        self._idle: list[_Worker] = []
        self._coming: set[_Worker] = set()
        """Those who were called, and will look at what is due as soon as they are awake."""
        self._ending = False
        self._spent_ns = 0
        """By workers who have ended."""

    def add(self, task: Task) -> None:
        """Have its turns done from now on; raises RuntimeError where there can be no thread for it."""
        with self._lock:
            place = _Place(task, self._added)
            heappush(self._waiting, place)
            try:
                self._see_to_it()
            except RuntimeError:
                self._waiting.remove(place)
                heapify(self._waiting)
                raise
            self._places[id(task)] = place
            self._added += 1

    def hurry(self, task: Task) -> None:
        """Have its next turn now; at once after the one that is under way."""
        with self._lock:
            place = self._places.get(id(task))
            if place is not None:
                place.is_hurried, place.due = True, 0
                heapify(self._waiting)
                self._try_to_see_to_it()

    def look(self) -> None:
        """Have somebody wake up for what is due, where there could be no thread for that; now and then."""
        with self._lock:
            self._try_to_see_to_it()

    def end(self) -> None:
        """Have the threads end as soon as all tasks are over; does not wait."""
        with self._lock:
            self._ending = True
            if not self._places:
                self._wake_all()

    def cost_ns(self) -> int:
        """Return the CPU time that the threads took; never falls."""
        with self._lock:
            return self._spent_ns + sum(worker.cost_ns for worker in self._workers)

    # All below with the lock held, but for turns and waits.

    def _see_to_it(self, moment: int = _MOMENT_NS) -> None:
        """Have somebody wake up for the first task: at once when it is due, or, where whoever calls this is
        about to do another one, ``moment`` ns later. Raises RuntimeError where there can be no more threads.
        """
        if not self._waiting or self._coming:
            return
        due = self._waiting[0].due
        if self._lead is not None:
            if self._lead.until > due:
                self._lead.alarm.ring()
        elif self._watch is not None:
            if self._watch.until > max(due, time.perf_counter_ns()) + moment:
                self._watch.alarm.ring()
        elif self._idle:
            worker = self._idle.pop()
            self._coming.add(worker)
            worker.alarm.ring()
        else:
            worker = _Worker()
            thread = threading.Thread(target=self._run, args=(worker,), name=self._name, daemon=True)
            thread.start()
            self._coming.add(worker)
            self._workers.add(worker)

    def _try_to_see_to_it(self, moment: int = _MOMENT_NS) -> None:
        try:
            self._see_to_it(moment)
        except RuntimeError:
            pass  # whoever is at work does the rest later; `look` tries again, where all of them hang

    def _wake_all(self) -> None:
        for worker in (self._lead, self._watch, *self._idle):
            if worker is not None:
                worker.alarm.ring()

    def _run(self, worker: _Worker) -> None:
        with self._lock:
            self._coming.discard(worker)
            while self._places or not self._ending:
                if self._waiting and self._waiting[0].due <= time.perf_counter_ns():
                    self._do(heappop(self._waiting))
                elif not self._rest(worker):
                    break
            self._spent_ns += time.thread_time_ns()
            self._workers.discard(worker)

    def _do(self, place: _Place) -> None:
        """Do one turn, and see to it that others are not forgotten meanwhile."""
        self._try_to_see_to_it(0 if place.is_slow else _MOMENT_NS)
        place.is_hurried = False
        self._lock.release()
        began = time.perf_counter_ns()
        goes_on = False
        try:
            goes_on = place.task.turn()
        except BaseException:
            pass  # against its contract; there is nobody to tell, and others wait for their turns
        took = time.perf_counter_ns() - began
        self._lock.acquire()
        if goes_on:
            place.is_slow = took > _MOMENT_NS
            place.due = 0 if place.is_hurried else place.task.due_ns
            heappush(self._waiting, place)
            return
        del self._places[id(place.task)]
        if self._ending and not self._places:
            self._wake_all()

    def _rest(self, worker: _Worker) -> bool:
        """Wait for what is due, as the lead, the watch, or one of those who are not needed; return False when
        it was not for long.
        """
        due = self._waiting[0].due if self._waiting else _NEVER
        if self._lead is None:
            self._lead, worker.until = worker, due
        elif self._watch is None:
            self._watch, worker.until = worker, due + _MOMENT_NS
            self._try_to_see_to_it()  # the lead may not know yet
        else:
            self._idle.append(worker)
            worker.until = time.perf_counter_ns() + _IDLE_NS
            self._try_to_see_to_it()
        worker.cost_ns = time.thread_time_ns()
        self._lock.release()
        try:
            worker.alarm.wait((worker.until - time.perf_counter_ns()) / 1e9)
        finally:
            self._lock.acquire()
        self._coming.discard(worker)
        if self._lead is worker:
            self._lead = None
        elif self._watch is worker:
            self._watch = None
        elif worker in self._idle:
            self._idle.remove(worker)
            return False
        return True
