# SPDX-License-Identifier: Apache-2.0
"""The answer about a run of ours: its critical path, lane budget, steady step, findings and verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import BoolArray
from grademl_otel.analyzers.diagnosis.engine import diagnose, diagnose_ranks
from grademl_otel.analyzers.diagnosis.finding import Judgement
from grademl_otel.analyzers.diagnosis.trust import missing_of, untold
from grademl_otel.analyzers.graph import StepBreakdown, activities, lane_budget, step_breakdown
from grademl_otel.analyzers.graph.device import device_step, is_asynchronous
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import HowEnded, Run
from grademl_otel.analyzers.reporting.breakdown import breakdown_of_run
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import (
    BudgetEntry,
    CompletenessInfo,
    CriticalPathDocument,
    DeviceInfo,
    DevicePhase,
    EndedInfo,
    LoaderInfo,
    MemoryInfo,
    Percentiles,
    PhaseShare,
    RanksDocument,
    ReportDocument,
    RunInfo,
    SourceInfo,
    StepInfo,
    StepWindow,
    Window,
)
from grademl_otel.analyzers.reporting.ranks import ranks_info
from grademl_otel.analyzers.reporting.sections import path_info, summary_of_run
from grademl_otel.analyzers.reporting.untold_waits import untold_waits


def critical_path_of_run(
    telemetry: Telemetry, run: Run, by: str = "phase", top: int | None = None, inferred: bool = True
) -> CriticalPathDocument:
    """Return the critical path of ``run`` added up ``by`` a key, with budget and findings.

    Without ``inferred`` from what was observed alone; so the others.
    """
    return _found(telemetry, run, step_breakdown(run), diagnose(run, inferred), by, top, inferred)


def report_of_run(
    telemetry: Telemetry, run: Run, top: int | None = None, inferred: bool = True
) -> ReportDocument:
    """Return the same, and what the report says beside it: verdict, steady step, how the run ended."""
    steps, judgement = step_breakdown(run), diagnose(run, inferred)
    return ReportDocument.of(
        _found(telemetry, run, steps, judgement, "phase", top, inferred),
        run=_run(run),
        verdict=judgement.verdict,
        step=_step(run, steps),
        ranks=None if missing_of(run) else ranks_info(run, inferred),
    )


def _found(
    telemetry: Telemetry,
    run: Run,
    steps: StepBreakdown,
    judgement: Judgement,
    by: str,
    top: int | None,
    inferred: bool,
) -> CriticalPathDocument:
    path = run_path(run, inferred)
    summary, unsaid = summary_of_run(run, path, by, top, inferred)
    return CriticalPathDocument(
        source=_source(telemetry, run),
        completeness=_completeness(run),
        window=_window(run, steps),
        lane_budget=_budget(run),
        path=path_info(path, run.spans, top),
        summary=summary,
        findings=judgement.findings,
        abstained=[*untold(run), *judgement.abstained, *untold_waits(run, path), *unsaid],
        replay=None,
        incomplete_because=run.completeness.reasons,
        warnings=[*telemetry.ledger.warnings, *run.completeness.notes],
        ended=_all_ended(run),
        breakdown=breakdown_of_run(run),
    )


def ranks_of_run(telemetry: Telemetry, run: Run, inferred: bool = True) -> RanksDocument:
    """Return the ranks of ``run`` side by side, with the findings about what they do to each other."""
    judgement = diagnose_ranks(run, inferred)
    return RanksDocument(
        source=_source(telemetry, run),
        completeness=_completeness(run),
        window=_window(run, step_breakdown(run)),
        verdict=judgement.verdict,
        ranks=None if missing_of(run) else ranks_info(run, inferred),
        findings=judgement.findings,
        abstained=[*untold(run), *judgement.abstained],
        incomplete_because=run.completeness.reasons,
        warnings=[*telemetry.ledger.warnings, *run.completeness.notes],
        ended=_all_ended(run),
    )


def _source(telemetry: Telemetry, run: Run) -> SourceInfo:
    traces = len(np.unique(run.spans.trace_ix[run.span_ixs]))
    return SourceInfo(telemetry.uri, run.run_id, run.attempt, run.fit[0], traces)


def _completeness(run: Run) -> CompletenessInfo:
    found = completeness_info(run.completeness, run.clocks, ours=True)
    return replace(found, conflicts=[*found.conflicts, *activities(run).conflicts])


def _window(run: Run, steps: StepBreakdown) -> Window:
    training = (run.steps.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
    numbers = run.steps.step[training]
    return Window(
        origin_unix_ns=str(run.start),
        wall_ns=run.end - run.start,
        steps=StepWindow(
            first=int(numbers.min()) if len(numbers) else None,
            last=int(numbers.max()) if len(numbers) else None,
            warmup_excluded=steps.warmup_excluded,
        ),
    )


def _budget(run: Run) -> list[BudgetEntry]:
    """Return the rows that tile each rank's wall time; parts of a row are told by the steady step.

    Percentiles are told of ranks of whose steps next to nothing is missing.
    """
    whole = {rank for rank in run.ranks if missing_of(run, [rank]) is None}
    return [
        BudgetEntry(
            rank=row.rank,
            phase=row.phase,
            ns=row.ns,
            share=row.share,
            per_step_ns=(
                None
                if row.per_step is None or row.rank not in whole
                else Percentiles(row.per_step.p50, row.per_step.p95)
            ),
        )
        for row in lane_budget(run)
        if row.within is None
    ]


def _step(run: Run, steps: StepBreakdown) -> StepInfo | None:
    if steps.step is None or missing_of(run) is not None:
        return None
    return StepInfo(
        n=steps.steps,
        few=steps.too_few,
        mean_ns=round(steps.total_ns / steps.steps),
        p50_ns=steps.step.p50,
        p95_ns=steps.step.p95,
        phases=[
            PhaseShare(
                phase=phase.phase,
                share=phase.share,
                mean_ns=round(phase.total_ns / steps.steps),
                p50_ns=phase.per_step.p50,
                p95_ns=phase.per_step.p95,
                within=phase.within,
            )
            for phase in steps.phases
        ],
        host_time=is_asynchronous(run),
        device=_device(run),
    )


def _device(run: Run) -> DeviceInfo | None:
    found = device_step(run)
    if found is None:
        return None
    return DeviceInfo(
        n=found.steps,
        step_ns=round(found.step_ns / found.steps),
        idle_ns=round(found.idle_ns / found.steps),
        behind_p50_ns=found.behind.p50,
        phases=[
            DevicePhase(name, ns / found.step_ns if found.step_ns else 0.0, round(ns / found.steps))
            for name, ns in found.phases
        ],
    )


def _run(run: Run) -> RunInfo:
    flags = run.steps.flags
    rank = run.ranks[0] if run.ranks else 0
    return RunInfo(
        script=run.script,
        name=run.name,
        parent=run.parent,
        device=run.device,
        ranks=len(run.ranks),
        epochs=_epochs(run, rank),
        steps=_most(run, (flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0),
        eval_steps=_most(run, (flags & sc.FLAG_EVALUATE) != 0),
        fits=run.fit[1],
        loaders=[
            LoaderInfo(
                loader=loader.loader_id,
                workers=loader.workers,
                prefetch=loader.prefetch,
                batch_size=loader.batch_size,
                persistent=loader.persistent,
            )
            for loader in run.loaders.values()
        ],
        memory=[MemoryInfo(of.rank, of.device, of.allocated, of.reserved, of.peak) for of in run.memory],
        ended=_all_ended(run),
    )


def _epochs(run: Run, rank: int) -> int:
    """Return how many passes ``rank`` trained in, those of which only steps are here among them."""
    steps = run.steps.where(run.steps.rank == rank)
    trained = (steps.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
    with_steps = np.unique(steps.item_pass[trained & (steps.item_pass >= 0)])
    ended = sum(scope.name == sc.EPOCH and scope.rank == rank for scope in run.scopes)
    return max(ended, len(with_steps))


def _most(run: Run, chosen: BoolArray) -> int:
    """Return how many of the ``chosen`` rows the rank with most of them has."""
    counts = np.unique(run.steps.rank[chosen], return_counts=True)[1]
    return int(counts.max(initial=0))


def _all_ended(run: Run) -> list[EndedInfo]:
    return [_ended(ended, run.start) for ended in run.completeness.ended if ended.rank in run.ranks]


def _ended(ended: HowEnded, origin: int) -> EndedInfo:
    return EndedInfo(
        rank=ended.rank,
        how=ended.how,
        last_step=ended.last_step,
        last_mark_ns=ended.last_mark_unix_ns - origin,
        open_phase=ended.open_phase,
        open_since_ns=None if ended.open_since_unix_ns is None else ended.open_since_unix_ns - origin,
        error=ended.error,
        silent_ns=ended.silent_ns,
    )
