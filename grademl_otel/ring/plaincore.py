# SPDX-License-Identifier: Apache-2.0
"""The hot path of a ring's writing end in Python, where the one in C (``_core.c``) was not compiled.

Both write the same bytes; what is said here of the methods holds for both.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeVar
from zlib import crc32

from grademl_otel import marks, semconv
from grademl_otel.ring import layout

INTERFACE: Final = 3
"""Grows when what the cores are given or asked changes: one in C of another time is left alone."""
_SUMS: Final = marks.ACC_PHASE_SUM_NS - marks.PHASE_BASE
_DEPTH: Final = 15
"""Phases that are open in each other; more are counted, not shown."""

_pack_open_phase: Final = layout.OPEN_PHASE.pack_into

T = TypeVar("T")
Write = Callable[..., None]


class Core:
    """Writes marks and totals into ``memory``, any writable buffer, whose parts lie at the offsets given.

    ``slots`` is the number of slots, ``phases`` that of the kinds of phases that have totals; ``bounds`` are
    those of the histogram of steps, in ns. What does not fit raises an error and writes nothing. Calls of
    several threads may overlap, as long as a global interpreter lock makes single steps atomic: a number is
    never given twice, and a half-written slot fails its check.
    """

    write: Write
    """``write(kind, lane, t0, t1, row, x=-1, y=0, z=0)``: one mark; see `marks` for what each means."""
    phase: Write
    """``phase(kind, lane, t0, t1, row, item, own, detail)``: the mark of a phase, added to the totals;
    nothing where its kind is not measured."""

    def __init__(
        self,
        memory: Any,
        first_slot: int,
        slots: int,
        totals: int,
        number_of_totals: int,
        phases: int,
        open_phases: int,
        bounds: tuple[int, ...],
    ) -> None:
        view = memoryview(memory)
        end = totals + 8 * number_of_totals
        if slots < 1 or first_slot + slots * layout.SLOT.size > len(view) or end > len(view):
            raise ValueError("a ring of this geometry does not fit into this memory")
        self._memory = view
        self.totals = view[totals:end].cast("q")
        """The accumulators, `marks.ACC_SLOTS` numbers; what is written to them is published."""
        self._counts = _SUMS + phases
        self._histogram = marks.ACC_PHASE_SUM_NS + 2 * phases
        self._open_phases = open_phases
        self._bounds = bounds
        self._unmeasured = 0
        self._growing = threading.RLock()  # a signal handler may come in between
        """Held to add a lane: two threads that did so at once would share one place."""
        self._lanes: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        self._sequence = count(1)
        self.write = self._writer(first_slot, slots)
        self.phase = self._phase

    def _writer(self, first: int, slots: int) -> Write:
        memory = self._memory
        following = self._sequence.__next__
        pack_body = layout.BODY.pack
        pack_slot = layout.SLOT.pack_into
        stride = layout.SLOT.size

        def write(
            kind: int, lane: int, t0: int, t1: int, row: int, x: int = -1, y: int = 0, z: int = 0
        ) -> None:
            body = pack_body(kind, lane, t0, t1, row, x, y, z)
            seq = following()
            # The sequence number seeds the checksum: a slot of an earlier lap never passes for this one.
            pack_slot(memory, first + seq % slots * stride, seq, crc32(body, seq & 0xFFFFFFFF), body)

        return write

    def _phase(
        self, kind: int, lane: int, t0: int, t1: int, row: int, item: int, own: int, detail: int
    ) -> None:
        if not marks.PHASE_BASE <= kind <= marks.MAX_PHASES:
            raise ValueError(f"{kind} is not the kind of a phase")
        if not self.is_measured(kind):
            return
        self.write(kind, lane, t0, t1, row, item, own, detail)
        totals = self.totals
        totals[_SUMS + kind] += t1 - t0
        totals[self._counts + kind] += 1

    def row(
        self,
        serial: int,
        lane: int,
        t0: int,
        t1: int,
        step: int,
        flags: int,
        micro: int,
        pass_: int,
        samples: int,
        cost: int,
    ) -> None:
        """Write the mark of a row, add it to the totals; ``cost`` is the tracer's own time in it, in ns."""
        self.write(marks.ROW, lane, t0, t1, serial, step, marks.pack_row(flags, micro, pass_), samples)
        totals = self.totals
        totals[marks.ACC_COST_NS] += cost
        if flags & semconv.FLAG_EVALUATE:
            totals[marks.ACC_EVAL_STEPS] += 1
        elif flags & semconv.FLAG_INCOMPLETE:
            totals[marks.ACC_INCOMPLETE] += 1
        else:
            totals[marks.ACC_STEPS] += 1
            totals[marks.ACC_SAMPLES] += samples
            totals[marks.ACC_STEP_SUM_NS] += t1 - t0
            totals[self._histogram + bisect_left(self._bounds, t1 - t0)] += 1

    def began(self, lane: int, kind: int, t0: int) -> None:
        """Show that ``kind`` runs in ``lane`` since ``t0``; phases of a lane nest.

        In one that is not measured what is around it goes on being shown.
        """
        slot = self._lanes.get(lane) or self._new_lane(lane)
        if slot is None:
            return
        offset, stack = slot
        if not self.is_measured(kind):
            stack.append(stack[-1] if stack else (0, 0))
            return
        if len(stack) < _DEPTH:
            _pack_open_phase(self._memory, offset, lane, kind, 0, t0)
        stack.append((kind, t0))

    def ended(self, lane: int) -> None:
        """Take back the innermost `began` of ``lane``; the one around it, if any, runs again."""
        slot = self._lanes.get(lane)
        if slot is None or not slot[1]:
            return
        offset, stack = slot
        stack.pop()
        if len(stack) < _DEPTH:
            kind, t0 = stack[-1] if stack else (0, 0)
            _pack_open_phase(self._memory, offset, lane, kind, 0, t0)

    def measure_all_but(self, kinds: int) -> None:
        """Record no phases of the kinds whose bits are set in ``kinds``."""
        self._unmeasured = kinds

    def is_measured(self, kind: int) -> bool:
        """Whether phases of ``kind`` are recorded."""
        return not self._unmeasured >> kind & 1

    def bind(self, thing: object) -> None:
        """Remember ``thing`` for this thread, for as long as the core lives."""

    def mine(self, otherwise: Callable[[], T]) -> T:
        """Return what was bound in this thread, or what ``otherwise`` returns: where nothing was, in a child
        of a fork, and always where the core does not remember, as this one.
        """
        return otherwise()

    def seal(self) -> int:
        """Return the number of the last mark; the next one, if there is any, comes after a gap."""
        return next(self._sequence) - 1

    def process(self) -> int:
        """The process that this is now: another one in a child of a fork, where nothing may be written.

        The core in C writes nothing there.
        """
        return os.getpid()

    def _new_lane(self, lane: int) -> tuple[int, list[tuple[int, int]]] | None:
        with self._growing:
            slot = self._lanes.get(lane)
            if slot is None and len(self._lanes) < layout.OPEN_LANES:
                slot = (self._open_phases + len(self._lanes) * layout.OPEN_PHASE_STRIDE, [])
                self._lanes[lane] = slot
            return slot
