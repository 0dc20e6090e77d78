# SPDX-License-Identifier: Apache-2.0
"""Tracebacks without our wrappers: the user sees what they would see anyway."""

from __future__ import annotations

from types import TracebackType
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]


def hide_our_frames(error: BaseException) -> TracebackType | None:
    """Take the frames of our wrappers out of the traceback of ``error`` and of what caused it."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        link.__traceback__ = _pruned(link.__traceback__)
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
