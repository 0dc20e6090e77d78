# SPDX-License-Identifier: Apache-2.0
"""Compare ways of doing one thing, in one run: in each round each takes its turn, so that drift hits all.

A figure is the median over the rounds; a ratio is the median of the rounds' ratios, with its quartiles.
Absolute times belong to the machine, ratios to the code.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Compared:
    """The times of one way, one a round, in ns per unit of work."""

    name: str
    ns: list[float]

    @property
    def typical_ns(self) -> float:
        return median(self.ns)

    def ratio_to(self, other: Compared) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile of this way's time over the other's, round by round."""
        low, middle, high = quantiles([a / b for a, b in zip(self.ns, other.ns, strict=True)], n=4)
        return low, middle, high

    def added_to(self, other: Compared) -> float:
        """Median over the rounds of this way's time minus the other's, in ns."""
        return median(a - b for a, b in zip(self.ns, other.ns, strict=True))


def compare(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Compared]:
    """Run each of `ways` once a round; a way returns its time in ns per unit. The first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(rounds + 1):
        # Turned by one each round: nobody always runs after the same neighbour.
        for name in order[number % len(order) :] + order[: number % len(order)]:
            taken = ways[name]()
            if number > 0:
                times[name].append(taken)
    return {name: Compared(name, each) for name, each in times.items()}


def print_table(title: str, results: Mapping[str, Compared], baseline: str, unit: str = "ns") -> None:
    scale = {"ns": 1.0, "us": 1e3, "ms": 1e6}[unit]
    print(f"{title}  ({platform.python_implementation()} {platform.python_version()}, {platform.machine()})")
    print(f"  {'':34}{unit:>10}   ratio to {baseline!r} (quartiles)")
    for name, result in results.items():
        low, middle, high = result.ratio_to(results[baseline])
        print(f"  {name:34}{result.typical_ns / scale:10.3f}   {middle:7.3f}  ({low:.3f} .. {high:.3f})")
