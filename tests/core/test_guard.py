# SPDX-License-Identifier: Apache-2.0
"""A hook that keeps failing is switched off; one that fails now and then is not."""

from __future__ import annotations

from itertools import count

import pytest

from grademl_otel import guard
from grademl_otel.guard import WITHIN_NS, Guard


def test_a_hook_that_keeps_failing_is_switched_off_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    forward = Guard("torch: forward")
    for _ in range(5):
        forward.failed(KeyError("odd"))
    assert not forward.on
    assert forward.failures == 5
    assert capsys.readouterr().err == "grademl: torch: forward is not recorded: KeyError: 'odd'\n"


def test_a_hook_that_fails_now_and_then_for_weeks_stays_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(1, WITHIN_NS // 2 + 1)
    monkeypatch.setattr(guard, "perf_counter_ns", lambda: next(clock))
    forward = Guard("torch: forward")
    for _ in range(50):
        forward.failed(KeyError("odd"))
    assert forward.on
    assert capsys.readouterr().err == ""
