# SPDX-License-Identifier: Apache-2.0
"""What is told of a collective when it is issued: `begin` before, `issued` after.

Collectives are counted at all recording levels and outside of runs: a rank that goes back to recording them
must number them as the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch

from grademl_otel import marks
from grademl_otel.governor import ROOTS
from grademl_otel.instrumentations.torch import works
from grademl_otel.instrumentations.torch.groups import Group
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder

_modes_are_on: Final = torch._C._is_torch_function_mode_enabled

NOTHING: Final = 0
INPUTS: Final = 1
OUTPUTS: Final = 2


class Operation(NamedTuple):
    """A kind of collective."""

    name: str
    """As spans call it."""
    counted: int = INPUTS
    """The tensors whose size is told: those of which all members have the same, or `NOTHING`."""
    between: int = 0
    """Of two ranks: 1 for the one that sends, -1 for the one that receives; 0 for all members of a group."""


ALL_REDUCE: Final = Operation("all_reduce")
ALL_GATHER: Final = Operation("all_gather", OUTPUTS)
ALL_TO_ALL: Final = Operation("all_to_all")
BARRIER: Final = Operation("barrier", NOTHING)
BROADCAST: Final = Operation("broadcast")
GATHER: Final = Operation("gather")
MONITORED_BARRIER: Final = Operation("monitored_barrier", NOTHING)
RECV: Final = Operation("recv", OUTPUTS, between=-1)
REDUCE: Final = Operation("reduce")
REDUCE_SCATTER: Final = Operation("reduce_scatter")
SCATTER: Final = Operation("scatter", OUTPUTS)
SEND: Final = Operation("send", between=1)
OTHER: Final = Operation("other", NOTHING)


Call = tuple[Recorder | None, Operation, int, int, bool, int]
"""A collective that is about to be issued: its recorder, None where it is only counted; the operation; when;
bytes; whether its data are in memory of the CPU; and of a call between two the rank of the other one in the
group, -1 for any. Plain, like all that is handed on here: this runs for each bucket of each step.
"""


def begin(operation: Operation, tensors: Sequence[torch.Tensor], group: Group, peer: int) -> Call:
    """A collective of ``tensors`` is about to be issued."""
    t0 = perf_counter_ns()
    recorder = session.recorder
    if recorder is None or recorder.level > ROOTS:
        return None, operation, t0, 0, False, peer
    host, size = group.host, 0
    if tensors:
        first = tensors[0]
        if type(first) is torch.Tensor and not _modes_are_on():
            host = first.is_cpu
            for tensor in tensors:
                size += tensor.nbytes
        else:
            with torch._C.DisableTorchFunction():  # the program's own tensors and modes are not to see this
                host, size = first.is_cpu, sum(tensor.nbytes for tensor in tensors)
    if recorder.measuring:
        recorder.spent(t0)
    return recorder, operation, t0, size, host, peer


def issued(call: Call, group: Group, method: works.Method | None, blocking: bool, work: Any) -> None:
    """It was issued, by ``method`` if that is wrapped; its ``work`` is under way, the thread about to wait
    for it if ``blocking``. Where that is in memory of the CPU its work need not be told.
    """
    recorder, operation, t0, size, host, peer = call
    sender = None
    if operation.between:
        text, number, sender = _between(operation, group, peer, 0 if method is None else method.tag)
        if recorder is None:
            return
        item = marks.pack_item(recorder.text(text), number) if text else -1
    else:
        number = group.collectives
        group.collectives = number + 1
        if recorder is None:
            return
        if group.recorder is not recorder:
            group.recorder, group.items = recorder, marks.pack_item(recorder.text(group.text), 0)
        item = group.items + number
    t1 = perf_counter_ns()
    here = works.here
    if here.blocking is not None or here.returning is not None:
        works.leave()
    machine = recorder.known()
    name = recorder.text(operation.name)
    if blocking and not host and work is None:
        # NCCL has the stream wait, and gives no work.
        works.Issued(recorder, machine, 0, t0, t1, item, size, name, host, True, None, sender).left()
    elif blocking:
        host = host or operation.counted == NOTHING  # whoever leaves a barrier has passed it
        here.blocking = works.Issued(recorder, machine, 0, t0, t1, item, size, name, host, True, None, sender)
    else:
        row = 0 if machine is None else machine.row_of(t0)
        future = works.future_of(work) if host and not operation.between else None
        if future is not None:
            works.follow(future, recorder, row, t0, item, size, name)
        elif method is not None and host:
            counts = recorder.goes_on(row)
            here.returning = works.Issued(
                recorder, machine, row, t0, t1, item, size, name, host, False, counts, sender
            )
        else:
            works.Issued(recorder, machine, row, t0, t1, item, size, name, host, False, None, sender).left()
    if recorder.measuring:
        recorder.spent(t1)


def _between(
    operation: Operation, group: Group, peer: int, tag: int
) -> tuple[str, int, tuple[Group, int] | None]:
    """Name and number of a call between two ranks; where any may send, what is needed to tell them later."""
    if peer < 0:
        return "", 0, (group, tag)
    if operation.between > 0:
        return *group.count_between(group.rank, peer, tag), None
    return *group.count_between(peer, group.rank, tag), None
