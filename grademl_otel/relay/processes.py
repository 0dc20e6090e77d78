# SPDX-License-Identifier: Apache-2.0
"""The processes of all jobs that a relay serves, as one source: each rank with its descendants."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from grademl_otel.sampling.bins import Bins
from grademl_otel.sampling.sampler import Sample
from grademl_otel.sampling.source import Reading, Source, SourceGone

_log = logging.getLogger(__name__)
_FRESH: Final = 2


class OpenTree(Protocol):
    """Makes the source of a process and its descendants, ``device`` in tables; see `ProcessTree`."""

    def __call__(self, pid: int, device: str, /) -> Source: ...


class JobProcesses:
    """A source, and its own provider. What it reads goes into ``bins`` and is had from `latest`.

    Nothing of it is the host's, so that `read` itself returns nothing. Rings come and go in the relay's
    thread, while another one reads.
    """

    name = "processes"

    def __init__(
        self, open_tree: OpenTree, bins: Bins, interval_ns: int, clock: Callable[[], int] | None = None
    ):
        self._open_tree = open_tree
        self._bins = bins
        self._interval = interval_ns
        self._clock = clock or time.perf_counter_ns
        self._lock = threading.Lock()
        self._trees: dict[Hashable, _Tree] = {}
        """By ring: a process that begins its next run has two for a moment."""

    def follow(self, ring: Hashable, pid: int, device: str, owner: Hashable) -> None:
        """Read the process ``pid`` of ``ring`` from now on, as ``device`` in the tables of ``owner``."""
        with self._lock:
            self._trees[ring] = _Tree(pid, device, owner)

    def leave(self, ring: Hashable) -> None:
        """Read it no more."""
        with self._lock:
            tree = self._trees.pop(ring, None)
        if tree is not None:
            tree.left = True

    def latest(self, ring: Hashable) -> list[Sample]:
        """Return the last sample of each series of the process of ``ring``; nothing where it is old."""
        with self._lock:
            tree = self._trees.get(ring)
            at, readings = (0, ()) if tree is None else tree.latest
        if self._clock() - at > max(_FRESH * self._interval, 2_000_000_000):
            return []
        return [Sample(series, value, at, series.start_ns) for series, value in readings]

    def sources(self) -> Sequence[Source]:
        return [self]

    def read(self) -> Sequence[Reading]:
        """Read all trees. Raises what the last of them raised where none can be read.

        Else the one that cannot be read is told of here: whoever raises is read less and less often.
        """
        with self._lock:
            trees = list(self._trees.items())
        failures: list[tuple[_Tree, Exception]] = []
        any_read = False
        for ring, tree in trees:
            try:
                self._read_one(tree)
                any_read = True
            except SourceGone:
                self.leave(ring)
            except Exception as error:  # the others are read all the same
                failures.append((tree, error))
        if failures and not any_read:
            raise failures[-1][1]
        for tree, failure in failures:
            tree.tell(failure)
        return ()

    def close(self) -> None:
        with self._lock:
            self._trees.clear()

    def _read_one(self, tree: _Tree) -> None:
        if tree.source is None:
            tree.source = self._open_tree(tree.pid, tree.device)
        readings = tree.source.read()
        now = self._clock()
        if tree.left:
            return
        for series, _ in readings:
            if not series.start_ns:
                series.start_ns = now
        tree.latest = (now, readings)
        self._bins.add(self._interval, now, readings, tree.owner)


class _Tree:
    """One process with its descendants."""

    __slots__ = ("device", "latest", "left", "owner", "pid", "source", "told")

    def __init__(self, pid: int, device: str, owner: Hashable):
        self.pid = pid
        self.device = device
        self.owner = owner
        self.source: Source | None = None
        self.latest: tuple[int, Sequence[Reading]] = (0, ())
        self.left = False
        self.told = False

    def tell(self, error: Exception) -> None:
        """Tell, once, that it cannot be read."""
        if not self.told:
            self.told = True
            kind = type(error).__name__
            _log.warning("%s, process %d: cannot be read: %s: %s", self.device, self.pid, kind, error)
