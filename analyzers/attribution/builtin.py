# SPDX-License-Identifier: Apache-2.0
"""The rules that are built in: which metrics the phases of a training use, and how.

Where one weight is as good as another (a kernel runs, or none does; a disk reads for whoever asks) it is 1.
What phases differ in without anybody knowing how much (CPU time: one thread or all; power) is fitted.

=====================  ======================================================================================
metrics                who uses them
=====================  ======================================================================================
gpu.utilization        what devices were seen to compute; where no device was looked at, the phases that give
                       them work, the host's waits for them, and the rest of a step: weight 1
gpu.power, .*_active,  the same: fitted, so that what an idle GPU draws is nobody's
gpu.memory_busy
gpu.pcie_*             transfers of batches, collectives, checkpoints: weight 1
gpu.nvlink_*, .xgmi_*  collectives; where several ranks show none, backwards: weight 1
network.*, port.*      the same, fetches of batches, and checkpoints: weight 1
disk.*, process.*read, fetches of batches and checkpoint.load (read, busy), checkpoint.save and log (write,
process.*write         busy): weight 1
cpu.busy, process.cpu  all but waits for workers and for other ranks, and what devices do: fitted
process.own_cpu        the same without loader workers
others                 nobody: memory in use, clocks and temperatures are states, not work; what a single core
                       did is no one phase's
=====================  ======================================================================================

Without loader workers a wait for data is the fetch itself. What others' spans use of CPUs, disks, networks
and GPUs is fitted. Phases that a program named itself use what that uses which they are part of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.attribution.observations import NONE, VARIABLE
from grademl_otel.analyzers.attribution.rules import FIT, RANK, Rule

_CPU: Final = ("cpu.busy", "process.cpu", "process.own_cpu")
_GPU: Final = ("gpu.utilization", "gpu.power", "gpu.*_active", "gpu.memory_busy")
_PCIE: Final = "gpu.pcie_*"
_LINKS: Final = ("gpu.nvlink_*", "gpu.xgmi_*")
_NETWORKS: Final = ("network.*", "port.*")
_READS: Final = ("disk.read*", "disk.busy", "process.disk_read", "process.read")
_WRITES: Final = ("disk.write*", "disk.busy", "process.disk_write", "process.write")
_OF_OTHERS: Final = (*_CPU, "disk.*", *_NETWORKS, *_GPU, _PCIE, *_LINKS)

_COMPUTE: Final = (sc.FORWARD, sc.RECOMPUTE, sc.BACKWARD, sc.OPTIMIZER, sc.ZERO_GRAD, sc.DEVICE_SYNC)
"""Kernels run, as far as the host knows: in a sync the host waits for them."""
_NO_KERNELS: Final = (
    sc.DATA_WAIT, sc.DATA_FETCH, sc.DATA_COLLATE, sc.DATA_TRANSFER, f"{sc.CHECKPOINT_SAVE}*",
    f"{sc.CHECKPOINT_LOAD}*", f"{sc.COMPILE}*", sc.GC, sc.LOG,
)  # fmt: skip
_ON_DEVICE: Final = tuple(f"{sc.DEVICE_PREFIX}{name}" for name in sc.DEVICE_PHASES)
_WORKER: Final = "loader-worker"


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
    yield from _each(_in_ranks(sc.DATA_WAIT), _CPU, FIT, unless=(_WORKER,))
    yield from _each(_in_ranks(sc.DATA_FETCH, sc.DATA_COLLATE), _CPU, FIT)
    yield from _each((f"{RANK}/{_WORKER}*/*",), ("process.own_cpu",), NONE)


def _of_gpus() -> Iterator[Rule]:
    for metric in _GPU:
        kind = VARIABLE if metric == "gpu.utilization" else FIT
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
    for metric in (*_LINKS, *_NETWORKS):
        yield from _each(_in_ranks(f"{sc.COLLECTIVE}*"), (metric,), VARIABLE)
        for phase, unless in ((sc.BACKWARD, (sc.COLLECTIVE, behind)), (behind, (sc.COLLECTIVE,))):
            for rule in _each(_in_ranks(phase), (metric,), VARIABLE, unless):
                yield replace(rule, with_peers=True)
    yield from _each(_in_ranks(sc.COLLECTIVE_WAIT), (_PCIE, *_LINKS, *_NETWORKS), NONE)


def _of_storage() -> Iterator[Rule]:
    reads = (*_NETWORKS, *_READS)
    yield from _each(_in_ranks(sc.DATA_FETCH, f"{sc.CHECKPOINT_LOAD}*"), reads, VARIABLE)
    yield from _each(_in_ranks(sc.DATA_WAIT), reads, VARIABLE, unless=(_WORKER,))
    yield from _each(_in_ranks(sc.DATA_COLLATE), reads, NONE)
    yield from _each(_in_ranks(f"{sc.CHECKPOINT_SAVE}*"), (*_NETWORKS, *_WRITES), VARIABLE)
    yield from _each(_in_ranks(sc.LOG), _WRITES, VARIABLE)


def _each(
    phases: Iterable[str], metrics: Iterable[str], kind: int, unless: tuple[str, ...] = ()
) -> Iterator[Rule]:
    weight = 1.0 if kind == VARIABLE else 0.0
    metrics = tuple(metrics)
    return (Rule(phase, metric, kind, weight, unless) for phase in phases for metric in metrics)


def _in_ranks(*names: str) -> tuple[str, ...]:
    return tuple(f"{RANK}/**/{name}" for name in names)


BUILT_IN: Final[tuple[Rule, ...]] = tuple(_rules())
