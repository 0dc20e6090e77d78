# SPDX-License-Identifier: Apache-2.0
"""Requests that a collector did not take, kept in files until it does.

One folder for each destination, one file for each request: its length (4 bytes, big-endian) and the message,
as in the Collector's own proto files; what it is stands in the file's name, which it gets when it is
complete. Nothing of the destination is in it: no address, no header, no credential.

Files are not synced: they survive the death of a process and of a container, and of the host what the kernel
had written by then. One that is cut is seen by its length.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from grademl_otel.config import DEFAULT_SPOOL_BYTES
from grademl_otel.export.otlp import Request
from grademl_otel.ring.place import private_folder

_log = logging.getLogger(__name__)

MAX_AGE_S: Final = 7 * 24 * 3600
"""Long enough for a token that runs out on a Friday."""
_FALLBACK_SHARE: Final = 8
"""The temporary folder may be memory: it holds this part of the bound."""
_RECOUNT_S: Final = 10.0
"""Other processes write to the spool, too."""
_LENGTH: Final = Struct(">I")
_SUFFIX: Final = ".otlp"
_NASCENT_SUFFIX: Final = ".tmp"
_LITTER_AGE_S: Final = {_SUFFIX: MAX_AGE_S, _NASCENT_SUFFIX: 3600}
_LOCK: Final = "resend.lock"
_FOLDER_PREFIX: Final = "otlp-"
_SIGNALS: Final = ("traces", "metrics")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Entry(NamedTuple):
    """A spooled request."""

    path: Path
    signal: str
    priority: int
    """0 run, 1 window, 2 detail, 3 metrics: the highest number is dropped first."""
    spans: int
    """Or metrics."""
    written_ns: int
    size: int


class _Place:
    """One folder that holds spools of all destinations, this one's among them; they share the bound.

    What lies there is counted now and then, and what this process does to it in between.
    """

    def __init__(self, base: Path, destination: str, max_bytes: int):
        self.base = base
        self.folder = base / f"{_FOLDER_PREFIX}{destination}"
        self.max_bytes = max_bytes
        self._known: dict[Path, Entry] = {}
        self._used = 0
        self._counted_at = -_RECOUNT_S

    def excess(self, size: int) -> int:
        """Return how many bytes there are too many if ``size`` more come."""
        if time.monotonic() - self._counted_at > _RECOUNT_S:
            found = [entry for folder in self.folders() for entry in _entries(folder)]
            self._known = {entry.path: entry for entry in found}
            self._used = sum(entry.size for entry in found)
            self._counted_at = time.monotonic()
        return self._used + size - self.max_bytes

    def candidates(self, priority: int) -> list[Entry]:
        """Return the entries of ``priority`` and less important ones, in the order in which they may go."""
        found = [entry for entry in self._known.values() if entry.priority >= priority]
        return sorted(found, key=lambda entry: (-entry.priority, entry.written_ns))

    def make(self) -> None:
        """Make the folder where it is missing; raises OSError."""
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_folder(self.folder)

    def added(self, entry: Entry) -> None:
        self._known[entry.path] = entry
        self._used += entry.size

    def removed(self, entry: Entry) -> None:
        if self._known.pop(entry.path, None) is not None:
            self._used -= entry.size

    def folders(self) -> list[Path]:
        """Return the folders of all destinations."""
        try:
            return [path for path in self.base.glob(f"{_FOLDER_PREFIX}*") if _is_ours(path)]
        except OSError:
            return []


class _TemporaryPlace(_Place):
    """The same in the temporary folder, which everybody may write to."""

    def __init__(self, destination: str, max_bytes: int):
        super().__init__(
            Path(tempfile.gettempdir()) / f"grademl-{os.getuid()}" / "spool", destination, max_bytes
        )

    def make(self) -> None:
        private_folder(self.base.parent)
        super().make()


class Spool:
    """The spool of one destination; for several threads.

    Several processes may write to it, one at a time resends. ``base`` holds the spools of all destinations,
    ``max_bytes`` together. Where ``base`` cannot be written the temporary folder is used. ``lost`` is told of
    each entry that is given up: no room, too old, damaged.
    """

    def __init__(
        self,
        base: Path,
        destination: str,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        lost: Callable[[Entry, str], None] = lambda entry, why: None,
    ):
        self._places: list[_Place] = []
        if base.is_absolute():  # else it is below a home folder that nobody knows
            self._places.append(_Place(base, destination, max_bytes))
        with suppress(OSError):  # there is none
            self._places.append(_TemporaryPlace(destination, max_bytes // _FALLBACK_SHARE))
        self._lost = lost
        self._changing = threading.RLock()
        self._held: set[Path] = set()
        self.folder = self._places[0].folder if self._places else base
        """Where the last request was put, or will be."""
        self.problem: str | None = None
        """Why the last request that was not kept was not, in words."""

    def put(self, request: Request, priority: int, written_ns: int | None = None) -> Entry | None:
        """Keep a request; return None when that cannot be: no room, or no disk takes it.

        ``written_ns`` (Unix ns) is its place in the order, by default behind all others.
        """
        failures = []
        with self._changing:
            for place in self._places:
                try:
                    entry = self._put_in(place, request, priority, written_ns or time.time_ns())
                except OSError as error:
                    failures.append(f"{place.base}: {error.strerror or error}")
                    continue
                if entry is None:
                    failures.append(f"{place.base}: full, {place.max_bytes:,} bytes")
                    break
                self.folder = place.folder
                return entry
            self.problem = "; ".join(failures) or "no folder for it"
            return None

    def entries(self) -> list[Entry]:
        """Return what is in the spool, oldest first."""
        found = [entry for place in self._places for entry in _entries(place.folder)]
        return sorted(found, key=lambda entry: (entry.written_ns, entry.path.name))

    def read(self, entry: Entry) -> Request | None:
        """Return the request of ``entry``; None if it is gone or damaged (then the file is removed)."""
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(entry.size + 1)
        except OSError:
            return None
        if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] != len(data) - _LENGTH.size:
            self._give_up(entry, "damaged")
            return None
        return Request(entry.signal, data[_LENGTH.size :], entry.spans)

    def hold(self, entry: Entry) -> None:
        """Let ``entry`` make room for no other until `release` or `remove`: it may be arriving just now."""
        with self._changing:
            self._held.add(entry.path)

    def release(self, entry: Entry) -> None:
        """End `hold`."""
        with self._changing:
            self._held.discard(entry.path)

    def remove(self, entry: Entry) -> bool:
        """Forget ``entry``; return False when another process has done so before."""
        with self._changing:
            self._held.discard(entry.path)
            for place in self._places:
                place.removed(entry)
            try:
                entry.path.unlink()
                return True
            except FileNotFoundError:
                return False
            except OSError as error:
                _log.debug("%s: %s", entry.path, error.strerror)
                return False

    @contextmanager
    def resending(self) -> Iterator[bool]:
        """Yield True when this process alone may resend now, False when another does or nothing is there."""
        with ExitStack() as held:
            folders = [place.folder for place in self._places if _is_ours(place.folder)]
            yield bool(folders) and all(_lock(held, folder) for folder in folders)

    def clean(self) -> None:
        """Remove what nobody will ever send: too old, never finished, or nothing of ours."""
        for place in self._places:
            for folder in place.folders():
                for entry in _entries(folder):
                    if _older(entry.written_ns, MAX_AGE_S):
                        self._give_up(entry, "too old")
                removed = _remove_litter(folder)
                if removed:
                    _log.info("%s: removed %d old files that are no requests", folder, removed)

    def _put_in(self, place: _Place, request: Request, priority: int, written_ns: int) -> Entry | None:
        size = _LENGTH.size + len(request.body)
        if not self._make_room(place, size, priority):
            return None
        place.make()
        parts = (f"{written_ns:020d}", secrets.token_hex(4), request.signal, priority, request.count)
        path = place.folder / ("-".join(map(str, parts)) + _SUFFIX)
        data = _LENGTH.pack(len(request.body)) + request.body
        try:
            _write(path, data)
        except OSError as error:
            if error.errno not in _FULL or not self._free(place, size, priority + 1):
                raise
            _write(path, data)
        entry = Entry(path, request.signal, priority, request.count, written_ns, size)
        place.added(entry)
        return entry

    def _make_room(self, place: _Place, size: int, priority: int) -> bool:
        """See to it that ``size`` more bytes fit into the bound; return False when they never will."""
        excess = place.excess(size)
        return excess <= 0 or self._free(place, excess, priority)

    def _free(self, place: _Place, size: int, priority: int) -> bool:
        """Drop entries of ``priority`` or less important ones, these and the oldest first, to gain ``size``
        bytes; drop none when they are not enough.
        """
        candidates = [entry for entry in place.candidates(priority) if entry.path not in self._held]
        if sum(entry.size for entry in candidates) < size:
            return False
        for entry in candidates:
            if size <= 0:
                break
            self._give_up(entry, "the spool is full")
            size -= entry.size
        return True

    def _give_up(self, entry: Entry, why: str) -> None:
        if self.remove(entry):
            _log.info("%s: given up, %d %s: %s", entry.path, entry.spans, entry.signal, why)
            self._lost(entry, why)


def _write(path: Path, data: bytes) -> None:
    """Write a new file, which has its name only once it is whole."""
    nascent = path.with_suffix(_NASCENT_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(nascent, flags, 0o600), "wb") as file:
            file.write(data)
        nascent.rename(path)
    except OSError:
        with suppress(OSError):
            nascent.unlink(missing_ok=True)
        raise


def _entries(folder: Path) -> list[Entry]:
    if not _is_ours(folder):
        return []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (_entry(folder / name) for name in names)
    return [entry for entry in found if entry is not None]


def _entry(path: Path) -> Entry | None:
    """Return the entry at ``path``, None when it is no file of ours."""
    parts = path.name.removesuffix(_SUFFIX).split("-")
    if path.suffix != _SUFFIX or len(parts) != 5 or parts[2] not in _SIGNALS:
        return None
    try:
        status = path.lstat()
        written_ns, priority, count = int(parts[0]), int(parts[3]), int(parts[4])
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(path, parts[2], priority, count, written_ns, status.st_size)


def _is_ours(folder: Path) -> bool:
    """Return True for a folder of this user's that is no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _lock(held: ExitStack, folder: Path) -> bool:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder / _LOCK, flags, 0o600)
    except OSError:
        return False
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _older(written_ns: int, seconds: float) -> bool:
    return time.time_ns() - written_ns > seconds * 1e9


def _remove_litter(folder: Path) -> int:
    """Remove files that a process did not finish, or that another version or somebody else left; return how
    many.
    """
    removed = 0
    with suppress(OSError):  # another relay was quicker
        for path in folder.iterdir():
            age = _LITTER_AGE_S.get(path.suffix)
            if age is None or _entry(path) is not None:
                continue
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and _older(status.st_mtime_ns, age):
                path.unlink()
                removed += 1
    return removed
