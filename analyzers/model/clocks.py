# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of hosts are apart, as far as collectives tell.

All members of a collective of equals leave it together, give or take the time of its transfer, and none
before the last has arrived. So the difference of the ends that two hosts saw is that of their clocks; its
spread over many collectives, and the shortest transfer, tell how far that may be off. It stays within what
arrivals and ends allow. Where the clocks may as well agree, nothing is shifted. Durations are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run

_UNKNOWN: Final = 1 << 61
"""An error that no time reaches: the clocks are not tied."""
_SPREAD: Final = 3
"""Median deviations that the difference of two clocks may be off."""


@dataclass(frozen=True)
class Clock:
    """One host's clock against the reference, that of the lowest rank; times in ns."""

    host: str
    offset_ns: int
    """What it shows more than the reference."""
    error_ns: int | None
    """How far that may be off on either side; None where nothing ties it to the reference."""
    applied: bool
    """Whether its times are shifted when ranks are compared."""
    pairs: int
    """Collectives that tie it to another clock."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of a run's ranks."""

    clocks: list[Clock]
    """The reference first."""
    of_rank: dict[int, int]
    """Rank -> index into `clocks`."""

    def shift(self, rank: IntArray) -> IntArray:
        """Return what to take from times of ``rank`` (an array) to compare them with the reference's."""
        offsets = [clock.offset_ns if clock.applied else 0 for clock in self.clocks]
        return self._per_rank(rank, offsets)

    def error(self, rank: IntArray) -> IntArray:
        """Return by how much shifted times of ``rank`` may be off."""
        errors = [_UNKNOWN if clock.error_ns is None else clock.error_ns for clock in self.clocks]
        return self._per_rank(rank, errors)

    @property
    def tied(self) -> bool:
        """Whether times of all ranks can be compared."""
        return all(clock.error_ns is not None for clock in self.clocks)

    @property
    def error_ns(self) -> int:
        """The largest error between any two ranks that can be compared."""
        errors = sorted((clock.error_ns or 0 for clock in self.clocks), reverse=True)
        return sum(errors[:2])

    def _per_rank(self, rank: IntArray, values: list[int]) -> IntArray:
        ranks, place = np.unique(rank, return_inverse=True)
        found: IntArray = np.array([values[self.of_rank[one]] for one in ranks.tolist()], np.int64)[place]
        return found


def tie_clocks(
    run: Run, ranks: Sequence[int], rank: IntArray, issue: IntArray, end: IntArray, key: IntArray
) -> Clocks:
    """Return the clocks of ``ranks``, tied by collectives of equals with a known end: an element a member."""
    of_rank, hosts = _of_ranks(run, ranks)
    clocks = [Clock(host, 0, None, False, 0) for host in hosts]
    if clocks:
        clocks[0] = replace(clocks[0], error_ns=0)
    if len(hosts) < 2:
        return Clocks(clocks, of_rank)
    meetings = _Meetings.of(np.array([of_rank[one] for one in rank.tolist()], np.int64), issue, end, key)
    reached, found = {0}, True
    while found:  # first those that meet the reference, then those that meet one of these, ...
        found = False
        for number in sorted(set(range(len(hosts))) - reached):
            tied = meetings.tie(number, {one: clocks[one] for one in sorted(reached)})
            if tied is not None:
                clocks[number] = replace(tied, host=hosts[number])
                reached.add(number)
                found = True
    return Clocks(clocks, of_rank)


def _of_ranks(run: Run, ranks: Sequence[int]) -> tuple[dict[int, int], list[str]]:
    """Return (rank -> number of its clock, name of each clock's host). A clock is a host's boot."""
    resources = run.spans.resources
    used = [int(ix) for ix in np.unique(run.spans.resource_ix[run.span_ixs])]
    clock_of: dict[int, tuple[str, str]] = {}
    for ix in used:
        said = resources[ix]
        rank = said.get(semconv.RANK, 0)
        if isinstance(rank, int):
            host = str(said.get("host.name", ""))
            clock_of.setdefault(rank, (str(said.get(semconv.CLOCK_ID, host)), host))
    numbers: dict[str, int] = {}
    hosts: list[str] = []
    of_rank = {}
    for rank in ranks:
        clock, host = clock_of.get(rank, ("", ""))
        if clock not in numbers:
            numbers[clock] = len(hosts)
            hosts.append(host or clock)
        of_rank[rank] = numbers[clock]
    return of_rank, hosts


@dataclass(frozen=True)
class _Meetings:
    """Collectives between clocks: one element per collective and clock, sorted by collective."""

    key: IntArray
    clock: IntArray
    first_end: IntArray
    last_issue: IntArray
    shortest: IntArray
    """Shortest time that a member of the collective was in it: about that of the transfer."""

    @classmethod
    def of(cls, clock: IntArray, issue: IntArray, end: IntArray, key: IntArray) -> _Meetings:
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

    def tie(self, number: int, known: Mapping[int, Clock]) -> Clock | None:
        """Return clock ``number`` as tied to that of the ``known`` ones it meets most; None for none."""
        mine = np.flatnonzero(self.clock == number)
        best: Clock | None = None
        for other, clock in known.items():
            theirs = np.flatnonzero(self.clock == other)
            _, here, there = np.intersect1d(self.key[mine], self.key[theirs], return_indices=True)
            if not len(here) or (best is not None and len(here) <= best.pairs):
                continue
            a, b = mine[here], theirs[there]
            apart = self.first_end[a] - self.first_end[b]
            least = int((self.last_issue[a] - self.first_end[b]).max())
            most = int((self.first_end[a] - self.last_issue[b]).min())
            middle = int(np.median(apart))
            spread = _SPREAD * int(np.median(np.abs(apart - middle)))
            if least <= most:
                middle = min(max(middle, least), most)
            else:
                spread = max(spread, least - most)  # it drifts
            error = max(spread, int(self.shortest[a].min())) + (clock.error_ns or 0)
            offset = middle + (clock.offset_ns if clock.applied else 0)
            agree = abs(offset) <= error and least <= 0 <= most
            best = Clock("", offset, error, not agree, len(here))
        return best
