# SPDX-License-Identifier: Apache-2.0
"""What was recorded or sent in part by design, and why, as windows and run spans say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.analyzers.model.evidence import count_of
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, Reduced
from grademl_otel.analyzers.model.tables import TablePart
from grademl_otel.analyzers.units import count

_LEFT_OUT: Final = (
    (semconv.PASSES_LEFT_OUT, "passes over a loader"),
    (semconv.PHASES_LEFT_OUT, "checkpoints and the like"),
)


def reductions(parts: Sequence[TablePart]) -> list[Reduced]:
    """Return how each rank was recorded that was not in full; ``parts`` sorted by (rank, window, part)."""
    found: dict[int, Reduced] = {}
    for part in parts:
        if part.record_level <= COMPLETE_LEVEL or not part.rows:
            continue
        known = found.get(part.rank)
        since = known.since if known else int(part.columns["step"].min())
        if known is None or part.record_level > known.level:
            found[part.rank] = Reduced(part.rank, part.record_level, since, part.record_reason or "")
    return list(found.values())


def in_words(reduced: Sequence[Reduced]) -> list[str]:
    """Return one line for all ranks of which the same is to be said."""
    ranks: dict[str, list[int]] = {}
    for one in reduced:
        ranks.setdefault(str(one), []).append(one.rank)
    if len(ranks) == 1:
        return list(ranks)
    return [f"{count(len(some), 'rank')}: {text}" for text, some in ranks.items()]


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
