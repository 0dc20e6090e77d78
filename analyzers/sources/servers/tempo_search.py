# SPDX-License-Identifier: Apache-2.0
"""Finds traces in a Tempo, which does not page: time is halved until no answer is as long as its limit.

A search matches what overlaps its time, in whole seconds, so that a trace is found in several windows. What
was more than two minutes old when it came in may be found only by a search from its own time to that of its
arrival: hence one more search, over all the time since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.tempo_query import Wanted
from grademl_otel.analyzers.sources.servers.tempo_wire import Found, Page

_S: Final = 1_000_000_000
_PAGE: Final = 5_000
_WIDE_PAGE: Final = 50_000
_GIVE_UP: Final = 30
"""Searches in a row without an answer; halving 30 days down to a second takes 22."""
_AT_ONCE_NS: Final = 120 * _S
"""Spans that come in this late at most are found where they lie."""


class RangeTooLong(Exception):
    """The server takes no search over so much time, and `Searchable.longest_s` now says what it takes."""


class Searchable(Protocol):
    """What is asked of a Tempo here; times in Unix s, the end excluded."""

    @property
    def longest_s(self) -> int:
        """Longest time that one search may span."""

    @property
    def largest(self) -> int:
        """Largest limit that a search may have."""

    @property
    def newest_first(self) -> bool:
        """Whether a search that is cut at its limit gives the newest traces, not some."""

    def search(self, wanted: Wanted, start: int, end: int, limit: int) -> Page:
        """Return up to ``limit`` traces. Raises TooLarge and RangeTooLong."""


@dataclass
class Search:
    """One question to a Tempo, and what is to be said about its answer. Times in Unix ns."""

    api: Searchable
    wanted: Wanted
    start: int
    end: int
    now: int
    warnings: list[str] = field(default_factory=list)
    _found: dict[int, Found] = field(default_factory=dict)
    _whole: bool = False
    """Whether one search spanned all the time."""
    _reached: int = 0
    """Unix s down to which the time was searched so far."""

    def newest(self, count: int) -> list[Found]:
        """Return all traces, or the newest ``count`` where there are more; the newest first."""
        for page in self._pages(count, enough=count):
            self._keep(page)
            if len(self._found) >= count:
                self.start = max(self.start, self._reached * _S)
                break
        self._look_for_late_ones()
        return self._ordered()[:count]

    def all(self) -> list[Found]:
        """Return all traces, the newest first."""
        for page in self._pages(_PAGE, enough=None):
            self._keep(page)
        self._look_for_late_ones()
        return self._ordered()

    def _ordered(self) -> list[Found]:
        return sorted(self._found.values(), key=lambda one: (-one.start, one.trace))

    def _keep(self, page: Page) -> None:
        for one in page.found:
            known = self._found.get(one.trace)
            fuller = known is None or (known.spans or 0) < (one.spans or 0)
            if fuller and one.start <= self.end and one.end >= self.start:
                self._found[one.trace] = one

    def _pages(self, limit: int, enough: int | None) -> Iterator[Page]:
        """Search from the end to the start. What is cut is asked for again in halves.

        It is taken as it is only where it holds the newest ``enough``.
        """
        windows = self._cut(self.start // _S, -(-self.end // _S))
        whole, failed = len(windows) == 1, 0
        while windows:
            start, end = windows.pop()
            short = end - start <= 1
            most = self.api.largest if short else min(limit, self.api.largest)
            try:
                page = self.api.search(self.wanted, start, end, most)
            except RangeTooLong:
                windows += self._cut(start, end)
                whole = False
                continue
            except TooLarge as error:
                failed += 1
                if failed > _GIVE_UP:
                    raise
                if short:
                    self.warnings.append(f"one second was not searched: {error}")
                    continue
                page, cut, newest = Page([], True), True, False
            else:
                failed = 0
                cut = len(page.found) >= most
                newest = enough is not None and most >= enough and self.api.newest_first
            if cut and not newest and not short:
                middle = (start + end) // 2
                windows += [(start, middle), (middle, end)]
                whole = False
                continue
            if cut and not newest:
                self.warnings.append(f"{most:,} traces or more in one second: some may be missing")
            self._whole, self._reached = whole, start
            yield page

    def _cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return windows that the server takes, the newest last."""
        longest = self.api.longest_s
        stops = range(max(end, start + 1), start, -longest)
        return [(max(start, stop - longest), stop) for stop in stops][::-1]

    def _look_for_late_ones(self) -> None:
        since_s, now_s = self.start // _S, -(-self.now // _S)
        if self._whole and self.now - self.end < _AT_ONCE_NS:
            return
        before = len(self._found)
        longest = self.api.longest_s
        windows = {(since_s, min(now_s, since_s + longest)), (max(since_s, now_s - longest), now_s)}
        limit = min(_WIDE_PAGE, self.api.largest)
        for start, end in sorted(windows):
            try:
                page = self.api.search(self.wanted, start, end, limit)
            except (TooLarge, RangeTooLong):
                page = Page([], True)
            self._keep(page)
            if len(page.found) >= limit or (page.stopped and not page.found):
                self.warnings.append(
                    "traces that came in minutes after their time were not looked for: too many"
                )
        if late := len(self._found) - before:
            self.warnings.append(
                f"{late:,} traces were found only by a search over a longer time: they came in minutes late"
            )
