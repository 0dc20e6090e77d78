# SPDX-License-Identifier: Apache-2.0
"""Searches all of a time on a server that does not page: by windows, none of whose answers may be cut.

An answer as long as its limit may be cut, so its window is halved; after a sparse one the next is wider. Some
stores (Cassandra) look at a fixed number of rows, and so give fewer traces than the limit though more exist:
an answer with many more traces than any that proved whole is checked, its halves must bring nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.servers.refusals import TooLarge

_SPARSE: Final = 10
"""A window with less than this part of the limit is sparse."""
_LARGEST_LIMIT: Final = 10_000

Ask = Callable[[int, int, int], tuple[int, int]]
"""(start, end, limit) -> (traces not seen before, traces seen before); Unix ns, both ends included."""


class Windows:
    """One search through the time from ``start`` to ``end``, the latest first."""

    def __init__(
        self,
        ask: Ask,
        start: int,
        end: int,
        limit: int,
        finest: int = 1,
        check: bool = True,
        width: int | None = None,
    ) -> None:
        """``finest`` ns is the shortest time that the server can tell from none, ``width`` that of the first
        window, all of the time by default.
        """
        self._ask = ask
        self._start = start
        self._end = end
        self._limit = limit
        self._finest = finest
        self._check = check
        self._whole = 0
        """Number of traces up to which an answer is known to be whole."""
        self.width = max(min(end - start, width or end - start), finest)
        """Length of the next window."""
        self.dense: list[int] = []
        """Moments at which there are more traces than the server gives at once."""

    def __iter__(self) -> Iterator[int]:
        """Yield the number of new traces that each window brought."""
        at = self._end
        while at > self._start or at == self._end:
            start = max(self._start, at - self.width)
            new, count = self._look(start, at, self._limit)
            if count is None and at - start > self._finest:
                self.width = max(self._finest, (at - start) // 2)
                yield new
                continue
            if count is None:
                new += self._insist(start, at)
            elif self._check and count > 2 * self._whole and at - start > self._finest:
                new += self._look_closer(start, at, count)
            yield new
            if start == self._start:
                return
            at = start
            if count is not None and count * _SPARSE < self._limit:
                self.width *= 2

    def _look(self, start: int, end: int, limit: int) -> tuple[int, int | None]:
        """Ask once; return (new traces, all traces), the latter None where there may be more."""
        try:
            new, again = self._ask(start, end, limit)
        except TooLarge:
            if end - start <= self._finest:
                raise
            return 0, None
        return new, None if new + again >= limit else new + again

    def _insist(self, start: int, end: int) -> int:
        """Ask for more traces of a moment than one answer was to have; return the number of new ones."""
        limit, found = self._limit, 0
        while limit < _LARGEST_LIMIT:
            limit = min(_LARGEST_LIMIT, limit * 4)
            try:
                new, count = self._look(start, end, limit)
            except SourceError:  # more than the server allows
                break
            found += new
            if count is not None:
                return found
        self.dense.append(start)
        return found

    def _look_closer(self, start: int, end: int, count: int) -> int:
        """Search the halves, and theirs where they bring more; return the number of new traces."""
        found, windows = 0, [(start, end)]
        while windows:
            start, end = windows.pop()
            middle = (start + end) // 2
            halves = ((start, middle), (middle, end))
            looks = [self._look(*half, self._limit) for half in halves]
            new = sum(each for each, _ in looks)
            found += new
            if not new and all(all_of_half is not None for _, all_of_half in looks):
                self._whole = max(self._whole, count)
            elif end - start > 2 * self._finest:
                windows += halves
        return found
