# SPDX-License-Identifier: Apache-2.0
"""Phases that a program named itself, in step tables."""

from __future__ import annotations

from typing import Any

from grademl_otel import semconv
from grademl_otel.analyzers.model.tables import decode_table, join_parts

BUSY = 7_000
"""us"""


def window(*phases: str) -> dict[str, Any]:
    """A window's attributes with one row of 10 ms in which each of these columns' phases ran once."""
    prefix = semconv.TABLE_PREFIX
    attributes: dict[str, Any] = {
        semconv.TABLE_VERSION: 1,
        f"{prefix}step": [0],
        f"{prefix}start_us": [0],
        f"{prefix}dur_us": [10_000],
    }
    for phase in phases:
        attributes |= {f"{prefix}{phase}.{name}": [1] for name in ("first_us", "count")}
        attributes[f"{prefix}{phase}.busy_us"] = [BUSY]
    return attributes


def test_they_have_their_own_names() -> None:
    steps, _ = join_parts([decode_table(window("forward", "user.tokenize", "user.a b"), 0, 0)])
    assert steps.user == {"tokenize", "a b"}
    assert list(steps.count) == ["forward", "a b", "tokenize"]
    assert steps.busy["tokenize"].tolist() == [1000 * BUSY]


def test_what_is_no_name_of_theirs_does_not_take_the_place_of_ours() -> None:
    steps, _ = join_parts([decode_table(window("forward", "user.forward", "user.other", "user."), 0, 0)])
    assert steps.user == frozenset()
    assert steps.busy["forward"].tolist() == [1000 * BUSY]
    assert {"user.forward", "user.other"} <= steps.count.keys()
