# SPDX-License-Identifier: Apache-2.0
"""Locks of which one process of a host has one at a time: files in the user's private folder.

The kernel gives a lock back when its holder dies, however it dies. What one is for is in its name, a digest.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from grademl_otel.digest import DIGEST_LENGTH
from grademl_otel.ring.layout import LOCK_SUFFIX
from grademl_otel.ring.place import remove


def lock_path(folder: Path, digest: str) -> Path:
    """Return the file whose ``flock`` makes a process the one of ``digest`` in ``folder``."""
    return folder / f"relay-{checked(digest)}{LOCK_SUFFIX}"


def elect(folder: Path, digest: str) -> int | None:
    """Take the lock and return its descriptor, or None when another process has it; raises OSError."""
    path = lock_path(folder, digest)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if holds(folder, digest, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # who left has removed it between our two steps


def retire(folder: Path, digest: str, descriptor: int) -> None:
    """Give the lock of `elect` back and leave no file of it behind."""
    if holds(folder, digest, descriptor):
        remove(lock_path(folder, digest))
    os.close(descriptor)


def holds(folder: Path, digest: str, descriptor: int) -> bool:
    """Return True while ``descriptor`` is the lock's file, and not one that was deleted."""
    try:
        return os.path.samestat(os.fstat(descriptor), lock_path(folder, digest).lstat())
    except OSError:
        return False


def checked(digest: str) -> str:
    """Return ``digest`` if it is one, which may become part of a path; raises ValueError."""
    if len(digest) != DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"not a digest: {digest!r}")
    return digest
