# SPDX-License-Identifier: Apache-2.0
"""Collectives in the profiles of several ranks: who waits in one for whom, and what is transfer.

A kernel of a collective begins when its rank has come to it, and moves nothing before all have. So what it
takes up to the start of the last is waiting, and the rest transfer. Kernels are the same collective by the
name of its group and its number in it, as the profiler notes them; where it notes no numbers, by how many of
that group, or of that kernel, were before, if all ranks have equally many. The latter is inferred.

Clocks of hosts are trusted only as far as they agree with that: where a member of a group is done before
another has begun, by more than `ROUNDING_NS` and in more than `MOST_WRONG` of the collectives, none is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, Edges
from grademl_otel.analyzers.graph.path import ATTRIBUTE, INFERRED
from grademl_otel.analyzers.graph.profiles.device_work import COMMUNICATION, DeviceWork
from grademl_otel.analyzers.graph.profiles.flatten import LanePieces
from grademl_otel.analyzers.graph.profiles.profile_facts import Collective, ProfileFacts
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns

ROUNDING_NS: Final = 10_000
"""By how much a device's clock may be off that of its host."""
MOST_WRONG: Final = 0.01
BY_COUNT: Final = 0.9
"""Confidence in collectives that are told by their place in the order of them."""
_MANY: Final = np.iinfo(np.int64).max
_JOINT: Final = re.compile(
    r".*(all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|barrier)", re.IGNORECASE | re.DOTALL
)
"""Operations that no member leaves before all have come."""


@dataclass(frozen=True)
class Joined:
    """Members of collectives of which all are here; one element each."""

    work: IntArray
    """Index into the work of the devices."""
    by_number: BoolArray
    """Whether the profiler notes its number."""
    last: IntArray
    """When the last member began it; Unix ns."""
    final: IntArray
    """The work of that member."""


@dataclass(frozen=True)
class CollectiveEdges:
    """Edges that end the waiting in collectives, and the pieces of these."""

    waits: IntArray
    transfers: IntArray
    edges: Edges


@dataclass(frozen=True)
class _Members:
    """Kernels of collectives, one element each."""

    work: IntArray
    rank: IntArray
    """Number of the rank, from 0."""
    key: IntArray
    """Number of the group and the operation, or of the one collective where its number is noted."""
    size: IntArray
    """Of the group; 0 where it does not say: then it is taken for all ranks."""
    noted: BoolArray

    def where(self, at: IntArray | BoolArray) -> _Members:
        return _Members(*(getattr(self, field.name)[at] for field in fields(self)))


def joined(spans: SpanColumns, facts: ProfileFacts, work: DeviceWork) -> Joined | None:
    """Return the collectives of which all members are here; None where clocks contradict each other."""
    ranks = sorted({rank for rank, _ in facts.lanes if rank is not None})
    found = _members(spans, facts, work, ranks)
    found = found.where(np.lexsort((work.start[found.work], found.rank, found.key)))
    if not len(found.key):
        return None
    # The n-th of a rank and key is the same as the n-th of the others, where all have equally many.
    begins = np.flatnonzero(changes(found.key, found.rank))
    counts = np.diff(np.append(begins, len(found.key)))
    nth = np.arange(len(found.key)) - np.repeat(begins, counts)
    of_key, keys = found.key[begins], int(found.key.max()) + 1
    least, most, expected = np.full(keys, _MANY), np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    np.minimum.at(least, of_key, counts)
    np.maximum.at(most, of_key, counts)
    np.maximum.at(expected, found.key, found.size)
    expected[expected == 0] = max(len(ranks), _world(spans, facts))
    members = np.bincount(of_key, minlength=keys)
    whole = (least == most) & (members == expected) & (members > 1)
    kept = whole[found.key]
    found, nth = found.where(kept), nth[kept]
    order = np.lexsort((nth, found.key))
    one = np.empty(len(order), np.int64)
    one[order] = np.cumsum(changes(found.key[order], nth[order])) - 1 if len(order) else order
    return _with_last(work, found, one)


def _world(spans: SpanColumns, facts: ProfileFacts) -> int:
    """Return how many ranks there are, as the profiles say; 0 where they do not."""
    used = np.unique(spans.resource_ix[facts.ixs]).tolist()
    told = (spans.resources[ix].get(semconv.WORLD_SIZE) for ix in used)
    return max((size for size in told if isinstance(size, int)), default=0)


def _members(spans: SpanColumns, facts: ProfileFacts, work: DeviceWork, ranks: list[int]) -> _Members:
    """Return the kernels of operations that all members leave together."""
    rows: list[tuple[int, int, int, int, bool]] = []
    keys: dict[tuple[str, str, int], int] = {}
    for at in np.flatnonzero(work.sort == COMMUNICATION).tolist():
        rank = facts.lanes[int(work.lane[at])][0]
        place = int(work.place[at])
        said = facts.collectives.get(place, Collective(spans.name(int(facts.ixs[place])), "", 0, -1))
        if rank is not None and _JOINT.match(said.name):
            noted = said.number >= 0
            key = (said.group, "", said.number) if noted else (said.group, said.name, -1)
            rows.append((at, ranks.index(rank), keys.setdefault(key, len(keys)), said.size, noted))
    table = np.array(rows, np.int64).reshape(-1, 5)
    return _Members(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4] > 0)


def _with_last(work: DeviceWork, found: _Members, key: IntArray) -> Joined | None:
    """Return the members with the last of each collective ``key``; None where clocks contradict that."""
    order = np.lexsort(
        (work.lane[found.work], work.start[found.work], key)
    )  # of equal starts the last lane's
    found, key = found.where(order), key[order]
    ends = np.append(key[1:] != key[:-1], True)[: len(key)]
    final = found.work[ends][key]
    last = work.start[final]
    wrong = np.zeros(int(np.count_nonzero(ends)), np.bool_)
    wrong[key[work.end[found.work] + ROUNDING_NS < last]] = True
    if np.count_nonzero(wrong) > MOST_WRONG * len(wrong):
        return None
    kept = ~wrong[key]
    return Joined(found.work[kept], found.noted[kept], last[kept], final[kept])


def cut_in_two(pieces: LanePieces, work: DeviceWork, found: Joined) -> LanePieces:
    """Return ``pieces`` with the waiting in collectives cut off their transfer."""
    start, end = work.start[found.work], work.end[found.work]
    cut = np.minimum(found.last, end)
    piece = pieces.within(work.lane[found.work], start)
    split = np.flatnonzero(
        (piece >= 0) & (pieces.start[piece] == start) & (pieces.end[piece] > cut) & (cut > start)
    )
    old = np.concatenate([np.arange(len(pieces)), piece[split]])
    starts, ends = (
        np.concatenate([pieces.start, cut[split]]),
        np.concatenate([pieces.end, pieces.end[piece[split]]]),
    )
    ends[piece[split]] = cut[split]
    order = np.lexsort((starts, pieces.lane[old]))
    old = old[order]
    return LanePieces(pieces.lane[old], starts[order], ends[order], pieces.owner[old], pieces.holder[old])


def collective_edges(pieces: LanePieces, work: DeviceWork, found: Joined) -> CollectiveEdges:
    """Return which of ``pieces``, once cut, are waiting or transfer, and what ends the waiting."""
    start, lane = work.start[found.work], work.lane[found.work]
    cut = np.minimum(found.last, work.end[found.work])
    wait = np.where(cut > start, pieces.until(lane, cut), -1)
    transfer = pieces.within(lane, cut)
    own = work.place[found.work]
    wait[(wait >= 0) & (pieces.owner[wait] != own)] = -1
    transfer[(transfer >= 0) & (pieces.owner[transfer] != own)] = -1
    source = pieces.within(work.lane[found.final], found.last)
    known = (wait >= 0) & (source >= 0) & (pieces.start[source] == found.last) & (found.last == cut)
    parts = [
        Edges.of(
            COLLECTIVE,
            source[some],
            found.last[some],
            wait[some],
            to_end=True,
            evidence=evidence,
            confidence=sure,
        )
        for some, evidence, sure in (
            (np.flatnonzero(known & found.by_number), ATTRIBUTE, 1.0),
            (np.flatnonzero(known & ~found.by_number), INFERRED, BY_COUNT),
        )
    ]
    return CollectiveEdges(wait[wait >= 0], transfer[transfer >= 0], Edges.join(parts))
