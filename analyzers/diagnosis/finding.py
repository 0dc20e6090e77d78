# SPDX-License-Identifier: Apache-2.0
"""What a rule says: symptom, evidence, cause, fix and gain as data. Fields as in the JSON answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CRITICAL: Final = "critical"
WARNING: Final = "warning"
INFO: Final = "info"

WARN_SHARE: Final = 0.10
"""Share of the steady step from which a cost is worth a warning."""
CRITICAL_SHARE: Final = 0.20
"""Share of the steady step from which a cost is critical."""
PERSISTENT_STEPS: Final = 2
"""Steady steps without which nothing is said at all."""
CONFIDENT_STEPS: Final = 20
"""Steady steps without which nothing is critical, and nothing is declared absent."""


@dataclass(frozen=True)
class Evidence:
    """One measured signal beside the limit it is held against."""

    signal: str
    value: float
    limit: float | None
    """None when the signal informs but does not decide."""
    unit: str
    """A UCUM unit: ns, 1 (a fraction), {worker}."""
    n: int
    """Steps the value was taken from."""


@dataclass(frozen=True)
class Gain:
    """How much of the steady step a fix could save."""

    fraction: float
    """1 - edited / observed, at most 1."""
    interval: tuple[float, float]
    basis: str
    """replay, or bound: a closed form that no run can beat, so the interval starts at 0."""
    next_limit: str
    """The phase that sets the pace after the fix."""


@dataclass(frozen=True)
class Where:
    """Which ranks a finding holds for."""

    ranks: list[int]


@dataclass(frozen=True)
class Finding:
    """A cause that the evidence supports."""

    id: str
    severity: str
    where: Where
    evidence: list[Evidence]
    fix: list[str]
    gain: Gain | None


@dataclass(frozen=True)
class Abstained:
    """A rule that could not be judged: what is missing, and how the user gets it."""

    rule: str
    missing: str
    how_to_get: str


@dataclass(frozen=True)
class Verdict:
    """The one sentence the report opens with, and the finding it rests on."""

    id: str
    """Id of the finding, or `few_steps`, `no_steps`, `unknown` (a large wait without a known cause)."""
    severity: str | None
    lines: list[str]


@dataclass(frozen=True)
class Judgement:
    """What one rule concluded about a run: at most one finding, and what it would not say."""

    findings: list[Finding]
    abstained: list[Abstained]
    verdict: Verdict | None = None


def severity_of(share: float, steps: int) -> str | None:
    """Return the severity of a cost that takes ``share`` of ``steps`` steady steps; None when small."""
    if share < WARN_SHARE or steps < PERSISTENT_STEPS:
        return None
    return CRITICAL if share >= CRITICAL_SHARE and steps >= CONFIDENT_STEPS else WARNING
