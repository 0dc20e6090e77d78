# SPDX-License-Identifier: Apache-2.0
"""What an answer in SQL says of the data it is from, before its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import CompletenessInfo, SourceInfo
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.units import count


@dataclass(frozen=True)
class Head:
    """The source, and how complete it is."""

    source: SourceInfo
    completeness: CompletenessInfo
    incomplete_because: list[str]
    warnings: list[str]

    @property
    def reservation(self) -> str | None:
        """One line on what is missing; None where nothing is known to be."""
        if self.completeness.verdict != "incomplete":
            return None
        reasons = self.incomplete_because
        if not reasons:
            return "the data are incomplete"
        more = f" (and {count(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        return f"the data are incomplete: {reasons[0]}{more}"


def head_of(about: Subject) -> Head:
    run, telemetry, found = about.run, about.telemetry, about.completeness
    if run is None:
        traces = len(np.unique(telemetry.spans.trace_ix))
        source = SourceInfo(telemetry.uri, None, None, None, traces)
    else:
        traces = len(np.unique(run.spans.trace_ix[run.span_ixs]))
        source = SourceInfo(telemetry.uri, run.run_id, run.attempt, run.fit[0], traces)
    clocks = about.clocks if run is None else run.clocks
    return Head(
        source,
        completeness_info(found, clocks, ours=run is not None),
        found.reasons,
        [*telemetry.ledger.warnings, *found.notes],
    )
