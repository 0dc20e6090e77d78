# SPDX-License-Identifier: Apache-2.0
"""Methods of process groups.

Those between two ranks are wrapped in any case, to learn their tags; a barrier that no hook sees is told from
here. Where torch's groups have no hooks, this is how all collectives are seen that Python code issues. Those
that C++ code issues, as DDP does, are not seen then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup

from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import operations, works
from grademl_otel.instrumentations.torch.groups import group_of
from grademl_otel.instrumentations.torch.operations import Call, Operation
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_BETWEEN: Final = {"send": 2, "recv": 2, "recv_anysource": 1}
"""Methods between two ranks, and which of their arguments is the tag."""
_METHODS: Final = {
    "allreduce": (operations.ALL_REDUCE, 0),
    "allreduce_coalesced": (operations.ALL_REDUCE, 0),
    "broadcast": (operations.BROADCAST, 0),
    "reduce": (operations.REDUCE, 0),
    "allgather": (operations.ALL_GATHER, 0),
    "_allgather_base": (operations.ALL_GATHER, 0),
    "allgather_coalesced": (operations.ALL_GATHER, 0),
    "allgather_into_tensor_coalesced": (operations.ALL_GATHER, 0),
    "gather": (operations.GATHER, 1),
    "scatter": (operations.SCATTER, 0),
    "reduce_scatter": (operations.REDUCE_SCATTER, 1),
    "_reduce_scatter_base": (operations.REDUCE_SCATTER, 1),
    "reduce_scatter_tensor_coalesced": (operations.REDUCE_SCATTER, 1),
    "alltoall_base": (operations.ALL_TO_ALL, 1),
    "alltoall": (operations.ALL_TO_ALL, 1),
    "all_gather_single": (operations.ALL_GATHER, 0),
    "all_gather_single_coalesced": (operations.ALL_GATHER, 0),
    "gather_single": (operations.GATHER, 1),
    "gather_into_tensor": (operations.GATHER, 1),
    "reduce_scatter_single": (operations.REDUCE_SCATTER, 1),
    "reduce_scatter_single_coalesced": (operations.REDUCE_SCATTER, 1),
    "all_to_all_single": (operations.ALL_TO_ALL, 1),
    "barrier": (operations.BARRIER, 0),
    "send": (operations.SEND, 0),
    "recv": (operations.RECV, 0),
    "recv_anysource": (operations.RECV, 0),
}
"""All methods, and which of their arguments has the tensors whose size is told."""
_C10D: Final = "torch.distributed.distributed_c10d"
_DEPTH: Final = 5
"""Frames above a method in which torch's own function may be that the program called."""


def install(patches: Patches, have_hooks: bool) -> None:
    """Wrap the methods that torch has, all of them where groups do not have hooks."""
    own = vars(ProcessGroup)
    for name, (operation, position) in _METHODS.items():
        if name in own and (operation.between or not have_hooks):
            wrapper = _wrap(own[name], name, operation, position, have_hooks)
            patches.replace(ProcessGroup, name, wrapper)
    if "monitored_barrier" in own:
        patches.replace(ProcessGroup, "monitored_barrier", _wrap_monitored(own["monitored_barrier"]))


def _wrap(
    original: Callable[..., Any], name: str, operation: Operation, position: int, have_hooks: bool
) -> Callable[..., Any]:
    guard = Guard(f"torch: ProcessGroup.{name}")
    here = works.here
    tag_at = _BETWEEN.get(name)

    @pass_over
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = None
        try:
            if guard.on:
                call = _begin(self, args, kwargs)
            work = original(self, *args, **kwargs)
        except BaseException as error:
            here.method = None
            leave_out_this_frame(error)
            raise
        known, here.method = here.method, None
        if known is not None and guard.on:
            _returned(self, call, known, work)
        return work

    def _begin(group: Any, args: Any, kwargs: Any) -> Call | None:
        try:
            tag, peer = 0, -1
            if tag_at is not None:
                tag = int(kwargs.get("tag", args[tag_at] if len(args) > tag_at else 0))
                if tag_at > 1 and len(args) > 1:
                    peer = int(args[1])
            here.method = works.Method(tag, _waits(sys._getframe(2)))
            if have_hooks:
                return None  # they tell the rest
            tensors = list(_tensors(args[position])) if len(args) > position else []
            return operations.begin(operation, tensors, group_of(group), peer)
        except Exception as error:
            guard.failed(error)
            return None

    def _returned(group: Any, call: Call | None, known: works.Method, work: Any) -> None:
        try:
            if call is not None:
                operations.issued(call, group_of(group), known, known.blocking, work)
            works.returned(work)
        except Exception as error:
            guard.failed(error)

    return method


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for element in argument:
            yield from _tensors(element)


def _waits(caller: FrameType | None) -> bool:
    """Whether the function of torch that ``caller`` is, or that called it, waits for the work itself."""
    for _ in range(_DEPTH):
        if caller is None:
            break
        if caller.f_globals.get("__name__") == _C10D:
            if caller.f_code.co_name in ("send", "recv"):
                return True
            if "async_op" in caller.f_code.co_varnames:
                return caller.f_locals.get("async_op") is False
        caller = caller.f_back
    return False


def _wrap_monitored(original: Callable[..., Any]) -> Callable[..., Any]:
    guard = Guard("torch: monitored_barrier")

    @pass_over
    @wraps(original)
    def monitored_barrier(self: Any, *args: Any, **kwargs: Any) -> Any:
        waiting, completed = None, False
        try:
            waiting = _enter(self, guard)
            result = original(self, *args, **kwargs)
            completed = True
            return result
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if waiting is not None:
                works.end_wait(waiting, None, completed, guard)

    return monitored_barrier


def _enter(process_group: Any, guard: Guard) -> works.Waiting | None:
    if not guard.on:
        return None
    try:
        group = group_of(process_group)
        call = operations.begin(operations.MONITORED_BARRIER, (), group, -1)
        operations.issued(call, group, None, True, process_group)  # that is what waits
        return works.begin_wait(None, guard) if works.here.blocking is not None else None
    except Exception as error:
        guard.failed(error)
        return None
