# SPDX-License-Identifier: Apache-2.0
"""Files of the kernel: read whole, in bytes, with a bound, and opened anew each time.

Keeping them open would save 2 us of the 3 to 15 that a reading takes, and read on in what has been replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 20
"""Of a file; /proc/stat of 1,024 CPUs with as many interrupts has less than half of that."""
_CHUNK: Final = 1 << 16
_LINE: Final = 4096

PathLike = str | Path


def read(path: PathLike) -> bytes:
    """Return what the file says, up to `MOST_BYTES`. Raises OSError.

    A pipe in its place holds up nobody. What can are file systems that programs provide, such as LXCFS.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.read(descriptor, _CHUNK)
        while more := os.read(descriptor, _CHUNK):
            data += more
            if len(data) >= MOST_BYTES:
                break
        return data
    finally:
        os.close(descriptor)


def read_line(path: PathLike) -> bytes:
    """Return what a file of one line says, up to 4 KiB, in the least time. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _LINE)
    finally:
        os.close(descriptor)


def maybe(path: PathLike) -> bytes:
    """Return the same, and nothing where it cannot be read."""
    try:
        return read(path)
    except (OSError, ValueError):  # the latter of names that no file can have
        return b""


def number(data: bytes) -> int | None:
    """Return a whole number >= 0 in decimal digits, with white space around it; None for all else."""
    word = data.strip()
    return int(word) if word.isdigit() and len(word) <= 20 else None


def first_number(path: PathLike) -> int | None:
    """Return the number that a file consists of; None where it says something else, or cannot be read."""
    return number(maybe(path))


def keyed(data: bytes) -> dict[bytes, int]:
    """Return lines of a key, perhaps with a colon, and a number >= 0; what else follows, and other lines, are
    left out: /proc/meminfo, cpu.stat, memory.stat.
    """
    found = {}
    for line in data.splitlines():
        words = line.split(None, 2)
        if len(words) >= 2 and words[1].isdigit() and len(words[1]) <= 20:
            found[words[0].rstrip(b":")] = int(words[1])
    return found


def numbers_of_list(data: bytes) -> frozenset[int] | None:
    """Return the numbers of a list as the kernel writes it, ``0-3,8,10-11``; None for what is none."""
    found: set[int] = set()
    for part in data.strip().split(b","):
        low, dash, high = part.partition(b"-")
        first = number(low)
        last = number(high) if dash else first
        if first is None or last is None or not first <= last < 1 << 16:
            return None
        found.update(range(first, last + 1))
    return frozenset(found)
