# SPDX-License-Identifier: Apache-2.0
"""Frames of our wrappers do not show in what a program prints when it dies."""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

import pytest

from grademl_otel.tracebacks import hide_our_frames, leave_out_this_frame, pass_over

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


PASSING = """
def hook(work):
    try:
        inner(work)
    except BaseException as error:
        leave_out_this_frame(error)
        raise

def inner(work):
    work()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the frames of our wrappers back")
@pytest.mark.parametrize(
    ("kind", "left"),
    [(ValueError, ["inner", "_raise"]), (KeyboardInterrupt, ["_raise"])],
    ids=["error", "interrupt"],
)
def test_an_exception_passes_through_a_hook(kind: type[BaseException], left: list[str]) -> None:
    names: dict[str, Any] = {
        "__name__": "grademl_otel.instrumentations.torch.forward",
        "leave_out_this_frame": leave_out_this_frame,
    }
    exec(compile(PASSING, "forward.py", "exec"), names)

    def _raise() -> None:
        raise kind

    with pytest.raises(kind) as caught:
        names["hook"](_raise)
    assert _names(caught.value)[1:] == left


def test_a_warning_about_the_caller_names_the_users_line() -> None:
    def library() -> None:
        warnings.warn("look", stacklevel=2)

    @pass_over
    def wrapper() -> None:
        library()

    with pytest.warns(UserWarning, match="look") as caught:
        wrapper()
    (warning,) = caught
    here = test_a_warning_about_the_caller_names_the_users_line.__code__.co_firstlineno
    assert (warning.filename, warning.lineno) == (__file__, here + 9)


def test_an_error_that_is_all_ours_has_no_frames_left() -> None:
    error = ValueError("no traceback")
    assert hide_our_frames(error) is None
