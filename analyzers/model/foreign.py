# SPDX-License-Identifier: Apache-2.0
"""The verdict on spans of others, which carry no counts: only what shows by itself is known to be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import NO_PARENT, ORPHAN, Telemetry
from grademl_otel.analyzers.model.completeness import losses_of_reading, orphaned, spans_here
from grademl_otel.analyzers.model.facts import Completeness
from grademl_otel.analyzers.units import count

_LOW: Final = (1 << 64) - 1


def judge_foreign(telemetry: Telemetry, ixs: IntArray | None = None) -> Completeness:
    """Return the verdict on spans that carry no expected counts: at best unverifiable."""
    spans, ledger = telemetry.spans, telemetry.ledger
    parents = spans.parent_ix if ixs is None else spans.parent_ix[ixs]
    chosen = np.arange(len(spans)) if ixs is None else ixs
    roots = chosen[parents == NO_PARENT]
    orphans = int(np.count_nonzero(parents == ORPHAN))
    _, per_trace = np.unique(spans.trace_ix[roots], return_counts=True)
    reasons = []
    if orphans:
        reasons.append(orphaned(orphans))
    several = int(np.count_nonzero(per_trace > 1))
    if several:
        reasons.append(f"{several:,} {'trace has' if several == 1 else 'traces have'} several roots")
    reasons += [*losses_of_reading(ledger, spans_here(spans, ledger.partial_traces)), *ledger.near_cap]
    if ledger.unreadable_lines:
        reasons.append(f"{count(ledger.unreadable_lines, 'line')} of the source cannot be read")
    return Completeness(
        verdict="incomplete" if reasons else "unverifiable",
        reasons=reasons,
        spans_received=len(chosen),
        orphans=orphans,
        roots=len(roots),
        partial_traces=list(ledger.partial_traces),
    )


def whole_traces(telemetry: Telemetry, roots: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return for each trace, given by its root, whether nothing of it is known to be missing.

    Something is where a span lacks its parent or has impossible times, there are several roots or none, or
    the server cut it.
    """
    spans = telemetry.spans
    at = np.array(roots, np.int64)
    keys = spans.trace_ix
    damaged = keys[(spans.parent_ix == ORPHAN) | ~spans.possible]
    rooted, of_root = np.unique(keys[spans.parent_ix == NO_PARENT], return_counts=True)
    damaged = np.concatenate([damaged, rooted[of_root > 1]])
    cut = {(int(trace, 16) >> 64, int(trace, 16) & _LOW) for trace in telemetry.ledger.partial_traces}
    pairs = zip(spans.trace_hi[at].tolist(), spans.trace_lo[at].tolist(), strict=True)
    whole: npt.NDArray[np.bool_] = ~np.isin(keys[at], damaged) & (spans.parent_ix[at] == NO_PARENT)
    return whole & np.array([pair not in cut for pair in pairs], np.bool_)
