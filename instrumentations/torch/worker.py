# SPDX-License-Identifier: Apache-2.0
"""Loader workers: what fetching and collating took there, sent back inside the index of each batch.

`timed_loop` stands in for torch's ``_worker_loop``: it runs that same loop between stand-ins for its two
queues. The index that travels back with a batch becomes a :class:`TimedIndex`, an int that carries the times;
the data are not touched. The clock is monotonic and the same in all processes of a host. Works with fork,
spawn and forkserver, because the stand-in is found by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any, Final

from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches, UnexpectedShape
from grademl_otel.instrumentations.torch.fetchclock import COLLATE, FetchClock, moments
from grademl_otel.lifecycle import session
from grademl_otel.tracebacks import leave_out_this_frame

MOST_HELD: Final = 4096
"""Times of batches that were received and not handed out; torch holds back fewer."""
_NEEDED: Final = ("index_queue", "data_queue", "worker_id")


class TimedIndex(int):
    """The index of a batch, with its worker and the times at which that got, collated and finished it."""

    worker: int
    got: int
    collate: int
    done: int

    def __new__(cls, index: int, worker: int, got: int, collate: int, done: int) -> TimedIndex:
        self = super().__new__(cls, index)
        self.worker = worker
        self.got = got
        self.collate = collate
        self.done = done
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return TimedIndex, (int(self), self.worker, self.got, self.collate, self.done)


def install(patches: Patches) -> None:
    """Put the stand-in in the place of torch's loop; raises when that loop is not the one known here."""
    global _original_loop
    _original_loop = known_loop(torch_worker._worker_loop)
    receive = wrap_receive(_MultiProcessingDataLoaderIter._try_get_data)
    patches.replace(_MultiProcessingDataLoaderIter, "_try_get_data", receive)
    patches.replace(torch_worker, "_worker_loop", timed_loop)


def known_loop(loop: Callable[..., None]) -> Callable[..., None]:
    """Return ``loop``; raises when it does not take what a worker loop is known to take."""
    missing = set(_NEEDED) - set(inspect.signature(loop).parameters)
    if missing:
        raise UnexpectedShape(f"_worker_loop has no {', '.join(sorted(missing))}")
    return loop


_original_loop: Callable[..., None] | None = None


def timed_loop(*args: Any, **kwargs: Any) -> None:
    """Run torch's worker loop with timed queues; in the worker process."""
    run_timed(_original_loop or torch_worker._worker_loop, args, kwargs)


def run_timed(loop: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a worker loop with timed queues, and nothing else recorded in this process."""
    session.in_worker = True
    session.recorder = None
    try:
        FetchClock.install(Patches())  # a spawned worker that is not instrumented itself
        bound = inspect.signature(loop).bind(*args, **kwargs)
        requests = _Requests(bound.arguments["index_queue"])
        results = _Results(bound.arguments["data_queue"], requests, bound.arguments["worker_id"])
        bound.arguments["index_queue"], bound.arguments["data_queue"] = requests, results
        args, kwargs = bound.args, bound.kwargs
    except (TypeError, KeyError):
        pass  # checked at installation; a worker that differs from its parent runs untimed
    try:
        loop(*args, **kwargs)
    except BaseException as error:
        leave_out_this_frame(error)
        raise


class _Stand:
    """A queue that does all that the real one does."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Requests(_Stand):
    got = 0

    def get(self, *args: Any, **kwargs: Any) -> Any:
        request = self._queue.get(*args, **kwargs)
        self.got = perf_counter_ns()
        return request


class _Results(_Stand):
    def __init__(self, queue: Any, requests: _Requests, worker: int) -> None:
        super().__init__(queue)
        self._requests = requests
        self._worker = worker

    def put(self, result: Any, *args: Any, **kwargs: Any) -> None:
        if type(result) is tuple and len(result) == 2 and type(result[0]) is int:
            done, got = perf_counter_ns(), self._requests.got
            collate = moments[COLLATE]
            if collate < got:  # the fetch failed, or there is no collating
                collate = done
            result = TimedIndex(result[0], self._worker, got, collate, done), result[1]
        self._queue.put(result, *args, **kwargs)


def wrap_receive(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an iterator's ``_try_get_data``: take the times off the index that a batch came with."""
    guard = Guard("torch: times of loader workers")

    @wraps(original)
    def _try_get_data(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            outcome = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        try:
            success, result = outcome
            if success and type(result[0]) is TimedIndex:
                record = result[0]
                stamp = self.__dict__.get("_grademl_stamp")
                if stamp is not None:
                    stamp.last = int(record)
                    if len(stamp.records) >= MOST_HELD:
                        stamp.records.clear()  # nobody asks: waits are not recorded at this level
                    stamp.records[stamp.last] = record
                return success, (int(record), *result[1:])
        except Exception as error:
            guard.failed(error)
        return outcome

    return _try_get_data
