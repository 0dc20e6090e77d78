# SPDX-License-Identifier: Apache-2.0
"""Rows of the step table: the phases of a row are collected until the row closes, then tabulated part by
part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.emitter import Event
from grademl_otel.convert.spans import Attributes
from grademl_otel.ring.reader import Mark

MAX_PHASES_KEPT: Final = semconv.MAX_SPANS_PER_TRACE
"""Phases of one row that are kept as marks; further ones are in its sums only."""

NO_ITEM: Final = (-1, -1, -1, -1)


@dataclass(slots=True)
class PhaseTotal:
    """What a row says of one phase; ns."""

    first: int
    busy: int
    count: int


@dataclass(slots=True)
class OpenRow:
    """Phases that were seen with the serial of a row that has not closed yet."""

    first_sequence: int
    events: list[Event] = field(default_factory=list)
    totals: dict[int, PhaseTotal] = field(default_factory=dict)
    """By number of the phase; what a device did has that of its mark."""
    item: int = -1
    """The first batch that a `data.wait` of the row ended with."""
    sampled: bool = True
    """Whether the user's sampler wants spans of it."""
    asked: tuple[str, int] | None = None
    """Kind and number of the step in whose trace somebody was told that the row's span is; None: nobody."""
    asked_at: int = 0
    skipped: int = 0
    """Updates that a scaler skipped, as gradients were not finite."""
    said_at: int = 0
    """When the program said that the step begins; 0: it did not."""
    device_told: bool = False
    """Whether all times of a device are there."""
    device_lost: int = 0
    """Times of a device that were given up."""
    beside: int = 0
    """Collectives that it issued and that went on beside its thread, where it ended before one of them."""
    beside_over: int = 0
    """How many collectives of this kind have ended."""
    around: tuple[int, int] | None = None
    """Trace id and span id of the user's span that was current when the row began."""

    def note(self, mark: Mark) -> None:
        """Take what is said of the row besides its phases."""
        kind, _, at, _, _, x, y, z = mark
        if kind == marks.ROW_SAID:
            self.said_at = at
        elif kind == marks.ROW_BESIDE:
            self.beside = x
        elif kind == marks.ROW_DEVICE:
            self.device_told, self.device_lost = True, min(max(x, 0), MAX_PHASES_KEPT)
        elif kind == marks.ROW_CONTEXT:
            self.asked, self.asked_at = (_TRACES.get(x, semconv.TRACE_STEP), y), at
        else:
            trace = marks.unpack_half(x) << 64 | marks.unpack_half(y)
            self.around = (trace, marks.unpack_half(z)) if trace and z else None

    @property
    def lacks_collectives(self) -> bool:
        """Whether collectives of it are still to be told of."""
        return self.beside_over < self.beside

    def add(self, phase: int, event: Event) -> None:
        """Count the phase in, and keep its event while there is room."""
        _, _, t0, t1, _, item, own, _ = event[1]
        if own and phase == _OPTIMIZER:
            self.skipped += 1
        if phase == _COLLECTIVE and not marks.unpack_collective(own)[2]:
            self.beside_over += 1
        total = self.totals.get(phase)
        if total is None:
            self.totals[phase] = PhaseTotal(t0, t1 - t0, 1)
        else:
            total.first = min(total.first, t0)
            total.busy += t1 - t0
            total.count += 1
        if self.item < 0 <= item and phase == _DATA_WAIT:
            self.item = item
        if len(self.events) < MAX_PHASES_KEPT:
            self.events.append(event)


_TRACES: Final = {
    semconv.FLAG_EVALUATE: semconv.TRACE_EVAL_STEP,
    semconv.FLAG_INCOMPLETE: semconv.TRACE_INCOMPLETE_STEP,
}
_OPTIMIZER: Final = semconv.PHASE_INDEX[semconv.OPTIMIZER]
_COLLECTIVE: Final = semconv.PHASE_INDEX[semconv.COLLECTIVE]
_DATA_WAIT: Final = semconv.PHASE_INDEX[semconv.DATA_WAIT]


@dataclass(slots=True)
class Row:
    """A closed row; times in ns of ``perf_counter``."""

    step: int
    start: int
    end: int
    lane: int
    micro: int
    flags: int
    item: tuple[int, int, int, int]
    """Pass, batch, loader, worker; -1 for what is not known."""
    totals: dict[int, PhaseTotal]
    first_sequence: int
    steps: int = 1
    """Training steps in a row that it stands for."""
    device_lost: int = 0
    """Times of a device that were given up."""

    @property
    def training(self) -> bool:
        """True for a training step."""
        return not self.flags & (semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE)


COLUMNS: Final = 11
"""Columns beside those of phases."""
COLUMNS_OF_PHASE: Final = 3


def tabulate(rows: list[Row], lanes: Sequence[int], name_of: Callable[[int], str]) -> Attributes:
    """Return the step table of ``rows`` as attributes of the window span that starts with the first.

    ``lanes`` are those of the rows; where there is one only there is no column of it. ``name_of`` tells the
    name of a kind of phase.
    """
    table: Attributes = {semconv.TABLE_VERSION: 1}
    if not rows:
        return table
    origin = rows[0].start
    columns: dict[str, list[int]] = {
        "step": [row.step for row in rows],
        "start_us": [(row.start - origin) // 1000 for row in rows],
        # The difference of floored edges, so that adjacent rows stay adjacent.
        "dur_us": [(row.end - origin) // 1000 - (row.start - origin) // 1000 for row in rows],
        "micro": [row.micro for row in rows],
        "flags": [row.flags for row in rows],
    }
    for position, name in enumerate(("item.pass", "item.batch", "item.loader", "item.worker")):
        columns[name] = [row.item[position] for row in rows]
    if any(row.steps != 1 for row in rows):
        columns["steps"] = [row.steps for row in rows]
    if len(lanes) > 1:
        columns["lane"] = [lanes.index(row.lane) for row in rows]
    for phase in sorted({phase for row in rows for phase in row.totals}):
        kind = phase + marks.PHASE_BASE
        name = name_of(kind)
        if kind in marks.USER_KINDS:
            name = semconv.USER_PREFIX + name
        totals = [row.totals.get(phase) for row in rows]
        columns[f"{name}.first_us"] = [-1 if t is None else (t.first - origin) // 1000 for t in totals]
        columns[f"{name}.busy_us"] = [0 if t is None else t.busy // 1000 for t in totals]
        columns[f"{name}.count"] = [0 if t is None else t.count for t in totals]
    for name, values in columns.items():
        # `start_us` is never folded: it tells the reader how many rows there are.
        folded = name != "start_us" and all(value == values[0] for value in values)
        table[semconv.TABLE_PREFIX + name] = values[:1] if folded else values
    return table
