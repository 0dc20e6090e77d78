# SPDX-License-Identifier: Apache-2.0
"""Data: passes over `DataLoader`s, the waits for their batches, and what making a batch took.

A loader without workers makes its batches inside the wait, clocked by `fetchclock`. Workers send their times
back with the batch, see `worker`.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from grademl_otel import marks, semconv
from grademl_otel.governor import BOUNDARIES
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches, that_takes
from grademl_otel.instrumentations.torch.fetchclock import COLLATE, START, FetchClock
from grademl_otel.instrumentations.torch.worker import TimedIndex
from grademl_otel.lifecycle import session
from grademl_otel.loops import LoaderFacts, Pass
from grademl_otel.messages import complain
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame

STAMP: Final = "_grademl_stamp"
_FACTS: Final = "_grademl_facts"
"""On an iterator that was made before the run: in a forked child only a backward starts one."""
_FETCH: Final = marks.phase_kind(semconv.DATA_FETCH)
_COLLATE: Final = marks.phase_kind(semconv.DATA_COLLATE)
_LATE_WORKERS: Final = (
    "the times of loader workers that were started before grademl_otel.instrument() are not recorded; "
    "call it before the loop begins"
)
_Tensor: Final = torch.Tensor
_DEPTH: Final = 3
"""How deep a batch is looked into for a tensor that tells the number of samples."""


def install(patches: Patches) -> None:
    """Wrap the passes and waits of torch's own loaders; clock the fetchers."""
    record_loader(patches, DataLoader, _SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)
    FetchClock.install(patches)


def record_loader(patches: Patches, loader: type, *iterators: type) -> None:
    """Wrap the ``__iter__`` of a class of loaders and the ``_next_data`` of its classes of iterators.

    Not their ``__next__``, which warns about the line that called it: that must be the user's.
    """
    patches.replace(loader, "__iter__", _wrap_iter(vars(loader)["__iter__"]))
    for iterator in iterators:
        next_data = that_takes(vars(iterator)["_next_data"], "self")
        patches.replace(iterator, "_next_data", _wrap_next(next_data), BOUNDARIES)


class Stamp:
    """What an iterator carries: its pass. Its own end tells that the iterator is gone or starts over."""

    __slots__ = ("last", "machine", "pass_", "recorder", "records")

    def __init__(self, recorder: Recorder, machine: StepMachine, pass_: Pass) -> None:
        self.recorder = recorder
        self.machine = machine
        self.pass_ = pass_
        self.records: dict[int, TimedIndex] = {}
        """Times of batches that workers have sent and that are not handed out yet."""
        self.last = -1
        """Index of the batch that came last."""

    def __del__(self) -> None:
        try:
            self.machine.release(self.pass_, perf_counter_ns())
        except Exception:
            pass  # the interpreter is going down


class _Numbers:
    """Small numbers for loaders, free again with the loader: one made anew each epoch keeps its number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._free: list[int] = []

    def of(self, loader: Any) -> int:
        key = id(loader)
        known = self._known.get(key)
        if known is not None and known[0]() is loader:
            return known[1]
        number = heapq.heappop(self._free) if self._free else len(self._known)

        def gone(reference: weakref.ref[Any]) -> None:
            if self._known.get(key, (None,))[0] is reference:
                del self._known[key]
            heapq.heappush(self._free, number)

        self._known[key] = (weakref.ref(loader, gone), number)
        return number


_numbers: Final = _Numbers()


def _wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: passes over a DataLoader")

    @wraps(original)
    def __iter__(self: Any) -> Any:
        t0 = perf_counter_ns()
        try:
            iterator = original(self)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        if guard.on:
            try:
                recorder = session.recorder
                if recorder is None or t0 > recorder.idle_at:
                    recorder = session.begin(training=False, at=t0)
                if recorder is not None:
                    _stamp(iterator, recorder, _facts(self), t0)
                elif session.child and not session.in_worker:
                    setattr(iterator, _FACTS, _facts(self))
            except Exception as error:
                guard.failed(error)
        return iterator

    return __iter__


def _stamp(iterator: Any, recorder: Recorder, facts: LoaderFacts, t0: int) -> Stamp | None:
    if not isinstance(iterator, _BaseDataLoaderIter):
        return None
    machine = recorder.here()
    if machine.waiting:
        return None  # a loader inside a dataset
    stamp = Stamp(recorder, machine, machine.iterator_made(facts, t0))
    # A persistent iterator that starts over drops its former stamp here, which ends that pass.
    setattr(iterator, STAMP, stamp)
    return stamp


def _facts(loader: Any) -> LoaderFacts:
    """What ``loader`` says of itself."""
    workers = int(getattr(loader, "num_workers", 0) or 0)
    sampler = getattr(loader, "batch_sampler", None)
    batch_size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    prefetch = getattr(loader, "prefetch_factor", None)
    return LoaderFacts(
        loader=_numbers.of(loader),
        workers=workers,
        prefetch=int(prefetch) if workers and prefetch else None,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        persistent=bool(getattr(loader, "persistent_workers", False)),
        in_order=bool(getattr(loader, "in_order", True)),
    )


def _late_facts(iterator: Any) -> LoaderFacts:
    """What an iterator that was there before the hooks says of its loader."""
    workers = int(iterator._num_workers)
    if workers:
        complain([_LATE_WORKERS])
    return LoaderFacts(
        loader=_numbers.of(iterator),
        workers=workers,
        prefetch=getattr(iterator, "_prefetch_factor", None) if workers else None,
        batch_size=getattr(iterator._index_sampler, "batch_size", None) if iterator._auto_collation else None,
        persistent=bool(getattr(iterator, "_persistent_workers", False)),
        in_order=bool(getattr(iterator, "_in_order", True)),
    )


def _wrap_next(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: waits for a DataLoader")

    @wraps(original)
    def _next_data(self: Any) -> Any:
        t0 = perf_counter_ns()
        try:
            stamp = _begin(self, guard, t0)
            if stamp is None:
                return original(self)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        machine, pass_ = stamp.machine, stamp.pass_
        try:
            _asked(stamp, guard, t0)
            batch = original(self)
            _given(self, stamp, guard, batch, t0)
            return batch
        except StopIteration as end:
            leave_out_this_frame(end)
            _guarded(guard, machine.exhausted, pass_, perf_counter_ns())
            raise
        except BaseException as error:  # an interrupt may come in what is ours, too
            leave_out_this_frame(error)
            _guarded(guard, machine.wait_failed)
            raise

    return _next_data


def _begin(iterator: Any, guard: Guard, t0: int) -> Stamp | None:
    """The iterator's stamp, when this ``next()`` is to be recorded."""
    if not guard.on:
        return None
    try:
        stamp: Stamp | None = iterator.__dict__.get(STAMP)
        recorder = session.recorder
        if recorder is None:
            # A loop that goes on after its run has ended is part of the next one; one that was there before
            # the hooks begins one.
            recorder = session.begin(training=False, at=t0)
            if recorder is None:
                return None
        if stamp is None:
            if recorder.here().waiting:
                return None
            facts = iterator.__dict__.pop(_FACTS, None) or _late_facts(iterator)
            return _stamp(iterator, recorder, facts, t0)
        if stamp.recorder is not recorder:
            facts = stamp.pass_.facts
            return None if facts is None else _stamp(iterator, recorder, facts, t0)
        machine = recorder.here()
        if machine.waiting:
            return None
        if stamp.machine is not machine:
            if stamp.pass_.asked:
                return None  # two threads share one iterator
            stamp.machine = machine
        return stamp
    except Exception as error:
        guard.failed(error)
        return None


def _asked(stamp: Stamp, guard: Guard, t0: int) -> None:
    """A batch is asked for."""
    try:
        stamp.machine.begin_wait(stamp.pass_, t0)
        if stamp.recorder.measuring:
            stamp.recorder.spent(t0)
    except Exception as error:
        guard.failed(error)


def _given(iterator: Any, stamp: Stamp, guard: Guard, batch: Any, t0: int) -> None:
    """It is there."""
    try:
        t1 = perf_counter_ns()
        item = stamp.machine.end_wait(stamp.pass_, t0, t1, _samples(batch, _DEPTH))
        _fetching(iterator, stamp, item, t0, t1)
        if stamp.recorder.measuring:
            stamp.recorder.spent(t1)
    except Exception as error:
        guard.failed(error)


def _fetching(iterator: Any, stamp: Stamp, item: int, t0: int, t1: int) -> None:
    """Record how the batch was made: by a worker, or right in this wait."""
    machine, recorder = stamp.machine, stamp.recorder
    facts = stamp.pass_.facts
    if facts is None:
        return
    if not facts.workers:
        clock = iterator._dataset_fetcher.__dict__
        start, collate = clock.get(START, 0), clock.get(COLLATE, 0)
        if not t0 <= start <= t1:
            return
        if not start <= collate <= t1:
            collate = t1
        lane, end = machine.lane, t1
    else:
        index = iterator._rcvd_idx - 1 if facts.in_order else stamp.last
        record = stamp.records.pop(index, None)
        if record is None:
            return
        name = f"loader-worker-{record.worker}"
        lane = recorder.lane(name if facts.loader == 0 else f"loader{facts.loader}-{name[7:]}")
        start, collate, end = record.got, record.collate, record.done
    machine.fetched(_FETCH, lane, start, collate, item)
    if collate < end:
        machine.fetched(_COLLATE, lane, collate, end, item)


def _samples(batch: Any, depth: int) -> int:
    """The length of the first dimension of the first tensor in ``batch``, 0 when there is none."""
    while isinstance(batch, (list, tuple)) and batch and depth:
        batch, depth = batch[0], depth - 1
    if isinstance(batch, _Tensor):
        return batch.size(0) if batch.dim() else 0
    if depth and isinstance(batch, Mapping):
        for value in batch.values():
            return _samples(value, depth - 1)
    return 0


def _guarded(guard: Guard, event: Callable[..., Any], *args: Any) -> None:
    try:
        event(*args)
    except Exception as error:
        guard.failed(error)
