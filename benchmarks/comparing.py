# SPDX-License-Identifier: Apache-2.0
"""How often `grademl diff` sees a difference where there is none, and where there is one.

    python benchmarks/comparing.py [--pairs N] [--seed N]

Pairs of runs are made of numbers: steps of 100 ms of which backward is 60, forward 30 and optimizer 10, times
lognormal noise of 5 % that is passed on from step to step, ``rho`` of it; B is slower by so much in all of
it. They are compared as the command does. A false answer is one in which anything at all differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from grademl_otel.analyzers.comparison.differences import THRESHOLD, differences
from grademl_otel.analyzers.comparison.document import LESS, MORE, DiffDocument
from grademl_otel.analyzers.comparison.of_run import RunMeasures
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import Subject
from tests.support.build import R, run_from

PHASES: Final = {"forward": 30e6, "backward": 60e6, "optimizer": 10e6}
"""ns"""
NOISE: Final = 0.05
BURN_IN: Final = 100


@dataclass(frozen=True)
class Kind:
    """Pairs of one kind."""

    steps: int
    rho: float
    slower: float = 0.0


STEPS: Final = (60, 200, 1_000)
RHO: Final = (0.0, 0.5, 0.9)
SLOWER: Final = (0.0, 0.02, 0.05, 0.1)


def passed_on(dice: np.random.Generator, steps: int, rho: float) -> np.ndarray:
    """Return noise of variance 1, of which each value has ``rho`` of the one before."""
    fresh = dice.standard_normal(steps + BURN_IN) * np.sqrt(1 - rho**2)
    noise = np.zeros(steps + BURN_IN)
    for at in range(1, len(noise)):
        noise[at] = rho * noise[at - 1] + fresh[at]
    return noise[BURN_IN:]


def side(dice: np.random.Generator, kind: Kind, slower: float) -> RunMeasures:
    """Return a run of that kind."""
    factors = np.exp(NOISE * passed_on(dice, kind.steps, kind.rho)) * (1 + slower)
    rows, now = [], 0
    for step, factor in enumerate(factors.tolist()):
        begun, phases = now, {}
        for name, mean in PHASES.items():
            took = round(mean * factor)
            phases[name] = (now, took, 1)
            now += took
        rows.append(R(begun, now, step=step, phases=phases))
    run = run_from(rows, 0, now)
    return RunMeasures(Subject(Telemetry("simulated", run.spans, Ledger()), run, Query()))


def compared(kind: Kind, seed: int) -> DiffDocument:
    """Return the answer about a pair of that kind."""
    dice = np.random.default_rng((seed, kind.steps, round(kind.rho * 100), round(kind.slower * 100)))
    return differences(side(dice, kind, 0.0), side(dice, kind, kind.slower), "phase", (), THRESHOLD)


@dataclass(frozen=True)
class Found:
    """What was answered about pairs of one kind, as shares of them."""

    kind: Kind
    anything: float
    """Some measure differs."""
    step: float
    """The step is said to be slower."""
    unknown: float
    """The step is not judged."""


def found(kind: Kind, pairs: int, seed: int) -> Found:
    """Compare so many pairs."""
    answers = [compared(kind, seed + number) for number in range(pairs)]
    differs = [any(one.verdict in (MORE, LESS) for one in answer.differences) for answer in answers]
    steps = [answer.differences[0] for answer in answers]
    return Found(
        kind,
        sum(differs) / pairs,
        sum(one.verdict == MORE for one in steps) / pairs,
        sum(one.interval is None for one in steps) / pairs,
    )


HEAD: Final = "| steps | rho | any difference, A/A | +2 % seen | +5 % seen | +10 % seen | not judged |"


def line(steps: int, rho: float, pairs: int, seed: int) -> str:
    """Return a line of the table: of so many ``pairs`` that are alike, of others a quarter."""
    rows = [
        found(Kind(steps, rho, slower), pairs if not slower else max(1, pairs // 4), seed)
        for slower in SLOWER
    ]
    cells = [f"{rows[0].anything:.1%}", *(f"{row.step:.0%}" for row in rows[1:])]
    cells.append(f"{max(row.unknown for row in rows):.0%}")
    return f"| {steps:,} | {rho} | {' | '.join(cell.replace('%', ' %') for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(HEAD, "|" + " ---: |" * 7, sep="\n")
    for steps in STEPS:
        for rho in RHO:
            print(line(steps, rho, chosen.pairs, chosen.seed), flush=True)


if __name__ == "__main__":
    main()
