# SPDX-License-Identifier: Apache-2.0
"""Windows of the step table: which rows lie in one span, when a part of a window is closed, and what it says.

A window's number is a function of the step number alone, so that all ranks agree; time only cuts it into
parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from grademl_otel import semconv
from grademl_otel.convert.rows import COLUMNS, COLUMNS_OF_PHASE, Row, tabulate
from grademl_otel.convert.spans import Attributes

_SECOND: Final = 1_000_000_000
_FIRST_MINUTE_NS: Final = 60 * _SECOND
_SHORTEST_PART_NS: Final = 5 * _SECOND
_LONGEST_PART_NS: Final = 60 * _SECOND
_LONGEST_SILENCE_NS: Final = 3600 * _SECOND
_AGE_PER_PART: Final = 12


def part_interval(run_age_ns: int) -> int:
    """Return the longest time in ns that a part covers: 5 s in the first minute, later more, up to 60 s."""
    if run_age_ns < _FIRST_MINUTE_NS:
        return _SHORTEST_PART_NS
    return min(_LONGEST_PART_NS, run_age_ns // _AGE_PER_PART)


@dataclass(slots=True)
class Part:
    """Rows of one window that travel in one span."""

    window: int
    number: int
    detail_level: int
    max_cells: int
    """Numbers that its step table may have."""
    rows: list[Row] = field(default_factory=list)
    phases: set[int] = field(default_factory=set)
    """That occur in its rows."""
    worker_spans: int = 0
    """Spans of loader workers that were sent as its children."""
    end: int = 0
    """Sequence number of the mark that closed its last row."""
    complete: bool = False
    """The window's last training step is in this part."""

    def add(self, row: Row, sequence: int) -> None:
        """Take a row in, which the mark ``sequence`` has closed."""
        self.rows.append(row)
        self.end = sequence
        self.phases.update(row.totals)
        if row.training and row.step + row.steps >= semconv.window_first_step(self.window + 1):
            self.complete = True

    @property
    def full(self) -> bool:
        """True when another row may be too many."""
        columns = COLUMNS + COLUMNS_OF_PHASE * len(self.phases)
        return len(self.rows) >= semconv.MAX_ROWS_PER_PART or (len(self.rows) + 1) * columns > self.max_cells

    @property
    def lanes(self) -> list[int]:
        """Lanes of its rows, in the order of their first."""
        return list(dict.fromkeys(row.lane for row in self.rows))

    def due(self, now: int, run_start: int) -> bool:
        """Return True when the part is to be closed at ``now`` (ns of ``perf_counter``)."""
        return self.full or (bool(self.rows) and now - self.rows[0].start >= part_interval(now - run_start))


@dataclass(slots=True)
class Silence:
    """Tells when no row has come for so long that this is to be said, and less often the longer it lasts."""

    _rows: int = -1
    _since: int = 0
    _told: int = 0

    def lasts(self, rows: int, now: int, interval: int) -> bool:
        """Return True when ``rows`` stayed the same for ``interval`` ns; then for twice that, and so on."""
        if rows != self._rows:
            self._rows, self._since, self._told = rows, now, 0
            return False
        if now - self._since < min(interval << self._told, _LONGEST_SILENCE_NS):
            return False
        self._since = now
        self._told += 1
        return True


@dataclass(slots=True)
class Cumulative:
    """What a rank has sent in its step tables so far."""

    steps: int = 0
    eval_steps: int = 0
    rows: int = 0

    def add(self, row: Row) -> None:
        """Count one row."""
        self.rows += 1
        if row.training:
            self.steps += row.steps
        elif row.flags & semconv.FLAG_EVALUATE:
            self.eval_steps += 1


def window_attributes(
    part: Part, so_far: Cumulative, last: bool, name_of: Callable[[int], str]
) -> Attributes:
    """Return the attributes of the span of ``part``; ``so_far`` includes its rows.

    ``name_of`` tells the name of a kind of phase.
    """
    attributes: Attributes = {
        semconv.WINDOW_NUMBER: part.window,
        semconv.WINDOW_PART: part.number,
        semconv.WINDOW_LAST: last,
        semconv.WINDOW_STEPS_SO_FAR: so_far.steps,
        semconv.WINDOW_EVAL_SO_FAR: so_far.eval_steps,
        semconv.WINDOW_ROWS_SO_FAR: so_far.rows,
        semconv.WINDOW_DETAIL_LEVEL: part.detail_level,
    }
    attributes.update(tabulate(part.rows, part.lanes, name_of))
    if lost := sum(row.device_lost for row in part.rows):
        attributes[semconv.DEVICE_DROPPED] = lost
    return attributes
