# SPDX-License-Identifier: Apache-2.0
"""The verdict before every answer: are all ranks, windows, steps and spans here that were sent?

Expected counts travel with the windows, so that the verdict does not depend on an end that a killed process
never reports. How a run ended is no defect of its data: a killed run whose tables are all here is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import (
    NO_PARENT,
    ORPHAN,
    IntArray,
    Ledger,
    SpanColumns,
    Telemetry,
)
from grademl_otel.analyzers.model.facts import Completeness, HowEnded, StepTable
from grademl_otel.analyzers.model.tables import TablePart

_NOT_TRAINING: Final = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
_LISTED: Final = 8
_GAPS: Final = 1000
_DISAGREE_SHARE: Final = 0.01
_DISAGREE_NS: Final = 10_000


@dataclass
class Evidence:
    """What the assembly of a run found out about what it should have found."""

    ledger: Ledger
    ranks: list[int]
    world_size: int | None
    parts: list[TablePart] = field(default_factory=list)
    run_attributes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank -> attributes of its run span."""
    ended: list[HowEnded] = field(default_factory=list)
    detailed: set[tuple[int, int]] = field(default_factory=set)
    """(rank, training step) of the step spans."""
    malformed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    overlap_ns: int = 0
    emitted: dict[int, int] = field(default_factory=dict)
    """Rank -> spans that it had sent when the last window that is here was."""
    dropped: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    orphans: int = 0
    roots: int = 0
    """Spans without a parent in the run's trace."""

    def note_window(self, rank: int, attributes: Mapping[str, Any]) -> None:
        """Take the running counts that a window span carries."""
        self.emitted[rank] = max(self.emitted.get(rank, 0), _count(attributes, semconv.SPANS_EMITTED))
        self.dropped[rank] = max(self.dropped.get(rank, 0), _count(attributes, semconv.TRACER_DROPPED))

    def count_spans(
        self, spans: SpanColumns, ixs: IntArray, rank_of_span: IntArray, in_run_trace: npt.NDArray[np.bool_]
    ) -> None:
        """Count what arrived: spans by rank, orphans, roots."""
        ranks, counts = np.unique(rank_of_span[ixs], return_counts=True)
        self.received = {int(rank): int(count) for rank, count in zip(ranks, counts, strict=True)}
        parents = spans.parent_ix[ixs]
        self.orphans = int(np.count_nonzero(parents == ORPHAN))
        self.roots = int(np.count_nonzero((parents == NO_PARENT) & in_run_trace[ixs]))

    def compare_detail(
        self, spans: SpanColumns, step_spans: Mapping[tuple[int, int, int], int], steps: StepTable
    ) -> None:
        """Note steps whose span and row differ in length by more than 1 %."""
        lengths = {
            (int(rank), int(start) // 1000): int(end - start)
            for rank, start, end in zip(steps.rank, steps.start, steps.end, strict=True)
        }
        differ = 0
        for (rank, _, start), ix in step_spans.items():
            # The row's start was cut to whole microseconds after its window's start.
            near = (lengths.get((rank, start // 1000 - late)) for late in (0, 1))
            row = next((length for length in near if length is not None), None)
            length = int(spans.end[ix] - spans.start[ix])
            if row is not None and abs(row - length) > max(_DISAGREE_NS, _DISAGREE_SHARE * length):
                differ += 1
        if differ:
            self.conflicts.append(
                f"{differ} of {len(step_spans)} steps: span and table row differ by over 1 %"
            )


def judge(evidence: Evidence, steps: StepTable) -> Completeness:
    """Return the verdict on a run of ours; each reason is one line with numbers."""
    reasons: list[str] = []
    missing_windows: set[int] = set()
    expected_steps, missing_steps = _steps(evidence, steps, reasons)
    _ranks(evidence, reasons)
    for rank in evidence.ranks:
        missing_windows |= _windows(evidence, rank, reasons)
    _ends(evidence, reasons)
    expected_spans = _spans(evidence, reasons)
    dropped = _dropped(evidence, reasons)
    if evidence.orphans:
        reasons.append(f"{evidence.orphans:,} spans name a parent that is not here")
    if evidence.roots > 1:
        reasons.append(f"the run's trace has {evidence.roots} roots; one was expected")
    for fault in evidence.malformed[:_LISTED]:
        reasons.append(f"a step table cannot be read: {fault}")
    if len(evidence.malformed) > _LISTED:
        reasons.append(f"{len(evidence.malformed) - _LISTED} more step tables cannot be read")
    reasons += _of_ledger(evidence.ledger)
    costs = [_share(attributes.get(semconv.TRACER_COST)) for attributes in evidence.run_attributes.values()]
    return Completeness(
        verdict="incomplete" if reasons else "complete",
        reasons=reasons,
        spans_expected=expected_spans,
        spans_received=sum(evidence.received.values()),
        ranks_expected=evidence.world_size,
        ranks_present=evidence.ranks,
        steps_expected=expected_steps,
        steps_measured=max(0, expected_steps - missing_steps) if expected_steps is not None else 0,
        steps_detailed_all_ranks=_detailed_everywhere(evidence),
        orphans=evidence.orphans,
        roots=evidence.roots,
        windows_missing=sorted(missing_windows),
        partial_traces=list(evidence.ledger.partial_traces),
        conflicts=evidence.conflicts,
        overlap_ns=evidence.overlap_ns,
        tracer_dropped=dropped,
        tracer_cost_fraction=max((cost for cost in costs if cost is not None), default=None),
        ended=evidence.ended,
    )


def judge_foreign(telemetry: Telemetry, ixs: IntArray | None = None) -> Completeness:
    """Return the verdict on spans that carry no expected counts: at best unverifiable."""
    spans, ledger = telemetry.spans, telemetry.ledger
    parents = spans.parent_ix if ixs is None else spans.parent_ix[ixs]
    chosen = np.arange(len(spans)) if ixs is None else ixs
    roots = chosen[parents == NO_PARENT]
    orphans = int(np.count_nonzero(parents == ORPHAN))
    pairs = np.stack((spans.trace_hi[roots], spans.trace_lo[roots]), axis=1)
    _, per_trace = np.unique(pairs, axis=0, return_counts=True)
    reasons = []
    if orphans:
        reasons.append(f"{orphans:,} spans name a parent that is not here")
    several = int(np.count_nonzero(per_trace > 1))
    if several:
        reasons.append(f"{several:,} traces have several roots")
    reasons += _of_ledger(ledger)
    return Completeness(
        verdict="incomplete" if reasons else "unverifiable",
        reasons=reasons,
        spans_received=len(chosen),
        orphans=orphans,
        roots=len(roots),
        partial_traces=list(ledger.partial_traces),
    )


def _of_ledger(ledger: Ledger) -> list[str]:
    reasons = []
    if ledger.partial_traces:
        listed = _listed(ledger.partial_traces)
        reasons.append(f"{len(ledger.partial_traces)} traces were cut or not given by the server: {listed}")
    if ledger.broken:
        reasons.append(f"reading broke off: {ledger.broken}")
    if ledger.capped:
        reasons.append("reading stopped at the bound on spans; read more with --max-spans")
    if ledger.impossible_times:
        reasons.append(f"{ledger.impossible_times:,} spans have impossible times and were left out")
    return reasons


def _ranks(evidence: Evidence, reasons: list[str]) -> None:
    if evidence.world_size is None:
        return
    missing = sorted(set(range(evidence.world_size)) - set(evidence.ranks))
    if missing:
        reasons.append(f"{len(missing)} of {evidence.world_size} ranks sent nothing: {_listed(missing)}")


def _steps(evidence: Evidence, steps: StepTable, reasons: list[str]) -> tuple[int | None, int]:
    """Return (expected training steps of the rank with most, missing steps of the rank that misses most)."""
    worst = 0
    most: int | None = None
    for rank in evidence.ranks:
        flags = steps.flags[steps.rank == rank]
        parts = [part for part in evidence.parts if part.rank == rank]
        own = evidence.run_attributes.get(rank, {})
        if not parts and not own:
            continue
        measured = {
            "training steps": int(np.count_nonzero((flags & _NOT_TRAINING) == 0)),
            "evaluation steps": int(np.count_nonzero(flags & semconv.FLAG_EVALUATE)),
            "incomplete steps": int(np.count_nonzero(flags & semconv.FLAG_INCOMPLETE)),
        }
        expected = {
            "training steps": max(
                _count(own, semconv.STEPS_TOTAL), *(part.steps_so_far for part in parts), 0
            ),
            "evaluation steps": max(
                _count(own, semconv.EVAL_STEPS_TOTAL), *(part.eval_steps_so_far for part in parts), 0
            ),
            "incomplete steps": _count(own, semconv.INCOMPLETE_STEPS_TOTAL),
        }
        for kind, count in expected.items():
            if measured[kind] < count:
                reasons.append(f"rank {rank}: {count - measured[kind]:,} of {count:,} {kind} are missing")
        rows = max((part.rows_so_far for part in parts), default=0)
        if len(flags) < rows and all(measured[kind] >= count for kind, count in expected.items()):
            reasons.append(f"rank {rank}: {rows - len(flags):,} of {rows:,} rows are missing")
        most = max(most or 0, expected["training steps"])
        worst = max(worst, expected["training steps"] - measured["training steps"])
    return most, worst


def _windows(evidence: Evidence, rank: int, reasons: list[str]) -> set[int]:
    """Return the windows of ``rank`` of which something is missing, and say what."""
    parts = [part for part in evidence.parts if part.rank == rank]
    if not parts:
        return set()
    by_window: dict[int, list[TablePart]] = {}
    for part in parts:
        by_window.setdefault(part.window, []).append(part)
    final = max(by_window)
    missing = final + 1 - len(by_window)
    absent = _gaps(by_window)
    if absent:
        listed = _listed(absent, missing)
        reasons.append(f"rank {rank}: {missing:,} of {final + 1:,} windows are missing: {listed}")
    cut = set()
    for window, some in by_window.items():
        numbers = {part.part for part in some}
        gaps = _gaps(numbers)
        if gaps:
            cut.add(window)
            count = max(numbers) + 1
            listed = _listed(gaps, count - len(numbers))
            reasons.append(f"rank {rank}: window {window} lacks parts {listed} of {count:,}")
        # The run's end closes its final window only if there are rows left to send: its totals tell there.
        if window != final and not any(part.last for part in some):
            cut.add(window)
            reasons.append(f"rank {rank}: window {window} lacks its last part")
    return cut.union(absent)


def _ends(evidence: Evidence, reasons: list[str]) -> None:
    """A rank whose run span is missing still runs, or its end got lost."""
    silent = [end.rank for end in evidence.ended if end.how == "unknown"]
    if silent:
        subject = (
            f"rank {silent[0]} has" if len(silent) == 1 else f"{len(silent)} ranks ({_listed(silent)}) have"
        )
        reasons.append(f"{subject} not reported an end: still running, or its last spans are missing")


def _spans(evidence: Evidence, reasons: list[str]) -> int | None:
    expected: int | None = None
    for rank in evidence.ranks:
        own = evidence.run_attributes.get(rank, {})
        emitted = max(_count(own, semconv.SPANS_EMITTED), evidence.emitted.get(rank, 0))
        if not emitted:
            continue
        expected = (expected or 0) + emitted
        received = evidence.received.get(rank, 0)
        if received < emitted:
            reasons.append(f"rank {rank}: {emitted - received:,} of {emitted:,} spans are missing")
    return expected


def _dropped(evidence: Evidence, reasons: list[str]) -> int:
    total = 0
    for rank in evidence.ranks:
        own = evidence.run_attributes.get(rank, {})
        total += max(_count(own, semconv.TRACER_DROPPED), evidence.dropped.get(rank, 0))
    if total:
        reasons.append(f"the tracer lost {total:,} marks: phases may be missing in steps that are here")
    return total


def _detailed_everywhere(evidence: Evidence) -> int:
    """Number of training steps with a span on every rank that is present."""
    per_rank = [{step for rank, step in evidence.detailed if rank == wanted} for wanted in evidence.ranks]
    return len(set.intersection(*per_rank)) if per_rank else 0


def _count(attributes: Mapping[str, Any], key: str) -> int:
    value = attributes.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else 0


def _share(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e6 else None


def _gaps(numbers: Iterable[int]) -> list[int]:
    """Return the numbers from 0 to the largest of ``numbers`` that are not among them, the first 1,000."""
    gaps: list[int] = []
    expected = 0
    for number in sorted(numbers):
        gaps += range(expected, min(number, expected + _GAPS - len(gaps)))
        expected = number + 1
    return gaps


def _listed(values: Sequence[Any], count: int | None = None) -> str:
    """Return the first few of ``values`` and how many more there are; ``count`` if these are not all."""
    more = (len(values) if count is None else count) - _LISTED
    return ", ".join(str(value) for value in values[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")
