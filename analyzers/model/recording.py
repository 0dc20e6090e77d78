# SPDX-License-Identifier: Apache-2.0
"""What was recorded or sent in part by design, and why, as windows and run spans say.

A gateway may keep the traces of some steps only (docs/collectors.md). It tells so on the spans that it always
keeps, so that what it left out does not pass for lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.analyzers.model.evidence import count_of
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, Reduced, StepTable
from grademl_otel.analyzers.model.tables import TablePart
from grademl_otel.analyzers.units import count

_NO_PHASES: Final = "only waits for data were measured, not forward, backward and optimizer"
_NO_STEPS: Final = "only the ends of updates were counted, each row is the mean of several steps"
_COUNTED: Final = 3
"""Level from which on updates are counted."""
_LEFT_OUT: Final = (
    (semconv.PASSES_LEFT_OUT, "passes over a loader"),
    (semconv.PHASES_LEFT_OUT, "checkpoints and the like"),
)


def reductions(parts: Sequence[TablePart]) -> list[Reduced]:
    """Return where ranks were not recorded in full, sorted by (rank, level)."""
    found: dict[tuple[int, int], Reduced] = {}
    last_in_full: dict[int, int] = {}
    for part in parts:
        if not part.rows:
            continue
        first, last = int(part.columns["step"].min()), int(part.columns["step"].max())
        if part.record_level <= COMPLETE_LEVEL:
            last_in_full[part.rank] = max(last, last_in_full.get(part.rank, last))
            continue
        key = part.rank, part.record_level
        known = found.setdefault(key, Reduced(*key, first, last, part.record_reason or ""))
        found[key] = replace(known, since=min(first, known.since), until=max(last, known.until or 0))
    return [
        one if (one.until or 0) < last_in_full.get(one.rank, -1) else replace(one, until=None)
        for _, one in sorted(found.items())
    ]


def in_words(reduced: Sequence[Reduced]) -> list[str]:
    """Return one line for all ranks of which the same is to be said."""
    of_rank: dict[int, list[Reduced]] = {}
    for one in reduced:
        of_rank.setdefault(one.rank, []).append(one)
    ranks: dict[str, list[int]] = {}
    for rank, levels in of_rank.items():
        ranks.setdefault(_of_levels(levels), []).append(rank)
    if len(ranks) == 1:
        return list(ranks)
    return [f"{count(len(some), 'rank')}: {text}" for text, some in ranks.items()]


def _of_levels(levels: Sequence[Reduced]) -> str:
    """Return what is to be said of one rank; ``levels`` the coarsest last."""
    coarsest = levels[-1]
    since = min(one.since for one in levels)
    known = [one.until for one in levels if one.until is not None]
    until = f"to {max(known):,}" if len(known) == len(levels) else "on"
    at = "at level" if len(levels) == 1 else "down to level"
    missing = _NO_STEPS if coarsest.level >= _COUNTED else _NO_PHASES
    because = f" ({coarsest.reason})" if coarsest.reason else ""
    return f"recorded in part from step {since:,} {until}, {at} {coarsest.level}: {missing}{because}"


def percent_kept(attributes: Mapping[str, Any]) -> float | None:
    """Return the part of traces of steps that a gateway keeps, 0 to 100; None where none leaves out any."""
    value = attributes.get(semconv.GATEWAY_PERCENT)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 100 else None


def sampled_ranks(
    run_attributes: Mapping[int, Mapping[str, Any]], parts: Sequence[TablePart]
) -> dict[int, float]:
    """Return rank -> per cent of the traces of its steps that a gateway keeps, the least that it was."""
    said = [*run_attributes.items(), *((part.rank, part.attributes) for part in parts)]
    found: dict[int, float] = {}
    for rank, attributes in said:
        if (kept := percent_kept(attributes)) is not None:
            found[rank] = min(kept, found.get(rank, kept))
    return found


def kept_by_gateway(
    sampled: Mapping[int, float], steps: StepTable, spans: Collection[tuple[int, int]]
) -> tuple[list[str], dict[int, tuple[int, int]]]:
    """Return a line on how many steps are in detail, and of each rank what is missing of those.

    ``spans`` are (rank, number) of the training steps whose own spans are here. A gateway keeps the trace of
    a step whole or not at all: of one that is here, each rank that sent detail has a span. What is missing is
    (steps without a span, of how many that should have one).
    """
    if not sampled:
        return [], {}
    detailed = (steps.flags & semconv.FLAG_DETAILED) > 0
    detailed &= (steps.flags & (semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE)) == 0
    sent = set(zip(steps.rank[detailed].tolist(), steps.step[detailed].tolist(), strict=True))
    kept = {number for rank, number in spans if (rank, number) in sent}
    due = Counter(rank for rank, number in sent if rank in sampled and number in kept)
    here = Counter(rank for rank, number in spans if (rank, number) in sent)
    lacking = {rank: (of - here[rank], of) for rank, of in sorted(due.items()) if here[rank] < of}
    sent_steps = count(len({number for _, number in sent}), "training step")
    line = (
        f"a gateway kept the detail of {len(kept):,} of {sent_steps}: {min(sampled.values()):g} % of all, and"
        " those that failed, were slow or stood out; whether phases are missing in them is not known"
    )
    return [line], lacking


def left_out(run_attributes: Mapping[int, Mapping[str, Any]], parts: Sequence[TablePart]) -> list[str]:
    """Return a line on the spans that the run's trace had no room for."""
    notes = []
    for key, what in _LEFT_OUT:
        most = {rank: count_of(own, key) for rank, own in run_attributes.items()}
        for part in parts:
            most[part.rank] = max(most.get(part.rank, 0), count_of(part.attributes, key))
        if total := sum(most.values()):
            limit = semconv.MAX_SPANS_PER_TRACE
            notes.append(f"{total:,} {what} have no span: a trace holds {limit:,} at most")
    return notes
