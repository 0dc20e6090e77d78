# SPDX-License-Identifier: Apache-2.0
"""The writing end of a ring: one per process, memory-mapped, read by a relay while it is being written.

A mark is one checksum and one store of 64 bytes; what runs a dozen times a step is `core.Core`.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from grademl_otel.config import Settings
from grademl_otel.digest import clock_number, destination_digest, namespaces
from grademl_otel.ring import layout
from grademl_otel.ring.core import core_over
from grademl_otel.ring.place import (
    RingUnavailable,
    create_allocated,
    create_locked,
    create_private,
    lives,
    meeting_places,
    places,
    private_folder,
    remove,
)
from grademl_otel.ring.reader import RingCorrupt, RingReader
from grademl_otel.ring.sealed import Pointer, create_sealed

__all__ = ["RingCorrupt", "RingReader", "RingUnavailable", "RingWriter"]


class _Held(NamedTuple):
    """A descriptor and its file: a program may close what it does not know, and reuse the number."""

    descriptor: int
    device: int
    inode: int

    @classmethod
    def now(cls, descriptor: int) -> _Held:
        status = os.fstat(descriptor)
        return cls(descriptor, status.st_dev, status.st_ino)

    def close(self) -> None:
        try:
            if _Held.now(self.descriptor) == self:
                os.close(self.descriptor)
        except OSError:
            pass


class RingWriter:
    """A ring that this process owns.

    ``write``, ``phase``, ``row``, ``began``, ``ended``, ``measure_all_but``, ``process``, ``bind`` and
    ``mine`` are those of `plaincore.Core`, held as attributes because some run a dozen times a step.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        geometry: layout.Geometry,
        digest: str,
        path: Path | None = None,
        lock: int = -1,
        sealed: int = -1,
    ):
        self.path = path
        """The ring's file, or what points to it; None for a ring that only this process sees."""
        self.digest = digest
        """Which relay serves this ring: a hash of user, namespaces and destination settings."""
        self._memory = memory
        self._geometry = geometry
        self._locks = [_Held.now(lock)] if lock >= 0 else []
        self._pointer = Pointer.to(sealed) if sealed >= 0 else None
        self._owner = os.getpid()
        self._growing = threading.RLock()  # a signal handler may come in between
        """Held to add a string: two threads that did so at once would share one place."""
        self.ids: dict[str, int] = {"": 0}
        """Ids by text, to look into; `intern` adds to it."""
        self._string_end = 0
        self._refused = 0
        self._final: int | None = None
        self._write_header()
        core = self._core = core_over(memory, geometry)
        self.write, self.phase, self.row = core.write, core.phase, core.row
        self.began, self.ended = core.began, core.ended
        self.measure_all_but, self.process = core.measure_all_but, core.process
        self.bind, self.mine = core.bind, core.mine
        self.totals = core.totals
        """The accumulators, `marks.ACC_SLOTS` numbers; what is written here is published."""

    @classmethod
    def create(cls, settings: Settings) -> RingWriter:
        """Make a ring in the first place that takes it; raises `RingUnavailable` when none does."""
        geometry = layout.geometry(settings.ring_bytes)
        digest = destination_digest(os.environ)
        failures = []
        if settings.ring_dir is None:
            for folder in meeting_places():
                try:
                    return cls._create_sealed(private_folder(folder), geometry, digest)
                except OSError as error:
                    failures.append(f"{folder}: {error.strerror or error}")
        for folder in places(settings.ring_dir, geometry.size):
            try:
                return cls._create_in(private_folder(folder), geometry, digest)
            except OSError as error:
                failures.append(f"{folder}: {error.strerror or error}")
        raise RingUnavailable("; ".join(failures) or "no place: /dev/shm is absent or too full")

    @classmethod
    def in_memory(cls, settings: Settings) -> RingWriter:
        """Make a ring that only this process can read, for the in-process mode where no file can be had."""
        geometry = layout.geometry(settings.ring_bytes)
        memory = mmap.mmap(-1, geometry.size)
        return cls(memory, geometry, destination_digest(os.environ))

    @classmethod
    def _create_sealed(cls, folder: Path, geometry: layout.Geometry, digest: str) -> RingWriter:
        stem = f"{digest}-{os.urandom(8).hex()}"
        lock_path = folder / (stem + layout.LOCK_SUFFIX)
        descriptors = [create_sealed(geometry.size)]
        try:
            descriptors.append(create_locked(lock_path))
            sealed, lock = descriptors
            memory = mmap.mmap(sealed, geometry.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            path = folder / (stem + layout.POINTER_SUFFIX)
            writer = cls(memory, geometry, digest, path, lock, sealed)
            writer.keep_reachable()
            return writer
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            remove(lock_path)
            raise

    @classmethod
    def _create_in(cls, folder: Path, geometry: layout.Geometry, digest: str) -> RingWriter:
        stem = f"{digest}-{os.urandom(8).hex()}"
        lock_path = folder / (stem + layout.LOCK_SUFFIX)
        # The lock comes before the ring: a relay that sees the ring must find its owner alive.
        lock = create_locked(lock_path)
        try:
            # A ring gets its name only when its header is written: a relay must not see half a header.
            path = folder / (stem + layout.SUFFIX)
            nascent = folder / (stem + layout.NASCENT_SUFFIX)
            memory = create_allocated(nascent, geometry.size)
            writer = cls(memory, geometry, digest, path, lock)
            os.rename(nascent, path)
            return writer
        except BaseException:
            lock_path.unlink(missing_ok=True)
            os.close(lock)
            raise

    def _write_header(self) -> None:
        pid_namespace, ipc_namespace = namespaces()
        layout.IDENTITY.pack_into(
            self._memory, 0, layout.MAGIC, layout.VERSION, self._owner, self._geometry.slots,
            self._geometry.strings, pid_namespace, ipc_namespace, self.digest.encode("ascii"), clock_number(),
            0, 0,
        )  # fmt: skip
        self.pair_clocks()
        self.beat(time.perf_counter_ns())

    # --- Now and then -----------------------------------------------------------------------------------

    def beat(self, now_ns: int) -> None:
        """Show a sign of life; ``now_ns`` is ``perf_counter_ns``."""
        layout.I64.pack_into(self._memory, layout.HEARTBEAT, now_ns)

    def intern(self, text: str) -> int:
        """Return the id of ``text``, the same for the same text; 0 when the section is full (counted)."""
        known = self.ids.get(text)
        if known is not None:
            return known
        with self._growing:
            return self.ids.get(text) or self._add_string(text)

    def _add_string(self, text: str) -> int:
        raw = text.encode("utf-8", "replace")
        start = layout.HEADER_BYTES + self._string_end
        end = self._string_end + layout.STRING_HEAD.size + len(raw)
        if end > self._geometry.strings or len(self.ids) > layout.MAX_STRINGS:
            self._refused += 1
            layout.I64.pack_into(self._memory, layout.STRINGS_REFUSED, self._refused)
            return 0
        layout.STRING_HEAD.pack_into(self._memory, start, len(raw), crc32(raw))
        self._memory[start + layout.STRING_HEAD.size : layout.HEADER_BYTES + end] = raw
        self._string_end = end
        layout.I64.pack_into(self._memory, layout.STRING_BYTES_USED, end)
        number = self.ids[text] = len(self.ids)
        return number

    def pair_clocks(self) -> None:
        """Store ``perf_counter_ns`` and the wall clock as read side by side; renewed now and then."""
        perf, wall = time.perf_counter_ns(), time.time_ns()
        layout.I64.pack_into(self._memory, layout.IDENTITY.size - 16, perf)
        layout.I64.pack_into(self._memory, layout.IDENTITY.size - 8, wall)

    @property
    def acked(self) -> int:
        """Marks up to and with this one are delivered, stored or spooled."""
        return self._get(layout.ACKED)

    @property
    def relay_heartbeat(self) -> int:
        """``perf_counter_ns`` of the relay's last look at this ring; 0 before the first."""
        return self._get(layout.RELAY_HEARTBEAT)

    def relay_alive(self, now_ns: int) -> bool:
        """Return True when a relay looked at this ring not long ago, and was not killed since."""
        beat = self.relay_heartbeat
        return beat > 0 and now_ns - beat < layout.RELAY_FRESH_NS and lives(self._get(layout.RELAY_PID))

    @property
    def problem(self) -> str | None:
        """What the relay could not do with this run's telemetry, in one line; None when all went well."""
        start = layout.PROBLEM + layout.STRING_HEAD.size
        length, check = layout.STRING_HEAD.unpack_from(self._memory, layout.PROBLEM)
        raw = self._memory[start : start + min(length, layout.PROBLEM_BYTES)]
        return raw.decode("utf-8", "replace") if raw and crc32(raw) == check else None

    def mark_closing(self) -> int:
        """Declare the last mark written and return its sequence number; the reader then waits for no more."""
        if self._final is None:
            self._final = self._core.seal()
            layout.I64.pack_into(self._memory, layout.FINAL_SEQUENCE, self._final)
            layout.I64.pack_into(self._memory, layout.CLOSING, 1)
        return self._final

    def reader(self, watching: bool = False) -> RingReader:
        """Return a reader of this ring for this same process; it never touches the lock.

        One that is only ``watching`` may read beside the one that serves the ring.
        """
        return RingReader.over(self._memory, watching)

    @property
    def descriptor(self) -> int | None:
        """A descriptor of a ring without a name, for a relay to inherit; None for any other."""
        return self._pointer.descriptor if self._pointer is not None else None

    def keep_reachable(self) -> bool:
        """See to it that a relay can find the ring; return False when none ever can again.

        Somebody may have deleted the files, the program may have closed descriptors that it does not know.
        Raises OSError when what is missing cannot be made anew.
        """
        path, pointer = self.path, self._pointer
        if path is None or pointer is None:
            return path is not None and path.exists()
        if not pointer.valid():
            return False
        lock = path.with_suffix(layout.LOCK_SUFFIX)
        if not os.path.lexists(lock):
            private_folder(path.parent)
            # The old one stays locked, too: a relay may hold on to it.
            self._locks.append(_Held.now(create_locked(lock)))
        if not os.path.lexists(path):
            pointer.write(path)
        return True

    def leave_copy(self) -> None:
        """Leave the ring as a file for the next relay, when none is there and this process ends."""
        if self.path is None or self._pointer is None:
            return
        nascent = self.path.with_suffix(layout.NASCENT_SUFFIX)
        try:
            descriptor = create_private(nascent)
            try:
                if os.write(descriptor, self._memory) < self._geometry.size:
                    raise OSError("no room")
            finally:
                os.close(descriptor)
            os.rename(nascent, self.path.with_suffix(layout.SUFFIX))
        except OSError:
            remove(nascent)

    def take_back(self) -> None:
        """Take the ring out of the reach of relays: its own process reads it from now on.

        A relay that has it open sees that, and lets go.
        """
        layout.I64.pack_into(self._memory, layout.TAKEN_BACK, 1)
        self._remove_files()
        self.path = None

    def close(self, unlink: bool) -> None:
        """Let go of the ring.

        ``unlink`` removes its files too, when everything was delivered; otherwise they stay for a relay to
        adopt. In a forked child nothing is removed: the files are the parent's.
        """
        if os.getpid() == self._owner and unlink:
            self._remove_files()
        self.write = _write_nothing
        for held in self._locks:
            held.close()
        self._locks.clear()
        if self._pointer is not None:
            _Held(self._pointer.descriptor, self._pointer.device, self._pointer.inode).close()
            self._pointer = None

    def _remove_files(self) -> None:
        if self.path is not None:
            for suffix in (layout.POINTER_SUFFIX, layout.SUFFIX, layout.LOCK_SUFFIX):
                remove(self.path.with_suffix(suffix))

    def _get(self, offset: int) -> int:
        value: int = layout.I64.unpack_from(self._memory, offset)[0]
        return value


def _write_nothing(*_: int) -> None:
    """Stand for ``write`` once the ring is closed: late hooks of daemon threads must do no harm."""
