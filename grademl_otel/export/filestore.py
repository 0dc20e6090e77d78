# SPDX-License-Identifier: Apache-2.0
"""The file store: one folder a run, ``traces.jsonl`` and ``metrics.jsonl`` in it, lines appended whole.

Ranks of a run on one file system share its folder, found by the run id in its name. A line is one ``write``
on a descriptor opened for appending, so that the lines of several relays do not mix.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

TRACES: Final = "traces.jsonl"
METRICS: Final = "metrics.jsonl"
_LOCK_WAIT_S: Final = 1.0
_LOCK_POLL_S: Final = 0.01


def run_folder(store: Path, run_id: str, start_unix_ns: int) -> Path:
    """Return the folder of ``run_id`` in ``store``: the one that another rank has made, else a new one.

    The name of a new one starts with the start of the run in UTC. Raises OSError when it cannot be made.
    """
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Ranks start at the same time; without the lock each would find nothing and make its own.
    with _locked(store):
        found = sorted(store.glob(f"*-{run_id}"))
        if found:
            return found[0]
        start = datetime.fromtimestamp(start_unix_ns / 1e9, tz=timezone.utc)
        folder = store / f"{start:%Y%m%dT%H%M%SZ}-{run_id}"
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold ``folder``'s own lock; goes on without it after a second, or where there are no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


class FileStore:
    """Appends lines to the files of one run; what the disk does not take is dropped and counted.

    Not for several threads at once.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.dropped_lines = 0
        self.problem: str | None = None
        """Why the first line was dropped, in words; None while all went well."""
        self._descriptors: dict[str, int] = {}
        self._torn: set[str] = set()

    def append(self, name: str, line: bytes) -> bool:
        """Append ``line``, which ends with a line feed, to file ``name``; return False when it was lost."""
        try:
            descriptor = self._open(name)
            if name in self._torn:
                line = b"\n" + line  # ends the half line that a full disk left
            written = os.write(descriptor, line)
        except OSError as error:
            self._drop(name, error.strerror or str(error))
            return False
        if written < len(line):
            self._torn.add(name)
            self._drop(name, "the disk is full")
            return False
        self._torn.discard(name)
        return True

    def close(self) -> None:
        """Close the files; a later `append` opens them again."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _open(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self.folder / name, flags, 0o644)
            self._descriptors[name] = descriptor
        return descriptor

    def _drop(self, name: str, reason: str) -> None:
        self.dropped_lines += 1
        if self.problem is None:
            self.problem = f"{self.folder / name}: {reason}; telemetry that does not fit is dropped"
