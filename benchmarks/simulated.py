# SPDX-License-Identifier: Apache-2.0
"""Phases made of numbers, of which is known to 10 ms what they use, for `benchmarks.attribution`.

Some lanes each go from one phase to the next, of random type, for 20 ms to 2 s. A phase uses the level of its
type, times what is its own (lognormal, all the time), times noise (lognormal, correlated over some 10 ms).
Where all together want more than there is, each gets the same part of what it wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.spanfiles import Spans
from benchmarks.upsampled import CELL, Truth
from grademl_otel.analyzers.arrays import FloatArray

START: Final = 1_790_857_026_000_000_000
"""Unix ns."""
_LENGTH_S: Final = (0.02, 2.0)
_PAUSE_S: Final = 0.3
"""Mean, of one half of the times between two phases; in the other half there is none."""
_CORRELATED: Final = 0.8
"""What noise has of the 10 ms before."""


@dataclass(frozen=True)
class Type:
    """Phases of one type."""

    level: float
    """In cores: of half of them it is more, of half less."""
    varies: float = 0.0
    """Standard deviation of the logarithm, from phase to phase,"""
    noise: float = 0.0
    """and within one."""
    rule: str = "exact"
    """What a user who knows the level would say; the amount is the level."""


@dataclass(frozen=True)
class Scenario:
    """What runs side by side."""

    types: dict[str, Type]
    lanes: int = 2
    capacity: float = 16.0
    background: float = 0.0

    def rules(self) -> str:
        """Return what a user would write who knows the levels, in TOML."""
        return "builtin = false\n" + "".join(
            f'[[rule]]\nphase = "**/{name}*"\nmetric = "cpu.busy"\n{one.rule} = {one.level}\n'
            for name, one in self.types.items()
        )


FITTED: Final = 'builtin = false\n[[rule]]\nphase = "**/job*"\nmetric = "cpu.busy"\nfit = true\n'
"""What a user would write who does not."""

_LEVELS: Final = {"read": 0.5, "transform": 1.5, "compute": 4.0}


def _all(**how: float | str) -> dict[str, Type]:
    return {name: Type(level, **how) for name, level in _LEVELS.items()}  # type: ignore[arg-type]


SCENARIOS: Final = {
    "constant": Scenario(_all()),
    "one known exactly, others vary": Scenario(
        {
            "read": Type(0.5, 0.7, rule="variable"),
            "transform": Type(1.5, 0.7, rule="variable"),
            "compute": Type(4.0),
        }
    ),
    "all vary from phase to phase": Scenario(_all(varies=0.7, rule="variable")),
    "noise within phases": Scenario(_all(noise=0.5)),
    "more wanted than there is": Scenario(_all(), lanes=4, capacity=6.0),
    "constant, and a background of 0.5": Scenario(_all(), background=0.5),
}


def simulate(scenario: Scenario, seconds: float, seed: int, spans_file: Path) -> Truth:
    """Write the spans of so many seconds to ``spans_file``; return what was used."""
    dice = np.random.default_rng(seed)
    cells = round(seconds * 1e9) // CELL
    spans = Spans()
    spans.add("job", START, START + cells * CELL, is_root=True)
    wanted = np.full(cells, scenario.background)
    for _ in range(scenario.lanes):
        for name, start, end in _lane(dice, list(scenario.types), cells * CELL):
            spans.add(name, START + start, START + end)
            wanted += _use(dice, scenario.types[name], start, end, cells)
    spans.write(spans_file)
    return Truth(START, np.minimum(wanted, scenario.capacity), scenario.capacity)


def _lane(dice: np.random.Generator, names: list[str], end: int) -> list[tuple[str, int, int]]:
    """Return (type, start, end) of phases one after the other until ``end``; ns."""
    found: list[tuple[str, int, int]] = []
    at = 0
    while True:
        at += round(1e9 * dice.exponential(_PAUSE_S)) if dice.random() < 0.5 else 0
        length = round(1e9 * float(np.exp(dice.uniform(*np.log(_LENGTH_S)))))
        if at + length > end:
            return found
        found.append((names[dice.integers(len(names))], at, at + length))
        at += length


def _use(dice: np.random.Generator, kind: Type, start: int, end: int, cells: int) -> FloatArray:
    """Return the mean of each cell of what one phase wants."""
    edges = CELL * np.arange(cells + 1, dtype=np.int64)
    there = np.maximum(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0) / CELL
    some = np.flatnonzero(there)
    wanted: FloatArray = there * kind.level * np.exp(kind.varies * dice.standard_normal())
    if kind.noise:
        wanted[some] *= np.exp(kind.noise * _correlated(dice, len(some)))
    return wanted


def _correlated(dice: np.random.Generator, number: int) -> FloatArray:
    """Return noise of variance 1."""
    fresh = dice.standard_normal(number)
    fresh[1:] *= np.sqrt(1 - _CORRELATED**2)
    for at in range(1, number):
        fresh[at] += _CORRELATED * fresh[at - 1]
    return fresh
