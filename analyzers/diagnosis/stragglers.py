# SPDX-License-Identifier: Apache-2.0
"""Ranks that keep the others waiting.

All ranks leave a collective together, so the steps of a slow rank are no longer than those of the others:
who waits least is the cause, who waits most is not. A rank is named when it comes last in 80 % of the steps,
or in fewer that make 80 % of the cost, when that is no chance, and when all of its partners are here. It is
late with the phases that take it longer than the others; these must cover 80 % of what it is late.

Where no collective was recorded, backward may hold one. Then only what makes a rank late before backward can
be seen, and the rule never says that the ranks are alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from grademl_otel.analyzers.diagnosis.facts import not_measured
from grademl_otel.analyzers.diagnosis.finding import (
    CONFIDENT_STEPS,
    CRITICAL,
    CRITICAL_SHARE,
    PERSISTENT_STEPS,
    WARN_SHARE,
    WARNING,
    Abstained,
    Evidence,
    Finding,
    Gain,
    Judgement,
    Verdict,
    Where,
    severity_of,
)
from grademl_otel.analyzers.diagnosis.lateness import (
    CHANGING,
    COVERED_SHARE,
    NOW_AND_THEN,
    RECURS,
    STEADY,
    Lateness,
    lateness,
    of_all_steps,
)
from grademl_otel.analyzers.diagnosis.loader import on_cpu
from grademl_otel.analyzers.diagnosis.straggler_words import RULE as RULE
from grademl_otel.analyzers.diagnosis.straggler_words import (
    after_the_first_unknown,
    cause_unknown,
    few_steps,
    fixes,
    may_be_chance,
    not_observable,
    sentences,
    waited_for_by_nobody,
)
from grademl_otel.analyzers.graph import activities
from grademl_otel.analyzers.graph.path import INFERRED
from grademl_otel.analyzers.graph.ranks import (
    BACKWARD,
    COLLECTIVES,
    FIRST_COLLECTIVE,
    Comparison,
    common_steps,
    compare_ranks,
)
from grademl_otel.analyzers.model.clocks import MARGIN
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import milliseconds, percent

IMBALANCE: Final = "ranks.imbalance"
CHANCE: Final = 0.01
"""A rank that is last so often by chance with a higher probability is not named."""
_IMPOSSIBLE_SHARE: Final = 0.01
"""Part of the collectives that may contradict themselves."""


def judge(run: Run, inferred: bool = True) -> Judgement:
    """Name the ranks that the others wait for, or say why they cannot be named; nothing of alike ranks.

    Without ``inferred`` only by what was observed.
    """
    doubt = _doubt(run, inferred)
    if doubt is not None:
        return Judgement([], [doubt])
    if len(run.ranks) < 2:
        return Judgement([], [])
    compared = [found for found in compare_ranks(run, inferred) if on_cpu(run) or found.source == COLLECTIVES]
    untied = _untied(run)
    if untied is not None:
        compared = [found for found in compared if found.source == BACKWARD]
    in_vain: list[Abstained] = []
    for found in compared:
        late = lateness(found, _margin(run, found))
        if late is None:
            continue
        if _nobody_waits(run, found, compared[0]):
            in_vain.append(waited_for_by_nobody(late))
            continue
        steps = len(found)
        if found is compared[0]:
            first = next((one for one in compared if one.source == FIRST_COLLECTIVE), None)
            if found.source == COLLECTIVES and first is not None:
                late = of_all_steps(late, first, found, _margin(run, first))
            late, steps = _confirmed(run, late, steps, compared[1:])
        judgement = _judged(run, found, late, steps)
        if judgement is not None:
            return judgement
    if untied is not None:
        return Judgement([], [untied])
    return Judgement([], in_vain or _within_error(run, compared) or _unseen(run, compared))


def _margin(run: Run, found: Comparison) -> float:
    """Return by how much a rank of ``found`` must be late for that to be no error of the clocks."""
    return 0.0 if found.source == BACKWARD else activities(run).collectives.clocks.margin_ns


def observable(run: Run, inferred: bool = True) -> bool:
    """Whether what ranks wait for each other is told by what was recorded; without ``inferred`` as such."""
    compared = compare_ranks(run, inferred)
    return bool(compared) and all(found.source != BACKWARD for found in compared)


def _doubt(run: Run, inferred: bool) -> Abstained | None:
    """Return why ranks cannot be compared at all; None when they can."""
    expected = run.completeness.ranks_expected or len(run.ranks)
    found = activities(run).collectives
    if len(run.ranks) < expected:
        last = _last_observed(run, inferred)
        here = f"only {len(run.ranks)} of {expected} ranks are here"
        if last is not None:
            here += f"; of these rank {last} arrives last, but one that is not here may come later"
        return Abstained(RULE, here, "analyze all ranks of the run together, each with the recorder on")
    if len(run.ranks) < 2:
        return None
    if (unmeasured := not_measured(run, RULE, run.ranks)) is not None:
        return unmeasured
    if found.violations > _IMPOSSIBLE_SHARE * len(found):
        return Abstained(
            RULE,
            f"{found.violations:,} of {len(found):,} collectives end before their last member has arrived",
            "check the clocks of the hosts",
        )
    if len(found) and not on_cpu(run) and not any(one.source == COLLECTIVES for one in compare_ranks(run)):
        return Abstained(
            RULE,
            f"when collectives end on {run.device or 'the device'} is not recorded, only their issue",
            "run some hundred steps with TORCH_NCCL_BLOCKING_WAIT=1, whose calls return at their end",
        )
    return None


def _untied(run: Run) -> Abstained | None:
    """Return that times of ranks cannot be compared; None where they can."""
    clocks = activities(run).collectives.clocks
    if clocks.tied:
        return None
    hosts = ", ".join(clock.host for clock in clocks.clocks if clock.error_ns is None)
    return Abstained(
        RULE,
        f"nothing ties the clock of {hosts} to that of {clocks.clocks[0].host}",
        "record some steps with their collectives on all hosts (GRADEML_BUDGET=100)",
    )


def _last_observed(run: Run, inferred: bool) -> int | None:
    """Return which of the ranks that are here is late; None when none is."""
    for found in compare_ranks(run, inferred):
        late = lateness(found)
        if late is not None and late.pattern != CHANGING and late.gain >= WARN_SHARE:
            return late.ranks[0]
    return None


def _confirmed(run: Run, late: Lateness, steps: int, others: list[Comparison]) -> tuple[Lateness, int]:
    """Return ``late`` and how many ``steps`` say so, with what another comparison says of the same ranks."""
    for found in others:
        again = lateness(found, _margin(run, found)) if found.evidence != INFERRED else None
        if again is not None and (again.pattern, again.ranks) == (late.pattern, late.ranks):
            return replace(late, chance=min(late.chance, again.chance)), max(steps, len(found))
    return late, steps


def _judged(run: Run, found: Comparison, late: Lateness, steps: int) -> Judgement | None:
    """Return the judgement on ``late``, which ``steps`` steps agree on; None when it is no matter."""
    severity = severity_of(late.gain, steps)
    if severity is None or (late.pattern == NOW_AND_THEN and late.last < PERSISTENT_STEPS):
        return None
    if late.pattern == CHANGING:
        return _changing(found, late, severity) if found.source == COLLECTIVES else None
    if late.pattern == STEADY and late.chance > CHANCE:
        return Judgement([], [may_be_chance(late)])
    if found.evidence == INFERRED or late.pattern == NOW_AND_THEN:
        severity = WARNING
    finding = Finding(
        id=RULE,
        severity=severity,
        where=Where(late.ranks),
        evidence=_evidence(found, late, severity),
        fix=fixes(late),
        gain=_gain(late) if found.source == COLLECTIVES else None,
    )
    abstained = [] if late.covered >= COVERED_SHARE else [cause_unknown(late)]
    return Judgement([finding], abstained, Verdict(RULE, severity, sentences(found, late, steps)))


def _nobody_waits(run: Run, found: Comparison, waits: Comparison) -> bool:
    """Whether a rank comes late to its first collectives where the others are not seen to wait for it."""
    if found.source != FIRST_COLLECTIVE or waits.source != COLLECTIVES:
        return False
    late = lateness(found.of_steps_in(waits), _margin(run, found))
    return late is not None and late.gain >= WARN_SHARE


def _within_error(run: Run, compared: list[Comparison]) -> list[Abstained]:
    """Return which rank is late by less than what the clocks of hosts may be off; nothing if none is."""
    error = activities(run).collectives.clocks.error_ns
    for found in compared:
        late = lateness(found) if error and found.source != BACKWARD else None
        if late is None or late.gain < WARN_SHARE:
            continue
        changing = late.pattern == CHANGING
        if not changing or found.source == COLLECTIVES:
            who = "the slowest of a step seems" if changing else f"rank {late.ranks[0]} seems"
            return [
                Abstained(
                    IMBALANCE if changing else RULE,
                    f"{who} {milliseconds(late.late_ns)} late, less than {MARGIN} times the"
                    f" {milliseconds(error)} by which the clocks of the hosts may be off",
                    "record more steps with their collectives on all hosts (GRADEML_BUDGET=100)",
                )
            ]
    return []


def _gain(late: Lateness) -> Gain:
    """Return the bound of a step that waits for the next slowest rank: one that is repaired gains no more."""
    return Gain(late.gain, (0.0, late.gain), "bound", late.next_limit)


def _changing(found: Comparison, late: Lateness, severity: str) -> Judgement:
    often = late.last / late.n
    finding = Finding(
        id=IMBALANCE,
        severity=WARNING if severity == CRITICAL and late.n < CONFIDENT_STEPS else severity,
        where=Where(found.ranks),
        evidence=[
            Evidence("ranks.wait.share", late.gain, WARN_SHARE, "1", late.n),
            Evidence("arrives.last.share", often, RECURS, "1", late.n),
        ],
        fix=[
            "give the ranks equal work in each step: batches of equal length, sorted or packed by length",
            "look for pauses of one rank at a time: garbage collection, logging, other load on its host",
        ],
        gain=_gain(late),
    )
    lines = [
        f"The ranks wait for the slowest of them {percent(late.gain)} of each step.",
        f"That is another one from step to step: rank {late.ranks[0]} most often, in {late.last:,} of"
        f" {late.n:,} steps.",
        *few_steps(late.n),
    ]
    return Judgement([finding], [], Verdict(IMBALANCE, finding.severity, lines))


def _evidence(found: Comparison, late: Lateness, severity: str) -> list[Evidence]:
    limit = CRITICAL_SHARE if severity == CRITICAL else WARN_SHARE
    evidence = [
        Evidence("ranks.lost.share", late.gain, limit, "1", late.n),
        Evidence("arrives.last.share", late.last / late.n, RECURS, "1", late.n),
        Evidence("arrives.late", late.late_ns, None, "ns", late.last),
    ]
    if late.pattern == STEADY:
        evidence.append(Evidence("arrives.chance", late.chance, CHANCE, "1", late.n))
    for cause in late.causes:
        evidence.append(Evidence(f"{cause.phase}.more", cause.more_ns, None, "ns", late.last))
    evidence.append(Evidence("cause.covered.share", late.covered, COVERED_SHARE, "1", late.last))
    if found.wait is not None:
        others = [ix for ix, rank in enumerate(found.ranks) if rank not in late.ranks]
        share = float(found.wait[:, others].sum() / max(1, found.length[:, others].sum()))
        evidence.append(Evidence("others.wait.share", share, None, "1", late.n))
    return evidence


def _unseen(run: Run, compared: list[Comparison]) -> list[Abstained]:
    """Return what a comparison that names nobody could not have seen."""
    hidden = any(found.source == BACKWARD for found in compared)
    if compared and not hidden:
        return [] if compared[0].source == COLLECTIVES else [after_the_first_unknown()]
    return [not_observable()] if compared or len(common_steps(run)[0]) else []
