# SPDX-License-Identifier: Apache-2.0
"""What a judgement is worth when part of the run is missing.

A finding stands if it would, whatever the missing part was: a share of the step that is measured over all but
h of the training may be anything from (1 - h) times to that plus h. One that does not is withheld, and so is
every gain: how long a step would be is told from all steps. Ranks that sent nothing take away what is said of
every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from grademl_otel.analyzers.diagnosis.finding import Abstained, Evidence, Finding, Judgement, Verdict
from grademl_otel.analyzers.model.run import Run

WITHHELD: Final = "incomplete"
"""Id of the verdict where what is missing could change it."""
STEADY_STEP: Final = "step"
"""Stands in `abstained` for the numbers of the steady step."""
_HOW: Final = "look again once the rest has arrived, or read a source that has all of it"
_OF_CHANCE: Final = "arrives.chance"
"""Evidence that is made of the steps that are here, and says so."""


def missing_of(run: Run, ranks: Iterable[int] | None = None) -> str | None:
    """Return why the steps of ``ranks`` (all by default) tell no numbers, in words; None where they do."""
    worst = run.completeness.worst(run.ranks if ranks is None else ranks)
    return None if worst is None else worst.in_words()


def untold(run: Run) -> list[Abstained]:
    """Return the numbers that are not told of ``run``, and why."""
    missing = missing_of(run)
    return [] if missing is None else [Abstained(STEADY_STEP, missing, _HOW)]


def withhold(run: Run, judgement: Judgement) -> Judgement:
    """Return ``judgement`` without what the missing part of ``run`` could change."""
    missing, silent = missing_of(run), run.completeness.ranks_missing
    if missing is None and not silent:
        return judgement
    kept = [finding for finding in judgement.findings if _stands(run, finding, silent > 0)]
    why = missing or f"{silent:,} of {run.completeness.ranks_expected:,} ranks sent nothing"
    abstained = [Abstained(one.id, why, _HOW) for one in judgement.findings if one not in kept]
    if missing is not None:
        kept = [replace(finding, gain=None) for finding in kept]
    return Judgement(kept, [*abstained, *judgement.abstained], _verdict(judgement, kept, missing, why))


def _verdict(judgement: Judgement, kept: list[Finding], missing: str | None, why: str) -> Verdict | None:
    verdict = judgement.verdict
    if verdict is None:
        return None
    gone = {finding.id for finding in judgement.findings} - {finding.id for finding in kept}
    if verdict.id not in gone and (missing is None or any(one.id == verdict.id for one in kept)):
        if missing is None:
            return verdict
        return replace(verdict, lines=[*verdict.lines, f"{missing}: whatever they were, that holds."])
    return Verdict(WITHHELD, None, [f"No verdict: {why}, which could change it."])


def _stands(run: Run, finding: Finding, ranks_missing: bool) -> bool:
    worst = run.completeness.worst(finding.where.ranks or run.ranks)
    h = 0.0 if worst is None else worst.share
    decided = [one for one in finding.evidence if one.limit is not None and one.unit == "1"]
    return all(_holds(one, h, ranks_missing) for one in decided if one.signal != _OF_CHANCE)


def _holds(evidence: Evidence, h: float, ranks_missing: bool) -> bool:
    """Whether a share stays on its side of the limit, if ``h`` of the training was all the other way."""
    assert evidence.limit is not None
    if evidence.value >= evidence.limit:
        return evidence.value * (1 - h) >= evidence.limit
    return not ranks_missing and evidence.value * (1 - h) + h < evidence.limit
