# SPDX-License-Identifier: Apache-2.0
"""Runs of parent processes: what a child inherits, and how it learns of it.

A child of `multiprocessing` takes part in its parent's run. The parent leaves word in the configuration that
`multiprocessing` hands from each process to its children, however those are started; the user's environment
is not touched. Any other child, one that was forked by hand or started as a command, has a run of its own
that names its parent's: after a fork the child still knows it, a command finds the ring of a process that it
descends from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from grademl_otel import marks
from grademl_otel.identity import is_run_id

_KEY: Final = "grademl.run"
_MAX_NUMBER: Final = 1 << 16
_POOLS: Final = frozenset({"multiprocessing.pool", "concurrent.futures.process"})


class Member(NamedTuple):
    """A process' place in a run, as its relatives know it."""

    run_id: str
    attempt: int
    rank: int
    world_size: int
    began: bool
    """The run has begun; else it is the one that would begin."""

    @property
    def name(self) -> str:
        """Run, attempt and rank: by these a child names the run of its parent."""
        return f"{self.run_id}/{self.attempt}/{self.rank}"

    @classmethod
    def of(cls, info: marks.RunInfo) -> Member:
        """The member that ``info`` describes."""
        return cls(info.run_id, info.attempt, info.rank, info.world_size, True)

    @classmethod
    def parse(cls, text: object) -> Member | None:
        """Return what `word` wrote, None for anything else."""
        if not isinstance(text, str):
            return None
        try:
            run_id, *numbers = text.split("/")
            attempt, rank, world_size, began = map(int, numbers)
        except ValueError:
            return None
        return cls(run_id, attempt, rank, world_size, bool(began)) if is_run_id(run_id) else None

    @property
    def word(self) -> str:
        """The member as a text for `parse`."""
        return f"{self.name}/{self.world_size}/{int(self.began)}"


class Kin(NamedTuple):
    """What a process has from its parent."""

    parent: Member | None = None
    """The parent's run, when it had begun."""
    inherited: Member | None = None
    """The place in the parent's run that this process takes; None for a run of its own."""


def hand_down(member: Member | None) -> None:
    """Leave word for children that `multiprocessing` will start; None takes it back."""
    process = _this_process()
    if process is None:
        return
    if member is None:
        process._config.pop(_KEY, None)
    else:
        process._config[_KEY] = member.word


def kin(before_fork: Member | None, forked_from: object, folders: Iterable[Path]) -> Kin:
    """What this process has from its parent.

    ``before_fork`` is the run that was active when this process was forked, and ``forked_from`` the
    `multiprocessing` process that it was forked from, None for a process that is no fork. ``folders`` is
    where rings lie.
    """
    process = _this_process()
    number = None if process is None or process is forked_from else _number(process)
    if number is None and forked_from is not None:
        return Kin(before_fork)
    if number is None:
        from grademl_otel.ancestors import run_of_ancestor  # here, because only a run needs a ring's reader

        info = run_of_ancestor(folders)
        return Kin(None if info is None else Member.of(info))
    told = Member.parse(process._config.get(_KEY))
    if told is None:
        return Kin(before_fork)
    parent = told if told.began else before_fork
    if number and number <= _MAX_NUMBER and told.world_size <= 1 and not _of_pool(process):
        return Kin(parent, told._replace(rank=told.rank + number, world_size=0))
    return Kin(parent)


def this_process() -> object:
    """The `multiprocessing` process that this is, an object without meaning where there is none."""
    return _this_process() or sys


def _this_process() -> Any:
    process = sys.modules.get("multiprocessing.process")
    return None if process is None else process.current_process()


def _number(process: Any) -> int | None:
    """How many children the parent had made with this one, 0 for a grandchild; None for no child."""
    identity = getattr(process, "_identity", ())
    if not identity:
        return None
    return int(identity[0]) if len(identity) == 1 else 0


def _of_pool(process: Any) -> bool:
    """Whether the process works off tasks of a pool, which have nothing to do with each other."""
    return getattr(getattr(process, "_target", None), "__module__", None) in _POOLS
