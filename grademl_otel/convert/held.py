# SPDX-License-Identifier: Apache-2.0
"""Rows that have ended, with times of a device or ends of collectives still to come.

What a device did for a row is known some rows later, and so may be the end of a collective that goes on
beside its thread. Until then the row is held, and all that follow it: rows are told in their order. It is
for the marks to say when one is complete, so that a relay that takes over tells the same; only where nothing
comes any more, as from a device that hangs, it is for the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grademl_otel.convert.rows import OpenRow, Row
from grademl_otel.convert.scopes import Scope

MAX_HELD: Final = 256
"""Rows; a device cannot be as far behind, see `devicetime.EVENTS_PER_DEVICE`: a mark was lost."""
LONGEST_NS: Final = 10_000_000_000


@dataclass(slots=True)
class HeldRow:
    """A row that is closed."""

    row: Row
    serial: int
    scope: Scope | None
    """The pass that it is of, which may close before the row is told."""
    samples: int
    collected: OpenRow
    waits: bool
    """Whether device times are to come."""


class HeldRows:
    """Those that are held, in the order in which they ended."""

    def __init__(self) -> None:
        self._rows: dict[int, HeldRow] = {}
        self._told: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, serial: int) -> HeldRow | None:
        """Return the row ``serial`` if it is held."""
        return self._rows.get(serial)

    @property
    def first_sequences(self) -> list[int]:
        """Sequence number of the first mark of each."""
        return [held.collected.first_sequence for held in self._rows.values()]

    def put(self, held: HeldRow) -> None:
        """Hold a row."""
        self._rows[held.serial] = held

    def ready(self, before: int = -1) -> Iterator[HeldRow]:
        """Take out the rows that are held no longer: complete, too many, or over ``before`` (ns) already."""
        while self._rows:
            held = next(iter(self._rows.values()))
            lacks = held.waits or held.collected.lacks_collectives
            if lacks and len(self._rows) <= MAX_HELD and held.row.end >= before:
                return
            del self._rows[held.serial]
            self.tell(held.serial)
            yield held

    def tell(self, serial: int) -> None:
        """The row ``serial`` is told now, or was by an earlier converter."""
        self._told[serial] = None
        if len(self._told) > MAX_HELD:
            del self._told[next(iter(self._told))]

    def was_told(self, serial: int) -> bool:
        """Whether the row ``serial`` was told not long ago: what comes for it now is too late."""
        return serial in self._told
