# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of `torch.distributed.checkpoint`: a folder that all ranks write their parts into.

`async_save` returns when the state is copied; a thread of torch's, or a process, writes it while the training
goes on. What the training thread waits for is the blocking part, a phase as that of any checkpoint. The
background part is a scope in a lane of its own, so that it is told of whenever it ends: by the future that
the program got, with the run, or with the death of the process.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Final

import torch.distributed.checkpoint as library
from torch import distributed
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from grademl_otel import marks, semconv
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.checkpointing import (
    LOAD,
    SAVE,
    Arguments,
    Calls,
    Running,
    Size,
    Whole,
    outermost,
)
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder

_FORMAT: Final = "distributed"
_LANE: Final = "checkpoint"
_SCOPE: Final = marks.SCOPE_INDEX[semconv.CHECKPOINT_SAVE]
_SAME: Final = ("checkpoint_id", "storage_writer", "planner", "process_group")
"""Arguments that `async_save` hands on to `save` as they are."""


def install(patches: Patches) -> None:
    """Wrap each function; one that is missing costs a line, the others are recorded."""
    background = _Background()
    functions: tuple[tuple[ModuleType, str, Calls[Any]], ...] = (
        (state_dict_saver, "save", _Save(_title("save"), background)),
        (state_dict_saver, "async_save", _AsyncSave(_title("async_save"), background)),
        (state_dict_loader, "load", Whole(_title("load"), LOAD, _FORMAT, _not_known)),
    )
    for owner, name, calls in functions:
        with patches.together(_title(name)):
            _replace(patches, owner, name, calls)
    # The former names, which are to go.
    if hasattr(state_dict_saver, "save_state_dict"):
        calls = Whole(_title("save_state_dict"), SAVE, _FORMAT, _of_this_rank)
        _replace(patches, state_dict_saver, "save_state_dict", calls)
    if hasattr(state_dict_loader, "load_state_dict"):
        calls = Whole(_title("load_state_dict"), LOAD, _FORMAT, _not_known)
        _replace(patches, state_dict_loader, "load_state_dict", calls)


def _title(name: str) -> str:
    return f"torch.distributed.checkpoint.{name}"


def _replace(patches: Patches, owner: ModuleType, name: str, calls: Calls[Any]) -> None:
    """Wrap a function where it is defined and where users find it."""
    original = getattr(owner, name)
    wrapper = outermost(original, calls)
    patches.replace(owner, name, wrapper)
    if getattr(library, name, None) is original:
        patches.replace(library, name, wrapper)


class _Request:
    """An `async_save` whose background part is not over."""

    def __init__(self, number: int, lane: str, kwargs: dict[str, Any], blocking: Running) -> None:
        self.number = number
        self.lane = lane
        self.blocking = blocking
        self.began = 0
        """When the writing was seen to begin; 0: not yet, or in another process."""
        self.scope = 0
        self.size = _of_this_rank((), kwargs)
        self.same = [kwargs.get(name) for name in _SAME]
        self._thread = threading.get_ident()

    def is_written_by(self, kwargs: dict[str, Any]) -> bool:
        """Whether a call of `save` with these arguments, in this thread, writes what was requested."""
        if self.began or threading.get_ident() == self._thread:
            return False
        return all(kwargs.get(name) is value for name, value in zip(_SAME, self.same, strict=True))


class _Background:
    """The requests that are on their way."""

    def __init__(self) -> None:
        self._numbers = count()
        self._requests: list[_Request] = []
        self._lock = threading.Lock()

    def requested(self, kwargs: dict[str, Any], blocking: Running) -> _Request:
        """A state is about to be saved."""
        with self._lock:
            used = {request.lane for request in self._requests}
            lanes = (f"{_LANE}-{number}" if number else _LANE for number in count())
            lane = next(lane for lane in lanes if lane not in used)
            request = _Request(next(self._numbers), lane, kwargs, blocking)
            self._requests.append(request)
            return request

    def written_by(self, kwargs: dict[str, Any]) -> _Request | None:
        """The request that a call of `save` with these arguments, in this thread, is made for."""
        with self._lock:
            return next((each for each in self._requests if each.is_written_by(kwargs)), None)

    def over(self, request: _Request) -> None:
        """Forget it, and what it holds of the program's: a future may be kept for long."""
        with self._lock:
            if request in self._requests:
                self._requests.remove(request)
                request.same.clear()


class _Save:
    """`save`, which is the background part of an `async_save` where a thread of torch's calls it."""

    def __init__(self, title: str, background: _Background) -> None:
        self._whole = Whole(title, SAVE, _FORMAT, _of_this_rank)
        self._background = background

    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> Running | _Request | None:
        try:
            request = self._background.written_by(kwargs)
        except Exception as error:
            self._whole.guard.failed(error)
            return None
        if request is None:
            return self._whole.begin(args, kwargs)
        request.began = perf_counter_ns()
        return request

    def end(self, call: Running | _Request, result: Any, failure: str | None) -> None:
        if isinstance(call, Running):
            self._whole.end(call, result, failure)


class _AsyncSave:
    """`async_save`: its blocking part, and the background part until its future is done."""

    def __init__(self, title: str, background: _Background) -> None:
        self._blocking = Whole(title, SAVE, _FORMAT, _not_known)
        self._guard = self._blocking.guard
        self._background = background

    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> _Request | None:
        blocking = self._blocking.begin(args, kwargs)
        if blocking is None:
            return None
        try:
            return self._background.requested(kwargs, blocking)
        except Exception as error:
            self._guard.failed(error)
            return None

    def end(self, call: _Request, result: Any, failure: str | None) -> None:
        t1 = perf_counter_ns()
        try:
            # `AsyncSaveResponse` of newer versions has two futures, the last of which ends it.
            future: Any = None if failure else getattr(result, "upload_completion", result)
            recorder = call.blocking.recorder
            goes_on = recorder is not None and hasattr(future, "add_done_callback")
            self._blocking.ended(call.blocking, t1, result, failure, call.number if goes_on else -1)
            if recorder is None or not goes_on:
                self._background.over(call)
                return
            # What is copied in the background, too, is part of it.
            call.scope = _open(recorder, call, min(call.began or t1, t1))
            future.add_done_callback(partial(self._done, call))
        except Exception as error:
            self._guard.failed(error)
            self._background.over(call)

    def _done(self, request: _Request, future: Any) -> None:
        """The future is done; called in whatever thread that was, or at once."""
        t1 = perf_counter_ns()
        try:
            self._background.over(request)
            recorder = request.blocking.recorder
            if recorder is None or session.recorder is not recorder:
                return  # its run is over, and told what it knew
            failure = _failure(future)
            _close(recorder, request, t1, 0 if failure else request.size(future.result()), failure)
        except Exception as error:
            self._guard.failed(error)


def _failure(future: Any) -> str | None:
    """The name of the exception that a future which is done ended with; None if there is none."""
    if future.cancelled():
        return "CancelledError"
    error = future.exception()
    return None if error is None else type(error).__name__


def _open(recorder: Recorder, request: _Request, at: int) -> int:
    serial = recorder.open_beside(_SCOPE, request.lane, at, request.number)
    key, form = recorder.text(semconv.CHECKPOINT_FORMAT), recorder.text(_FORMAT)
    recorder.note(marks.SCOPE_TEXT, at, serial, key, form, 0)
    return serial


def _close(recorder: Recorder, request: _Request, at: int, size: int, failure: str | None) -> None:
    lane, serial = recorder.lane(request.lane), request.scope
    if size:
        recorder.note(marks.SCOPE_INT, at, serial, recorder.text(semconv.BYTES), size, 0, lane)
    completed = recorder.text(semconv.CHECKPOINT_COMPLETED)
    recorder.note(marks.SCOPE_BOOL, at, serial, completed, int(failure is None), 0, lane)
    kind = recorder.text(failure) if failure else 0
    recorder.note(marks.SCOPE_CLOSE, at, serial, int(failure is not None), _SCOPE, kind, lane)


def _of_this_rank(args: Arguments, kwargs: dict[str, Any]) -> Size:
    """Bytes of the files that this rank wrote, from the metadata that each rank gets."""
    group = kwargs.get("process_group")
    alone = bool(kwargs.get("no_dist")) or not (distributed.is_available() and distributed.is_initialized())

    def size(metadata: Any) -> int:
        try:
            stored = metadata.storage_data.values()
            if alone or distributed.get_world_size(group) == 1:
                return sum(info.length for info in stored)
            own = f"__{distributed.get_rank(group)}_"
            return sum(info.length for info in stored if info.relative_path.startswith(own))
        except Exception:
            return 0  # a storage of somebody's own

    return size


def _not_known(args: Arguments, kwargs: dict[str, Any]) -> Size:
    return lambda _: 0
