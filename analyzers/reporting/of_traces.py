# SPDX-License-Identifier: Apache-2.0
"""The answer about traces that need not be ours: one trace's critical path, or many traces together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph.breakdown import profile_breakdown
from grademl_otel.analyzers.graph.profiles.profile_path import profiles, roots_on_path
from grademl_otel.analyzers.graph.trees.trace_paths import TracePaths
from grademl_otel.analyzers.graph.trees.virtual_phases import with_virtual_phases
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.columns import SpanColumns, Telemetry
from grademl_otel.analyzers.model.foreign import judge_foreign, whole_traces
from grademl_otel.analyzers.reporting.breakdown import breakdown_entry
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
_HOW_PHASES = "record them as child spans, or end-to-end in the unit of the parts"
PART_OF_OURS = Abstained(
    "diagnosis",
    "a run is judged as a whole, not by single traces",
    "leave --trace, --operation, --per-trace out",
)


def critical_path_of_traces(
    telemetry: Telemetry,
    paths: TracePaths,
    by: str = "phase",
    top: int | None = None,
    clocks: Clocks | None = None,
    inferred: bool = True,
) -> CriticalPathDocument:
    """Return the path of one trace, or the population of several. ``paths``: (root, path) per trace.

    ``clocks`` are those to which the times of ``telemetry`` were brought. Without ``inferred`` edges slack
    and drag of a profile go by what was observed, as ``paths`` then do.
    """
    roots: list[int] = paths.roots.tolist()
    if len(paths) == 1:
        roots = roots_on_path(telemetry.spans, *paths[0])
    source = SourceInfo(telemetry.uri, None, None, None, len(roots))
    # Only a missing parent or a cut trace proves a loss.
    found = judge_foreign(telemetry, spans_of_traces(telemetry.spans, roots))
    whole = whole_traces(telemetry, roots)
    stopped = telemetry.ledger.capped or telemetry.ledger.broken is not None
    if len(paths) == 1:
        root, path = paths[0]
        told = with_virtual_phases(telemetry.spans, path.sections)
        start, total_ns = path.start, path.total_ns
        shown: PathInfo | PopulationInfo = path_info(
            replace(path, sections=told.sections), telemetry.spans, top
        )
        summary, unsaid = summary_of_trace(telemetry.spans, root, path, told, by, top, inferred)
    else:
        counted = paths.take(np.flatnonzero(whole)) if whole.any() else paths
        told = with_virtual_phases(telemetry.spans, counted.sections)
        counted = replace(
            counted,
            sections=told.sections,
            first=np.searchsorted(counted.trace[told.origin], np.arange(len(counted) + 1)),
        )
        shown = population(telemetry.spans, counted, top, told=bool(whole.any()) and not stopped)
        summary, unsaid = [], []
        # The traces' time, one after the other: what the shares are of.
        start, total_ns = int(counted.start.min()), shown.total_ns
    return CriticalPathDocument(
        source=source,
        completeness=completeness_info(
            found,
            clocks,
            ours=False,
            clipped_ns=sum(paths.clipped_ns.tolist()),
            overlap_ns=sum(paths.overlap_ns.tolist()),
        ),
        window=Window(str(start), total_ns, StepWindow(None, None, 0)),
        lane_budget=[],
        path=shown,
        summary=summary,
        findings=[],
        abstained=[
            *_untold(len(paths), int(whole.all() if len(paths) == 1 else np.count_nonzero(whole)), stopped),
            *unsaid,
            *(Abstained("path.virtual_phases", note, _HOW_PHASES) for note in told.notes),
            _not_judged(telemetry.spans, roots),
        ],
        replay=None,
        incomplete_because=found.reasons,
        warnings=telemetry.ledger.warnings,
        breakdown=[
            breakdown_entry(one)
            for one in profile_breakdown(telemetry.spans, profiles(telemetry.spans, roots))
        ],
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


def _not_judged(spans: SpanColumns, roots: Sequence[int]) -> Abstained:
    used = np.unique(spans.resource_ix[list(roots)]).tolist()
    ours = any(semconv.RUN_ID in spans.resources[ix] for ix in used)
    return PART_OF_OURS if ours else NOT_OURS


def report_of_traces(
    telemetry: Telemetry,
    paths: TracePaths,
    top: int | None = None,
    clocks: Clocks | None = None,
    inferred: bool = True,
) -> ReportDocument:
    """Return the same in the form of a report, without a verdict."""
    found = critical_path_of_traces(telemetry, paths, top=top, clocks=clocks, inferred=inferred)
    return ReportDocument.of(found)


def spans_of_traces(spans: SpanColumns, members: Sequence[int]) -> IntArray:
    """Return the indices of all spans whose trace is that of one of ``members``."""
    found: IntArray = np.flatnonzero(np.isin(spans.trace_ix, spans.trace_ix[list(members)]))
    return found
