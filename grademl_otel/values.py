# SPDX-License-Identifier: Apache-2.0
"""What the text of one setting means. Each parser raises ValueError with what it had expected."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

_SHOWN: Final = 80
"""So many characters of a value are shown; a value may be as long as the system lets it be."""


def flag(text: str) -> bool:
    """``1`` or ``0``, and the usual words for them."""
    lowered = text.lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 1 or 0")


def integer(low: int, high: int, unit: str) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ValueError(f"expected {low} to {high} {unit}")
        return value

    return parse


def number(low: float, high: float, unit: str) -> Callable[[str], float]:
    """Return a parser of numbers from ``low`` to ``high``; neither nan nor infinity is one."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"expected {low:g} to {high:g} {unit}")
        return value

    return parse


def folder(text: str) -> Path:
    """A folder that may be written to, or that can be made; its absolute path."""
    path = _absolute(text)
    for place in (path, *path.parents):
        mode = _mode(place)
        if mode is None:
            continue
        if not stat.S_ISDIR(mode):
            raise ValueError(f"expected a folder, and {_short(place)} is none")
        if not os.access(place, os.W_OK | os.X_OK):
            raise ValueError(f"expected a folder that can be written to, and {_short(place)} cannot")
        break
    return path


def tree(text: str) -> Path:
    """A folder that is there, to be read; its absolute path."""
    path = _absolute(text)
    mode = _mode(path)
    if mode is None or not stat.S_ISDIR(mode):
        raise ValueError("expected a folder that exists")
    return path


def file(text: str) -> Path:
    """A file that may be written to, or that can be made in the folder it is to lie in; its absolute path."""
    path = _absolute(text)
    mode = _mode(path)
    if mode is None:
        above = _mode(path.parent)
        possible = above is not None and stat.S_ISDIR(above) and os.access(path.parent, os.W_OK | os.X_OK)
    else:
        # Never a pipe: opening one waits for somebody who reads it.
        possible = (stat.S_ISREG(mode) or stat.S_ISCHR(mode)) and os.access(path, os.W_OK)
    if not possible:
        raise ValueError("expected a file that can be written to")
    return path


def shown(text: str) -> str:
    """``text`` quoted, on one line and not too long, as it may stand in a message."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _absolute(text: str) -> Path:
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError:
        raise ValueError("expected a path, and no such user has a home folder") from None
    except OSError:
        raise ValueError("expected an absolute path where the working folder is gone") from None


def _mode(path: Path) -> int | None:
    """The type and mode of what is at ``path``, None when nothing is."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"expected a path that can be used ({error.strerror})") from None


def _short(path: Path) -> str:
    return shown(str(path))
