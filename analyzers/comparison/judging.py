# SPDX-License-Identifier: Apache-2.0
"""One measure on both sides: how much they differ, and whether that is more than noise, and matters.

All intervals of one answer hold at once: with m comparisons each is made for 1 - 5 % / m (Bonferroni), so
that of two equal runs at most one answer in twenty shows any difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
    TOLD,
    Difference,
    Number,
)
from grademl_otel.analyzers.comparison.measures import COUNT, NS, Quantity
from grademl_otel.analyzers.comparison.resampling import Spread, interval, spread
from grademl_otel.analyzers.graph.budget import FEW_STEPS

_FEWEST_BEYOND: Final = 5
"""Values that must lie beyond a quantile on either side."""
_ON_PATH: Final = ("own", "path")
_NOUNS: Final = {"trace": "trace", "own": "trace", "operation": "trace", "scope": "time", "type": "time"}


@dataclass(frozen=True)
class Pair:
    """What is compared under one name."""

    measure: str
    kind: str
    a: Quantity
    b: Quantity
    matters: float = 0.0
    """Differences below it, in the unit, do not."""
    refused: str | None = None
    """Why the two cannot be compared, though both are known."""

    @cached_property
    def reason(self) -> str | None:
        """Why no interval can be made; None where one can."""
        if self.refused is not None:
            return self.refused
        for side, quantity in (("A", self.a), ("B", self.b)):
            if quantity.reason is not None:
                return f"{side}: {quantity.reason}"
        for side, quantity in (("A", self.a), ("B", self.b)):
            if (few := self._too_few(quantity)) is not None:
                return f"{side}: {few}"
        for side, found in zip("AB", self.spreads, strict=True):
            if not found.known:
                return f"{side}: what follows each other depends too much on each other to tell the noise"
        return None

    @property
    def enough(self) -> bool:
        """Whether both sides have enough values."""
        return all(one.sample is not None and not self._too_few(one) for one in (self.a, self.b))

    @property
    def told(self) -> bool:
        """Whether both numbers can be shown beside each other, though nothing can be said of their noise."""
        return self.refused is None and self.a.known and self.b.known

    @cached_property
    def spreads(self) -> tuple[Spread, Spread]:
        """How both numbers spread."""
        assert self.a.sample is not None
        assert self.b.sample is not None
        return spread(self.a.sample, self.a.statistic, 0), spread(self.b.sample, self.b.statistic, 1)

    def _too_few(self, quantity: Quantity) -> str | None:
        if quantity.sample is None:
            return "it was measured once" if quantity.once else "it is a count"
        return too_few_for(quantity, _NOUNS.get(self.kind, "step"))

    def difference(self, comparisons: int) -> Difference:
        """Return the two beside each other, with the interval as one of so many ``comparisons``."""
        a, b = _number(self.a), _number(self.b)
        reason = self.reason
        low_high = None
        change = None if a is None or b is None or self.refused is not None else b - a
        if reason is None:
            low_high = interval(*self.spreads, comparisons=comparisons)
            verdict = _verdict(low_high, self.spreads[0].estimate, self.spreads[1].estimate, self.matters)
            if self.kind in _ON_PATH:  # what is not on the path may be there all the same
                verdict = {ONLY_A: LESS, ONLY_B: MORE}.get(verdict, verdict)
        elif self.a.absent != self.b.absent and self.refused is None:
            verdict = ONLY_B if self.a.absent else ONLY_A
        else:
            verdict = TOLD if self.told else REFUSED
        relative = change / a if change is not None and a else None
        # Nothing measured is below 0: B can lack all of what A has, and no more.
        scale = None if low_high is None or not a else [max(-1.0, low_high[0] / a), low_high[1] / a]
        return Difference(
            measure=self.measure,
            kind=self.kind,
            unit=self.a.unit,
            a=_rounded(a, self.a.unit),
            b=_rounded(b, self.b.unit),
            n_a=self.a.n,
            n_b=self.b.n,
            difference=_rounded(change, self.a.unit),
            interval=None if low_high is None else [in_unit(end, self.a.unit) for end in low_high],
            relative=relative,
            relative_interval=scale,
            verdict=verdict,
            reason=reason,
        )


def too_few(units: int, noun: str = "step") -> str | None:
    """Return that so many steps, or what the ``noun`` says, are too few to conclude anything; None if not."""
    return f"too few {noun}s ({units:,})" if units < FEW_STEPS else None


def too_few_for(quantity: Quantity, noun: str = "step") -> str | None:
    """Return why there are too few values to tell the noise of ``quantity``, a sample; None where not."""
    assert quantity.sample is not None
    units, quantile = len(quantity.sample), quantity.statistic.quantile
    if quantile is not None and units * min(quantile, 1 - quantile) < _FEWEST_BEYOND:
        return too_few(units, noun) or f"too few {noun}s ({units:,}) for p{quantile * 100:.0f}"
    return too_few(units, noun)


def _verdict(low_high: tuple[float, float], a: float, b: float, matters: float) -> str:
    low, high = low_high
    if low <= 0.0 <= high:
        return SAME if -matters <= low and high <= matters else NOISE
    if abs(b - a) < matters:
        return SLIGHT
    if not a:
        return ONLY_B
    return MORE if b > a else LESS if b else ONLY_A


def judged(pairs: Sequence[Pair]) -> int:
    """Return how many of ``pairs`` get an interval; at least 1."""
    return max(1, sum(pair.reason is None for pair in pairs))


def _number(quantity: Quantity) -> float | None:
    number = quantity.number
    return None if number is None or isinstance(number, str) else float(number)


def _rounded(value: float | None, unit: str) -> Number | None:
    return None if value is None else in_unit(value, unit)


def in_unit(value: float, unit: str) -> Number:
    """Return ``value`` as answers have it: ns and counts are integers."""
    return round(value) if unit in (NS, COUNT) else value
