# SPDX-License-Identifier: Apache-2.0
"""Reading files that nobody vouches for: never more than was asked for, and nothing that blocks.

Who writes there (a pipe in place of a file, a file of gigabytes, bytes that are no text) makes a fact absent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

SMALL: Final = 4096
"""Bytes that files of one fact have at most: what is longer is something else."""
FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
)
"""Of a file to read: opening a pipe does not wait for a writer."""
_LONGEST: Final = 256


def read(path: str | bytes, limit: int = SMALL) -> bytes | None:
    """Return what the regular file ``path`` holds; None for none, and one longer than ``limit``."""
    try:
        return b"".join(pieces(path, limit))
    except (OSError, ValueError):
        return None


def pieces(path: str | bytes, limit: int, *, follow: bool = True) -> Iterator[bytes]:
    """Yield what the regular file ``path`` holds, a MiB at most at a time.

    Raises OSError and ValueError where there is none or it is longer than ``limit``. ``follow`` False: a
    symbolic link is no file.
    """
    descriptor = os.open(path, FLAGS if follow else FLAGS | getattr(os, "O_NOFOLLOW", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise ValueError
        left = limit + 1  # files of /proc say that they are empty
        while left > 0:
            part = os.read(descriptor, min(left, 1 << 20))
            if not part:
                return
            yield part
            left -= len(part)
        raise ValueError
    finally:
        os.close(descriptor)


def read_text(path: str | bytes, limit: int = SMALL) -> str:
    """Return what the file holds as `text`, empty where there is nothing to read."""
    found = read(path, limit)
    return "" if found is None else text(found)


def read_text_lines(path: str | bytes, limit: int = 4 * SMALL) -> list[str]:
    """Return the lines of the file, none where there is nothing to read."""
    return (read(path, limit) or b"").decode("utf-8", "replace").splitlines()


def text(value: bytes | str) -> str:
    """Return ``value`` as an attribute can have it: UTF-8, printable, without blanks around it, not long."""
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace")
    cut = value[: _LONGEST * 4].decode("utf-8", "replace").strip().strip("\0")[:_LONGEST]
    return "".join(c if c.isprintable() else " " for c in cut).strip()


def names(folder: str, most: int) -> Iterator[str]:
    """Yield the names in ``folder``, in no order; those after the first ``most`` are left out."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= most:
                return
            yield entry.name
