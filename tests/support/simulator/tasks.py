# SPDX-License-Identifier: Apache-2.0
"""Tasks that begin when the last of what they need is over, and the chain of what each one waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Lane = tuple[int | None, str]
"""(rank, name); the network between the ranks is of none of them."""

MAIN: Final = "main"
NETWORK: Final[Lane] = (None, "network")


@dataclass(frozen=True, eq=False)
class Task:
    """What a lane did in ``[start, end)``, ns; of no length where something only came together."""

    lane: Lane
    phase: str
    start: int
    end: int
    cause: Task | None
    """What it needed and was over last: it ended when this one began."""

    def chain(self) -> Iterator[Task]:
        """Yield this task, what it waited for, and so on to the first one."""
        task: Task | None = self
        while task is not None:
            yield task
            task = task.cause


def first(lane: Lane, at: int) -> Task:
    """Return the beginning of a lane."""
    return Task(lane, "", at, at, None)


def then(lane: Lane, phase: str, takes: int, *needs: Task) -> Task:
    """Return a task that begins when all it ``needs`` is over; of several last ones the first counts."""
    cause = max(needs, key=lambda task: task.end)
    return Task(lane, phase, cause.end, cause.end + takes, cause)
