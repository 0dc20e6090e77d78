# SPDX-License-Identifier: Apache-2.0
"""Frames of our wrappers do not show in what a program prints when it dies."""

from __future__ import annotations

import traceback
from typing import Any

from grademl_otel.tracebacks import hide_our_frames

WRAPPER = """
def wrapper(function):
    return function()
"""


def _ours(function: Any) -> Any:
    """Call ``function`` through a frame of a module of ours."""
    names: dict[str, Any] = {"__name__": "grademl_otel.instrumentations.torch.forward"}
    exec(compile(WRAPPER, "forward.py", "exec"), names)
    return names["wrapper"](function)


def _caught(function: Any) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def _fail() -> None:
    raise ValueError("diverged")


def _names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_our_frames_are_taken_out_wherever_they_are() -> None:
    error = _caught(lambda: _ours(lambda: _ours(_fail)))
    assert "wrapper" in _names(error)
    assert hide_our_frames(error) is error.__traceback__
    assert "wrapper" not in _names(error)
    assert _names(error)[-1] == "_fail"


def test_causes_and_contexts_too_even_in_a_circle() -> None:
    first = _caught(lambda: _ours(_fail))
    second = _caught(lambda: _ours(_fail))
    third = _caught(_fail)
    third.__cause__, third.__context__ = first, second
    first.__context__ = third
    hide_our_frames(third)
    assert all("wrapper" not in _names(error) for error in (first, second, third))


def test_an_error_that_is_all_ours_has_no_frames_left() -> None:
    error = ValueError("no traceback")
    assert hide_our_frames(error) is None
