# SPDX-License-Identifier: Apache-2.0
"""Tracebacks without our wrappers: the user sees what they would see anyway.

Each wrapper takes its own frame out while an exception passes through it, so that the frame is nowhere to be
seen: not in a thread, a child process, a log, an exception group, a notebook or a debugger. Python 3.10 keeps
the traceback of a ``raise`` apart from the exception and puts the frame back; there :func:`hide_our_frames`
serves what ends the program, and other tracebacks show our frames.

Where a library warns about the line that called it, :func:`pass_over` has that be the user's line.
"""

from __future__ import annotations

from types import FunctionType, TracebackType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Any)

_PACKAGE: Final = __name__.partition(".")[0]
_PASSED_OVER: Final = f"<frozen importlib._bootstrap> {_PACKAGE}"


def pass_over(wrapper: F) -> F:
    """Have `warnings` not count the frames of ``wrapper`` when it looks for the caller; returns it.

    It leaves out the frames of the import system, which it tells by the names of their files. So does Dynamo:
    a wrapper that it must see through cannot have this.
    """
    assert isinstance(wrapper, FunctionType)
    wrapper.__code__ = wrapper.__code__.replace(co_filename=_PASSED_OVER)
    return wrapper


def leave_out_this_frame(error: BaseException) -> None:
    """Take the frame of the caller out of the traceback of the exception that it handles and raises again.

    To be called first in ``except BaseException as error``, before a bare ``raise``: the frame is the first
    entry then, and that ``raise`` adds none. An interrupt may have come in what the caller calls of ours.
    """
    entry = error.__traceback__
    if entry is not None:
        rest = entry.tb_next if isinstance(error, Exception) else _pruned(entry)
        # Not by assignment: the exception may be a frozen dataclass.
        BaseException.with_traceback(error, rest)


def hide_our_frames(error: BaseException) -> TracebackType | None:
    """Take the frames of our wrappers out of the traceback of ``error`` and of what caused it."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        BaseException.with_traceback(link, _pruned(link.__traceback__))
        pending += (link.__cause__, link.__context__)
    return error.__traceback__


def _pruned(first: TracebackType | None) -> TracebackType | None:
    while first is not None and _ours(first):
        first = first.tb_next
    entry = first
    while entry is not None:
        following = entry.tb_next
        while following is not None and _ours(following):
            following = following.tb_next
        entry.tb_next = following
        entry = following
    return first


def _ours(entry: TracebackType) -> bool:
    name = entry.tb_frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE
