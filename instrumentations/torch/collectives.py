# SPDX-License-Identifier: Apache-2.0
"""Collectives: the hooks of process groups, attached to each group when torch registers it.

They see what no wrapper of a function does: the buckets of DDP, functional and compiled collectives. What is
made of them is told in `operations` and `works`; `groupcalls` stands in where torch's groups have no hooks.
What a hook raises would reach the program.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup, distributed_c10d

from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import groupcalls, groups, implicitwaits, operations, works
from grademl_otel.instrumentations.torch.groups import Group
from grademl_otel.instrumentations.torch.operations import Call, Operation
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_REGISTRATIONS: Final = (
    "register_pre_hook", "register_post_hook", "unregister_pre_hook", "unregister_post_hook",
)  # fmt: skip
_NUMBER: Final = 0x67724D4C
"""Of our hooks: others with the same number would replace them."""

_OPERATIONS: Final = {
    "ALLREDUCE": operations.ALL_REDUCE,
    "ALLREDUCE_COALESCED": operations.ALL_REDUCE,
    "BROADCAST": operations.BROADCAST,
    "REDUCE": operations.REDUCE,
    "ALLGATHER": operations.ALL_GATHER,
    "ALLGATHER_BASE": operations.ALL_GATHER,
    "ALLGATHER_COALESCED": operations.ALL_GATHER,
    "ALLGATHER_INTO_TENSOR_COALESCED": operations.ALL_GATHER,
    "REDUCE_SCATTER": operations.REDUCE_SCATTER,
    "REDUCE_SCATTER_BASE": operations.REDUCE_SCATTER,
    "REDUCE_SCATTER_TENSOR_COALESCED": operations.REDUCE_SCATTER,
    "GATHER": operations.GATHER,
    "SCATTER": operations.SCATTER,
    "ALLTOALL": operations.ALL_TO_ALL,
    "ALLTOALL_BASE": operations.ALL_TO_ALL,
    "BARRIER": operations.BARRIER,
    "SEND": operations.SEND,
    "RECV": operations.RECV,
}


def install(patches: Patches) -> None:
    """Attach hooks to the groups that there are and that are to come; wrap what they do not see."""
    have_hooks = all(hasattr(ProcessGroup, name) for name in _REGISTRATIONS)
    works.install(patches)
    groupcalls.install(patches, have_hooks)
    with patches.together("torch: waits for buffers"):
        implicitwaits.install_broadcast(patches)
    patches.on_restore(groups.forget)
    if have_hooks:
        hooks = _Hooks()
        patches.on_restore(hooks.detach)
        # torch destroys the groups that the program left after Python has ended, and hooks of ours with them.
        atexit.register(hooks.detach)
        patches.on_restore(partial(atexit.unregister, hooks.detach))
        register = _wrap_register(distributed_c10d._register_process_group, hooks)
        patches.replace(distributed_c10d, "_register_process_group", register)
    for group in list(distributed_c10d._world.pg_map):
        if isinstance(group, ProcessGroup):
            groups.found_late(group)
            if have_hooks:
                hooks.attach(group)


def _wrap_register(original: Callable[..., Any], hooks: _Hooks) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def _register_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        for group in (*args, *kwargs.values()):
            if isinstance(group, ProcessGroup):
                hooks.attach(group)
        return result

    return _register_process_group


class _Issuing(threading.local):
    call: Call | None = None
    """Between the two hooks of a collective."""


class _Hooks:
    """The hooks of all groups, and where they are attached."""

    def __init__(self) -> None:
        self.guard = Guard("torch: collectives")
        self.issuing = _Issuing()
        self.operations = _by_number()
        self._attached: list[weakref.ref[Any]] = []

    def attach(self, group: Any) -> None:
        """Have the collectives of ``group`` told."""
        if not self.guard.on:
            return
        try:
            hooks = _OfGroup(self, group)
            group.register_pre_hook(_NUMBER, hooks.before)
            group.register_post_hook(_NUMBER, hooks.after)
            self._attached = [each for each in self._attached if each() is not None]
            self._attached.append(weakref.ref(group))
        except Exception as error:
            self.guard.failed(error)

    def detach(self) -> None:
        """Take the hooks back from all groups that are left."""
        self.guard.on = False
        for reference in self._attached:
            group = reference()
            if group is not None:
                group.unregister_pre_hook(_NUMBER)
                group.unregister_post_hook(_NUMBER)


def _by_number() -> dict[int, Operation]:
    """What torch's numbers of operations stand for."""
    names = torch._C._distributed_c10d.HookOpName.__members__
    other = {name: Operation(name.lower(), operations.NOTHING) for name in names}
    return {int(value): _OPERATIONS.get(name) or other[name] for name, value in names.items()}


class _OfGroup:
    """The hooks of one group. It must not be held by what it holds: it would never end."""

    __slots__ = ("_group", "_guard", "_issuing", "_operations", "_process_group")

    def __init__(self, hooks: _Hooks, process_group: Any) -> None:
        self._guard = hooks.guard
        self._issuing = hooks.issuing
        self._operations = hooks.operations
        self._process_group = weakref.ref(process_group)
        self._group: Group | None = None

    def before(self, arguments: Any) -> None:
        """Pre-hook: in the thread that issues it, which may be autograd's."""
        if not self._guard.on:
            return
        try:
            operation = self._operations[int(arguments.name)]
            group = self._group or self._look()
            if group is None:
                return
            peer = arguments.root if operation.between else -1
            if operation.counted == operations.INPUTS:
                tensors = arguments.input_tensors
            elif operation.counted == operations.OUTPUTS:
                tensors = arguments.output_tensors
            else:
                tensors = ()
            self._issuing.call = operations.begin(operation, tensors, group, peer)
        except Exception as error:
            self._guard.failed(error)

    def after(self, arguments: Any) -> None:
        """Post-hook; not called when issuing it raises."""
        call, self._issuing.call = self._issuing.call, None
        group = self._group
        if call is None or group is None or not self._guard.on:
            return
        try:
            method = works.here.method
            blocking = not arguments.async_op if method is None else method.blocking
            # A look at the work costs 1 us; on the CPU one that blocks has one that is waited for.
            work = None if blocking and (call[0] is None or call[4]) else arguments.work
            operations.issued(call, group, method, blocking, work)
        except Exception as error:
            self._guard.failed(error)

    def _look(self) -> Group | None:
        """The group at its first collective; None where Python has let go of it, and C++ has not."""
        process_group = self._process_group()
        if process_group is not None:
            self._group = groups.group_of(process_group)
        return self._group
