# SPDX-License-Identifier: Apache-2.0
"""The two that are compared: what each is, and what is not the same about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.comparison.document import Condition, Side
from grademl_otel.analyzers.comparison.of_run import RunMeasures
from grademl_otel.analyzers.comparison.of_traces import TraceMeasures
from grademl_otel.analyzers.graph.budget import step_breakdown
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import SourceInfo
from grademl_otel.analyzers.reporting.runs_screen import SHORT_ID
from grademl_otel.analyzers.subject import Subject

Measured = RunMeasures | TraceMeasures


def measured(about: Subject) -> Measured:
    """Return what can be measured of ``about``; NothingFound when no trace matches."""
    return TraceMeasures(about) if about.run is None else RunMeasures(about)


def side_of(found: Measured) -> Side:
    """Return what ``found`` is of, and how complete that is."""
    if isinstance(found, TraceMeasures):
        return _of_traces(found)
    run, telemetry = found.run, found.about.telemetry
    complete = completeness_info(run.completeness, run.clocks, ours=True)
    steps = found.plain()["steps"].number
    return Side(
        source=SourceInfo(
            telemetry.uri,
            run.run_id,
            run.attempt,
            run.fit[0],
            len(np.unique(run.spans.trace_ix[run.span_ixs])),
        ),
        title=_title(run),
        completeness=replace(complete, conflicts=[*complete.conflicts, *activities(run).conflicts]),
        incomplete_because=run.completeness.reasons,
        warnings=[*telemetry.ledger.warnings, *run.completeness.notes],
        ranks=len(run.ranks),
        steps=int(steps) if isinstance(steps, (int, float)) else None,
        steady=len(found.rows),
        warmup_excluded=step_breakdown(run).warmup_excluded,
        traces=0,
        left_out=0,
    )


def _of_traces(found: TraceMeasures) -> Side:
    telemetry, traces = found.about.telemetry, len(found.paths)
    return Side(
        source=SourceInfo(telemetry.uri, None, None, None, traces),
        title=f"traces of {telemetry.uri}",
        completeness=completeness_info(found.completeness, found.about.clocks, ours=False),
        incomplete_because=found.completeness.reasons,
        warnings=telemetry.ledger.warnings,
        ranks=None,
        steps=None,
        steady=None,
        warmup_excluded=None,
        traces=traces,
        left_out=found.left_out,
    )


def _title(run: Run) -> str:
    parts = [f"run {run.run_id[:SHORT_ID]}", run.script, run.name]
    parts += [f"attempt {run.attempt}"] if run.attempt else []
    return " · ".join(part for part in parts if part)


def not_the_same(a: Measured, b: Measured) -> list[Condition]:
    """Return what differs between two runs beside what is measured; nothing is known of other traces."""
    if isinstance(a, TraceMeasures) or isinstance(b, TraceMeasures):
        return []
    first, second = _conditions(a), _conditions(b)
    names = dict.fromkeys([*first, *second])
    return [
        Condition(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _conditions(found: RunMeasures) -> dict[str, str]:
    """Return what two runs should have in common to be compared, as text by its name; what is unknown is
    left out.
    """
    run = found.run
    told: dict[str, object] = {
        "script": run.script or None,
        "device": run.device,
        "ranks": len(run.ranks),
        "hosts": _hosts(run),
        "recording level": found.level,
        "samples a step": found.samples,
    }
    resources = [run.spans.resource(int(ix)) for ix in run.span_ixs[:1]]
    for resource in resources:
        framework = resource.get(sc.FRAMEWORK_NAME)
        told[str(framework or "framework")] = resource.get(sc.FRAMEWORK_VERSION)
        told["Python"] = resource.get("process.runtime.version")
    loaders = list(run.loaders.values())
    told["workers"] = _each([loader.workers for loader in loaders])
    told["prefetch"] = _each([loader.prefetch for loader in loaders])
    told["batch"] = _each([loader.batch_size for loader in loaders])
    told["persistent workers"] = _each(["yes" if loader.persistent else "no" for loader in loaders])
    micro = np.unique(run.steps.micro[found.rows])
    told["micro-batches"] = ", ".join(map(str, micro.tolist()[:4])) or None
    return {name: str(value) for name, value in told.items() if value is not None}


def _each(values: Sequence[object]) -> str | None:
    """Return what all loaders have, or that of each; None without any."""
    texts = ["?" if value is None else str(value) for value in values]
    return ", ".join(dict.fromkeys(texts) if len(set(texts)) < 2 else texts) or None


def _hosts(run: Run) -> int | None:
    clocks = np.unique(run.spans.clock[run.span_ixs])
    return int(np.count_nonzero(clocks >= 0)) or None
