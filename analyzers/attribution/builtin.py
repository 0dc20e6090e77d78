# SPDX-License-Identifier: Apache-2.0
"""The rules that are built in: which metrics the phases of a training use, and how.

Where one weight is as good as another (a kernel runs, or none does; a disk reads for whoever asks) it is 1.
What phases differ in without anybody knowing how much (CPU time: one thread or all; power) is fitted.

=====================  ======================================================================================
metrics                who uses them
=====================  ======================================================================================
gpu.utilization        what devices were seen to compute; where no device was looked at, the phases that give
                       them work, the host's waits for them, and the rest of a step: weight 1
gpu.power              the same: fitted, so that what an idle GPU draws is nobody's
gpu.pcie_*             transfers of batches, collectives, checkpoints: weight 1
gpu.nvlink_*           collectives; where none was seen, backwards: weight 1
network.*, port.*      the same, fetches of batches, and checkpoints: weight 1
disk.*                 fetches of batches and checkpoint.load (read, busy), checkpoint.save and log (write,
                       busy): weight 1
cpu.busy, process.cpu  all but waits for workers and for other ranks, and what devices do: fitted
others                 nobody: memory in use, clocks and temperatures are states, not work
=====================  ======================================================================================

Without loader workers a wait for data is the fetch itself. What others' spans use of CPUs, disks, networks
and GPUs is fitted. Phases that a program named itself use what that uses which they are part of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.attribution.observations import NONE, VARIABLE
from grademl_otel.analyzers.attribution.rules import FIT, RANK, Rule

_CPU: Final = ("cpu.busy", "process.cpu")
_GPU: Final = ("gpu.utilization", "gpu.power")
_PCIE: Final = "gpu.pcie_*"
_NVLINK: Final = "gpu.nvlink_*"
_NETWORKS: Final = ("network.*", "port.*")
_OF_OTHERS: Final = (*_CPU, "disk.*", *_NETWORKS, *_GPU, _PCIE, _NVLINK)

_COMPUTE: Final = (sc.FORWARD, sc.RECOMPUTE, sc.BACKWARD, sc.OPTIMIZER, sc.ZERO_GRAD, sc.DEVICE_SYNC)
"""Kernels run, as far as the host knows: in a sync the host waits for them."""
_NO_KERNELS: Final = (
    sc.DATA_WAIT, sc.DATA_FETCH, sc.DATA_COLLATE, sc.DATA_TRANSFER, f"{sc.CHECKPOINT_SAVE}*",
    f"{sc.CHECKPOINT_LOAD}*", f"{sc.COMPILE}*", sc.GC, sc.LOG,
)  # fmt: skip
_ON_DEVICE: Final = tuple(f"{sc.DEVICE_PREFIX}{name}" for name in sc.DEVICE_PHASES)
_WORKERS: Final = ("loader-worker",)


def _rules() -> Iterator[Rule]:
    yield from (Rule("/", metric, FIT) for metric in _OF_OTHERS)
    yield Rule(RANK, "*", NONE)
    yield from _of_cpus()
    yield from _of_gpus()
    yield from _of_links()
    yield from _of_storage()


def _of_cpus() -> Iterator[Rule]:
    yield from _each((RANK,), _CPU, FIT)
    yield from _each((f"{RANK}/stream*", f"{RANK}/device"), _CPU, NONE)
    yield from _each(_in_ranks(sc.DATA_WAIT, sc.COLLECTIVE_WAIT), _CPU, NONE)
    yield from _each(_in_ranks(sc.DATA_WAIT), _CPU, FIT, unless=_WORKERS)
    yield from _each(_in_ranks(sc.DATA_FETCH, sc.DATA_COLLATE), _CPU, FIT)


def _of_gpus() -> Iterator[Rule]:
    for metric, kind in zip(_GPU, (VARIABLE, FIT), strict=True):
        yield from _each(_in_ranks(f"{sc.STEP}*", *_COMPUTE), (metric,), kind, unless=_ON_DEVICE)
        yield from _each(_in_ranks(*_NO_KERNELS), (metric,), NONE)
        yield from _each(_in_ranks(*_ON_DEVICE), (metric,), kind)
        yield from _each(_in_ranks(f"{sc.DEVICE_PREFIX}{sc.DATA_TRANSFER}"), (metric,), NONE)


def _of_links() -> Iterator[Rule]:
    copied = f"{sc.DEVICE_PREFIX}{sc.DATA_TRANSFER}"
    yield from _each(_in_ranks(sc.DATA_TRANSFER), (_PCIE,), VARIABLE, unless=(copied,))
    yield from _each(
        _in_ranks(copied, f"{sc.COLLECTIVE}*", f"{sc.CHECKPOINT_SAVE}*", f"{sc.CHECKPOINT_LOAD}*"),
        (_PCIE,),
        VARIABLE,
    )
    behind = f"{sc.DEVICE_PREFIX}{sc.BACKWARD}"
    for metric in (_NVLINK, *_NETWORKS):
        yield from _each(_in_ranks(f"{sc.COLLECTIVE}*"), (metric,), VARIABLE)
        yield from _each(_in_ranks(sc.BACKWARD), (metric,), VARIABLE, unless=(sc.COLLECTIVE, behind))
        yield from _each(_in_ranks(behind), (metric,), VARIABLE, unless=(sc.COLLECTIVE,))
    yield from _each(_in_ranks(sc.COLLECTIVE_WAIT), (_PCIE, _NVLINK, *_NETWORKS), NONE)


def _of_storage() -> Iterator[Rule]:
    reads = (*_NETWORKS, "disk.read", "disk.busy")
    yield from _each(_in_ranks(sc.DATA_FETCH, f"{sc.CHECKPOINT_LOAD}*"), reads, VARIABLE)
    yield from _each(_in_ranks(sc.DATA_WAIT), reads, VARIABLE, unless=_WORKERS)
    yield from _each(_in_ranks(sc.DATA_COLLATE), reads, NONE)
    yield from _each(_in_ranks(f"{sc.CHECKPOINT_SAVE}*"), (*_NETWORKS, "disk.write", "disk.busy"), VARIABLE)
    yield from _each(_in_ranks(sc.LOG), ("disk.write", "disk.busy"), VARIABLE)


def _each(
    phases: Iterable[str], metrics: Iterable[str], kind: int, unless: tuple[str, ...] = ()
) -> Iterator[Rule]:
    weight = 1.0 if kind == VARIABLE else 0.0
    metrics = tuple(metrics)
    return (Rule(phase, metric, kind, weight, unless) for phase in phases for metric in metrics)


def _in_ranks(*names: str) -> tuple[str, ...]:
    return tuple(f"{RANK}/**/{name}" for name in names)


BUILT_IN: Final[tuple[Rule, ...]] = tuple(_rules())
