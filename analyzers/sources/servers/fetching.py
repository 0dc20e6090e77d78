# SPDX-License-Identifier: Apache-2.0
"""Fetches traces over several connections, and hands them on in the order asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.http_client import CONNECTIONS

_AHEAD: Final = 4 * CONNECTIONS
"""Answers that may wait to be read."""

Fetch = Callable[[int], "Answer | None"]
"""Trace id -> its answer, or None where there is no such trace."""


def fetched(fetch: Fetch, traces: Iterable[int]) -> Iterator[tuple[int, Answer | None]]:
    """Yield each trace with its answer, which the caller closes; raises what ``fetch`` raises, in turn."""
    waiting = iter(traces)
    under_way: deque[tuple[int, Future[Answer | None]]] = deque()
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="grademl-fetch")
    try:
        while True:
            while len(under_way) < _AHEAD and (trace := next(waiting, None)) is not None:
                under_way.append((trace, pool.submit(fetch, trace)))
            if not under_way:
                return
            trace, future = under_way.popleft()
            yield trace, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for _, future in under_way:
            future.add_done_callback(_let_go)


class Ahead:
    """Fetches some traces before they are asked for, as long as they are asked for in order."""

    def __init__(self, fetch: Fetch, traces: Sequence[int]) -> None:
        self._fetch = fetch
        self._traces = traces
        self._place = {trace: place for place, trace in enumerate(traces)}
        self._under_way: dict[int, Future[Answer | None]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def get(self, trace: int) -> Answer | None:
        """Return the answer, which the caller closes; raises what ``fetch`` raises."""
        place = self._place[trace]
        for late in [each for each in self._under_way if each < place]:
            self._under_way.pop(late).add_done_callback(_let_go)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="grademl-fetch")
        for ahead in range(place, min(place + _AHEAD, len(self._traces))):
            if ahead not in self._under_way:
                self._under_way[ahead] = self._pool.submit(self._fetch, self._traces[ahead])
        return self._under_way.pop(place).result()


def _let_go(future: Future[Answer | None]) -> None:
    """Close an answer that nobody will read."""
    if not future.cancelled() and future.exception() is None and (answer := future.result()) is not None:
        answer.close()
