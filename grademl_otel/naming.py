# SPDX-License-Identifier: Apache-2.0
"""Which run a process' next run is, and the process' rank in it; docs/runs.md tells the same to users.

In this order: what the ranks of a process group agree on, what the user named (`GRADEML_RUN_ID`), the place
that a child of `multiprocessing` inherits, a run of its own. A launcher's ranks alone make no run: tasks of a
job that never meet in a process group may train models that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from grademl_otel import agreement
from grademl_otel.family import Kin, Member, hand_down, kin, this_process
from grademl_otel.identity import Place, new_run_id, place_from_environment


class Named(NamedTuple):
    """A run's name, and this process' place in it."""

    run_id: str
    place: Place
    parent: Member | None = None
    """The run that this one came out of: that of the process that started this one."""
    speaks: bool = True
    """This process is the one that tells the user of the run."""
    firm: bool = True
    """False while a process group may still come in which ranks agree on something else."""


def name_run(given: str | None, proposal: str, ordinal: str, kin: Kin, environ: Mapping[str, str]) -> Named:
    """Name the next run.

    ``given`` is the user's own name for it, ``proposal`` a random one, ``ordinal`` the run's number in this
    process (see `agreement.agree`), ``kin`` what this process has from its parent.
    """
    launched = place_from_environment(environ)
    if kin.parent is not None and kin.parent.run_id == given:
        given = None  # a child with its parent's environment: that run has its rank 0 already
    agreed = agreement.agree(given or proposal, launched, ordinal, environ)
    if agreed is not None:
        run_id, place = agreed
        if given is not None:
            # The same name may be given to a job that is queued again.
            run_id, place = given, place._replace(attempt=max(place.attempt, launched.attempt))
        return Named(run_id, place, _other(kin.parent, run_id), place.rank == 0)
    if kin.inherited is not None:
        run_id, attempt, rank, world_size, _ = kin.inherited
        place = Place(rank, rank, world_size, attempt)
        return Named(run_id, place, _other(kin.parent, run_id), kin.parent is None and rank == 1)
    if given is not None:
        return Named(given, launched, kin.parent, launched.rank == 0)
    return Named(proposal, Place(), kin.parent, firm=not launched.distributed)


def _other(parent: Member | None, run_id: str) -> Member | None:
    return None if parent is None or parent.run_id == run_id else parent


class Namer:
    """Names the runs of this process, one after another, and tells its children."""

    def __init__(self) -> None:
        self._proposal = new_run_id()
        self._kin: Kin | None = None
        self._forked_from: object = None
        self._before_fork: Member | None = None
        self._first = True
        self._blocks = 0
        self._since_block = 0
        self._in_block = False

    def next(self, given: str | None, folders: Iterable[Path], environ: Mapping[str, str]) -> Named:
        """Name the run that begins now; ``folders`` is where rings of other processes may lie.

        Asked again for a run whose name was not firm, it may give another one.
        """
        if self._kin is None:
            self._kin = kin(self._before_fork, self._forked_from, folders)
        # A child takes part in its parent's run once; what it trains later, or in a block, is its own.
        family = self._kin if self._first and not self._in_block else Kin(self._kin.parent)
        # In all ranks the same: they enter the same blocks, and between two of them a rank that does more
        # than the others (evaluate, say) does not shift the numbers of later blocks.
        ordinal = f"{self._blocks}.{int(self._in_block)}.{self._since_block}"
        return name_run(given if self._first else None, self._proposal, ordinal, family, environ)

    def began(self, member: Member) -> None:
        """The run is named for good."""
        hand_down(member)

    def ended(self) -> None:
        """The run is over; the next one is another."""
        self._first = False
        self._since_block += 1
        self._proposal = new_run_id()
        self.prepare()

    def prepare(self) -> None:
        """Let children that begin before this process does take part in its next run."""
        hand_down(Member(self._proposal, 0, 0, 1, False))

    def retire(self) -> None:
        """There will be no further run; children are told nothing."""
        hand_down(None)

    def block(self, entered: bool) -> None:
        """A block of the user's own that is one run begins or ends."""
        self._blocks += entered
        self._in_block = entered
        self._since_block = 0

    def forked(self, before: Member | None) -> None:
        """In a forked child, whose parent had the run ``before``; without one, what the parent had counts."""
        before = before or (self._before_fork if self._kin is None else self._kin.parent)
        self.__init__()  # type: ignore[misc]
        self._forked_from, self._before_fork = this_process(), before
        agreement.forget()
