# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job agree on their run and attempt, through the store of torch's process group.

Nobody waits for anybody: the first to write a key wins (`compare_set`), a missing key is never asked for
(`get` blocks for the store's whole time-out), so ranks without our instrumentation do no harm.

torchrun's agents keep one store over all restarts of their workers; a store that a worker hosts dies with it.
In the agents' store the name of the run is therefore found again after a restart, and each set of workers is
an attempt of its own: by the restart count, and where that stays the same (workers restarted because a node
came or went) by how often a rank has joined.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from grademl_otel.identity import Place, is_run_id

_KEY: Final = "grademl"
_MAX_ATTEMPTS: Final = 64
_MAX_PREFIXES: Final = 16

_joined: dict[str, int] = {}
"""The attempt that this process has joined, by the key of its set of workers."""
_inherited: list[Any] = []
"""The store of the process that this one was forked from: its connection is that process' alone."""


def group_exists() -> bool:
    """Whether torch has a process group of this very process; imports nothing."""
    group = _c10d()
    if group is None or not group.is_initialized():
        return False
    return not _inherited or group._get_default_store() is not _inherited[0]


def agree(run_id: str, place: Place, ordinal: str, environ: Mapping[str, str]) -> tuple[str, Place] | None:
    """Agree with the other ranks of torch's process group; return the run id and the place in the group.

    ``run_id`` is this rank's proposal. ``ordinal`` tells the runs of one process apart: it must be the same
    in all ranks. None where there is no group, or its store cannot do it: then every process has a run of
    its own.
    """
    group = _c10d()
    if group is None:
        return None
    try:
        if not group.is_initialized():
            return None
        rank, world_size = int(group.get_rank()), int(group.get_world_size())
        of_group = group._get_default_store()
        if _inherited and of_group is _inherited[0]:
            return None
        store = _base(of_group)
        of_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        job = f"{_KEY}/{environ.get('TORCHELASTIC_RUN_ID', '')}"
        attempt = _attempt(store, job, rank, world_size, place.attempt) if of_agent else 0
        agreed = _first(store, f"{job}/run/{ordinal}", run_id)
        if not is_run_id(agreed):
            return None
        return agreed, place._replace(rank=rank, world_size=world_size, attempt=attempt)
    except Exception:
        return None


def forget() -> None:
    """In a forked child: what its parent has joined, it has not, and its parent's group it must not use."""
    _joined.clear()
    group = _c10d()
    try:
        if group is not None and group.is_initialized():
            _inherited[:] = [group._get_default_store()]
    except Exception:
        pass


def _attempt(store: Any, job: str, rank: int, world_size: int, restarts: int) -> int:
    """Number of this set of workers, ``restarts`` at least; unique for each rank that joins."""
    workers = f"{job}/{restarts}/{world_size}"
    known = _joined.get(workers)
    if known is not None:
        return known
    times = store.add(f"{workers}/joined/{rank}", 1)
    token = f"{restarts}/{world_size}/{times}"
    attempt = next(
        (
            number
            for number in range(restarts, restarts + _MAX_ATTEMPTS)
            if _first(store, f"{job}/attempt/{number}", token) == token
        ),
        restarts + _MAX_ATTEMPTS,
    )
    _joined[workers] = attempt
    return attempt


def _first(store: Any, key: str, mine: str) -> str:
    """What the first of all ranks wrote under ``key``."""
    found = store.compare_set(key, "", mine)
    return found.decode("ascii") if isinstance(found, bytes) else str(found)


def _base(store: Any) -> Any:
    """The store under all prefixes: those of torchrun change with each attempt."""
    for _ in range(_MAX_PREFIXES):
        under = getattr(store, "underlying_store", None)
        if under is None:
            break
        store = under
    return store


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")
