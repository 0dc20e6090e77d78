# SPDX-License-Identifier: Apache-2.0
"""The lines every answer opens with: what was analyzed, how complete it is, and how it ended when badly."""

from __future__ import annotations

from collections.abc import Sequence

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph.runs.main_lane import OTHER
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.reporting.document import (
    ClockOffset,
    CompletenessInfo,
    CriticalPathDocument,
    EndedInfo,
    RanksDocument,
    ReportDocument,
)
from grademl_otel.analyzers.reporting.runs_screen import SHORT_ID
from grademl_otel.analyzers.units import clock, count, duration, percent

_LISTED = 8
_SILENT_NS = 90_000_000_000
"""A rank that goes on is heard of every minute."""
_COLLECTIVES = (sc.COLLECTIVE, sc.COLLECTIVE_WAIT)
_INDENT = len("data  ")


def draw(canvas: Canvas, document: CriticalPathDocument | RanksDocument) -> None:
    """Write the opening lines of ``document``."""
    canvas.line(" · ".join(subject(document)))
    badly = [(ended, line) for ended in document.ended if (line := ended_in_words(ended))]
    for ended, line in badly[:_LISTED]:
        canvas.line(line, label="ended", style="" if ended.how == "unknown" else "bold red")
    if len(badly) > _LISTED:
        canvas.line(f"and {len(badly) - _LISTED:,} more ranks (--json)", label="ended")
    if line := waiting_in_vain(document.ended, silent_ranks(document.completeness)):
        canvas.line(line, label="ended", style="bold red")
    complete = document.completeness
    notes = document.notes
    canvas.line(
        data_in_words(complete), label="data", style="bold yellow" if complete.verdict == "incomplete" else ""
    )
    for note in notes[:_LISTED]:
        canvas.line(f"- {note}", indent=_INDENT)
    if (more := len(notes) - _LISTED) > 0:
        canvas.line(f"- and {more:,} more (--json)", indent=_INDENT)
    shifted = [one for one in complete.clocks[1:] if one.applied]
    for one in shifted[:_LISTED]:
        canvas.line(clock_in_words(one), label="clock")
    if len(shifted) > _LISTED:
        canvas.line(f"and {len(shifted) - _LISTED:,} more (--json)", label="clock")


def subject(document: CriticalPathDocument | RanksDocument) -> list[str]:
    """Return what was analyzed, a fact each."""
    source, wall = document.source, duration(document.window.wall_ns)
    if source.run is None:
        return [
            f"traces of {source.uri}",
            count(source.traces, "trace"),
            wall if source.traces == 1 else f"{wall} together",
        ]
    attempt = [f"attempt {source.attempt}"] if source.attempt else []
    if not isinstance(document, ReportDocument) or document.run is None:
        return [f"run {source.run}", *attempt, wall]
    run = document.run
    what = [count(run.epochs, "epoch")] if run.epochs else []
    what += [count(run.steps, "step")] if run.steps or not run.eval_steps else []
    what += [count(run.eval_steps, "evaluation step")] if run.eval_steps and not run.steps else []
    return [
        f"run {run.script or source.run}",
        *([run.name] if run.name else []),
        *attempt,
        *([f"started by run {run.parent[:SHORT_ID]}"] if run.parent else []),
        f"{run.ranks:,} process{'es' * (run.ranks != 1)}",
        *([run.device] if run.device else []),
        ", ".join(what),
        *([f"fit {source.fit} of {run.fits}"] if run.fits > 1 else []),
        wall,
    ]


def ended_in_words(ended: EndedInfo) -> str | None:
    """Return how a rank ended; None when it ended in order."""
    if ended.how == "exit":
        return None
    how = {"exception": "by an exception", "unknown": "not yet, as far as is known"}.get(ended.how, ended.how)
    parts = [f"rank {ended.rank} {how}" + (f" ({ended.error})" if ended.error else "")]
    if ended.open_phase:
        since = "" if ended.open_since_ns is None else f" since {clock(ended.open_since_ns)}"
        parts.append(f"while in {ended.open_phase}" if not since else f"in {ended.open_phase}{since}")
    if ended.last_step is not None:
        parts.append(f"last step {ended.last_step:,}")
    parts.append(f"last sign of life at {clock(ended.last_mark_ns)}")
    if ended.silent_ns >= _SILENT_NS:
        parts.append(f"silent since, while others went on for {duration(ended.silent_ns)}")
    return " · ".join(parts)


def clock_in_words(one: ClockOffset) -> str:
    """Return how far a clock is off, as "host-b -30.6 ms +- 0.6, 812 pairs"."""
    digits = 1 if one.error_ns >= 100_000 else 3
    offset, error = one.offset_ns / 1e6, one.error_ns / 1e6
    told = f", {count(one.pairs, 'pair')}" if one.pairs else ", as given"
    return f"{one.host} {offset:+,.{digits}f} ms +- {error:,.{digits}f}{told}"


def silent_ranks(complete: CompletenessInfo) -> list[int]:
    """Return the ranks that sent nothing."""
    return sorted(set(range(complete.ranks.expected or 0)) - set(complete.ranks.present))


def waiting_in_vain(ended: Sequence[EndedInfo], silent: Sequence[int] = ()) -> str | None:
    """Return which ranks were in a collective at the end, and which were not; None unless some were.

    Of the ``silent`` ones, of which nothing arrived, nobody knows.
    """
    inside = [one for one in ended if one.how != "exit" and one.open_phase in _COLLECTIVES]
    away = [one for one in ended if one not in inside]
    if not inside or not (away or silent):
        return None
    waiting = _listed([f"{one.rank}" for one in inside])
    absent = _listed(
        [
            f"rank {one.rank} ({'ended' if one.how == 'exit' else f'in {one.open_phase or OTHER}'})"
            for one in away
        ]
        + [f"rank {rank} (sent nothing)" for rank in silent]
    )
    ranks = f"rank {waiting} was" if len(inside) == 1 else f"ranks {waiting} were"
    return f"{ranks} in a collective; not in it: {absent}"


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_LISTED]) + (", ..." if len(items) > _LISTED else "")


def data_in_words(complete: CompletenessInfo) -> str:
    """Return the verdict on the data, and the counts that it goes by."""
    verdict = complete.verdict.upper() if complete.verdict == "incomplete" else complete.verdict
    return f"{verdict} ({data_counts(complete)})"


def data_counts(complete: CompletenessInfo) -> str:
    """Return how much of what is here, of how much that there should be."""
    steps, tracer = complete.steps, complete.tracer
    facts = []
    if steps.expected is not None:
        facts.append(f"{steps.measured:,} of {steps.expected:,} steps")
    elif steps.measured:
        facts.append(f"{steps.measured:,} steps")
    if steps.measured:
        facts[-1] += f", {steps.detailed_all_ranks:,} in detail"
    if complete.ranks.expected is not None and complete.ranks.expected > 1:
        facts.append(f"{len(complete.ranks.present):,} of {complete.ranks.expected:,} ranks")
    if not facts:
        facts.append(count(complete.spans.received, "span"))
        facts += [count(complete.orphans, "orphan")] if complete.orphans else []
    if tracer.cost_fraction is not None:
        facts.append(f"tracer {percent(tracer.cost_fraction)}, {tracer.dropped or 0:,} dropped")
    return "; ".join(facts)
