# SPDX-License-Identifier: Apache-2.0
"""The completeness verdict in the form of the answer."""

from __future__ import annotations

from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.run import Completeness
from grademl_otel.analyzers.reporting.document import (
    ClockOffset,
    CompletenessInfo,
    RankCounts,
    SpanCounts,
    StepCounts,
    Tracer,
)


def completeness_info(
    found: Completeness,
    clocks: Clocks | None,
    *,
    ours: bool,
    clipped_ns: int = 0,
    overlap_ns: int = 0,
) -> CompletenessInfo:
    """Return ``found`` with what was clipped and cut on paths; only ``ours`` tell of a tracer."""
    return CompletenessInfo(
        verdict=found.verdict,
        spans=SpanCounts(found.spans_expected, found.spans_received),
        ranks=RankCounts(found.ranks_expected, found.ranks_present),
        steps=StepCounts(found.steps_expected, found.steps_measured, found.steps_detailed_all_ranks),
        orphans=found.orphans,
        roots=found.roots,
        windows_missing=found.windows_missing,
        partial_traces=found.partial_traces,
        conflicts=found.conflicts,
        clipped_ns=found.clipped_ns + clipped_ns,
        overlap_ns=found.overlap_ns + overlap_ns,
        clocks=_offsets(clocks),
        tracer=Tracer(found.tracer_dropped if ours else None, found.tracer_cost_fraction),
    )


def _offsets(found: Clocks | None) -> list[ClockOffset]:
    """Return the clocks that are tied to the first; none where there is but one."""
    clocks = [] if found is None or len(found.clocks) < 2 else found.clocks
    return [
        ClockOffset(clock.host, clock.offset_ns, clock.error_ns, clock.applied, clock.pairs)
        for clock in clocks
        if clock.error_ns is not None
    ]
