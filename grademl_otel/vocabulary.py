# SPDX-License-Identifier: Apache-2.0
"""The names of a program's own phases: which kind of mark each one has in a run."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.messages import complain

_LONGEST: Final = 64
_ANY: Final = "phase"
"""The name of one that has none."""
FURTHER: Final = "further phases"
_FULL: Final = (
    f"the program names more than {len(marks.USER_KINDS) - 1} phases; the others are counted together as "
    f"{FURTHER!r} (a name should not have numbers or file names in it)"
)
_COUNTS: Final = marks.ACC_PHASE_COUNT - marks.PHASE_BASE


class Vocabulary:
    """The names of one run. ``totals`` are its accumulators, ``intern`` gives a text its id in the ring."""

    def __init__(self, totals: memoryview[int] | array[int], intern: Callable[[str], int]) -> None:
        self._totals = totals
        self._intern = intern
        self._known: dict[str, tuple[int, int]] = {}
        self._taken = 0
        self._learning = threading.RLock()  # a signal handler may come in between
        """Held to add a name: two threads that did so at once would share one kind."""

    def kind_of(self, name: str) -> tuple[int, int]:
        """Return the kind of the phase ``name``, and the string id of its name; 0 for one that we see, too.

        Names beyond those that there are kinds for share the last one; that is said once.
        """
        known = self._known.get(name)
        if known is None:
            with self._learning:
                known = self._known.get(name) or self._learn(name)
        return known

    def seen(self, kind: int) -> int:
        """Return how many phases of ``kind`` were recorded so far."""
        return self._totals[_COUNTS + kind]

    def _learn(self, name: str) -> tuple[int, int]:
        shown = free(name)
        known = self._known.get(shown)
        if known is not None:
            pass  # "step", say, where "user.step" is known
        elif name in semconv.SAYABLE:
            known = marks.phase_kind(name), 0
        else:
            last = len(marks.USER_KINDS) - 1
            place = min(self._taken, last)
            self._taken += 1
            if place == last:
                complain([_FULL])
                # Not kept: there may be any number.
                return self._known.get(FURTHER) or self._take(last, FURTHER)
            known = self._take(place, shown)
        self._known[name] = self._known[shown] = known
        return known

    def _take(self, place: int, name: str) -> tuple[int, int]:
        text = self._intern(name)
        self._totals[marks.ACC_USER_NAMES + place] = text
        return marks.USER_KINDS[place], text


def free(name: str) -> str:
    """Return ``name``, or where that is taken one that says whose it is."""
    return semconv.USER_PREFIX + name if name in semconv.RESERVED else name


def spelled(name: object) -> str:
    """Return ``name`` as the name of a phase: one line of at most 64 characters, whatever it is."""
    try:
        return " ".join(str(name).split())[:_LONGEST] or _ANY
    except Exception:
        return _ANY
