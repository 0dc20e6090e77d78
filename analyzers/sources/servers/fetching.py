# SPDX-License-Identifier: Apache-2.0
"""Fetches traces over several connections, and hands them on in the order asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar
from weakref import finalize

from grademl_otel.analyzers.sources.servers.http_client import CONNECTIONS

_AHEAD: Final = 4
"""Answers of each connection that may wait to be read."""

Got = TypeVar("Got")


def fetched(
    fetch: Callable[[int], Got], traces: Iterable[int], connections: int = CONNECTIONS
) -> Iterator[tuple[int, Got]]:
    """Yield each trace with what ``fetch`` gives, which the caller closes; raises what it raises, in turn."""
    waiting = iter(traces)
    under_way: deque[tuple[int, Future[Got]]] = deque()
    pool = ThreadPoolExecutor(connections, thread_name_prefix="grademl-fetch")
    try:
        while True:
            while len(under_way) < _AHEAD * connections and (trace := next(waiting, None)) is not None:
                under_way.append((trace, pool.submit(fetch, trace)))
            if not under_way:
                return
            trace, future = under_way.popleft()
            yield trace, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for _, future in under_way:
            future.add_done_callback(_let_go)


class Ahead(Generic[Got]):
    """Fetches some traces before they are asked for, as long as they are asked for in order."""

    def __init__(
        self, fetch: Callable[[int], Got], traces: Sequence[int], connections: int = CONNECTIONS
    ) -> None:
        self._fetch = fetch
        self._traces = traces
        self._connections = connections
        self._place = {trace: place for place, trace in enumerate(traces)}
        self._under_way: dict[int, Future[Got]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def get(self, trace: int) -> Got:
        """Return what ``fetch`` gives, which the caller closes; raises what ``fetch`` raises."""
        place = self._place[trace]
        for late in [each for each in self._under_way if each < place]:
            self._under_way.pop(late).add_done_callback(_let_go)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._connections, thread_name_prefix="grademl-fetch")
            finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        for ahead in range(place, min(place + _AHEAD * self._connections, len(self._traces))):
            if ahead not in self._under_way:
                self._under_way[ahead] = self._pool.submit(self._fetch, self._traces[ahead])
        return self._under_way.pop(place).result()


class Guess(Generic[Got]):
    """Searches windows of time, one ahead: the next is mostly as long as the one before."""

    def __init__(self, search: Callable[[int, int, int], Got], earliest: int) -> None:
        """``search`` takes (start, end, limit) in Unix ns; nothing before ``earliest`` is asked for."""
        self._search = search
        self._earliest = earliest
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[tuple[int, int, int], Future[Got]] | None = None

    def get(self, start: int, end: int, limit: int) -> Got:
        """Return what ``search`` gives, which the caller closes; raises what it raises."""
        guessed, self._next = self._next, None
        if guessed is not None and guessed[0] == (start, end, limit):
            return guessed[1].result()
        if guessed is not None:
            guessed[1].add_done_callback(_let_go)
        return self._search(start, end, limit)

    def prepare(self, start: int, end: int, limit: int) -> None:
        """Ask for the window before ``start`` to ``end`` while that one's answer is read."""
        before = max(self._earliest, start - (end - start))
        if before < start:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="grademl-search")
            key = (before, start, limit)
            self._next = (key, self._pool.submit(self._search, *key))

    def close(self) -> None:
        """Let go of an answer that nobody asked for."""
        if self._next is not None:
            self._next[1].cancel()
            self._next[1].add_done_callback(_let_go)
            self._next = None


def _let_go(future: Future[Any]) -> None:
    """Close an answer that nobody will read."""
    if not future.cancelled() and future.exception() is None:
        close = getattr(future.result(), "close", None)
        if close is not None:
            close()
