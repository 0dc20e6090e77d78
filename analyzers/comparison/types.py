# SPDX-License-Identifier: Apache-2.0
"""The execution models of both sides, aligned by the paths of their types."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import NS, Quantity, absent
from grademl_otel.analyzers.comparison.of_run import RunMeasures
from grademl_otel.analyzers.comparison.of_traces import TraceMeasures
from grademl_otel.analyzers.comparison.pairs import named
from grademl_otel.analyzers.comparison.resampling import Sample, Statistic
from grademl_otel.analyzers.comparison.usual import usual_pair
from grademl_otel.analyzers.execution.whole import ExecutionModel, execution_model
from grademl_otel.analyzers.modelled import model_of

_MOST: Final = 100
"""Types that are compared at most, those with most time."""
_STEP: Final = f"/{sc.STEP}"


def type_pairs(
    a: RunMeasures | TraceMeasures, b: RunMeasures | TraceMeasures, threshold: float
) -> list[Pair]:
    """Return the types of both with at least ``threshold`` of the time of all ranks or traces, or one side
    alone has; those with most time first.

    A type is named by its path, of a run from below its ranks. What a type consists of is its phases in
    order of time, those of steps without the warm-up.
    """
    first, second = _types(a), _types(b)
    share: dict[str, float] = {}
    for types in (first, second):
        whole = max((sum(sample.value) for sample in types.values()), default=0.0) or 1.0
        for path, sample in types.items():
            share[path] = max(share.get(path, 0.0), float(sample.value.sum()) / whole)
    shown = [path for path in share if share[path] >= threshold or (path in first) != (path in second)]
    shown.sort(key=lambda path: (-share[path], path))
    return [_pair(path, first.get(path), second.get(path), threshold) for path in shown[:_MOST]]


def _pair(path: str, a: Sample | None, b: Sample | None, threshold: float) -> Pair:
    def of(statistic: Statistic) -> Pair:
        first, second = (
            absent(NS, "there is none") if sample is None else Quantity(NS, sample, statistic)
            for sample in (a, b)
        )
        matters = 0.0 if a is None else threshold * statistic.of(a)
        return Pair(named(path, statistic), "type", first, second, matters)

    return usual_pair(of)


def _types(found: RunMeasures | TraceMeasures) -> dict[str, Sample]:
    """Return the busy times of the phases of each type, in order of their starts."""
    model, since = _model(found)
    phases, types = model.phases, model.types
    order = np.lexsort((phases.start, phases.type))
    bounds = np.searchsorted(phases.type[order], np.arange(len(types) + 1))
    samples: dict[str, Sample] = {}
    for node in range(1, len(types)):
        path = _below_ranks(types.path(node)) if isinstance(found, RunMeasures) else types.path(node)
        mine = order[bounds[node] : bounds[node + 1]]
        if since is not None and _STEP in path:
            mine = mine[phases.start[mine] >= since]
        if path and len(mine):
            busy = phases.busy[mine].astype(np.float64)
            samples[path] = Sample(busy, np.arange(len(busy)), len(busy))
    return samples


def _model(found: RunMeasures | TraceMeasures) -> tuple[ExecutionModel, int | None]:
    """Return the model, and when the first steady step began."""
    if isinstance(found, TraceMeasures):
        return model_of(found.about), None
    run, rows = found.run, found.rows
    since = int(run.steps.start[rows].min()) if len(rows) else None
    return execution_model(run.spans, [run], others=False), since


def _below_ranks(path: str) -> str:
    """Return a type path of a run without what stands for run, attempt and rank."""
    parts = path.split("/")
    return "/" + "/".join(parts[4:]) if len(parts) > 4 else ""
