# SPDX-License-Identifier: Apache-2.0
"""Waits for collectives that are in C++, where no `Work.wait` is called.

The result of a functional collective, which DTensor is made of, is waited for at its first use; where
`DistributedDataParallel` has buffers, forward begins with those of rank 0. What they wait for is told by the
hooks of the process group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from torch.compiler import is_compiling

from grademl_otel.governor import ROOTS
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.inner import InnerPhase
from grademl_otel.instrumentations.torch.works import WAIT
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_phase: Final = InnerPhase("waits in C++ for collectives", WAIT)


def install(patches: Patches) -> None:
    """Wrap what waits for the results of functional collectives."""
    results = sys.modules["torch.distributed._functional_collectives"].AsyncCollectiveTensor
    for name in ("trigger_wait", "wait"):
        patches.replace(results, name, _wrap(vars(results)[name], lambda result: result.completed), ROOTS)


def install_broadcast(patches: Patches) -> None:
    """Wrap what gives all ranks the buffers of one."""
    distributed = sys.modules["torch.distributed"]
    original = distributed._broadcast_coalesced
    patches.replace(distributed, "_broadcast_coalesced", _wrap(original, lambda group: False), ROOTS)


def _wrap(original: Callable[..., Any], over: Callable[[Any], bool]) -> Callable[..., Any]:
    """Return the wrapper of ``original``, which waits unless it is ``over`` for the first argument."""
    inside = _phase.inside

    @pass_over
    @wraps(original)
    def wait(subject: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(subject, *args, **kwargs)
        running = None
        try:
            if not over(subject):
                running = _phase.begin()
            if running is None:
                return original(subject, *args, **kwargs)
            inside.call = True
            return original(subject, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        finally:
            if running is not None:
                inside.call = False
                _phase.end(running)

    return wait
