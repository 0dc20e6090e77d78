# SPDX-License-Identifier: Apache-2.0
"""Who this process is: the run, the attempt, the rank, and the clock it reads.

The run id is random and made at the first training event. Ranks of one job agree on it through the store of
their process group; what a launcher says of the job is never part of it, because launchers reuse their ids.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True)
class Place:
    """The place of a process in its job."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    attempt: int = 0
    """How often the launcher has started the job again."""

    @property
    def distributed(self) -> bool:
        return self.world_size > 1


@dataclass(frozen=True)
class _Launcher:
    """The variables in which a launcher tells a process its place."""

    name: str
    present: str
    """Set only by this launcher, in each process that it started."""
    rank: str
    local_rank: str
    world_size: str
    attempt: str = ""


LAUNCHERS: Final = (
    _Launcher(
        "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"
    ),
    _Launcher("torch", "WORLD_SIZE", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    # A batch script itself has SLURM_PROCID too, but no step: only `srun` starts tasks.
    _Launcher(
        "slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"
    ),
    _Launcher(
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ),
    _Launcher("mpi", "PMI_RANK", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


def launcher_of(environ: Mapping[str, str]) -> str | None:
    """Name of the launcher that started this process, None when it was started by hand."""
    launcher = _launcher(environ)
    return None if launcher is None else launcher.name


def place_from_environment(environ: Mapping[str, str]) -> Place:
    """The place that the launcher's variables tell; nonsense in them counts as not told."""
    launcher = _launcher(environ)
    if launcher is None:
        return Place()
    rank = _natural(environ, launcher.rank, 0)
    world_size = _natural(environ, launcher.world_size, 1)
    return Place(
        rank=rank,
        local_rank=_natural(environ, launcher.local_rank, 0),
        world_size=max(world_size, rank + 1),
        attempt=_natural(environ, launcher.attempt, 0),
    )


def new_run_id() -> str:
    """A random run id: 128 bits as 32 hex digits, never all zero."""
    return f"{secrets.randbits(128) or 1:032x}"


def agree(run_id: str, place: Place) -> tuple[str, Place]:
    """Agree with the other ranks when a process group of torch exists; return the run id and the place.

    The first rank to ask wins; nobody waits for anybody, so ranks without our instrumentation do no harm.
    Any trouble leaves this rank with what it has.
    """
    group = sys.modules.get("torch.distributed.distributed_c10d")
    if group is None:
        return run_id, place
    try:
        if not group.is_initialized():
            return run_id, place
        place = replace(place, rank=int(group.get_rank()), world_size=int(group.get_world_size()))
        return _compare_set(group._get_default_store(), f"grademl/run/{place.attempt}", run_id), place
    except Exception:
        return run_id, place


def _compare_set(store: Any, key: str, mine: str) -> str:
    # Never `get`: it blocks for the store's whole time-out when the key is missing.
    agreed = store.compare_set(key, "", mine)
    text = agreed.decode("ascii") if isinstance(agreed, bytes) else str(agreed)
    return text if len(text) == 32 and int(text, 16) else mine


def clock_id() -> str:
    """One id per boot of this host: processes with the same one read the same monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        import uuid  # here, because it is slow to import and seldom needed

        # Without a boot id at least the host is told apart.
        return f"{uuid.getnode():012x}"


def _launcher(environ: Mapping[str, str]) -> _Launcher | None:
    for launcher in LAUNCHERS:
        if environ.get(launcher.present) and environ.get(launcher.rank):
            return launcher
    return None


def _natural(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(environ.get(name, ""))
    except ValueError:
        return default
    return value if value >= 0 else default
