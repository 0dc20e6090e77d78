# SPDX-License-Identifier: Apache-2.0
"""What a right answer about a simulated training must agree with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .tasks import Task

Place = tuple[int | None, str, str]
"""(rank, lane, phase)."""


@dataclass(frozen=True)
class Truth:
    """Times in ns."""

    path: Counter[Place]
    """The true critical path: it sums to ``wall``."""
    budget: dict[int, Counter[str]]
    """What the main lane of each rank did, by its outermost phase; each sums to ``wall``."""
    inside: dict[int, Counter[tuple[str, str]]]
    """What parts of these phases were: (phase, part)."""
    wall: int
    step: float
    """Mean length of the steady steps of the rank with the longest."""
    wait_share: dict[int, float]
    """Rank -> part of its steady steps that it waits for data; the first step of each pass is left out."""

    def gain(self, fixed: Truth) -> float:
        """Return the part of a steady step that is saved where things are as in ``fixed``."""
        return 1 - fixed.step / self.step

    def top(self) -> tuple[Place, float]:
        """Return what takes most of the path, and the part of that by which it is ahead of the next."""
        (place, most), *others = self.path.most_common(2)
        return place, 1 - sum(ns for _, ns in others) / most


def path_of(last: Task) -> Counter[Place]:
    """Return the time of each place on the chain of causes that ends with ``last``."""
    path: Counter[Place] = Counter()
    for task in last.chain():
        if task.end > task.start:
            path[(*task.lane, task.phase)] += task.end - task.start
    return path
