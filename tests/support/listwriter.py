# SPDX-License-Identifier: Apache-2.0
"""A ring and a transport that are plain lists, for tests of what is written before it is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from grademl_otel import marks, semconv
from grademl_otel.ring import layout, plaincore
from grademl_otel.ring.core import core_over


class Mark(NamedTuple):
    """One mark as it was written; strings still by their ids."""

    kind: int
    lane: int
    t0: int
    t1: int
    row: int
    x: int = -1
    y: int = 0
    z: int = 0


@dataclass
class ListWriter:
    """Stands for `ring.RingWriter`."""

    marks: list[Mark] = field(default_factory=list)
    strings: list[str] = field(default_factory=lambda: [""])
    running: list[tuple[int, int]] = field(default_factory=list)
    """(lane, kind) of the open phases; 0 for one that is not measured."""

    def __post_init__(self) -> None:
        geometry = layout.geometry(64 * 1024)
        core = core_over(bytearray(geometry.size), geometry, plaincore.Core)
        core.write = self.write
        self.phase, self.row = core.phase, core.row
        self.measure_all_but, self.process = core.measure_all_but, core.process
        self.bind, self.mine = core.bind, core.mine
        self.is_measured = core.is_measured
        self.totals = core.totals
        self.ids = {"": 0}

    def write(
        self, kind: int, lane: int, t0: int, t1: int, row: int, x: int = -1, y: int = 0, z: int = 0
    ) -> None:
        self.marks.append(Mark(kind, lane, t0, t1, row, x, y, z))

    def intern(self, text: str) -> int:
        if text not in self.ids:
            self.ids[text] = len(self.strings)
            self.strings.append(text)
        return self.ids[text]

    def began(self, lane: int, kind: int, t0: int) -> None:
        self.running.append((lane, kind if self.is_measured(kind) else 0))

    def ended(self, lane: int) -> None:
        if self.running:
            self.running.pop()

    # --- What tests ask --------------------------------------------------------------------------------

    def of_kind(self, kind: int) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind == kind]

    def phases(self, name: str) -> list[Mark]:
        return self.of_kind(marks.phase_kind(name))

    @property
    def rows(self) -> list[Mark]:
        return self.of_kind(marks.ROW)

    def row_kinds(self) -> Counter[int]:
        """Rows by their flags."""
        return Counter(marks.unpack_row(mark.y)[0] for mark in self.rows)

    def passes(self) -> list[str]:
        """Names of the passes in the order in which they closed."""
        return [
            marks.SCOPES[m.y] for m in self.of_kind(marks.SCOPE_CLOSE) if marks.SCOPES[m.y] != semconv.RUN
        ]

    def scope_values(self, serial: int) -> dict[str, int]:
        """The integers and booleans of a scope."""
        kinds = (marks.SCOPE_INT, marks.SCOPE_BOOL)
        return {self.strings[m.x]: m.y for m in self.marks if m.kind in kinds and m.row == serial}


@dataclass
class ListTransport:
    """Stands for `transport.Transport`."""

    ticks: list[int] = field(default_factory=list)
    closed: bool = False
    abandoned: bool = False

    def tick(self, now_ns: int) -> None:
        self.ticks.append(now_ns)

    def close(self, wait_s: float) -> bool:
        self.closed = True
        return True

    def abandon(self) -> None:
        self.abandoned = True
