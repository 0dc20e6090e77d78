# SPDX-License-Identifier: Apache-2.0
"""Where a ring may lie, and how its file comes to be there: private, allocated in full, never someone else's.

Places are tried in order: ``GRADEML_RING_DIR``, ``/dev/shm`` when it has sixteen times the ring free,
``$XDG_RUNTIME_DIR``, and ``$TMPDIR`` on macOS (which has no ``/dev/shm``). Never a disk or network file
system unless the user names one: a page written back to a slow disk would stop the training. A ring without a
file at all (memfd handed to the relay) is not offered: where every place fails the process converts its own
marks.
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

from grademl_otel.ring.layout import LOCK_SUFFIX, NASCENT_SUFFIX, SUFFIX

SHARED_MEMORY: Final = Path("/dev/shm")
_FREE_FACTOR: Final = 16


class RingUnavailable(Exception):
    """No place on this machine can hold a ring; the message says what was tried."""


def places(ring_dir: Path | None, ring_bytes: int) -> Iterator[Path]:
    """Yield the private folders in which a ring may be made, best first; none of them need exist."""
    private = f"grademl-{os.getuid()}"
    if ring_dir is not None:
        yield ring_dir / private
    if _free_bytes(SHARED_MEMORY) >= _FREE_FACTOR * ring_bytes:
        yield SHARED_MEMORY / private
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        yield Path(runtime) / private
    if sys.platform == "darwin":
        yield Path(os.environ.get("TMPDIR", "/tmp")) / private


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
    descriptor = _create(path)
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
    descriptor = _create(path)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def is_unlocked(path: Path) -> bool:
    """Return True when nobody holds the lock of `create_locked`, or its file is gone.

    Never to be asked by the process that holds it: closing the file here would free the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_forgotten(folder: Path, older_than_s: float) -> list[Path]:
    """Remove and return the rings in ``folder`` whose process is gone and that nobody took in all the time.

    They are of destinations that nothing is sent to any more, or damaged.
    """
    removed = []
    for path in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{NASCENT_SUFFIX}")):
        lock = path.with_suffix(LOCK_SUFFIX)
        try:
            # The age first: a process' own lock must not be opened.
            if time.time() - path.lstat().st_mtime > older_than_s and is_unlocked(lock):
                path.unlink(missing_ok=True)
                lock.unlink(missing_ok=True)
                removed.append(path)
        except OSError:
            continue  # another relay was quicker
    return removed


def _create(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    written = 0
    while written < size:
        written += os.pwrite(descriptor, bytes(min(1 << 20, size - written)), written)


def _free_bytes(path: Path) -> int:
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
