# SPDX-License-Identifier: Apache-2.0
"""Simulated trainings with known answers: what the analyzer says of them is right (see `truths`)."""

from __future__ import annotations

import pytest

from .truths import SCENARIOS, case, wrong_with

SEEDS = range(6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_answer_is_right(name: str) -> None:
    wrong = {seed: lines for seed in SEEDS if (lines := wrong_with(case(name, seed)))}
    assert not wrong
