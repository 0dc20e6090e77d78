# SPDX-License-Identifier: Apache-2.0
"""The layout of a ring: header, open-phase table, strings, slots. Writer and reader both import it, nothing
else.

::

    0                        header, 8,192 bytes: identity, clocks, cursors, accumulators, open-phase table
    HEADER_BYTES             strings, append-only: length:u32 crc:u32 UTF-8 bytes; the n-th has id n, id 0 is
    "" HEADER_BYTES + strings   slots of 64 bytes (`marks.MARK`); mark ``seq`` lies in slot ``seq % slots``

All integers are little-endian. Sequence numbers start at 1; a slot of zeros was never written. No head is
stored: the reader finds it by the sequence numbers, so that a mark costs one store and nothing shared is
contended. Each field has one writer: the process that owns the ring, or the relay (``ACKED``, ``RELAY_*``,
``UNSENT``, ``PROGRESS``, ``CUTS``, ``PROBLEM``).

In a relay's folder a ring shows as ``STEM.ring``, the ring itself, or as ``STEM.memfd``, which points to one
without a name (`sealed`); ``STEM.ring`` beside the latter is the relay's copy of it (`mirror`).
``STEM.lock`` is held by the owner for as long as it lives.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from grademl_otel import marks

MAGIC: Final = b"GRADEML\x00"
VERSION: Final = 3
HEADER_BYTES: Final = 8192
SUFFIX: Final = ".ring"
POINTER_SUFFIX: Final = ".memfd"
NASCENT_SUFFIX: Final = ".new"
"""Of a ring whose header is not written yet."""
LOCK_SUFFIX: Final = ".lock"
WAKE_SUFFIX: Final = ".wake"
"""Of the socket on which a relay is woken; its lock has the same stem."""

IDENTITY: Final = Struct("<8sIIQQQQ24sQqq")
"""magic, version, pid, slots, bytes of strings, pid namespace, IPC namespace, digest, clock (see
`digest.clock_number`), perf ns, wall ns (a pair).
"""

I64: Final = Struct("<q")
HEARTBEAT: Final = 128
"""``perf_counter_ns`` of the owner's last sign of life; the clock is one per host on Linux and macOS."""
CLOSING: Final = 136
"""1 once the owner has written its last mark."""
FINAL_SEQUENCE: Final = 144
"""Sequence number of the last mark; valid when `CLOSING` is 1."""
STRING_BYTES_USED: Final = 152
STRINGS_REFUSED: Final = 160
TAKEN_BACK: Final = 168
"""1 once the owner converts its marks itself: whoever else has the ring open lets go."""
ACKED: Final = 192
"""Relay: marks up to and with this one are exported, stored or spooled."""
RELAY_PID: Final = 200
RELAY_HEARTBEAT: Final = 208
RELAY_FRESH_NS: Final = 1_500_000_000
"""A relay looks at each ring four times a second; one that did not for so long is gone or hangs."""
UNSENT: Final = Struct("<3q")
UNSENT_AT: Final = 216
"""Relay: spans that did not simply arrive, in the order of `ledger.REASONS`; the metric must never fall."""

ACCUMULATORS: Final = 512
ACCUMULATOR_BYTES: Final = 8 * marks.ACC_SLOTS

PROBLEM: Final = 2048
"""Relay: length:u32 crc:u32 and one line for the user, who sees it from the owner: a relay has no terminal.
"""
PROBLEM_BYTES: Final = 500

CUTS: Final = 2560
"""Relay: length:u32 crc:u32 and `cuts.Cut`s, for the relay after it."""
CUTS_BYTES: Final = 512

PROGRESS: Final = CUTS + CUTS_BYTES + 8
"""Relay: length:u32 crc:u32 and a `progress.Progress`, for the relay after it."""
PROGRESS_BYTES: Final = 4096 - PROGRESS - 8

OPEN_PHASES: Final = 4096
OPEN_LANES: Final = 64
OPEN_PHASE: Final = Struct("<HHIq")
"""lane, kind (0: nothing is open), 0, t0 in perf ns; one slot per lane."""
OPEN_PHASE_PADDED: Final = Struct("<HHIq16x")
OPEN_PHASE_STRIDE: Final = OPEN_PHASE_PADDED.size

STRING_HEAD: Final = Struct("<II")
MAX_STRINGS: Final = 65_535
"""Ids travel as u16 where they name a lane."""

BODY: Final = Struct("<HHqqqqqq")
"""A mark without its sequence number and check word: kind, lane, t0, t1, row, x, y, z."""
SLOT: Final = Struct(f"<QI{BODY.size}s")

assert IDENTITY.size <= HEARTBEAT
assert UNSENT_AT + UNSENT.size <= ACCUMULATORS
assert ACCUMULATORS + ACCUMULATOR_BYTES <= PROBLEM
assert PROBLEM + PROBLEM_BYTES + 8 <= CUTS
assert PROGRESS + PROGRESS_BYTES + 8 <= OPEN_PHASES
assert OPEN_PHASES + OPEN_LANES * OPEN_PHASE_STRIDE <= HEADER_BYTES
assert SLOT.size == marks.MARK_SIZE


class Geometry(NamedTuple):
    """Where the parts of a ring lie."""

    strings: int
    """Bytes of the string section."""
    slots: int

    @property
    def first_slot(self) -> int:
        """Offset of slot 0 in bytes."""
        return HEADER_BYTES + self.strings

    @property
    def size(self) -> int:
        """Bytes of the whole ring."""
        return self.first_slot + self.slots * SLOT.size


def geometry(ring_bytes: int) -> Geometry:
    """Divide ``ring_bytes`` (64 KiB and more): an eighth for strings, the rest for slots."""
    strings = max(16 * 1024, ring_bytes // 8) & ~63
    return Geometry(strings, (ring_bytes - HEADER_BYTES - strings) // SLOT.size)
