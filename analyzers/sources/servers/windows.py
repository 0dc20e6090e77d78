# SPDX-License-Identifier: Apache-2.0
"""Searches all of a time on a server that does not page: by windows, none of whose answers may be cut.

An answer as long as its limit may be cut. Its window is then asked for again in shorter ones, as short as the
traces that came lie close to each other. Most stores give the newest traces first, but none promises it: so
the time after the newest that came is searched, too, mostly in vain.

Some stores (Cassandra) look at a number of rows, three times the limit, and so give fewer traces than the
limit though more exist. Until an answer has shown that this is not so, one with more spans than its limit and
many more traces than any that proved whole, is asked for again with a limit that its rows cannot reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.servers.refusals import TooLarge, Unreachable

_SPARSE: Final = 10
"""A window with less than this part of the limit is sparse: the next may be longer."""
_LARGEST_LIMIT: Final = 10_000
_ANSWER_BYTES: Final = 16 << 20
"""What an answer should have: each search costs a server much, whatever it finds."""
_NEAR: Final = 8
"""The highest limit that a server allows is looked for to this part of it."""
_ROWS: Final = 4
"""So many spans a trace in a full answer show that the limit is one of traces, not of rows."""


class Look(NamedTuple):
    """What one search gave."""

    new: int
    """Traces not seen before."""
    again: int
    """Traces seen before."""
    spans: int = 0
    """Spans of the new ones."""
    spread: int = 0
    """Length of the time in which the new ones lie, in ns; 0 if it is not known."""
    latest: int | None = None
    """When the latest of their spans begins, in Unix ns."""


Ask = Callable[[int, int, int], Look]
"""(start, end, limit) -> what came; Unix ns, both ends included."""


class Pace:
    """How much is asked for at once; several searches of one server may share it."""

    def __init__(self, limit: int, most: int | None = None) -> None:
        """Begin with ``limit`` traces; never ask for more than ``most``."""
        self._most = min(most or _LARGEST_LIMIT, _LARGEST_LIMIT)
        self.least = self.limit = min(limit, self._most)
        self.fit: int | None = None
        """Time in ns in which about half as many traces lie as `limit`; None while it is not known."""
        self.width: int | None = None
        """Length in ns of the next window; None for all of the time."""
        self.counts_traces = False
        """Whether an answer has shown that the limit is one of traces."""
        self._settled = False

    def learn(self, size: int, traces: int) -> None:
        """Ask for as many traces as fit into one answer, after one of ``size`` bytes."""
        if traces and not self._settled:
            fit = _ANSWER_BYTES * traces // max(size, 1)
            self.limit = max(self.least, min(fit, self.limit * 10, self._most))

    def relent(self) -> bool:
        """Go back to the limit that was begun with, for good; false if it is in use."""
        raised = self.limit > self.least
        self.limit, self._settled = self.least, True
        return raised


class Windows:
    """One search through the time from ``start`` to ``end``, the latest first."""

    def __init__(
        self, ask: Ask, start: int, end: int, pace: Pace, finest: int = 1, check: bool = True
    ) -> None:
        """``finest`` ns is the shortest time that the server can tell from none."""
        self._ask = ask
        self._start = start
        self._end = max(start, end)
        self._pace = pace
        self._finest = finest
        self._check = check
        self._whole = 0
        """Number of traces up to which an answer is known to be whole."""
        self._aside = False
        """Whether the window is that after the newest traces that came."""
        self.dense: list[int] = []
        """Moments at which there are more traces than the server gives at once."""

    def __iter__(self) -> Iterator[int]:
        """Yield the number of new traces that each window brought."""
        at = self._end
        self._pace.width = self._pace.width or self._end - self._start
        while True:
            start = max(self._start, at - max(self._pace.width, self._finest))
            new, whole = self._search(start, at)
            yield new
            if whole and start == self._start:
                return
            if whole:
                at = start

    def _search(self, start: int, at: int) -> tuple[int, bool]:
        """Search one window; return the number of new traces, and whether it held no more."""
        pace, shortest = self._pace, at - start <= self._finest
        # A window that may hold far too many is asked for few: they tell how long it may be.
        careful = pace.fit is not None and at - start > 2 * pace.fit
        limit = pace.least if careful else pace.limit
        look, full = self._look(start, at, limit)
        limit = min(limit, pace.limit)  # it may have been too high
        new = look.new
        if full and (shortest or not new):
            # Where nothing new comes, many traces may lie at one moment, and no shorter window helps.
            more, full = self._insist(
                start, at, limit, _LARGEST_LIMIT if shortest else min(_LARGEST_LIMIT, 4 * limit)
            )
            new += more
        if full and not shortest:
            pace.width = self._shorter(start, at, look, limit)
            return new, False
        if full:
            self.dense.append(start)
        elif not shortest and self._doubtful(look, limit):
            new += self._look_closer(start, at, look, limit)
        if pace.fit is not None and (self._aside or (pace.fit < (pace.width or 0) and new)):
            pace.width = pace.fit
        elif (look.new + look.again) * _SPARSE < limit:
            pace.width = 2 * (at - start)
        self._aside = False
        return new, True

    def _doubtful(self, look: Look, limit: int) -> bool:
        """Whether an answer that is not full may have been cut at a number of rows."""
        traces = look.new + look.again
        few = look.new > 0 and look.spans * traces < limit * look.new  # fewer rows than traces asked for
        return self._check and not self._pace.counts_traces and traces > 2 * self._whole and not few

    def _shorter(self, start: int, at: int, look: Look, limit: int) -> int:
        """Return the length of the window to ask for after a full one."""
        pace = self._pace
        if look.spans >= _ROWS * limit:
            pace.counts_traces = True
        if look.new and look.spread:
            pace.fit = max(self._finest, pace.limit * look.spread // (2 * look.new))
        if look.latest is not None and pace.fit is not None and start < look.latest < at - 2 * pace.fit:
            self._aside = True  # nothing is expected there
            return at - look.latest - 1
        return min((at - start) // 2, pace.fit or at - start)

    def _look(self, start: int, end: int, limit: int) -> tuple[Look, bool]:
        """Ask once; return what came, and whether there may be more."""
        try:
            look = self._ask(start, end, limit)
        except TooLarge:
            if self._pace.relent():
                return self._look(start, end, self._pace.limit)
            if end - start <= self._finest:
                raise
            return Look(0, 0), True
        except Unreachable:
            raise
        except SourceError:  # it may be that the server allows no such limit
            if not self._pace.relent():
                raise
            return self._look(start, end, self._pace.limit)
        return look, look.new + look.again >= limit

    def _insist(self, start: int, end: int, limit: int, most: int) -> tuple[int, bool]:
        """Ask for up to ``most`` traces; return the number of new ones, and whether there may be more."""
        found, refused = 0, most + 1
        while limit < refused - 1:
            # Four times as many, and once that is refused, the middle of what is and what is not.
            asked = min(most, limit * 4) if refused > most else (limit + refused) // 2
            try:
                look = self._ask(start, end, asked)
            except Unreachable:
                raise
            except SourceError:  # more than the server allows
                refused = asked
                if refused - limit <= limit // _NEAR + 1:
                    break
                continue
            found += look.new
            if look.new + look.again < asked:
                return found, False
            limit = asked
        return found, True

    def _look_closer(self, start: int, end: int, look: Look, limit: int) -> int:
        """Ask for more traces than there are spans, which no store cuts; return the number of new traces."""
        found, traces = 0, look.new + look.again
        spans = look.spans * traces // max(look.new, 1)
        while True:
            limit = 2 * max(limit, spans)
            try:
                if limit > _LARGEST_LIMIT:
                    break
                more = self._ask(start, end, limit)
            except Unreachable:
                raise
            except SourceError:  # more than the server allows
                break
            found += more.new
            spans += more.spans
            if not more.new:
                self._whole = max(self._whole, traces)
                return found
        return found + self._split(start, end)

    def _split(self, start: int, end: int) -> int:
        """Search the halves, and theirs where they bring more; return the number of new traces."""
        found, windows = 0, [(start, end)]
        while windows:
            start, end = windows.pop()
            middle = (start + end) // 2
            halves = ((start, middle), (middle, end))
            looks = [self._look(*half, self._pace.limit) for half in halves]
            new = sum(look.new for look, _ in looks)
            found += new
            if (new or any(full for _, full in looks)) and end - start > 2 * self._finest:
                windows += halves
        self._whole = max(self._whole, found)
        return found
