# SPDX-License-Identifier: Apache-2.0
"""How far the telling of a ring has come; the relay leaves it in the ring, so that its successor goes on from
there.

Without it a relay that is started again, or a process that takes its ring back, would tell a second time what
was told, or under other names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Final


@dataclass(slots=True)
class Progress:
    """State of the conversion at some mark."""

    told: int
    """Marks up to this one are in the step tables that were sent."""
    fed: int
    """Marks up to this one are in all other spans that were sent."""
    run_serial: int = 0
    run_start: int = 0
    window: int = -1
    part: int = 0
    """The part of ``window`` that is to be sent next."""
    level: int = 0
    level_spans: int = 0
    level_since: int = -1
    """Detail level, and what the next one is chosen by (see `LevelGovernor`)."""
    trained: int = 0
    """1 when a row of the part before was a training step."""
    steps: int = 0
    eval_steps: int = 0
    rows: int = 0
    incomplete: int = 0
    next_step: int = 0
    emitted: int = 0
    lost: int = 0
    passes: int = 0
    passes_left_out: int = 0
    phases: int = 0
    phases_left_out: int = 0
    """Passes and phases that asked for a place in the run's trace, and those that got none."""
    device: int = 0
    gpus: int = 0
    record_level: int = 0
    record_reason: int = 0
    """What the run's scope says from window to window; texts by their id in the ring, 0 for none."""
    windows: list[list[int]] = field(default_factory=list)
    """Other windows, to which rows of threads side by side went: number, and the part that is next."""
    scopes: list[list[int]] = field(default_factory=list)
    """Open scopes: serial, parent, index, number, start, lane, steps, evaluation steps, whether sent."""

    def to_bytes(self, room: int) -> bytes:
        """Return at most ``room`` bytes; scopes that do not fit are left out, innermost first."""
        values = [getattr(self, each.name) for each in _FIELDS]  # names would take the room of the scopes
        scopes = values[-1] = list(self.scopes)
        while True:
            raw = json.dumps(values, separators=(",", ":")).encode("ascii")
            if len(raw) <= room:
                return raw
            if not scopes:
                return b""
            scopes.pop()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Progress | None:
        """Return what `to_bytes` wrote; None for anything else."""
        try:
            values = json.loads(raw)
        except ValueError:
            return None
        if not isinstance(values, list) or len(values) != len(_FIELDS):
            return None
        *numbers, windows, scopes = values
        if not _are_lists(windows, 2) or not _are_lists(scopes, 9):
            return None
        numbers += [number for each in (*windows, *scopes) for number in each]
        plausible = all(isinstance(number, int) and -(1 << 62) < number < 1 << 62 for number in numbers)
        return cls(*values) if plausible else None


_FIELDS: Final = fields(Progress)


def _are_lists(value: object, length: int) -> bool:
    return isinstance(value, list) and all(isinstance(each, list) and len(each) == length for each in value)
