# SPDX-License-Identifier: Apache-2.0
"""The answer of `grademl diff`: all pairs judged together, and what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.comparison.document import (
    LESS,
    MORE,
    NOISE,
    ONLY_A,
    ONLY_B,
    REFUSED,
    SAME,
    SLIGHT,
    DiffDocument,
    Difference,
    RankPair,
)
from grademl_otel.analyzers.comparison.expressions import Expression
from grademl_otel.analyzers.comparison.judging import Pair, judged
from grademl_otel.analyzers.comparison.limits import fail_on
from grademl_otel.analyzers.comparison.of_run import RunMeasures
from grademl_otel.analyzers.comparison.of_traces import TraceMeasures
from grademl_otel.analyzers.comparison.pairs import Pairs, RunPairs, TracePairs
from grademl_otel.analyzers.comparison.resampling import MEAN
from grademl_otel.analyzers.comparison.sides import Measured, not_the_same, side_of
from grademl_otel.analyzers.comparison.types import type_pairs
from grademl_otel.analyzers.comparison.usual import steadier
from grademl_otel.analyzers.comparison.words import change, quantity, spread_in_words
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.graph.device import is_asynchronous
from grademl_otel.analyzers.units import percent

BY: Final = ("phase", "type")
THRESHOLD: Final = 0.01
"""Part of the step below which a difference does not matter, unless told otherwise."""

_DIFFERS: Final = (MORE, LESS, ONLY_A, ONLY_B)
_PARTS: Final = ("phase", "type", "scope")
"""Kinds of measures that a step is made of."""
_PARTS_OF_TRACES: Final = ("own", "type")
"""Those of a trace: a span that waits for a slower one takes longer, too, and makes no difference."""
_ONLY: Final = " Nothing else in it differs beyond noise."
_NAMED: Final = 4
"""Phases that the answer in words names."""


def differences(
    a: Measured, b: Measured, by: str, expressions: Sequence[Expression], threshold: float
) -> DiffDocument:
    """Return ``b`` beside ``a``; UsageError where one is a run and the other is not."""
    pairs: RunPairs | TracePairs
    if isinstance(a, RunMeasures) and isinstance(b, RunMeasures):
        pairs = RunPairs(a, b, threshold)
    elif isinstance(a, TraceMeasures) and isinstance(b, TraceMeasures):
        pairs = TracePairs(a, b, threshold)
    else:
        raise UsageError("one of the two is a run, the other traces of others: there is nothing to compare")
    sides = []
    for side in (a, b):
        if isinstance(side, RunMeasures):
            side.prepare()
        sides.append(side_of(side))
    results = fail_on(expressions, pairs)
    found = pairs.all() if by == BY[0] else Pairs([*_step(pairs), *type_pairs(a, b, threshold)])
    comparisons = judged(found.found)
    told = [pair.difference(comparisons) for pair in found.found]
    return DiffDocument(
        a=sides[0],
        b=sides[1],
        verdict=_verdict(told, found.found[0], isinstance(a, RunMeasures)) + _samples(a, b, told),
        not_the_same=not_the_same(a, b),
        differences=told,
        negligible=found.negligible,
        ranks=_ranks(a, b),
        comparisons=comparisons,
        threshold=threshold,
        results=results,
        notes=_notes(a, b),
    )


def _notes(a: Measured, b: Measured) -> list[str]:
    """Return what is to be known of the numbers."""
    if not (isinstance(a, RunMeasures) and isinstance(b, RunMeasures)):
        return []
    notes = []
    if is_asynchronous(a.run) and is_asynchronous(b.run):
        notes.append(
            "phases are how long the host took to give work to the device; device.* is how long that took"
        )
    if len(a.run.ranks) != len(b.run.ranks):
        notes.append("what ranks wait for each other within a phase is part of it")
    return notes


def _step(pairs: RunPairs | TracePairs) -> list[Pair]:
    return [pairs.usual_step() if isinstance(pairs, RunPairs) else steadier(pairs.duration)]


def _ranks(a: Measured, b: Measured) -> list[RankPair]:
    """Return the steady steps rank by rank, where either side has several."""
    if not (isinstance(a, RunMeasures) and isinstance(b, RunMeasures)):
        return []
    ranks = sorted({*a.run.ranks, *b.run.ranks})
    if len(ranks) < 2 or a.untold() or b.untold():
        return []
    pairs = []
    for rank in ranks:
        one, other = a.step_p50_of(rank), b.step_p50_of(rank)
        pairs.append(
            RankPair(
                rank,
                None if one is None else round(one[1]),
                None if other is None else round(other[1]),
                0 if one is None else one[0],
                0 if other is None else other[0],
            )
        )
    return pairs


def _samples(a: Measured, b: Measured, told: list[Difference]) -> list[str]:
    """Return what steps of other sizes come to: such a step is no measure of speed."""
    if not (isinstance(a, RunMeasures) and isinstance(b, RunMeasures)):
        return []
    if a.samples is None or b.samples is None or a.samples == b.samples:
        return []
    line = f"A step has {a.samples:,} samples in A and {b.samples:,} in B"
    rate = next((one for one in told if one.measure == "samples_per_s" and one.verdict != REFUSED), None)
    if rate is None:
        return [f"{line}."]
    beyond = {NOISE: ", no difference beyond noise", SAME: ", no difference that matters"}
    spread = f" ({spread_in_words(rate)})" if rate.interval is not None else ""
    return [f"{line}: {change(rate)}{spread}{beyond.get(rate.verdict, '')}."]


def _verdict(told: list[Difference], lead: Pair, of_runs: bool) -> list[str]:
    """Return the answer in words: the step (or trace) first, then what makes the difference."""
    first, rest = told[0], told[1:]
    unit = "step" if of_runs else "trace"
    main = [one for one in rest if one.kind in (_PARTS if of_runs else _PARTS_OF_TRACES)]
    differ = [one for one in main if one.verdict in _DIFFERS]
    named = "; ".join(change(one) for one in differ[:_NAMED])
    if len(differ) > _NAMED:
        named += f"; and {len(differ) - _NAMED} more"
    if lead.reason is not None:
        lines = [f"No verdict on the {unit}: {lead.reason}."]
        return [*lines, f"What differs beyond noise: {named}."] if named else lines
    on_average = " on average" if lead.a.statistic == MEAN else ""
    between = f"{quantity(first.a, first.unit)} in A, {quantity(first.b, first.unit)} in B{on_average}"
    seen = f"({spread_in_words(first)}): {between}."
    if first.verdict in (MORE, LESS):
        by, word = percent(abs(first.relative or 0.0)), "slower" if first.verdict == MORE else "faster"
        lines = [f"B is {by} {word} a {unit} {seen}"]
        if named:
            only = "" if any(one.verdict == SLIGHT for one in main) else _ONLY
            lines.append(f"What makes the difference: {named}.{only}")
        elif main:
            lines.append("No part of it differs beyond noise by itself.")
        return lines
    said = {
        SAME: f"No difference that matters a {unit} {seen}",
        NOISE: f"No difference beyond noise a {unit} {seen}",
        SLIGHT: f"The difference a {unit} is beyond noise and too little to matter {seen}",
    }
    lines = [said.get(first.verdict, f"{change(first)}.")]
    if named:
        lines.append(f"Within it: {named}.")
    elif rest and not any(one.verdict in (*_DIFFERS, SLIGHT) for one in rest):
        lines.append("Nothing else differs beyond noise.")
    return lines
