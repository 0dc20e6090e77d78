# SPDX-License-Identifier: Apache-2.0
"""What went wrong with sources: counted each time, told once for each kind, and when it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

Tell = Callable[[str], object]

_MOST: Final = 256
"""Kinds of failures that are counted and told by themselves; devices that come and go may have any name."""
READ: Final = "cannot be read"
NONSENSE: Final = "says nonsense"
FIND: Final = "cannot tell what there is"
_OUTAGES: Final = (READ, NONSENSE, FIND)
"""What is over when the source delivers again."""
_REST: Final = ("others", "others")


class Faults:
    """Failures by source and kind; ``tell`` is given one line at a time and may raise.

    Any thread may call any of this.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._told: set[tuple[str, str]] = set()
        self._out: set[str] = set()
        """Sources whose trouble was told and is not over."""

    def failed(self, source: str, error: BaseException, what: str = READ) -> None:
        """Count that ``source`` raised ``error``; tell ``what`` went wrong if it is the first of its kind."""
        kind = type(error).__name__
        with self._lock:
            key = (source, kind)
            if key not in self._counts and len(self._counts) >= _MOST:
                key = _REST
            self._counts[key] = self._counts.get(key, 0) + 1
        self._tell_once(source, kind, f"{source}: {what}: {kind}: {_shown(error)}", what in _OUTAGES)

    def silent(self, source: str, seconds: float) -> None:
        """Tell, once, that ``source`` does not answer."""
        self._tell_once(source, "silent", f"{source}: no answer for {seconds:.0f} s", True)

    def recovered(self, source: str) -> None:
        """Tell that ``source`` delivers again, if its trouble was told; cheap if there was none."""
        if source not in self._out:
            return
        with self._lock:
            self._out.discard(source)
        self._say(f"{source}: works again")

    def counts(self) -> list[tuple[str, str, int]]:
        """Return source, kind of error and how often."""
        with self._lock:
            return [(source, kind, count) for (source, kind), count in self._counts.items()]

    def _tell_once(self, source: str, kind: str, text: str, outage: bool) -> None:
        with self._lock:
            if (source, kind) in self._told or len(self._told) >= _MOST:
                return
            self._told.add((source, kind))
            if outage:
                self._out.add(source)
        self._say(text)

    def _say(self, text: str) -> None:
        try:
            self._tell(text)
        except Exception:
            pass  # nobody else could be told


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # drivers' messages may be no text
        return "?"
