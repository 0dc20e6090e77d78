# SPDX-License-Identifier: Apache-2.0
"""The recording governor: how much is measured of each step, so that the tracer stays within its budget.

===== ================================================================================================
level what is measured
===== ================================================================================================
0     all phases; the wrapper of ``Module.__call__`` also meets the modules inside a module
1     all phases; only classes that were seen as the outermost are wrapped
2     waits for data, and the ends of steps
3     the ends of updates: one row for `STEPS_PER_ROW` of them, all other hooks are out
===== ================================================================================================

The own cost is timed on some rows. At the end of a window, once enough training steps were timed:

* above the budget the level goes down by one; to the lowest, at which little can be told of a run, only from
  `LAST_RESORT` times the budget on;
* it goes back up by one when what the level above cost, when it was left, is less than half the budget of the
  steps as they are now: steps must have become at least twice as long;
* after `MAX_RETURNS` ways back up it only goes down.

So the level never swings: the same steps that drove it down never bring it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from grademl_otel.messages import warn

DEFAULT_BUDGET: Final = 0.01
"""Part of a step's time."""
MIN_STEPS: Final = 32
"""Training steps of a run before its level changes: the first are like no others."""
SAMPLES: Final = 8
"""Timed steps that a decision rests on."""
MAX_RETURNS: Final = 3
LAST_RESORT: Final = 3
STEPS_PER_ROW: Final = 16
"""At the lowest level; windows begin at multiples of it, so that rows of all ranks hold the same steps."""

EVERYTHING: Final = 0
ROOTS: Final = 1
BOUNDARIES: Final = 2
UPDATES: Final = 3

Follower = Callable[[int, bool], None]


def median_low(numbers: Iterable[int]) -> int:
    """The lower median, as that of `statistics`, which brings `decimal` along into every start-up."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2]


class Governor:
    """Chooses the level of one run from what its steps cost; pure, times in ns."""

    def __init__(self, budget: float = DEFAULT_BUDGET) -> None:
        self.budget = budget
        self.level = EVERYTHING
        self.reason = ""
        """Why the level is not 0, in words."""
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)
        self._steps = 0
        self._left_at: dict[int, int] = {}
        """Level -> its cost when it was left."""
        self._returns = 0

    def sample(self, cost: int, step: int) -> None:
        """Take the own cost in one training step of the length ``step``."""
        self._samples.append((cost, step))

    def window_ends(self, steps: int, lowest: int = UPDATES) -> bool:
        """Decide after ``steps`` training steps of the run; return whether the level has changed.

        It does not go below ``lowest`` now.
        """
        if steps < MIN_STEPS or (len(self._samples) < SAMPLES and self.level < UPDATES):
            return False
        step = self._typical_step()
        if self.level < UPDATES:
            # A hook that another process interrupts seems to cost that process' time.
            cost = sorted(cost for cost, _ in self._samples)[SAMPLES // 4]
            if cost > self.budget * step:
                deep = self.level + 1 == UPDATES
                enough = not deep or cost > LAST_RESORT * self.budget * step
                return enough and self.level < lowest and self._go(self.level + 1, cost, step)
        above = self._left_at.get(self.level - 1)
        if above is not None and self._returns < MAX_RETURNS and 2 * above <= self.budget * step:
            self._returns += 1
            return self._go(self.level - 1, above, step)
        return False

    def rise(self, level: int) -> None:
        """Go up to ``level`` for reasons of the caller's; what is known of costs stays."""
        if level < self.level:
            self.level = level
            self._samples.clear()

    def _go(self, level: int, cost: int, step: int) -> bool:
        if level > self.level:
            self._left_at[self.level] = cost
        self.level = level
        share, budget = 100 * cost / step, 100 * self.budget
        self.reason = f"own cost {share:.2g} % of a {_duration(step)} step; budget {budget:g} %"
        self._samples.clear()
        return True

    def _typical_step(self) -> int:
        return max(1, median_low([step for _, step in self._samples]))


def _duration(ns: int) -> str:
    return f"{ns / 1e6:.2g} ms" if ns < 100_000_000 else f"{ns / 1e9:.2g} s"


class Levels:
    """Tells the hooks of this process at which level they are to work.

    ``learning`` is True for the few rows in which hooks at level 1 and 2 look for modules and the like that
    are new.
    """

    def __init__(self) -> None:
        self.level = EVERYTHING
        self.learning = False
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call ``follower(level, learning)`` at each change; return what stops that."""
        self._followers.append(follower)

        def leave() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return leave

    def set(self, level: int, learning: bool = False) -> None:
        """Have all hooks work at ``level``."""
        if (level, learning) == (self.level, self.learning):
            return
        self.level, self.learning = level, learning
        for follower in tuple(self._followers):
            try:
                follower(level, learning)
            except Exception as error:  # its hooks stay as they are
                self._followers.remove(follower)
                warn(f"hooks stay at a former recording level: {type(error).__name__}: {error}")


levels: Final = Levels()
"""Of this process."""
