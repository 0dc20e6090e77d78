# SPDX-License-Identifier: Apache-2.0
"""The answers of `grademl diff` and `grademl check` as data: what `--json` prints and the text is made from.

Times are integers in ns, shares fractions of 1. What is not known is null, with a ``reason``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grademl_otel.analyzers.reporting.document import CompletenessInfo, SourceInfo
from grademl_otel.analyzers.shown import Records, Shown

DIFF_SCHEMA: Final = "grademl.diff/1"
CHECK_SCHEMA: Final = "grademl.check/1"

MORE: Final = "more"
"""B has more of it, beyond noise."""
LESS: Final = "less"
SAME: Final = "same"
"""All of the interval is so near to 0 that it does not matter."""
NOISE: Final = "noise"
"""No difference beyond noise: 0 is in the interval."""
SLIGHT: Final = "slight"
"""Beyond noise, and too little to matter."""
TOLD: Final = "told"
"""Both numbers are known; nothing tells their noise."""
REFUSED: Final = "refused"
"""They cannot be compared, or one of them is not known."""
ONLY_A: Final = "only in A"
ONLY_B: Final = "only in B"

PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_KNOWN: Final = "not known"

Number = int | float


@dataclass(frozen=True)
class Side:
    """What one of the two is, and how complete."""

    source: SourceInfo
    title: str
    completeness: CompletenessInfo
    incomplete_because: list[str]
    warnings: list[str]
    ranks: int | None
    """Null for traces of others; so the next three."""
    steps: int | None
    steady: int | None
    """Steady steps that are compared, over all ranks."""
    warmup_excluded: int | None
    traces: int
    left_out: int
    """Traces of others of which parts are missing: no part of any number."""

    @property
    def notes(self) -> list[str]:
        """Every reservation about the data, a line each, the gravest first."""
        return [*self.incomplete_because, *self.completeness.conflicts, *self.warnings]


@dataclass(frozen=True)
class Condition:
    """What is not the same on both sides, and is no measurement."""

    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class Difference:
    """One measure on both sides: B minus A."""

    measure: str
    """As `--fail-on` takes it."""
    kind: str
    """step, phase, path, scope, budget, run, trace, operation or type."""
    unit: str
    """ns, 1 (a fraction), 1/s or count."""
    a: Number | None
    b: Number | None
    n_a: int | None
    """Steps, traces or times it was made of."""
    n_b: int | None
    difference: Number | None
    interval: list[Number] | None
    """All intervals of the answer hold at once with 95 %; null where nothing tells the noise."""
    relative: float | None
    """The difference as a part of A; null where A is 0."""
    relative_interval: list[float] | None
    verdict: str
    """more, less, same, noise, slight, told, refused, only in A or only in B."""
    reason: str | None
    """Why it is told or refused."""


@dataclass(frozen=True)
class RankPair:
    """One rank's steady step on both sides; ns."""

    rank: int
    a: int | None
    b: int | None
    n_a: int
    n_b: int


@dataclass(frozen=True)
class Result:
    """One expression, and whether it holds."""

    expression: str
    measure: str
    status: str
    """passed, failed or not known."""
    unit: str
    value: Number | str | bool | None
    """In the unit; of a comparison the difference."""
    interval: list[Number] | None
    """With 95 %; of a comparison all of them hold at once. Null where nothing tells the noise."""
    relative: float | None
    """Of a comparison, as a part of A."""
    n: int | None
    """Steps, traces or times that the value was made of; of a comparison the fewer."""
    reason: str | None
    """Why it is not known, or what else is to be known."""


@dataclass(frozen=True, kw_only=True)
class DiffDocument(Shown, screen="reporting.diff_screen"):
    """Schema `grademl.diff/1`: two runs, or two sets of traces, beside each other."""

    schema: str = DIFF_SCHEMA
    a: Side
    b: Side
    verdict: list[str]
    """The answer in words, a line each."""
    not_the_same: list[Condition]
    differences: list[Difference]
    negligible: list[str]
    """Phases below the threshold on both sides: not compared."""
    ranks: list[RankPair]
    comparisons: int
    """How many intervals hold at once."""
    threshold: float
    """Part of the step (else of A's value) below which a difference does not matter."""
    results: list[Result]
    """Those of `--fail-on`."""
    notes: list[str]
    """What else is to be known of the numbers, a line each."""

    @property
    def incomplete(self) -> bool:
        """Whether data of either side are known to be missing."""
        return "incomplete" in (self.a.completeness.verdict, self.b.completeness.verdict)

    def _tables(self) -> Mapping[str, Records]:
        return {
            "differences": Records(Difference, self.differences),
            "not_the_same": Records(Condition, self.not_the_same),
            "ranks": Records(RankPair, self.ranks),
            "results": Records(Result, self.results),
        }


@dataclass(frozen=True, kw_only=True)
class CheckDocument(Shown, screen="reporting.check_screen"):
    """Schema `grademl.check/1`: what one run, or one set of traces, was held against."""

    schema: str = CHECK_SCHEMA
    subject: Side
    status: str
    """failed where one is, else not known where one is, else passed."""
    results: list[Result]

    @property
    def incomplete(self) -> bool:
        """Whether data are known to be missing."""
        return self.subject.completeness.verdict == "incomplete"

    def _tables(self) -> Mapping[str, Records]:
        return {"results": Records(Result, self.results)}


def status_of(results: list[Result]) -> str:
    """Return the status of all ``results`` together."""
    statuses = {result.status for result in results}
    return next((status for status in (FAILED, NOT_KNOWN) if status in statuses), PASSED)
