# SPDX-License-Identifier: Apache-2.0
"""The answer about traces that need not be ours: one trace's critical path, or many traces together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns, Telemetry
from grademl_otel.analyzers.model.foreign import judge_foreign, whole_traces
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    PathInfo,
    PopulationInfo,
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
_HOW = "read a source that has all of their spans"
PART_OF_OURS = Abstained(
    "diagnosis",
    "a run is judged as a whole, not by single traces",
    "leave --trace, --operation, --per-trace out",
)


def critical_path_of_traces(
    telemetry: Telemetry,
    paths: Sequence[tuple[int, Path]],
    by: str = "phase",
    top: int | None = None,
    clocks: Clocks | None = None,
) -> CriticalPathDocument:
    """Return the path of one trace, or the population of several. ``paths``: (root, path) per trace.

    ``clocks`` are those to which the times of ``telemetry`` were brought.
    """
    source = SourceInfo(telemetry.uri, None, None, None, len(paths))
    # Only a missing parent or a cut trace proves a loss.
    found = judge_foreign(telemetry, spans_of_traces(telemetry.spans, [root for root, _ in paths]))
    whole = whole_traces(telemetry, [root for root, _ in paths])
    stopped = telemetry.ledger.capped or telemetry.ledger.broken is not None
    if len(paths) == 1:
        root, path = paths[0]
        start, total_ns = path.start, path.total_ns
        shown: PathInfo | PopulationInfo = path_info(path, telemetry.spans, top)
        summary = summary_of_trace(telemetry.spans, root, path, by, top)
    else:
        counted = [one for one, kept in zip(paths, whole, strict=True) if kept] or paths
        shown, summary = population(telemetry.spans, counted, top, told=bool(whole.any()) and not stopped), []
        # The traces' time, one after the other: what the shares are of.
        start, total_ns = min(path.start for _, path in counted), shown.total_ns
    return CriticalPathDocument(
        source=source,
        completeness=completeness_info(found, (path for _, path in paths), clocks, ours=False),
        window=Window(str(start), total_ns, StepWindow(None, None, 0)),
        lane_budget=[],
        path=shown,
        summary=summary,
        findings=[],
        abstained=[
            *_untold(len(paths), int(np.count_nonzero(whole)), stopped),
            _not_judged(telemetry.spans, paths),
        ],
        replay=None,
        incomplete_because=found.reasons,
        warnings=telemetry.ledger.warnings,
    )


def _untold(traces: int, whole: int, stopped: bool) -> list[Abstained]:
    """Return what is not told, as parts of some of the traces are missing, or reading stopped."""
    if stopped:
        rule = "path.shares" if traces == 1 else "percentiles"
        return [Abstained(rule, "reading stopped, and what is missing may be of any trace: see `data`", _HOW)]
    if whole == traces:
        return []
    if traces == 1:
        missing = "spans of this trace are missing, and their time counts as that of others: see `data`"
        return [Abstained("path.shares", missing, _HOW)]
    if not whole:
        return [Abstained("percentiles", f"parts of all {traces:,} traces are missing", _HOW)]
    missing = f"parts of {traces - whole:,} of {traces:,} traces are missing; the numbers are of the others"
    return [Abstained("population", missing, _HOW)]


def _not_judged(spans: SpanColumns, paths: Sequence[tuple[int, Path]]) -> Abstained:
    ours = any(semconv.RUN_ID in spans.resource(root) for root, _ in paths)
    return PART_OF_OURS if ours else NOT_OURS


def report_of_traces(
    telemetry: Telemetry,
    paths: Sequence[tuple[int, Path]],
    top: int | None = None,
    clocks: Clocks | None = None,
) -> ReportDocument:
    """Return the same in the form of a report, without a verdict."""
    return ReportDocument.of(critical_path_of_traces(telemetry, paths, top=top, clocks=clocks))


def spans_of_traces(spans: SpanColumns, members: Sequence[int]) -> IntArray:
    """Return the indices of all spans whose trace is that of one of ``members``."""
    found: IntArray = np.flatnonzero(np.isin(spans.trace_ix, spans.trace_ix[list(members)]))
    return found
