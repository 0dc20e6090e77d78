# SPDX-License-Identifier: Apache-2.0
"""The reading end of a ring: trusts nothing in it, and never maps it.

Reading is by ``pread``: a ring that someone truncates under a mapping would kill the relay with SIGBUS, and
with it the telemetry of every other process that it serves.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from grademl_otel import marks
from grademl_otel.digest import clock_number
from grademl_otel.ring import layout
from grademl_otel.ring.place import OwnerLock, is_held_here, lives, open_regular
from grademl_otel.ring.sealed import Pointer, open_sealed

Mark = tuple[int, int, int, int, int, int, int, int]
"""kind, lane, t0, t1, row, x, y, z."""

MAX_RING_BYTES: Final = 1 << 30
_DEAD_AFTER_NS: Final = 2_000_000_000
_HOLE_AFTER_NS: Final = 2_000_000_000
_LOOK_AHEAD: Final = 64
_FIRST_BLOCK: Final = 64
"""Slots that are read at first, and so many times more while all of them are new: most looks find few."""
_ATTEMPTS: Final = 3
_MAX_SEQUENCE: Final = 1 << 62
_STRINGS_AT_ONCE: Final = 1 << 20


class RingCorrupt(Exception):
    """The file is no ring of this version, or what it says of itself cannot be."""


class OpenPhase(NamedTuple):
    """A phase that was running when the table was read."""

    lane: int
    kind: int
    t0: int


class _Store(Protocol):
    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, data: bytes) -> None: ...

    def held(self) -> bool:
        """Return True when it can be seen that the owner still holds the memory."""

    def close(self) -> None: ...


class _FileStore:
    def __init__(self, descriptor: int, pointer: Pointer | None = None):
        self._descriptor = descriptor
        self._pointer = pointer

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) != length:
            raise RingCorrupt(f"ends at byte {offset + len(data)}")
        return data

    def write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._descriptor, data, offset)

    def held(self) -> bool:
        return self._pointer is not None and self._pointer.valid()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _MemoryStore:
    def __init__(self, memory: mmap.mmap):
        self._memory = memory

    def read(self, offset: int, length: int) -> bytes:
        return self._memory[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._memory[offset : offset + len(data)] = data

    def held(self) -> bool:
        return True

    def close(self) -> None:
        pass


class _WatchedStore(_MemoryStore):
    def write(self, offset: int, data: bytes) -> None:
        """Somebody else serves the ring."""


class RingReader:
    """Reads marks in the order of their sequence numbers, and counts those it missed.

    Raises `RingCorrupt` and OSError only; whatever a hostile or damaged file holds, no other exception leaves
    here.
    """

    def __init__(self, store: _Store, path: Path | None):
        self.path = path
        self._store = store
        header = store.read(0, layout.IDENTITY.size)
        magic, version, self.pid, slots, strings, _, _, digest, clock, *_ = layout.IDENTITY.unpack(header)
        if magic != layout.MAGIC:
            raise RingCorrupt("no ring: the first bytes differ")
        if version != layout.VERSION:
            raise RingCorrupt(f"layout version {version}; this version reads {layout.VERSION}")
        self.geometry = layout.Geometry(strings, slots)
        if not 0 < slots <= MAX_RING_BYTES // layout.SLOT.size or not 0 <= strings <= MAX_RING_BYTES:
            raise RingCorrupt(f"impossible sizes: {slots} slots, {strings} bytes of strings")
        if clock != clock_number():
            raise RingCorrupt("made before this boot, or by another clock")
        store.read(self.geometry.size - 1, 1)
        lock = path.with_suffix(layout.LOCK_SUFFIX) if path is not None else None
        self._lock = None if lock is None or is_held_here(lock) else OwnerLock(lock)
        self.digest = digest.decode("ascii", "replace")
        self.strings: list[str] = [""]
        """Text by id; grows as the writer adds to it."""
        self.lost = 0
        """Marks overwritten before they were read, or never finished; of those not acknowledged before."""
        self._first_wanted = self.acked + 1
        self.next = 1
        """Sequence number of the next mark to read."""
        self._string_end = 0
        self._hole_since = 0
        self._progress: tuple[int, int] = (-1, -1)
        self._progress_at = time.perf_counter_ns()

    @classmethod
    def open(cls, path: Path, inherited: Iterable[int] = ()) -> RingReader:
        """Open the ring at ``path``, a file or a pointer; raises `RingCorrupt` or OSError.

        ``inherited`` are descriptors of rings without a name that their owners gave to this process; see
        `open_sealed`.
        """
        if path.suffix == layout.POINTER_SUFFIX:
            pointer = Pointer.read(path)
            store = _FileStore(open_sealed(pointer, inherited), pointer)
        else:
            store = _FileStore(open_regular(path))
        try:
            return cls(store, path)
        except BaseException:
            store.close()
            raise

    @classmethod
    def over(cls, memory: mmap.mmap, watching: bool = False) -> RingReader:
        """Read a ring that this process writes itself; ``watching`` leaves no trace in it."""
        return cls((_WatchedStore if watching else _MemoryStore)(memory), None)

    def close(self) -> None:
        """Close the file; the ring stays."""
        self._store.close()
        if self._lock is not None:
            self._lock.close()

    # --- Marks ------------------------------------------------------------------------------------------

    def read(self, limit: int, final: bool = False) -> list[Mark]:
        """Return up to ``limit`` further marks, all consecutive; empty when there are none yet.

        A number whose slot stays unwritten while later ones are there is waited for during 2 s (its thread
        may be about to write it), then counted as lost; with ``final`` (the writer is gone) at once.
        """
        accepted: list[Mark] = []
        size = _FIRST_BLOCK
        while len(accepted) < limit:
            block, complete = self._read_block(min(size, limit - len(accepted)))
            accepted += block
            size *= 4
            if complete:
                continue
            if accepted or not self._step_over_gap(final):
                break
        self._read_strings()
        return accepted

    def _read_block(self, limit: int) -> tuple[list[Mark], bool]:
        """Return the valid marks from `next` on within one contiguous stretch, and whether all of it was
        valid.
        """
        first = self.next % self.geometry.slots
        number = min(limit, self.geometry.slots - first)
        once, twice = self._slots(first, number), self._slots(first, number)
        same = once == twice
        size = layout.SLOT.size
        accepted: list[Mark] = []
        for index, (seq, check, body) in enumerate(layout.SLOT.iter_unpack(once)):
            if seq != self.next or check != crc32(body, seq & 0xFFFFFFFF):
                return accepted, False
            if (
                not same
                and once[index * size : (index + 1) * size] != twice[index * size : (index + 1) * size]
            ):
                return accepted, False
            accepted.append(layout.BODY.unpack(body))
            self.next += 1
            self._hole_since = 0
        return accepted, True

    def _step_over_gap(self, final: bool) -> bool:
        """Handle a slot that is not the next mark; return True when reading may go on behind it."""
        found = self._valid_sequence(self.next)
        if found is not None and found > self.next:
            self._skip_lap(found)
            return True
        later = next((seq for seq in self._ahead() if self._valid_sequence(seq) == seq), None)
        if later is None:
            self._hole_since = 0
            return False
        if found == self.next:  # it was completed while we looked
            return True
        now = time.perf_counter_ns()
        self._hole_since = self._hole_since or now
        if not final and now - self._hole_since < _HOLE_AFTER_NS:
            return False
        self._skip_to(later)
        return True

    def _ahead(self) -> Iterator[int]:
        return iter(range(self.next + 1, self.next + 1 + min(_LOOK_AHEAD, self.geometry.slots - 1)))

    def _skip_lap(self, found: int) -> None:
        """Go on at the oldest mark that is safe to read; the slot of `next` holds mark ``found`` already."""
        slots = self.geometry.slots
        # The head is the last slot, from that of ``found`` on, that belongs to its lap.
        low, high = 0, slots - 1
        while low < high:
            middle = (low + high + 1) // 2
            seq = self._valid_sequence(found + middle)
            if seq is not None and seq >= found + middle:
                low = middle
            else:
                high = middle - 1
        margin = slots // 16  # the writer goes on meanwhile
        oldest = max(found + low - slots + 1 + margin, self.next + 1)
        self._skip_to(oldest)

    def _skip_to(self, sequence: int) -> None:
        self.lost += max(0, sequence - max(self.next, self._first_wanted))
        self.next = sequence
        self._hole_since = 0

    def _valid_sequence(self, seq: int) -> int | None:
        """Return the sequence number of the mark that lies where ``seq`` belongs, None if it is torn or
        absent.
        """
        slots = self.geometry.slots
        data = self._slots(seq % slots, 1)
        found, check, body = layout.SLOT.unpack(data)
        if (
            not 0 < found < _MAX_SEQUENCE
            or found % slots != seq % slots
            or check != crc32(body, found & 0xFFFFFFFF)
        ):
            return None
        return int(found)

    def _slots(self, first: int, number: int) -> bytes:
        return self._store.read(
            self.geometry.first_slot + first * layout.SLOT.size, number * layout.SLOT.size
        )

    # --- Strings and header -----------------------------------------------------------------------------

    def _read_strings(self) -> None:
        end = min(self.string_bytes_used, self._string_end + _STRINGS_AT_ONCE)
        if end <= self._string_end:
            return
        data = self._store.read(layout.HEADER_BYTES + self._string_end, end - self._string_end)
        position = 0
        while position + layout.STRING_HEAD.size <= len(data) and len(self.strings) <= layout.MAX_STRINGS:
            length, check = layout.STRING_HEAD.unpack_from(data, position)
            raw = data[position + layout.STRING_HEAD.size : position + layout.STRING_HEAD.size + length]
            if len(raw) != length and position > 0:
                break  # the rest of it next time
            if len(raw) != length or crc32(raw) != check:
                # What follows cannot be found any more; ids from here on read as unknown.
                self._string_end = self.geometry.strings
                return
            self.strings.append(raw.decode("utf-8", "replace"))
            position += layout.STRING_HEAD.size + length
        self._string_end += position

    @property
    def string_bytes_used(self) -> int:
        """Bytes of the string section that hold strings."""
        return max(0, min(self._get(layout.STRING_BYTES_USED), self.geometry.strings))

    def raw(self, offset: int, length: int) -> bytes:
        """Return a stretch of the ring as it is now; raises `RingCorrupt` beyond its end."""
        return self._store.read(offset, length)

    def accumulators(self) -> array[int]:
        """Return the totals of `marks.ACC_SLOTS`, as they stood at the end of some row."""
        raw = b""
        for _ in range(_ATTEMPTS):
            before, raw = raw, self._store.read(layout.ACCUMULATORS, layout.ACCUMULATOR_BYTES)
            if raw == before:
                break
        values = array("q")
        values.frombytes(raw)
        return values

    def open_phases(self) -> list[OpenPhase]:
        """Return what is running now, one phase at most for each lane."""
        raw = self._store.read(layout.OPEN_PHASES, layout.OPEN_LANES * layout.OPEN_PHASE_STRIDE)
        found = []
        for lane, kind, _, t0 in layout.OPEN_PHASE_PADDED.iter_unpack(raw):
            if marks.PHASE_BASE <= kind < marks.ROW:
                found.append(OpenPhase(lane, kind, t0))
        return found

    @property
    def closing(self) -> bool:
        """True once the owner has written its last mark."""
        return self._get(layout.CLOSING) == 1

    @property
    def drained(self) -> bool:
        """True when the owner is closing and every mark was read or counted as lost."""
        return self.closing and self.next > self._get(layout.FINAL_SEQUENCE)

    @property
    def abandoned(self) -> bool:
        """True when the owner has taken the ring back: it reads it itself from now on."""
        return self._get(layout.TAKEN_BACK) == 1

    @property
    def heartbeat(self) -> int:
        """``perf_counter_ns`` of the owner's last sign of life."""
        return self._get(layout.HEARTBEAT)

    @property
    def acked(self) -> int:
        """The last mark that some relay has delivered."""
        return self._get(layout.ACKED)

    def acknowledge(self, sequence: int) -> None:
        """Tell the owner that marks up to and with ``sequence`` are delivered."""
        self._store.write(layout.ACKED, layout.I64.pack(sequence))

    def report(self, problem: str) -> None:
        """Leave one line that the owner is to show its user."""
        self._leave(layout.PROBLEM, problem.encode("utf-8", "replace")[: layout.PROBLEM_BYTES])

    def save_unsent(self, counts: Sequence[int]) -> None:
        """Leave how many spans did not simply arrive, in the order of `ledger.REASONS`."""
        self._store.write(layout.UNSENT_AT, layout.UNSENT.pack(*counts))

    def load_unsent(self) -> tuple[int, ...]:
        """Return what an earlier reader left, zeros when nothing of it can be."""
        counts = layout.UNSENT.unpack(self._store.read(layout.UNSENT_AT, layout.UNSENT.size))
        plausible = all(0 <= count < _MAX_SEQUENCE for count in counts)
        return counts if plausible else (0,) * len(counts)

    def save_progress(self, raw: bytes) -> None:
        """Leave up to `layout.PROGRESS_BYTES` for the reader after this one."""
        self._leave(layout.PROGRESS, raw)

    def load_progress(self) -> bytes:
        """Return what an earlier reader left; empty when there is nothing whole."""
        return self._left(layout.PROGRESS, layout.PROGRESS_BYTES)

    def save_cuts(self, raw: bytes) -> None:
        """Leave up to `layout.CUTS_BYTES`, of what is about to be sent, for the reader after this one."""
        self._leave(layout.CUTS, raw)

    def load_cuts(self) -> bytes:
        """Return what an earlier reader left; empty when there is nothing whole."""
        return self._left(layout.CUTS, layout.CUTS_BYTES)

    def attend(self, now_ns: int) -> None:
        """Leave the sign of life of the relay."""
        self._store.write(layout.RELAY_PID, layout.I64.pack(os.getpid()))
        self._store.write(layout.RELAY_HEARTBEAT, layout.I64.pack(now_ns))

    def attended(self, now_ns: int) -> bool:
        """Return True when another relay looked at this ring a moment ago, and lives."""
        pid, beat = self._get(layout.RELAY_PID), self._get(layout.RELAY_HEARTBEAT)
        fresh = beat > 0 and 0 <= now_ns - beat < layout.RELAY_FRESH_NS
        return fresh and pid != os.getpid() and lives(pid)

    def owner_dead(self, now_ns: int) -> bool:
        """Return True when the owner's lock is free and nothing moved for 2 s."""
        progress = (self.heartbeat, self.next)
        if progress != self._progress:
            self._progress, self._progress_at = progress, now_ns
        return now_ns - self._progress_at >= _DEAD_AFTER_NS and self.owner_unlocked()

    def owner_unlocked(self) -> bool:
        """Return True when nobody holds the owner's lock, or its file is gone, and it cannot be seen that the
        owner lives.
        """
        return self._lock is not None and self._lock.free() and not self._store.held()

    def _leave(self, offset: int, raw: bytes) -> None:
        self._store.write(offset, layout.STRING_HEAD.pack(len(raw), crc32(raw)) + raw)

    def _left(self, offset: int, room: int) -> bytes:
        data = self._store.read(offset, layout.STRING_HEAD.size + room)
        length, check = layout.STRING_HEAD.unpack_from(data)
        raw = data[layout.STRING_HEAD.size :][:length]
        return raw if length == len(raw) and check == crc32(raw) else b""

    def _get(self, offset: int) -> int:
        value: int = layout.I64.unpack(self._store.read(offset, layout.I64.size))[0]
        return value
