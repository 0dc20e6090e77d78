# SPDX-License-Identifier: Apache-2.0
"""What is said of ranks that keep the others waiting, and what to do about each cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.finding import CONFIDENT_STEPS, Abstained
from grademl_otel.analyzers.diagnosis.lateness import COVERED_SHARE, NOW_AND_THEN, Lateness
from grademl_otel.analyzers.graph.ranks import BACKWARD, FIRST_COLLECTIVE, Comparison
from grademl_otel.analyzers.graph.runs.main_lane import OTHER
from grademl_otel.analyzers.units import milliseconds, percent

RULE: Final = "ranks.straggler"

_NAMED: Final = 4
"""Ranks that a sentence lists."""

_ADVICE: Final = {
    sc.DATA_WAIT: "look at the data loader of {who} alone (`grademl --ranks {rank}`): its storage, the"
    " samples that it gets, what else runs on its host",
    sc.CHECKPOINT_SAVE: "save beside the training (asynchronously), or on all ranks at the same step",
    sc.EVALUATE: "let all ranks evaluate their part, so that none waits",
    sc.GC: "collect garbage on all ranks at the same step: gc.disable(), and gc.collect() now and then",
    OTHER: "look at what only {who} does between the phases: logging, metrics, copies",
}
_SLOWER: Final = (
    "compare {who} with the others: clock rate, temperature and other load of the processor, and the work"
    " that it gets (longer sequences, more layers)"
)


def sentences(found: Comparison, late: Lateness, steps: int) -> list[str]:
    """Return the verdict on ``late`` ranks; ``steps`` steps agree on it."""
    one = len(late.ranks) == 1
    who = _subject(late.ranks, len(found.ranks))
    often = f"in {late.last:,} of {late.n:,} steps, {milliseconds(late.late_ns)} after the others"
    if late.pattern == NOW_AND_THEN:
        first = f"{who} {'keeps' if one else 'keep'} the others waiting now and then: {often}"
    else:
        first = f"{who} {'arrives' if one else 'arrive'} last {often}"
    causes = _causes(late)
    lines = [f"{first}: {causes}." if causes else f"{first}. What takes longer there was not recorded."]
    if found.source == BACKWARD:
        lines.append(
            "No collective was recorded in backward: that it holds one is inferred, as it ends on all ranks"
            " together. Who is slow within it is not observable."
        )
    elif found.source == FIRST_COLLECTIVE:
        lines.append(
            f"That costs up to {percent(late.gain)} of each step: how long the others wait is not recorded."
        )
    else:
        share = percent(late.gain)
        lines.append(f"That costs {share} of each step, which the others wait: they are not slow themselves.")
    return [*lines, *few_steps(steps)]


def few_steps(steps: int) -> list[str]:
    """Return the reservation about ``steps`` steps; none about enough of them."""
    if steps >= CONFIDENT_STEPS:
        return []
    return [f"Too few steps ({steps}) to be sure: {CONFIDENT_STEPS} steady ones are needed."]


def fixes(late: Lateness) -> list[str]:
    """Return what to do about each cause, the largest first."""
    listed = _listed(late.ranks)
    who = f"rank {listed}" if len(late.ranks) == 1 else f"ranks {listed}"
    advice = [_ADVICE.get(cause.phase, _SLOWER) for cause in late.causes] or [_SLOWER]
    return [text.format(who=who, rank=late.ranks[0]) for text in dict.fromkeys(advice)]


def cause_unknown(late: Lateness) -> Abstained:
    """Return that the phases recorded do not tell why ``late`` ranks are."""
    covered = percent(min(1.0, max(0.0, late.covered)))
    return Abstained(
        "ranks.cause",
        f"why rank {late.ranks[0]} is late: what was recorded covers {covered} of it",
        "put what the script does between the phases into `with grademl_otel.phase(...)` blocks",
    )


def waited_for_by_nobody(late: Lateness) -> Abstained:
    """Return that nobody is seen to wait for ranks that come late to their first collective."""
    return Abstained(
        RULE,
        f"rank {late.ranks[0]} comes {milliseconds(late.late_ns)} after the others to the first collective of"
        " a step, but where all of them were recorded nobody is seen to wait for it: the others take longer"
        " after that, or wait in compiled code",
        "look at single steps (`grademl critical-path`)",
    )


def may_be_chance(late: Lateness) -> Abstained:
    """Return that ranks may come last so often by chance."""
    return Abstained(
        RULE,
        f"rank {late.ranks[0]} arrives last in {late.last:,} of {late.n:,} steps, which may be chance"
        f" ({percent(late.chance)})",
        "look at more steps",
    )


def after_the_first_unknown() -> Abstained:
    """Return that only the first collective of each step is known."""
    return Abstained(
        RULE,
        "no step has its collectives on all ranks: who is late after the first one is not known",
        "record with GRADEML_BUDGET=100, or look at more steps",
    )


def not_observable() -> Abstained:
    """Return that what was recorded does not show who waits for whom, and how to record it."""
    return Abstained(
        RULE,
        "who waits for whom is not observable: no collectives were recorded in backward, and a rank that is"
        " slow there makes it equally long on all ranks",
        "record with PyTorch 2.15 or later, whose process groups tell when each rank issues each bucket; or"
        " compare what DistributedDataParallel times itself on each rank (avg_backward_compute_time of its"
        " logging data), or backward under `no_sync()`",
    )


def _subject(ranks: Sequence[int], of: int) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]} (of {of:,})"
    return f"{len(ranks):,} of {of:,} ranks ({_listed(ranks)})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")


def _causes(late: Lateness) -> str:
    """Return what makes the ranks late, in words; empty when it is not known."""
    if late.covered < COVERED_SHARE or not late.causes:
        return ""
    its = "its" if len(late.ranks) == 1 else "their"
    named = [
        f"the Python between {its} phases" if cause.phase == OTHER else f"{its} {cause.phase}"
        for cause in late.causes
    ]
    return f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
