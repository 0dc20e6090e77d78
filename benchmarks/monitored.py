# SPDX-License-Identifier: Apache-2.0
"""A long training beside its monitors, as columns: what phases used of GPUs is asked of it.

Ranks meet in an all-reduce in every step. Each has a GPU, of which every metric was seen once a second, by
what the rank did at that time: kernels keep it busy, an all-reduce keeps its links busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from benchmarks.shapes import training
from grademl_otel import semconv
from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.mapping import Gpus, RankKey
from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.execution.whole import ExecutionModel, execution_model
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.resource_model.model import NO_PARENT, Resource, ResourceMetric, ResourceModel

SECOND: Final = 1_000_000_000
HOST: Final = "node-0"
_STEP_NS: Final = 20_000_000
"""Of the run before it is stretched."""


class _Kind(NamedTuple):
    """A metric of a GPU."""

    name: str
    unit: str
    capacity: float
    computing: float
    """How full it is while kernels run,"""
    reducing: float
    """while ranks exchange gradients,"""
    else_: float
    """and at any other time."""


_SHARES: Final = (
    "engine_active", "sm_active", "tensor_active", "memory_active", "fp64_active", "fp32_active",
    "fp16_active", "memory_busy",
)  # fmt: skip
_KINDS: Final = (
    _Kind("utilization", "1", 1.0, 0.99, 0.5, 0.0),
    _Kind("throttled", "1", 1.0, 0.3, 0.0, 0.0),
    _Kind("power", "W", 700.0, 0.9, 0.4, 0.15),
    *(_Kind(name, "1", 1.0, 0.9 - 0.1 * number, 0.1, 0.0) for number, name in enumerate(_SHARES)),
    *(_Kind(f"pcie_{way}", "By/s", 64e9, 0.05, 0.2, 0.01) for way in ("rx", "tx")),
    *(_Kind(f"nvlink_{way}", "By/s", 450e9, 0.0, 0.97, 0.0) for way in ("rx", "tx")),
    *(_Kind(f"xgmi_{way}", "By/s", 448e9, 0.0, 0.5, 0.0) for way in ("rx", "tx")),
    _Kind("memory", "By", 141e9, 0.8, 0.8, 0.8),
    _Kind("sm_clock", "Hz", 1.98e9, 0.9, 1.0, 0.2),
    _Kind("memory_clock", "Hz", 3.2e9, 1.0, 1.0, 1.0),
)
METRICS: Final = len(_KINDS)
"""Of each GPU."""


class Job(NamedTuple):
    """What ran, what was observed meanwhile, and whose GPU is whose."""

    model: ExecutionModel
    resources: ResourceModel
    gpus: Gpus

    @property
    def points(self) -> int:
        return sum(len(metric.observed) for metric in self.resources.metrics)


def job(steps: int, seconds: int, ranks: int = 8) -> Job:
    """Return a training of so many ``steps`` of each of its ``ranks`` over about so many ``seconds``."""
    run = stretched(training(steps * ranks, ranks), max(1, seconds * SECOND // (steps * _STEP_NS)))
    gpus = {RankKey(run.run_id, run.attempt, rank): frozenset([_gpu(rank)]) for rank in range(ranks)}
    return Job(execution_model(run.spans, [run]), _resources(run, seconds, ranks), gpus)


def stretched(run: Run, factor: int) -> Run:
    """Return ``run`` from its first step on, all of which takes ``factor`` times as long."""
    begin = int(run.steps.start.min())

    def later(time: IntArray) -> IntArray:
        return begin + (time - begin) * factor

    end = begin + (run.end - begin) * factor
    steps = replace(
        run.steps,
        start=later(run.steps.start),
        end=later(run.steps.end),
        first={name: later(first) for name, first in run.steps.first.items()},
        busy={name: busy * factor for name, busy in run.steps.busy.items()},
    )
    ended = [replace(one, last_mark_unix_ns=end) for one in run.completeness.ended]
    return replace(
        run,
        start=begin,
        end=end,
        rank_bounds=dict.fromkeys(run.ranks, (begin, end)),
        steps=steps,
        scopes=[],  # they are spans, of which there are none
        completeness=replace(run.completeness, ended=ended),
    )


def _gpu(rank: int) -> str:
    return f"GPU-{rank}"


def _resources(run: Run, seconds: int, ranks: int) -> ResourceModel:
    resources = [Resource("host", HOST, NO_PARENT, None)]
    resources += [Resource("gpu", _gpu(rank), 0) for rank in range(ranks)]
    metrics = [each for rank in range(ranks) for each in _metrics(run, seconds, rank)]
    return ResourceModel(resources, metrics)


def _metrics(run: Run, seconds: int, rank: int) -> Iterator[ResourceMetric]:
    """Yield the metrics of the GPU of ``rank``, each with times of its own as readers make them."""
    chance = np.random.default_rng(rank)
    edges = run.start + np.arange(seconds + 1) * SECOND
    computing = _part(run, rank, (semconv.FORWARD, semconv.BACKWARD, semconv.OPTIMIZER), edges)
    reducing = _part(run, rank, (semconv.COLLECTIVE,), edges)
    rest = np.maximum(1.0 - computing - reducing, 0.0)
    for kind in _KINDS:
        level = kind.computing * computing + kind.reducing * reducing + kind.else_ * rest
        value = kind.capacity * np.clip(level * chance.uniform(0.95, 1.03, seconds), 0.0, 1.0)
        observed = Observations(edges[:-1].copy(), edges[1:].copy(), value, kind.capacity)
        yield ResourceMetric(1 + rank, kind.name, f"gpu.{kind.name}", kind.unit, observed, ("made",))


def _part(run: Run, rank: int, phases: tuple[str, ...], edges: IntArray) -> FloatArray:
    """Return the part of each interval between ``edges`` in which ``rank`` was in one of ``phases``."""
    mine = run.steps.rank == rank
    start = np.concatenate([run.steps.first[name][mine] for name in phases])
    end = start + np.concatenate([run.steps.busy[name][mine] for name in phases])
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    time = np.stack((start, end), axis=1).reshape(-1) - edges[0]
    done = np.concatenate((np.zeros(1), np.cumsum(end - start))).repeat(2)[1:-1]
    found: FloatArray = np.diff(np.interp(edges - edges[0], time, done)) / np.diff(edges)
    return found
