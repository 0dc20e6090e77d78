# SPDX-License-Identifier: Apache-2.0
"""Small files of the kernel: bounded, as bytes, and numbers only where it says numbers."""

from __future__ import annotations

import os
from typing import Final

_MOST: Final = 4096
"""Bytes of a file in /sys; it has no more than a page."""
_MOST_DIGITS: Final = 20


def read_bytes(path: str) -> bytes:
    """Return the first page of a file. Raises OSError. May block, as anything in /sys."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST)
    finally:
        os.close(file)


def read_all(path: str, most: int) -> bytes:
    """Return a file of any length, its first ``most`` bytes or a little more. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The kernel gives such files away in pieces, whatever is asked for.
        parts, left = [], most
        while left > 0 and (part := os.read(file, 1 << 16)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def number(text: bytes) -> int | None:
    """Return the natural number that ``text`` is; None for anything else, such as "N/A (no PMA)"."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None


def read_text(path: str) -> str:
    """Return the file as one line that can be shown; "" where it is none or cannot be read."""
    try:
        text = read_bytes(path).strip().decode("utf-8", "backslashreplace")
    except OSError:
        return ""
    return text if text.isprintable() and len(text) <= 128 else ""


def shown(name: str) -> str:
    """Return the name of a file as text that can be encoded: file names need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def names_in(folder: str) -> list[str]:
    """Return what is in a folder, sorted as people count; nothing where there is no such folder.

    Raises OSError where it cannot be read.
    """
    try:
        found = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda name: (name.rstrip("0123456789"), len(name), name))
