# SPDX-License-Identifier: Apache-2.0
"""Which part of a window rows go to: its number, where it ends, and at which level of detail it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from grademl_otel.convert.cuts import Cut
from grademl_otel.convert.detail import LevelGovernor
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.rows import Row
from grademl_otel.convert.windows import Cumulative, Part

_MAX_WINDOWS_KNOWN: Final = 64
"""Rows come in the order of their steps, but for threads that train side by side."""
_MAX_WINDOWS_TOLD: Final = 4
_MAX_CUTS_KNOWN: Final = 16


class Parts:
    """The part that is open, and what the next ones follow from.

    ``cuts`` are those of an earlier converter of the same ring; what it has told is told as it was.
    """

    def __init__(self, cuts: Iterable[Cut]):
        self.open: Part | None = None
        self.cuts = deque(cuts, _MAX_CUTS_KNOWN)
        """Of parts that the clock has closed, the latest last."""
        self._cut_before = {(cut.window, cut.part): cut.end for cut in self.cuts}
        self._next_number: dict[int, int] = {}
        self._latest = -1
        """The latest window that has rows."""
        self.governor = LevelGovernor()
        self._governor_before = LevelGovernor()
        """As it was when the part began."""
        self.trained = False
        """A row of the last part was a training step."""

    def begin(self, window: int, start: int, max_cells: int) -> Part:
        """Open the part that takes rows of ``window`` from ``start`` (ns) on."""
        later = window > self._latest
        if self._latest >= 0 and (later or not self.trained):
            self.governor.next(start, lower=later)
        self._governor_before = replace(self.governor)
        self._latest = max(self._latest, window)
        self.trained = False
        self.open = self.next(window, max_cells)
        return self.open

    def next(self, window: int, max_cells: int) -> Part:
        """Return the next part of ``window``."""
        number = self._next_number.pop(window, 0)
        while self._cut_before.get((window, number)) == 0:
            number += 1
        self._next_number[window] = number + 1  # the latest last
        while len(self._next_number) > _MAX_WINDOWS_KNOWN:
            del self._next_number[next(iter(self._next_number))]
        return Part(window, number, self.governor.level, max_cells)

    def ends_with(self, row: Row, part: Part, run_start: int) -> bool:
        """Return True when ``part`` is to be closed after ``row``, its last one so far."""
        cut = self._cut_before.get((part.window, part.number))
        if cut is None:
            return part.due(row.end, run_start)
        return part.full or part.end >= cut

    def cut(self, part: Part) -> None:
        """Note that ``part`` is closed for no reason that lies in the marks."""
        self.cuts.append(Cut(part.window, part.number, part.end))

    def close(self) -> Part | None:
        """Return the part that was open."""
        part, self.open = self.open, None
        return part

    def progress(self) -> dict[str, Any]:
        """Return the fields of `Progress` that are about parts."""
        part = self.open
        governor = self._governor_before if part else self.governor
        window = part.window if part else max(self._next_number, default=-1)
        others = [[each, number] for each, number in self._next_number.items() if each != window]
        return {
            "window": window,
            "part": part.number if part else self._next_number.get(window, 0),
            "level": governor.level,
            "level_spans": governor.spans,
            "level_since": governor.since,
            "trained": int(self.trained),
            "windows": others[-_MAX_WINDOWS_TOLD:],
        }

    def resume(self, progress: Progress) -> None:
        """Go on from where an earlier relay has stopped."""
        self.governor = LevelGovernor(progress.level, progress.level_spans, progress.level_since)
        self.trained = bool(progress.trained)
        self._latest = max([progress.window, *(window for window, _ in progress.windows)])
        self._next_number.update((window, number) for window, number in progress.windows)
        if progress.window >= 0:
            self._next_number[progress.window] = progress.part

    def unsent(self) -> Cumulative:
        """Return what the rows of the open part add up to."""
        total = Cumulative()
        for row in self.open.rows if self.open else ():
            total.add(row)
        return total
