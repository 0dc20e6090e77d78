# SPDX-License-Identifier: Apache-2.0
"""Requests that a collector did not take, kept in files until it does.

One folder for each destination; one file for each request: its length (4 bytes, big-endian) and the message,
as in the Collector's own proto files. A file gets its name when it is complete. Nothing of the destination is
in it: no address, no header, no credential.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 1024 * 1024
MAX_AGE_S: Final = 24 * 3600
_LENGTH: Final = Struct(">I")
_SUFFIX: Final = ".otlp"
_SIGNALS: Final = ("traces", "metrics")


class Entry(NamedTuple):
    """A spooled request."""

    path: Path
    signal: str
    priority: int
    """0 run, 1 window, 2 detail: the highest number is dropped first."""
    written_ns: int
    size: int


class Spool:
    """The spool of one destination. Several processes may write to it; one at a time resends."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES):
        self._folder = folder
        self._max_bytes = max_bytes
        self.dropped = 0
        """Requests given up because the spool was full, too old, or not writable."""
        self.problem: str | None = None
        """Why it cannot be written, in one line."""

    def put(self, signal: str, priority: int, body: bytes) -> bool:
        """Keep a request; return False when it is lost (counted): no room, or the disk does not take it."""
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}-{signal}-{priority}"
        temporary = self._folder / f"{name}.tmp"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._make_room(len(body) + _LENGTH.size, priority):
                self.dropped += 1
                return False
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(_LENGTH.pack(len(body)) + body)
            temporary.rename(temporary.with_suffix(_SUFFIX))
            return True
        except OSError as error:
            self.problem = f"{self._folder}: {error.strerror}; what the collector does not take is lost"
            self.dropped += 1
            try:
                temporary.unlink(missing_ok=True)
            except OSError:
                pass
            return False

    def entries(self) -> list[Entry]:
        """Return what is in the spool, oldest first."""
        found = []
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return []
        for name in names:
            entry = _entry(self._folder / name)
            if entry is not None:
                found.append(entry)
        return found

    def read(self, entry: Entry) -> bytes | None:
        """Return the message of ``entry``; None if it is gone or damaged (then the file is removed)."""
        try:
            data = entry.path.read_bytes()
        except OSError:
            return None
        if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] != len(data) - _LENGTH.size:
            self.remove(entry)
            self.dropped += 1
            return None
        return data[_LENGTH.size :]

    def remove(self, entry: Entry) -> None:
        """Forget ``entry``."""
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as error:
            _log.debug("%s: %s", entry.path, error.strerror)

    @contextmanager
    def resending(self) -> Iterator[bool]:
        """Yield True when this process alone may resend now, False when another does or nothing is there."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._folder / "resend.lock", flags, 0o600)
        except OSError:
            yield False
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            self._drop_old()
            yield True
        finally:
            os.close(descriptor)

    def _drop_old(self) -> None:
        limit = time.time_ns() - MAX_AGE_S * 1_000_000_000
        for entry in self.entries():
            if entry.written_ns < limit:
                self.remove(entry)
                self.dropped += 1

    def _make_room(self, size: int, priority: int) -> bool:
        """Drop requests that matter less, the oldest first, until ``size`` more bytes fit."""
        entries = self.entries()
        used = sum(entry.size for entry in entries)
        if used + size <= self._max_bytes:
            return True
        for entry in sorted(entries, key=lambda entry: (-entry.priority, entry.written_ns)):
            if entry.priority < priority:
                break
            self.remove(entry)
            self.dropped += 1
            used -= entry.size
            if used + size <= self._max_bytes:
                return True
        return False


def _entry(path: Path) -> Entry | None:
    """Return the entry at ``path``, None when it is no file of ours."""
    parts = path.name.removesuffix(_SUFFIX).split("-")
    if path.suffix != _SUFFIX or len(parts) != 4 or parts[2] not in _SIGNALS:
        return None
    try:
        return Entry(path, parts[2], int(parts[3]), int(parts[0]), path.stat().st_size)
    except (OSError, ValueError):
        return None
