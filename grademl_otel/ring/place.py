# SPDX-License-Identifier: Apache-2.0
"""Where a ring may lie, and how its files come to be there: private, allocated in full, never someone else's.

A ring without a name (`sealed`) needs only a folder in which relays find it: ``/dev/shm``,
``$XDG_RUNTIME_DIR``, else the folder for temporary files, full or not. A ring that is a file, because the
user named a folder or because this system has no sealed memory, lies in ``GRADEML_RING_DIR``, ``/dev/shm``
when it has sixteen times the ring free, ``$XDG_RUNTIME_DIR``, or ``$TMPDIR`` on macOS (which has no
``/dev/shm``). Never on a disk or network file system unless the user names one: a page written back to a slow
disk would stop the training. Where every place fails the process converts its own marks.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grademl_otel.ring.layout import LOCK_SUFFIX, NASCENT_SUFFIX, POINTER_SUFFIX, SUFFIX, WAKE_SUFFIX

SHARED_MEMORY: Final = Path("/dev/shm")
_FREE_FACTOR: Final = 16
_FOR_NOW: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


_held_here: Final[set[Path]] = set()


class RingUnavailable(Exception):
    """No place on this machine can hold a ring; the message says what was tried."""


def places(ring_dir: Path | None, ring_bytes: int) -> Iterator[Path]:
    """Yield the private folders in which a ring may be made, best first; none of them need exist."""
    if ring_dir is not None:
        yield ring_dir / _private_name()
    if has_room(SHARED_MEMORY, ring_bytes):
        yield SHARED_MEMORY / _private_name()
    yield from _runtime_folder()
    if sys.platform == "darwin":
        yield _temporary_folder()


def meeting_places() -> Iterator[Path]:
    """Yield the private folders in which a relay may find what points to a ring, best first."""
    if SHARED_MEMORY.is_dir():
        yield SHARED_MEMORY / _private_name()
    yield from _runtime_folder()
    yield _temporary_folder()


def has_room(folder: Path, ring_bytes: int) -> bool:
    """Return True when ``folder`` has sixteen times ``ring_bytes`` free: others live there, too."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize >= _FREE_FACTOR * ring_bytes


def _private_name() -> str:
    return f"grademl-{os.getuid()}"


def _runtime_folder() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        yield Path(runtime) / _private_name()


def _temporary_folder() -> Path:
    folder = os.environ.get("TMPDIR", "")
    return Path(folder if os.path.isabs(folder) else "/tmp") / _private_name()


def private_folder(path: Path) -> Path:
    """Make ``path`` if missing and return it; raises OSError unless it is ours alone (0700, no link)."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of this user alone (mode 0700)", str(path))
    return path


def create_allocated(path: Path, size: int) -> mmap.mmap:
    """Create ``path`` with every byte allocated, and map it.

    Allocation comes first: touching a page that a full tmpfs cannot give would kill the program with SIGBUS.
    Raises OSError (ENOSPC among them) and leaves nothing behind.
    """
    descriptor = create_private(path)
    try:
        _allocate(descriptor, size)
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def create_locked(path: Path) -> int:
    """Create ``path``, take its POSIX lock, and return the descriptor that holds it.

    The kernel frees the lock when the process dies, however it dies, and forked children do not inherit it.
    It is also freed when the process closes *any* descriptor of that file, so that nothing else may ever open
    it here.
    """
    descriptor = create_private(path)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    _held_here.add(path)
    return descriptor


def is_held_here(path: Path) -> bool:
    """Return True when this process took the lock at ``path``, which must then not be opened again."""
    return path in _held_here


class OwnerLock:
    """Tells, from another process, whether the one that made a lock by `create_locked` still lives.

    The file is opened once and kept open: that someone deletes it is no sign of death. Never for the lock of
    this very process: closing the file here would free it. Raises OSError when that cannot be seen now, for
    want of descriptors as an example; a lock that is gone, or something else in its place, is a free one.
    """

    def __init__(self, path: Path):
        try:
            self._descriptor = open_regular(path)
        except OSError as error:
            if error.errno in _FOR_NOW:
                raise
            self._descriptor = -1

    def free(self) -> bool:
        """Return True when nobody holds the lock, or there was none."""
        if self._descriptor < 0:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_unlocked(path: Path) -> bool:
    """Return True when nobody holds the lock of `create_locked`, or its file is gone.

    Never to be asked by the process that holds it: closing the file here would free the lock.
    """
    lock = OwnerLock(path)
    try:
        return lock.free()
    finally:
        lock.close()


def open_regular(path: Path) -> int:
    """Open the file of ours at ``path`` for reading and writing; raises OSError for anything else there.

    A link, a device, a pipe, a second name of some file of the user's: what was planted is not touched.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    _check_regular(path.lstat(), path)  # before it is opened: opening a device may have effects
    descriptor = os.open(path, flags)
    try:
        _check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove(path: Path) -> None:
    """Remove ``path``, if that can be done."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass


def lives(pid: int) -> bool:
    """Return True when a process with this number runs in this namespace."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Dead, and not waited for: whoever became its parent may never do so.
            return file.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except OSError:
        return True


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_nlink > 1:
        raise PermissionError(errno.EPERM, "not a file of this user alone", str(path))


def remove_forgotten(folder: Path, older_than_s: float) -> list[Path]:
    """Remove and return the rings in ``folder`` whose process is gone and that nobody took in all the time.

    They are of destinations that nothing is sent to any more, of another version, or damaged. The locks of
    processes and relays that were killed go, too.
    """
    removed = []
    for suffix in (SUFFIX, POINTER_SUFFIX, NASCENT_SUFFIX):
        for path in folder.glob(f"*{suffix}"):
            # The age first: a process' own lock must not be opened.
            if _is_older(path, older_than_s) and _is_dead(path):
                remove(path)
                removed.append(path)
    for lock in folder.glob(f"*{LOCK_SUFFIX}"):
        if _is_older(lock, older_than_s):
            _remove_free_lock(lock)
    return removed


def _is_dead(ring: Path) -> bool:
    try:
        return is_unlocked(ring.with_suffix(LOCK_SUFFIX))
    except OSError:
        return False


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > seconds
    except OSError:  # another relay was quicker
        return False


def _remove_free_lock(path: Path) -> None:
    """Remove a lock that neither a process (`create_locked`) nor a relay (``flock``) holds."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return
    try:
        # Both at once, and held until the name is gone: a relay that starts now finds it taken, or anew.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
        remove(path.with_suffix(WAKE_SUFFIX))
    except OSError:
        pass
    finally:
        os.close(descriptor)


def create_private(path: Path) -> int:
    """Create ``path``, which must not exist, and return a descriptor for reading and writing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    written = 0
    while written < size:
        written += os.pwrite(descriptor, bytes(min(1 << 20, size - written)), written)
