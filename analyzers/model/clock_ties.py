# SPDX-License-Identifier: Apache-2.0
"""What ties two clocks: things of which both hosts saw a part, in an order that is known.

A *collective* of equals: none of its members leaves before the last has arrived, and all leave together, give
or take its transfer. The difference of the ends that two hosts saw is that of their clocks; its spread over
many, and the shortest transfer, tell how far that may be off, within what arrivals and ends allow.

A *call*: the server's span lies inside the client's. Each call bounds the difference of the clocks on both
sides; what most of them allow is the difference. A server that takes longer than its client waits (a stream,
an answer in the background) bounds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import KIND_CLIENT, KIND_SERVER, SpanColumns

ONE_SIDED: Final = frozenset({"send", "recv", "broadcast", "reduce", "gather", "scatter"})
"""Collectives that a member may leave before the last one has arrived: the root, or the sender."""

_SPREAD: Final = 3
"""Median deviations that the difference of two clocks may be off."""
_AGREED: Final = 0.9
"""Part of the calls that must allow one and the same difference; else the clocks drift, or were set."""
_STRAYS: Final = 0.01
"""Part of the calls that may contradict two clocks that agree."""
_ENOUGH: Final = 100_000
"""Members of collectives that are looked at."""
_MIDDLE: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Tie:
    """How far one clock is ahead of another, in ns."""

    offset_ns: int
    error_ns: int
    pairs: int
    may_agree: bool
    """Whether all that was seen is possible with clocks that show the same."""


@dataclass(frozen=True)
class Calls:
    """Calls from one clock to another: parallel arrays, sorted by (server, client). The server's clock minus
    the client's lies between ``least`` and ``most``.
    """

    server: IntArray
    client: IntArray
    least: IntArray
    most: IntArray

    @classmethod
    def of_spans(cls, spans: SpanColumns, ixs: IntArray, of_resource: IntArray) -> Calls:
        """Return the calls among the spans ``ixs`` whose ends are on two clocks."""
        servers = ixs[(spans.kind[ixs] == KIND_SERVER) & (spans.parent_ix[ixs] >= 0) & spans.possible[ixs]]
        clients = spans.parent_ix[servers]
        clock, other = of_resource[spans.resource_ix[servers]], of_resource[spans.resource_ix[clients]]
        apart = (spans.kind[clients] == KIND_CLIENT) & spans.possible[clients]
        apart &= (clock != other) & (clock >= 0) & (other >= 0)
        servers, clients = servers[apart], clients[apart]
        least = spans.end[servers] - spans.end[clients]
        most = spans.start[servers] - spans.start[clients]
        server, client = clock[apart], other[apart]
        order = np.lexsort((client, server))
        order = order[(least <= most)[order]]
        return cls(server[order], client[order], least[order], most[order])

    def neighbours(self) -> set[tuple[int, int]]:
        """Return the pairs of clocks of which one called the other."""
        pairs = np.unique(np.stack((self.server, self.client)), axis=1).T.tolist()
        return {(a, b) for a, b in pairs} | {(b, a) for a, b in pairs}

    def between(self, number: int, other: int) -> Tie | None:
        """Return how far clock ``number`` is ahead of ``other``; None where they never called each other."""
        here, there = self._of(number, other), self._of(other, number)
        least = np.concatenate([self.least[here], -self.most[there]])
        most = np.concatenate([self.most[here], -self.least[there]])
        if not len(least):
            return None
        low, high, agreed = _allowed_by_most(least, most)
        allow_none = int(np.count_nonzero((least <= 0) & (most >= 0)))
        may_agree = allow_none >= agreed - int(_STRAYS * len(least))
        if agreed < _AGREED * len(least):
            middles = (least + most) / 2
            width = int(np.median(most - least)) // 2
            low, high = (int(edge) for edge in np.quantile(middles, _MIDDLE))
            low, high = low - width, high + width
            may_agree = low <= 0 <= high
        return Tie((low + high) // 2, -((low - high) // 2), len(least), may_agree)

    def _of(self, server: int, client: int) -> slice:
        first, last = np.searchsorted(self.server, (server, server + 1))
        inner = np.searchsorted(self.client[first:last], (client, client + 1))
        return slice(int(first + inner[0]), int(first + inner[1]))


def _allowed_by_most(least: IntArray, most: IntArray) -> tuple[int, int, int]:
    """Return (low, high) of the values that most of the intervals hold, and how many that are."""
    edges = np.concatenate([least, most])
    opens = np.concatenate([np.ones(len(least), np.int64), np.full(len(most), -1, np.int64)])
    order = np.lexsort((-opens, edges))  # of equal edges those that open first: intervals are closed
    held = np.cumsum(opens[order])
    at = int(held.argmax())
    return int(edges[order[at]]), int(edges[order[at + 1]]), int(held[at])


@dataclass(frozen=True)
class Meetings:
    """Collectives between clocks: one element per collective and clock, sorted by collective."""

    key: IntArray
    clock: IntArray
    first_end: IntArray
    last_issue: IntArray
    shortest: IntArray
    """Shortest time that a member of the collective was in it: about that of the transfer."""

    @classmethod
    def of_spans(cls, spans: SpanColumns, ixs: IntArray, of_resource: IntArray) -> Meetings:
        """Return the collectives of equals with a known end among the spans ``ixs``."""
        ixs = ixs[spans.possible[ixs]]
        found = ixs[:0]
        if semconv.COLLECTIVE in spans.names:
            found = ixs[spans.name_ix[ixs] == spans.names.index(semconv.COLLECTIVE)]
            found = _some_traces(spans, found)
        keys: dict[str, int] = {}
        kept: list[tuple[int, int]] = []
        for ix in found.tolist():
            key = _key_of_equals(spans.attributes(ix))
            if key is not None:
                # Keys are unique in a run.
                run = f"{spans.resource(ix).get(semconv.RUN_ID)}/{spans.resource(ix).get(semconv.ATTEMPT)}"
                kept.append((ix, keys.setdefault(f"{run}/{key}", len(keys))))
        table = np.array(kept, np.int64).reshape(-1, 2)
        at, number = table[:, 0], table[:, 1]
        # Of a key that a process tells twice, the first is its arrival.
        order = np.lexsort((spans.start[at], spans.resource_ix[at], number))
        at, number = at[order], number[order]
        again = np.zeros(len(at), np.bool_)
        resource = spans.resource_ix[at]
        again[1:] = (number[1:] == number[:-1]) & (resource[1:] == resource[:-1])
        at, number = at[~again], number[~again]
        return cls.of(of_resource[spans.resource_ix[at]], spans.start[at], spans.end[at], number)

    @classmethod
    def of(cls, clock: IntArray, issue: IntArray, end: IntArray, key: IntArray) -> Meetings:
        """Return the collectives of these members, an element each."""
        order = np.lexsort((clock, key))
        key, clock, issue, end = key[order], clock[order], issue[order], end[order]
        new = np.ones(len(key), np.bool_)
        new[1:] = (np.diff(key) != 0) | (np.diff(clock) != 0)
        starts = np.flatnonzero(new)
        if not len(starts):
            return cls(key, clock, key, key, key)
        numbers, place = np.unique(key, return_inverse=True)
        shortest = np.full(len(numbers), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(shortest, place, end - issue)
        return cls(
            key[starts],
            clock[starts],
            np.minimum.reduceat(end, starts),
            np.maximum.reduceat(issue, starts),
            shortest[place[starts]],
        )

    def neighbours(self) -> set[tuple[int, int]]:
        """Return pairs of clocks that may have met."""
        clocks = np.unique(self.clock).tolist()
        return {(a, b) for a in clocks for b in clocks if a != b}

    def between(self, number: int, other: int) -> Tie | None:
        """Return how far clock ``number`` is ahead of ``other``; None where they never met."""
        mine, theirs = np.flatnonzero(self.clock == number), np.flatnonzero(self.clock == other)
        _, here, there = np.intersect1d(self.key[mine], self.key[theirs], return_indices=True)
        if not len(here):
            return None
        a, b = mine[here], theirs[there]
        apart = self.first_end[a] - self.first_end[b]
        at_least, at_most = self.last_issue[a] - self.first_end[b], self.first_end[a] - self.last_issue[b]
        least, most = int(at_least.max()), int(at_most.min())
        middle = int(np.median(apart))
        spread = _SPREAD * int(np.median(np.abs(apart - middle)))
        if least <= most:
            middle = min(max(middle, least), most)
        else:
            # It drifts, or was set: by what those show that tell it best. An end may be heard of late.
            width = at_most - at_least
            moved = np.abs(apart - middle)[width <= np.median(width)]
            spread = max(spread, int(moved.max()), least - middle, middle - most)
        error = max(spread, int(self.shortest[a].min()))
        return Tie(middle, error, len(here), abs(middle) <= error and least <= 0 <= most)


def _some_traces(spans: SpanColumns, ixs: IntArray) -> IntArray:
    """Return ``ixs``, of very many those of some traces, spread evenly: members of a collective share one."""
    if len(ixs) <= _ENOUGH:
        return ixs
    traces, first = np.unique(spans.trace_lo[ixs], return_index=True)
    in_time = traces[np.argsort(spans.start[ixs[first]])]
    return ixs[np.isin(spans.trace_lo[ixs], in_time[:: -(-len(ixs) // _ENOUGH)])]


def _key_of_equals(said: dict[str, Any]) -> str | None:
    """Return the key of a collective that its members leave together, and whose end was seen; else None."""
    key = said.get(semconv.COLLECTIVE_KEY)
    equals = str(said.get(semconv.COLLECTIVE_OP, "")) not in ONE_SIDED
    return key if isinstance(key, str) and equals and said.get(semconv.COLLECTIVE_COMPLETED) is True else None
