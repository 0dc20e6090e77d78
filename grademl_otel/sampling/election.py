# SPDX-License-Identifier: Apache-2.0
"""Who does what only one process of a host should do: the one that holds a lock in the user's private folder.

The kernel gives the lock back when its holder dies, however it dies. A forked child is not its parent: it
closes its copies at once, and the lock stays the parent's alone.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from hashlib import sha256
from pathlib import Path
from typing import Final

from grademl_otel.digest import DIGEST_LENGTH, SETTINGS_DIGITS
from grademl_otel.locks import elect, holds, lock_path, retire

SENDS: Final = "otlp"
"""Held by the relay that sends the metrics of this host to the place that its settings name."""
SENDS_GPUS: Final = f"{SENDS} GPUs"
"""Held by one that sends metrics of GPUs there: not every relay can read them."""
SENDS_OF_ITS_OWN: Final = "otlp, through a provider"
"""Held by the process that samples GPUs and reports them through its own meter provider."""


class Elections:
    """The locks of this process in ``folder``, for what goes where the settings behind ``digest`` say."""

    def __init__(self, folder: Path, digest: str):
        self._folder = folder
        self._settings = digest[:SETTINGS_DIGITS]
        self._locks: dict[str, int] = {}
        _all.add(self)

    def mine(self, what: str) -> bool:
        """Return True when it is for this process to do ``what``; to be asked each time."""
        digest = self._digest(what)
        held = self._locks.get(what)
        if held is not None:
            if holds(self._folder, digest, held):
                return True
            self.give_back(what)  # somebody deleted its file
        try:
            lock = elect(self._folder, digest)
        except OSError:
            return True  # nobody can be asked: twice is better than not at all
        if lock is None:
            return False
        self._locks[what] = lock
        return True

    def others(self, what: str) -> bool:
        """Return True when another process holds ``what``; takes nothing."""
        if what in self._locks:
            return False
        try:
            descriptor = os.open(
                lock_path(self._folder, self._digest(what)), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def give_back(self, what: str) -> None:
        """Let another process do ``what``, and each part of it: what begins with that and a space."""
        for part in [held for held in self._locks if f"{held} ".startswith(f"{what} ")]:
            retire(self._folder, self._digest(part), self._locks.pop(part))

    def close(self) -> None:
        """Give everything back."""
        for what in tuple(self._locks):
            self.give_back(what)

    def _digest(self, what: str) -> str:
        """The name of a lock; the same in all namespaces. A place in files is one whatever the settings."""
        place = what if what.startswith("files ") else f"{self._settings} {what}"
        return sha256(f"host metrics: {place}".encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST_LENGTH]

    def _forked(self) -> None:
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            os.close(lock)


_all: Final[weakref.WeakSet[Elections]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in tuple(_all):
        try:
            each._forked()
        except OSError:
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
