# SPDX-License-Identifier: Apache-2.0
"""The verdict before every answer: are all ranks, windows, steps and spans here that were sent?

Expected counts travel with the windows, so that the verdict does not depend on an end that a killed process
never reports. How a run ended is no defect of its data: a killed run whose tables are all here is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.model.coverage import Coverage, Rows, coverage_of
from grademl_otel.analyzers.model.evidence import Evidence, count_of
from grademl_otel.analyzers.model.facts import Completeness, StepTable
from grademl_otel.analyzers.model.tables import TablePart
from grademl_otel.analyzers.units import count, duration

_NOT_TRAINING: Final = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
_LISTED: Final = 8
_LOW: Final = (1 << 64) - 1
_GAPS: Final = 1000
_MOST_REASONS: Final = 24


class Reasons:
    """Collects reasons; what holds for several ranks alike becomes one line, and there are never too many.

    What holds for the run comes first: it must not be among those that are one too many.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def add(self, text: str) -> None:
        self._ranks.setdefault(text, [])

    def of_rank(self, rank: int, text: str) -> None:
        self._ranks.setdefault(text, []).append(rank)

    def lines(self) -> list[str]:
        lines = [
            text if not ranks else f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)}: {text}"
            for text, ranks in sorted(self._ranks.items(), key=lambda reason: bool(reason[1]))
        ]
        if len(lines) > _MOST_REASONS:
            lines[_MOST_REASONS:] = [f"{len(lines) - _MOST_REASONS:,} more reasons of this kind"]
        return lines


def judge(evidence: Evidence, steps: StepTable) -> Completeness:
    """Return the verdict on a run of ours; each reason is one line with numbers."""
    reasons = Reasons()
    parts: dict[int, list[TablePart]] = {rank: [] for rank in evidence.ranks}
    for part in evidence.parts:
        parts[part.rank].append(part)
    _ranks(evidence, reasons)
    missing_windows: set[int] = set()
    covered: dict[int, Coverage] = {}
    for rank in evidence.ranks:
        if parts[rank] or rank in evidence.run_attributes:
            covered[rank] = _steps(evidence, rank, parts[rank], steps, reasons)
        else:
            reasons.of_rank(rank, "no step table has arrived")
        missing_windows |= _windows(rank, parts[rank], reasons)
    _uncovered(covered, reasons)
    _ends(evidence, reasons)
    expected_spans = _spans(evidence, reasons)
    dropped = _dropped(evidence, reasons)
    if evidence.orphans:
        reasons.add(orphaned(evidence.orphans))
    shards = len({semconv.run_shard(rank) for rank in evidence.ranks})
    if evidence.roots > shards:
        traces = "the run's trace has" if shards == 1 else f"the run's {shards} traces have"
        wanted = "one was" if shards == 1 else f"{shards} were"
        reasons.add(f"{traces} {evidence.roots} roots; {wanted} expected")
    for fault in evidence.malformed:
        reasons.add(f"a step table cannot be read: {fault}")
    # What spans of others lack in the same source is no matter of this run, whose counts tell of its own.
    of_run = replace(evidence.ledger, impossible_times=evidence.impossible, unidentified=0, sdk_dropped=0)
    for reason in losses_of_reading(of_run, evidence.of_cut_traces):
        reasons.add(reason)
    if reasons:  # else the run's own counts say that nothing was cut
        for line in evidence.ledger.near_cap:
            reasons.add(line)
    expected_steps = max((one.expected for one in covered.values()), default=None)
    missing_steps = max((one.missing for one in covered.values()), default=0)
    costs = [_share(attributes.get(semconv.TRACER_COST)) for attributes in evidence.run_attributes.values()]
    return Completeness(
        verdict="incomplete" if reasons else "complete",
        reasons=reasons.lines(),
        spans_expected=expected_spans,
        spans_received=sum(evidence.received.values()),
        ranks_expected=evidence.world_size,
        ranks_present=evidence.ranks,
        steps_expected=expected_steps,
        steps_measured=0 if expected_steps is None else max(0, expected_steps - missing_steps),
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
        coverage=covered,
    )


def spans_here(spans: SpanColumns, traces: Sequence[str]) -> dict[str, int]:
    """Return trace id (hex) -> how many of its spans are here, of ``traces``."""
    if not traces:
        return {}
    wanted = {trace: (int(trace, 16) >> 64, int(trace, 16) & _LOW) for trace in traces}
    lows = np.array([low for _, low in wanted.values()], np.uint64)
    at = np.flatnonzero(np.isin(spans.trace_lo, lows))
    here = Counter(zip(spans.trace_hi[at].tolist(), spans.trace_lo[at].tolist(), strict=True))
    return {trace: here[pair] for trace, pair in wanted.items()}


def losses_of_reading(ledger: Ledger, here: Mapping[str, int]) -> list[str]:
    """Return what reading lost; ``here`` tells how many spans of each cut trace arrived."""
    reasons = []
    if ledger.partial_traces:
        listed = [f"{trace} ({count(here.get(trace, 0), 'span')} here)" for trace in ledger.partial_traces]
        were = "trace was" if len(listed) == 1 else "traces were"
        reasons.append(f"{len(listed):,} {were} cut or not given by the server: {_listed(listed)}")
    if ledger.broken:
        reasons.append(f"reading broke off: {ledger.broken}")
    if ledger.capped:
        reasons.append("reading stopped at the bound on spans; read more with --max-spans")
    if ledger.impossible_times:
        reasons.append(_left_out(ledger.impossible_times, "with impossible times"))
    if ledger.conflicting:
        reasons.append(_left_out(ledger.conflicting, "with the id of another"))
    if ledger.moved:
        most = ledger.moved_most_ns / 1e6
        reasons.append(
            f"{count(ledger.moved, 'span')} {'was' if ledger.moved == 1 else 'were'} moved by Jaeger's"
            f" clock-skew adjustment, by up to {most:,.6g} ms; ask it raw"
        )
    if ledger.unidentified:
        reasons.append(_left_out(ledger.unidentified, "without an id"))
    if ledger.sdk_dropped:
        reasons.append(
            f"{ledger.sdk_dropped:,} attributes, events and links were beyond the limits of an SDK"
        )
    return reasons


def _left_out(number: int, why: str) -> str:
    return f"1 span {why} was left out" if number == 1 else f"{number:,} spans {why} were left out"


def _ranks(evidence: Evidence, reasons: Reasons) -> None:
    if evidence.world_size is None:
        return
    missing = sorted(set(range(evidence.world_size)) - set(evidence.ranks))
    if missing:
        reasons.add(f"{len(missing)} of {evidence.world_size} ranks sent nothing: {_listed(missing)}")


def _steps(
    evidence: Evidence, rank: int, parts: Sequence[TablePart], steps: StepTable, reasons: Reasons
) -> Coverage:
    """Return what is missing of the steps of ``rank``, whose table has the ``parts``, and say it."""
    mine = steps.of_rank(rank)
    flags = steps.flags[mine]
    own = evidence.run_attributes.get(rank, {})
    trained = max(count_of(own, semconv.STEPS_TOTAL), *(part.steps_so_far for part in parts), 0)
    evaluated = max(count_of(own, semconv.EVAL_STEPS_TOTAL), *(part.eval_steps_so_far for part in parts), 0)
    kinds = (
        ("training", trained, (flags & _NOT_TRAINING) == 0),
        ("evaluation", evaluated, flags & semconv.FLAG_EVALUATE),
        ("incomplete", count_of(own, semconv.INCOMPLETE_STEPS_TOTAL), flags & semconv.FLAG_INCOMPLETE),
    )
    missing = {kind: expected - int(np.count_nonzero(rows)) for kind, expected, rows in kinds}
    for kind, expected, _ in kinds:
        if missing[kind] > 0:
            reasons.of_rank(rank, f"{missing[kind]:,} of {expected:,} {kind} steps are missing")
    rows = max((part.rows_so_far for part in parts), default=0)
    if len(flags) < rows and max(missing.values()) <= 0:
        reasons.of_rank(rank, f"{rows - len(flags):,} of {rows:,} rows are missing")
    table = Rows(steps.step[mine], steps.start[mine], steps.end[mine], flags)
    found = coverage_of(rank, table, trained, evidence.bounds[rank])
    lost = max(count_of(own, semconv.TRACER_DROPPED), evidence.dropped.get(rank, 0))
    marks = lost + sum(int(counts[mine].sum()) for counts in steps.count.values())
    stopped = evidence.ledger.capped or evidence.ledger.broken is not None
    return replace(
        found,
        marks_share=lost / marks if lost else 0.0,
        evaluation_missing=max(0, missing["evaluation"]),
        open_end=stopped and not own,
    )


def _uncovered(covered: Mapping[int, Coverage], reasons: Reasons) -> None:
    """Say how much of the time of training is in holes."""
    holes = {rank: one for rank, one in covered.items() if one.hole_ns}
    if holes:
        worst = max(holes.values(), key=lambda one: one.hole_ns)
        whole = worst.hole_ns + worst.trained_ns
        most = f", most of {len(holes):,} ranks" if len(holes) > 1 else ""
        # Without a step nobody knows when the training began.
        size = f"{duration(worst.hole_ns)} of {duration(whole)}" if worst.trained_ns else "all"
        reasons.add(
            f"{size} of training {'are' if worst.trained_ns else 'is'} not covered"
            + (f" (rank {worst.rank}{most})" if len(covered) > 1 else "")
        )


def _windows(rank: int, parts: Sequence[TablePart], reasons: Reasons) -> set[int]:
    """Return the windows of ``rank`` of which something is missing, and say what."""
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
        reasons.of_rank(rank, f"{missing:,} of {final + 1:,} windows are missing: {listed}")
    cut = set()
    for window, some in by_window.items():
        numbers = {part.part for part in some}
        gaps = _gaps(numbers)
        if gaps:
            cut.add(window)
            count = max(numbers) + 1
            listed = _listed(gaps, count - len(numbers))
            reasons.of_rank(rank, f"window {window} lacks parts {listed} of {count:,}")
        # The run's end closes its final window only if there are rows left to send: its totals tell there.
        if window != final and not any(part.last for part in some):
            cut.add(window)
            reasons.of_rank(rank, f"window {window} lacks its last part")
    return cut.union(absent)


def orphaned(spans: int) -> str:
    """Return a reason: so many spans lack their parent."""
    return f"{spans:,} {'span names' if spans == 1 else 'spans name'} a parent that is not here"


def _ends(evidence: Evidence, reasons: Reasons) -> None:
    """A rank whose run span is missing still runs, or its end got lost."""
    silent = [end.rank for end in evidence.ended if end.how == "unknown"]
    if silent:
        subject = (
            f"rank {silent[0]} has" if len(silent) == 1 else f"{len(silent)} ranks ({_listed(silent)}) have"
        )
        whose = "its" if len(silent) == 1 else "their"
        reasons.add(
            f"{subject} not reported an end: still running, just killed, or {whose} last spans are missing"
        )


def _spans(evidence: Evidence, reasons: Reasons) -> int | None:
    """Return how many spans should be here, as far as the ranks tell; None where a gateway left out some."""
    expected: int | None = None
    for rank, (lacking, kept) in evidence.steps_lacking.items():
        reasons.of_rank(rank, f"{lacking:,} of {kept:,} steps that the gateway kept lack their spans")
    for rank in evidence.ranks:
        if rank in evidence.sampled:
            continue
        own = evidence.run_attributes.get(rank, {})
        emitted = max(count_of(own, semconv.SPANS_EMITTED), evidence.emitted.get(rank, 0))
        if not emitted:
            continue
        expected = (expected or 0) + emitted
        received = evidence.received.get(rank, 0)
        if received < emitted:
            unsent = count_of(own, semconv.TRACER_UNSENT)
            known = f", {unsent:,} were lost on their way out of the recorder" if unsent else ""
            reasons.of_rank(rank, f"{emitted - received:,} of {emitted:,} spans are missing{known}")
    return None if evidence.sampled else expected


def _dropped(evidence: Evidence, reasons: Reasons) -> int:
    total = 0
    for rank in evidence.ranks:
        own = evidence.run_attributes.get(rank, {})
        total += max(count_of(own, semconv.TRACER_DROPPED), evidence.dropped.get(rank, 0))
    if total:
        reasons.add(f"the tracer lost {total:,} marks: phases may be missing in steps that are here")
    return total


def _detailed_everywhere(evidence: Evidence) -> int:
    """Number of training steps with a span on every rank that is present."""
    ranks_of_step = Counter(step for _, step in evidence.detailed)
    return sum(1 for ranks in ranks_of_step.values() if ranks == len(evidence.ranks))


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
