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
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.graph.device_work import COMMUNICATION, DeviceWork
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, BoolArray, Edges
from grademl_otel.analyzers.graph.flatten import LanePieces
from grademl_otel.analyzers.graph.path import ATTRIBUTE, INFERRED
from grademl_otel.analyzers.graph.profile_facts import ProfileFacts
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns

ROUNDING_NS: Final = 10_000
"""By how much a device's clock may be off that of its host."""
MOST_WRONG: Final = 0.01
BY_COUNT: Final = 0.9
"""Confidence in collectives that are told by their place in the order of them."""
_JOINT: Final = re.compile(
    r".*(all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|barrier)", re.IGNORECASE | re.DOTALL
)
"""Operations that no member leaves before all have come."""


@dataclass(frozen=True)
class Joined:
    """Members of collectives of which all are here; one element each."""

    work: IntArray
    """Index into the work of the devices."""
    key: IntArray
    """Number of the collective."""
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


def joined(spans: SpanColumns, facts: ProfileFacts, work: DeviceWork) -> Joined | None:
    """Return the collectives of which all members are here; None where clocks contradict each other."""
    ranks = [rank for rank, _ in facts.lanes]
    numbers = {rank: n for n, rank in enumerate(sorted({r for r in ranks if r is not None}))}
    some = np.flatnonzero(work.sort == COMMUNICATION)
    rank = np.array([numbers.get(ranks[lane], -1) for lane in work.lane[some].tolist()], np.int64)
    keys: dict[tuple[str, str, int], int] = {}
    key, size = np.full(len(some), -1, np.int64), np.zeros(len(some), np.int64)
    noted = np.zeros(len(some), np.bool_)
    for at, place in enumerate(work.place[some].tolist()):
        said = facts.collectives.get(place)
        name = spans.name(int(facts.ixs[place]))
        if rank[at] < 0 or not _JOINT.match(said.name if said is not None else name):
            continue
        group = said.group if said is not None else ""
        noted[at] = said is not None and said.number >= 0
        text = "" if noted[at] else said.name if said is not None else name
        number = said.number if said is not None and noted[at] else -1
        key[at] = keys.setdefault((group, text, number), len(keys))
        size[at] = said.size if said is not None else 0
    chosen = np.flatnonzero(key >= 0)
    some, rank, key, size, noted = some[chosen], rank[chosen], key[chosen], size[chosen], noted[chosen]
    order = np.lexsort((work.start[some], rank, key))
    some, rank, key, size, noted = some[order], rank[order], key[order], size[order], noted[order]
    # The n-th of its rank and key is the same as the n-th of the others, where all have equally many.
    begins = np.flatnonzero(np.append(True, (np.diff(key) != 0) | (np.diff(rank) != 0))[: len(key)])
    counts = np.diff(np.append(begins, len(key)))
    nth = np.arange(len(key)) - np.repeat(begins, counts)
    of_key = key[begins]
    least, most = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), np.int64)
    np.minimum.at(least, of_key, counts)
    np.maximum.at(most, of_key, counts)
    members = np.bincount(of_key, minlength=len(keys))
    expected = np.zeros(len(keys), np.int64)
    np.maximum.at(expected, key, size)
    expected[expected == 0] = len(numbers)
    whole = (least == most) & (members == expected) & (members > 1)
    kept = np.flatnonzero(whole[key])
    some, key, nth, noted = some[kept], key[kept], nth[kept], noted[kept]
    number = (
        np.unique(np.stack((key, nth)), axis=1, return_inverse=True)[1].reshape(-1) if len(kept) else kept
    )
    return _with_last(work, some, number, noted)


def _with_last(work: DeviceWork, some: IntArray, key: IntArray, noted: BoolArray) -> Joined | None:
    order = np.lexsort(
        (work.lane[some], work.start[some], key)
    )  # of equal starts the last lane's is the final
    some, key, noted = some[order], key[order], noted[order]
    ends = np.flatnonzero(np.append(np.diff(key) != 0, True)[: len(key)])
    final = some[ends][key]
    last = work.start[final]
    early = np.zeros(len(ends), np.bool_)
    early[key[work.end[some] + ROUNDING_NS < last]] = True
    if len(ends) and np.count_nonzero(early) > MOST_WRONG * len(ends):
        return None
    kept = ~early[key]
    return Joined(some[kept], key[kept], noted[kept], last[kept], final[kept])


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
