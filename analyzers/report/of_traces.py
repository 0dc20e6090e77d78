# SPDX-License-Identifier: Apache-2.0
"""The answer about traces that need not be ours: one trace's critical path, or many traces together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.model.columns import NO_PARENT, ORPHAN, IntArray, SpanColumns, Telemetry
from grademl_otel.analyzers.report.document import (
    CompletenessInfo,
    CriticalPathDocument,
    RankCounts,
    ReportDocument,
    SourceInfo,
    SpanCounts,
    StepCounts,
    StepWindow,
    Tracer,
    Window,
)
from grademl_otel.analyzers.report.population import population
from grademl_otel.analyzers.report.sections import path_info, summarize

NOT_OURS = Abstained(
    "diagnosis",
    "these spans belong to no run recorded by grademl-otel",
    "run the program under opentelemetry-instrument with grademl-otel installed",
)


def critical_path_of_traces(
    telemetry: Telemetry, paths: Sequence[tuple[int, Path]], by: str = "phase", top: int | None = None
) -> CriticalPathDocument:
    """Return the path of one trace, or the population of several. ``paths``: (root, path) per trace."""
    source = SourceInfo(telemetry.uri, None, None, None, len(paths))
    completeness = completeness_of_traces(telemetry, paths)
    if len(paths) == 1:
        path = paths[0][1]
        return CriticalPathDocument(
            source=source,
            completeness=completeness,
            window=Window(str(path.start), path.total_ns, StepWindow(None, None, 0)),
            lane_budget=[],
            path=path_info(path, telemetry.spans, top),
            summary=summarize(path, telemetry.spans, by, top=top),
            findings=[],
            abstained=[NOT_OURS],
            replay=None,
        )
    many = population(telemetry.spans, paths, top)
    start = min(path.start for _, path in paths)
    return CriticalPathDocument(
        source=source,
        completeness=completeness,
        # The traces' time, one after the other: what the shares are of.
        window=Window(str(start), many.total_ns, StepWindow(None, None, 0)),
        lane_budget=[],
        path=many,
        summary=[],
        findings=[],
        abstained=[NOT_OURS],
        replay=None,
    )


def report_of_traces(
    telemetry: Telemetry, paths: Sequence[tuple[int, Path]], top: int | None = None
) -> ReportDocument:
    """Return the same in the form of a report, without a verdict."""
    found = critical_path_of_traces(telemetry, paths, top=top)
    return ReportDocument(
        source=found.source,
        completeness=found.completeness,
        window=found.window,
        lane_budget=[],
        path=found.path,
        summary=found.summary,
        findings=[],
        abstained=found.abstained,
        replay=None,
        run=None,
        verdict=None,
        step=None,
        incomplete_because=incomplete_because(found.completeness),
        warnings=list(telemetry.ledger.warnings),
    )


def completeness_of_traces(telemetry: Telemetry, paths: Sequence[tuple[int, Path]]) -> CompletenessInfo:
    """Return what can be known of foreign traces: only a missing parent or a cut trace proves a loss."""
    spans = telemetry.spans
    mine = spans_of_traces(spans, [root for root, _ in paths])
    orphans = int(np.count_nonzero(spans.parent_ix[mine] == ORPHAN))
    roots = int(np.count_nonzero(spans.parent_ix[mine] == NO_PARENT))
    partial = list(telemetry.ledger.partial_traces)
    return CompletenessInfo(
        verdict="incomplete" if orphans or partial else "unverifiable",
        spans=SpanCounts(None, len(mine)),
        ranks=RankCounts(None, []),
        steps=StepCounts(None, 0, 0),
        orphans=orphans,
        roots=roots,
        windows_missing=[],
        partial_traces=partial,
        conflicts=[],
        clipped_ns=sum(path.clipped_ns for _, path in paths),
        overlap_ns=sum(path.overlap_ns for _, path in paths),
        clocks=[],
        tracer=Tracer(None, None),
    )


def incomplete_because(completeness: CompletenessInfo) -> list[str]:
    """Return one line for each loss that is proven."""
    reasons = []
    if completeness.orphans:
        reasons.append(f"{completeness.orphans:,} spans name a parent that is not here")
    if completeness.partial_traces:
        reasons.append(f"{len(completeness.partial_traces):,} traces were cut by the server")
    return reasons


def spans_of_traces(spans: SpanColumns, members: Sequence[int]) -> IntArray:
    """Return the indices of all spans whose trace is that of one of ``members``."""
    wanted: set[tuple[int, int]] = {(int(spans.trace_hi[ix]), int(spans.trace_lo[ix])) for ix in members}
    candidates = np.flatnonzero(np.isin(spans.trace_lo, np.array([lo for _, lo in wanted], dtype=np.uint64)))
    kept = [ix for ix in candidates.tolist() if (int(spans.trace_hi[ix]), int(spans.trace_lo[ix])) in wanted]
    return np.array(kept, dtype=np.int64)
