# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of hosts are apart, as far as collectives prove it.

No member leaves a collective of equals before the last one has arrived. So the end that one host saw and the
arrival that another saw bound the difference of their clocks from both sides; over many collectives the
bounds close in to about the time of the fastest transfer. Where no difference at all is possible too, nothing
is shifted. Durations are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run

_UNKNOWN: Final = 1 << 61
"""An error that no time reaches: the clocks are not tied."""


@dataclass(frozen=True)
class Clock:
    """One host's clock against the reference, that of the lowest rank; times in ns."""

    host: str
    offset_ns: int
    """What it shows more than the reference, in the middle of what is possible."""
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
    if len(hosts) < 2:
        return Clocks([Clock(host, 0, 0, False, 0) for host in hosts], of_rank)
    clock = np.array([of_rank.get(int(one), 0) for one in rank], np.int64)
    most, pairs = _bounds(len(hosts), clock, issue, end, key)
    clocks = [Clock(hosts[0], 0, 0, False, int(pairs[0]))]
    for number in range(1, len(hosts)):
        high, low = int(most[number, 0]), -int(most[0, number])
        if high >= _UNKNOWN or low <= -_UNKNOWN or low > high:
            clocks.append(Clock(hosts[number], 0, None, False, int(pairs[number])))
        elif low <= 0 <= high:
            clocks.append(Clock(hosts[number], 0, max(high, -low), False, int(pairs[number])))
        else:
            middle = (low + high) // 2
            clocks.append(Clock(hosts[number], middle, high - middle, True, int(pairs[number])))
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


def _bounds(
    clocks: int, clock: IntArray, issue: IntArray, end: IntArray, key: IntArray
) -> tuple[IntArray, IntArray]:
    """Return (the most that each clock can show more than each other, collectives that tie each clock)."""
    most = np.full((clocks, clocks), _UNKNOWN, np.int64)
    np.fill_diagonal(most, 0)
    pairs = np.zeros(clocks, np.int64)
    order = np.lexsort((clock, key))
    for some in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        members = clock[some]
        here = np.unique(members)
        if len(here) < 2:
            continue
        pairs[here] += 1
        starts = np.searchsorted(members, here)
        first_end = np.minimum.reduceat(end[some], starts)
        last_issue = np.maximum.reduceat(issue[some], starts)
        cell = np.ix_(here, here)
        most[cell] = np.minimum(most[cell], first_end[:, None] - last_issue[None, :])
    np.fill_diagonal(most, 0)
    for via in range(clocks):  # what ties a to b and b to c ties a to c
        there, on = most[:, via, None], most[None, via, :]
        known = (there < _UNKNOWN) & (on < _UNKNOWN)
        most = np.minimum(most, np.where(known, there + on, _UNKNOWN))
    return most, pairs
