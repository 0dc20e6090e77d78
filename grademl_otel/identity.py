# SPDX-License-Identifier: Apache-2.0
"""Who this process is: the run, the attempt, the rank, and the clock it reads.

The run id is random. Ranks of one job agree on it through the store of their process group (`agreement`);
what a launcher says of the job is never part of it, because launchers reuse their ids.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

_HEX: Final = frozenset("0123456789abcdef")


class Place(NamedTuple):
    """The place of a process in its job."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    """0 when nobody knows how many there are."""
    attempt: int = 0
    """How often the launcher has started the job again."""

    @property
    def distributed(self) -> bool:
        return self.world_size > 1


class _Launcher(NamedTuple):
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
    # Ray Train tells its workers their places as torchrun does.
    _Launcher("ray", "RAY_JOB_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    _Launcher("torch", "WORLD_SIZE", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    # A batch script itself has SLURM_PROCID too, but no step: only `srun` starts tasks.
    _Launcher(
        "slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"
    ),
    _Launcher("flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE"),
    _Launcher("horovod", "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    _Launcher(
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ),
    _Launcher(
        "mpi",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_SIZE",
    ),
    _Launcher("mpi", "PMI_RANK", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    _Launcher(
        "lsf", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE"
    ),
)
"""PMIx tells no size: who starts tasks with it (Open MPI, Slurm) sets variables of its own, too."""


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
    return f"{int.from_bytes(os.urandom(16), 'big') or 1:032x}"


def is_run_id(text: str) -> bool:
    """Whether ``text`` is a run id as it is written: 32 hex digits in lower case, not all zero."""
    return len(text) == 32 and not set(text) - _HEX and text != "0" * 32


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
