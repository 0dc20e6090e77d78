# SPDX-License-Identifier: Apache-2.0
"""Simulated trainings with known answers: what the analyzer says of them is right (see `truths`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grademl_otel import semconv as sc

from ..support.judge import Check, answer, budget_is_true, leads_with, names, path_is_nearly, path_is_true
from ..support.simulator import Job, Slow, simulate
from .truths import SCENARIOS, case, wrong_with

SEEDS = range(6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_answer_is_right(name: str) -> None:
    wrong = {seed: lines for seed in SEEDS if (lines := wrong_with(case(name, seed)))}
    assert not wrong


@pytest.mark.parametrize(
    "check",
    [
        budget_is_true,
        path_is_true,
        path_is_nearly(0.06),
        leads_with(sc.FORWARD, ranks=[1]),
        names("ranks.straggler", ranks=[1], cause=sc.FORWARD),
    ],
)
def test_the_judge_notices_a_wrong_answer(check: Check) -> None:
    """What is right of a training whose rank 1 is slow is wrong of one whose rank 0 is."""
    job = Job(ranks=2, steps=16, eval_batches=1)
    meant, other = (simulate(replace(job, slow=(Slow(sc.FORWARD, 2.5, rank),))) for rank in (1, 0))
    assert not list(check(meant, answer(meant)))
    assert list(check(meant, answer(other)))
