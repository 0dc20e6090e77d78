# SPDX-License-Identifier: Apache-2.0
"""The file store: one folder a run, ``traces.jsonl`` and ``metrics.jsonl`` in it, lines appended whole.

Ranks of a run on one file system share its folder, found by the run id in its name. A line is one ``write``
on a descriptor opened for appending, under the file's lock, so that the lines of several relays do not mix
and one that a full disk or a killed writer cut can be taken away again. The last of a disk is left to the
program, whose checkpoints need it more.

Files are not synced: lines survive the death of a process and of a container, and of the host what the kernel
had written by then.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from grademl_otel import values
from grademl_otel.config import FILE
from grademl_otel.destination import Destination

TRACES: Final = "traces.jsonl"
METRICS: Final = "metrics.jsonl"
_LOCK_WAIT_S: Final = 1.0
_LOCK_POLL_S: Final = 0.01
_BLOCK: Final = 64 * 1024
_LEFT_BYTES: Final = 1 << 30
_LEFT_SHARE: Final = 20
"""So much of a disk, or a twentieth of it where that is less, is not ours to fill."""


def keepable(destination: Destination, store: Path) -> tuple[Destination, str]:
    """Return ``destination`` without a file store that cannot be written, and one line that says so.

    The line is empty when all is well. To be asked at the start of a run: it costs a look at the folder.
    """
    if FILE not in destination.exporters:
        return destination, ""
    try:
        values.folder(str(store))
    except ValueError as error:
        others = tuple(exporter for exporter in destination.exporters if exporter != FILE)
        what = "nothing is kept in files" if others else "nothing is recorded"
        line = f"{what}: {store}: {error}; GRADEML_STORE names another folder"
        return destination._replace(exporters=others), line
    return destination, ""


def run_folder(store: Path, run_id: str, start_unix_ns: int) -> Path:
    """Return the folder of ``run_id`` in ``store``: the one that another rank has made, else a new one.

    The name of a new one starts with the start of the run in UTC. Raises OSError when it cannot be made.
    """
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Ranks start at the same time; without the lock each would find nothing and make its own.
    with _locked(store):
        found = sorted(store.glob(f"*-{run_id}"))
        if found:
            return found[0]
        start = datetime.fromtimestamp(start_unix_ns / 1e9, tz=timezone.utc)
        folder = store / f"{start:%Y%m%dT%H%M%SZ}-{run_id}"
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder


def existing_folder(store: Path, run_id: str) -> Path | None:
    """Return the folder of ``run_id`` in ``store``, None when no rank has made it yet; may raise OSError."""
    return min(store.glob(f"*-{run_id}"), default=None)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold ``folder``'s own lock; goes on without it after a second, or where there are no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock of an open file; False after a second, or where there are no locks."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return False


class FileStore:
    """Appends lines to the files of one run; what the disk does not take is dropped.

    Not for several threads at once.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.problem: str | None = None
        """Where and why the first line was dropped; None while all went well."""
        self._descriptors: dict[str, int] = {}

    def append(self, name: str, line: bytes) -> bool:
        """Append ``line``, which ends with a line feed, to file ``name``; return False when it was lost."""
        try:
            _append(self._open(name), line)
            return True
        except OSError as error:
            if self.problem is None:
                self.problem = f"{self.folder / name}: {error.strerror or error}"
            return False

    def close(self) -> None:
        """Close the files; a later `append` opens them again."""
        for name in tuple(self._descriptors):
            os.close(self._descriptors.pop(name))

    def _open(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is not None and os.fstat(descriptor).st_nlink == 0:
            # Somebody removed it: what follows is at least seen.
            os.close(self._descriptors.pop(name))
            descriptor = None
        if descriptor is None:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self.folder / name, flags, 0o644)
            self._descriptors[name] = descriptor
        return descriptor


def _append(descriptor: int, line: bytes) -> None:
    """Append ``line`` as a whole or not at all; raises OSError."""
    locked = _lock(descriptor)
    try:
        _leave_room(descriptor, len(line))
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            if locked:
                end = _cut_last_line(descriptor, end)
            else:
                line = b"\n" + line  # another process may be in the middle of it
        written = os.write(descriptor, line)
        if written < len(line):
            if locked:
                os.ftruncate(descriptor, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _leave_room(descriptor: int, length: int) -> None:
    """Raise OSError where ``length`` bytes more in an open file would take the last of its disk."""
    status = os.fstatvfs(descriptor)
    left, whole = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if not whole:
        return  # a network file system that knows no size
    if left - length < min(_LEFT_BYTES, whole // _LEFT_SHARE):
        raise OSError(errno.ENOSPC, f"{left >> 20:,} MiB are left of the disk, which are for the program")


def _cut_last_line(descriptor: int, end: int) -> int:
    """Take away the half line at the end of a file of ``end`` bytes; return its new length."""
    start = end
    while start:
        block = min(start, _BLOCK)
        start -= block
        newline = os.pread(descriptor, block, start).rfind(b"\n")
        if newline >= 0:
            start += newline + 1
            break
    os.ftruncate(descriptor, start)
    return start
