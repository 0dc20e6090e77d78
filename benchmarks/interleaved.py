# SPDX-License-Identifier: Apache-2.0
"""Compare ways of doing one thing, in one run: in each round each takes its turn, so that drift hits all.

A figure is the median over the rounds; a ratio is the median of the rounds' ratios, with its quartiles.
Absolute times belong to the machine, ratios to the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import NamedTuple


class Spread(NamedTuple):
    """Lower quartile, median and upper quartile."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the quartiles of ``values``, of which there is at least one."""
        return cls(*quantiles(values, n=4)) if len(values) > 1 else cls(values[0], values[0], values[0])


@dataclass(frozen=True)
class Compared:
    """What one way took: of each round the ns of each unit of work (a call, a step)."""

    name: str
    rounds: list[list[float]]

    @property
    def means(self) -> list[float]:
        """Mean ns per unit, one a round."""
        return [fmean(units) for units in self.rounds]

    @property
    def typical_ns(self) -> float:
        return median(self.means)

    def ratio_to(self, other: Compared) -> Spread:
        """Return this way's time over the other's, round by round."""
        return Spread.of([a / b for a, b in zip(self.means, other.means, strict=True)])

    def added_to(self, other: Compared) -> Spread:
        """Return this way's time minus the other's, round by round, in ns."""
        return Spread.of([a - b for a, b in zip(self.means, other.means, strict=True)])

    def quantile(self, share: float) -> float | None:
        """Return the ns that ``share`` of all units did not exceed; None where there are too few to tell."""
        units = sorted(unit for units in self.rounds for unit in units)
        beyond = (1 - share) * len(units)
        return units[min(int(share * len(units)), len(units) - 1)] if beyond >= 1 else None


def compare(ways: Mapping[str, Callable[[], list[float]]], rounds: int) -> dict[str, Compared]:
    """Run each of `ways` once a round; a way returns the ns of each of its units.

    The first round warms up.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(rounds + 1):
        # Turned by one each round: nobody always runs after the same neighbour.
        for name in order[number % len(order) :] + order[: number % len(order)]:
            taken = ways[name]()
            if number > 0:
                times[name].append(taken)
    return {name: Compared(name, each) for name, each in times.items()}
