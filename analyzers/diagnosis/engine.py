# SPDX-License-Identifier: Apache-2.0
"""Run the rules over a run and pick the sentence that the report opens with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis import communication, compilation, compute, loader, stragglers
from grademl_otel.analyzers.diagnosis.facts import StepFacts, recorded_in_part, step_facts
from grademl_otel.analyzers.diagnosis.finding import (
    CONFIDENT_STEPS,
    CRITICAL,
    INFO,
    WARNING,
    Abstained,
    Judgement,
    Verdict,
)
from grademl_otel.analyzers.diagnosis.trust import withhold
from grademl_otel.analyzers.graph import lane_budget, steady_level, steady_rows
from grademl_otel.analyzers.graph.runs.main_lane import STEP_PHASES
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import count, percent

_MAINLY: Final = 0.5
"""Part of a run that its training steps should take for the steady step to tell most of its story."""
RULES: Final = (
    loader.RULE,
    compute.RULE,
    compilation.AGAIN,
    compilation.FIRST,
    stragglers.RULE,
    stragglers.IMBALANCE,
    communication.RULE,
)
"""Ids that a finding may have."""
_ORDER: Final = {CRITICAL: 0, WARNING: 1, INFO: 2}


def diagnose(run: Run, inferred: bool = True) -> Judgement:
    """Judge ``run`` by every rule: its findings, the worst first, what was not judged, and one verdict.

    Without ``inferred`` ranks are compared only by what was observed.
    """
    # Of equally grave findings the first leads, so that about stragglers: one rank's loader holds up all.
    judgements = [
        stragglers.judge(run, inferred),
        loader.judge(run),
        communication.judge(run),
        compute.judge(run, inferred),
        compilation.judge(run),
    ]
    findings = sorted((f for j in judgements for f in j.findings), key=lambda f: _ORDER[f.severity])
    abstained = [a for j in judgements for a in j.abstained]
    verdicts = {j.verdict.id: j.verdict for j in judgements if j.verdict is not None}
    if findings:
        verdict = verdicts[findings[0].id]
    else:
        verdict = next(iter(verdicts.values()), None) or _no_finding(run, abstained)
    verdict = replace(verdict, lines=[*verdict.lines, *_beside_the_steps(run)])
    few = [] if findings else _too_few(run)
    return withhold(run, Judgement(findings, [*few, *abstained, *_not_judged(run)], verdict))


def diagnose_ranks(run: Run, inferred: bool = True) -> Judgement:
    """Judge what the ranks of ``run`` do to each other; without a finding or a doubt, that they are alike."""
    judgements = [stragglers.judge(run, inferred), communication.judge(run)]
    findings = sorted((f for j in judgements for f in j.findings), key=lambda f: _ORDER[f.severity])
    abstained = [a for j in judgements for a in j.abstained]
    verdicts = {j.verdict.id: j.verdict for j in judgements if j.verdict is not None}
    verdict = verdicts[findings[0].id] if findings else None
    enough = all(len(steady_rows(run, rank)) >= CONFIDENT_STEPS for rank in run.ranks)
    if verdict is None and not abstained and enough:
        verdict = Verdict("alike", None, ["No rank keeps the others waiting for 10 % of the step or more."])
    return withhold(run, Judgement(findings, abstained, verdict))


def _beside_the_steps(run: Run) -> list[str]:
    """Return a line when most of the run was spent outside training steps, where the rules do not look."""
    steps: dict[str, int] = defaultdict(int)
    beside: dict[str, int] = defaultdict(int)
    for row in lane_budget(run):
        if row.within is None:
            of_steps = row.per_step is not None or row.phase in STEP_PHASES
            (steps if of_steps else beside)[row.phase] += row.ns
    total = sum(steps.values()) + sum(beside.values())
    if not steps or sum(steps.values()) >= _MAINLY * total:
        return []
    largest = max(beside, key=lambda phase: beside[phase])
    return [
        f"Training steps are only {percent(sum(steps.values()) / total)} of the run:"
        f" {largest} takes {percent(beside[largest] / total)}."
    ]


def _no_finding(run: Run, abstained: list[Abstained]) -> Verdict:
    """Return why there is none: too few steps, or a wait of which the cause is not known."""
    facts = [steps for rank in run.ranks if (steps := step_facts(run, rank)) is not None]
    if not facts:
        return Verdict("no_steps", None, ["No training step was recorded, so there is no step to judge."])
    few = min(steps.n for steps in facts)
    if few < CONFIDENT_STEPS:
        lines = [f"Too few steps to judge: {count(few, 'steady step')}, {CONFIDENT_STEPS} are needed."]
        return Verdict("few_steps", None, lines)
    if (in_part := recorded_in_part(run, run.ranks)) is not None:
        return Verdict("not_measured", None, _measured_in_part(run, facts, in_part))
    waits = percent(max(steps.wait_share for steps in facts))
    because = abstained[0].missing if abstained else "its cause was not recorded"
    return Verdict(
        "unknown",
        None,
        [
            f"The trainer waits for data {waits} of each step; whether the loader is the limit is not known.",
            f"{because[:1].upper()}{because[1:]}.",
        ],
    )


def _measured_in_part(run: Run, facts: list[StepFacts], in_part: str) -> list[str]:
    """Return what can be said of steps of which not all phases were measured."""
    known = [one for one in facts if steady_level(run, one.rank) < loader.NO_WAITS]
    lines = []
    if known:
        waits = percent(max(one.wait_share for one in known))
        lines.append(f"The trainer waits for data {waits} of each step; what else it does was not measured.")
    else:
        lines.append("Only the ends of steps were recorded: what a step consists of was not measured.")
    return [*lines, f"It was {in_part}."]


def _too_few(run: Run) -> list[Abstained]:
    """Return the abstention that stands in place of `none` when a rank has too few steady steps."""
    steps = [facts.n if (facts := step_facts(run, rank)) is not None else 0 for rank in run.ranks]
    few = min(steps, default=0)
    if few >= CONFIDENT_STEPS:
        return []
    return [
        Abstained(
            loader.RULE,
            f"too few steps ({few})",
            f"train for at least {CONFIDENT_STEPS} steps after the warm-up",
        )
    ]


def _not_judged(run: Run) -> list[Abstained]:
    """Return what no rule judges yet; nothing of storage where nothing is loaded."""
    loads = run.steps.count.keys() & {sc.DATA_WAIT, *sc.WORKER_PHASES}
    if len(run.steps) and not loads and recorded_in_part(run, run.ranks) is None:
        return []
    return [
        Abstained(
            "input.storage",
            "disk counters are not judged yet",
            "run the script twice in a row: if the second run's fetches are faster, storage is the cause",
        )
    ]
