# SPDX-License-Identifier: Apache-2.0
"""The answer about traces that need not be ours: one trace's critical path, or many traces together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns, Telemetry
from grademl_otel.analyzers.model.completeness import judge_foreign
from grademl_otel.analyzers.model.run import Completeness
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    ReportDocument,
    SourceInfo,
    StepWindow,
    Window,
)
from grademl_otel.analyzers.reporting.population import population
from grademl_otel.analyzers.reporting.sections import path_info, summary_of_trace

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
    found = _judge(telemetry, paths)
    completeness = completeness_info(found, (path for _, path in paths), ours=False)
    if len(paths) == 1:
        root, path = paths[0]
        return CriticalPathDocument(
            source=source,
            completeness=completeness,
            window=Window(str(path.start), path.total_ns, StepWindow(None, None, 0)),
            lane_budget=[],
            path=path_info(path, telemetry.spans, top),
            summary=summary_of_trace(telemetry.spans, root, path, by, top),
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
        incomplete_because=_judge(telemetry, paths).reasons,
        warnings=list(telemetry.ledger.warnings),
    )


def _judge(telemetry: Telemetry, paths: Sequence[tuple[int, Path]]) -> Completeness:
    """Return what can be known of these traces: only a missing parent or a cut trace proves a loss."""
    return judge_foreign(telemetry, spans_of_traces(telemetry.spans, [root for root, _ in paths]))


def spans_of_traces(spans: SpanColumns, members: Sequence[int]) -> IntArray:
    """Return the indices of all spans whose trace is that of one of ``members``."""
    wanted: set[tuple[int, int]] = {(int(spans.trace_hi[ix]), int(spans.trace_lo[ix])) for ix in members}
    candidates = np.flatnonzero(np.isin(spans.trace_lo, np.array([lo for _, lo in wanted], dtype=np.uint64)))
    kept = [ix for ix in candidates.tolist() if (int(spans.trace_hi[ix]), int(spans.trace_lo[ix])) in wanted]
    return np.array(kept, dtype=np.int64)
