# SPDX-License-Identifier: Apache-2.0
"""What threads do for the main thread while it waits: backward on a GPU, collectives of gloo.

No profiler says that the main thread waits: it is in its step, or in a function of Python, and does nothing.
Where all that a thread of autograd did at a time lies in one such piece of the main thread, that piece is
taken for the wait: it is cut where the thread began and where it was done. So is a piece in which, less than
`SOON_NS` before its end, a collective ends that a thread of gloo works on; it began when the main thread gave
it to that thread, before the piece or in it. On a busy host a thread that waited may go on ms later: where
collectives usually end late in such pieces, that is taken for a wait, too. All this is inferred; its
confidence is the share of what these threads did that lies so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.graph.event_graph import PROGRAM, Edges
from grademl_otel.analyzers.graph.path import INFERRED
from grademl_otel.analyzers.graph.profiles.device_work import GLOO
from grademl_otel.analyzers.graph.profiles.flatten import LanePieces
from grademl_otel.analyzers.graph.profiles.profile_facts import MAIN, ProfileFacts
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns

_NONE: Final = np.zeros(0, np.int64)
_AUTOGRAD: Final = re.compile(r"autograd", re.IGNORECASE)
_ENGINE: Final = "autograd::engine::"
SOON_NS: Final = 1_000_000
"""Within this a thread goes on after another one did what it waited for."""
LATE: Final = 4
USUAL: Final = 0.8
FEWEST: Final = 5
"""A thread waits for collectives, and may go on late, if of `FEWEST` or more, of each piece the last, the
share `USUAL` leaves no more of the piece than a `LATE`-th of the time waited. By chance one in five would."""
GIVEN: Final = 0.9
"""Confidence in that it was the main thread which gave a collective to one of gloo's."""
_MAY_WAIT: Final = frozenset({"python_function", "user_annotation", ""})
"""Categories of what a thread may be in while it waits: everything else does something itself."""


@dataclass(frozen=True)
class ThreadCalls:
    """LanePieces with the waits for other threads cut out of them, and the edges that say so."""

    pieces: LanePieces
    waits: BoolArray
    """Of the pieces: whether it is such a wait."""
    edges: Edges


@dataclass(frozen=True)
class _Bursts:
    """What a thread of autograd did within one piece of a main thread, one element a thread and piece."""

    piece: IntArray
    main: IntArray
    """Lane of the main thread."""
    lane: IntArray
    start: IntArray
    end: IntArray
    since: IntArray
    """When the main thread can have begun to wait for it."""
    confidence: FloatArray
    begins: BoolArray
    """Whether it began because the main thread began to wait."""


def with_thread_calls(spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces) -> ThreadCalls:
    """Return ``pieces`` with the waits for threads of autograd as pieces of their own."""
    threads, talking = _threads(spans, facts, pieces), _talking(spans, facts, pieces)
    found = []
    for main in [lane for lane, (_, name) in enumerate(facts.lanes) if name == MAIN]:
        mates = [lane for lane, (rank, _) in enumerate(facts.lanes) if rank == facts.lanes[main][0]]
        mine = [lane for lane in threads if lane in mates and lane != main]
        if mine:
            found.append(_bursts(facts, pieces, main, mine))
        some = talking[np.isin(pieces.lane[talking], mates) & (pieces.lane[talking] != main)]
        if len(some):
            found.append(_collectives(facts, pieces, main, some))
    waits, edges = np.zeros(len(pieces), np.bool_), []
    if any(len(one.piece) for one in found):
        bursts = _Bursts(*(np.concatenate([getattr(one, f.name) for one in found]) for f in fields(_Bursts)))
        pieces, waits, start, end = _cut(pieces, bursts)
        edges.append(_edges(pieces, bursts, start, end))
    edges.append(_given(facts, pieces, _talking(spans, facts, pieces)))
    return ThreadCalls(pieces, waits, Edges.join(edges))


def _threads(spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces) -> list[int]:
    """Return the lanes of threads of autograd, by their names or by what they do."""
    named = [lane for lane, name in facts.threads.items() if _AUTOGRAD.search(name)]
    of_engine = [number for number, name in enumerate(spans.names) if name.startswith(_ENGINE)]
    held = pieces.holder >= 0
    outermost = np.isin(spans.name_ix[facts.ixs[pieces.holder]], of_engine) & held
    return sorted({*named, *np.unique(pieces.lane[outermost]).tolist()})


def _bursts(facts: ProfileFacts, pieces: LanePieces, main: int, lanes: list[int]) -> _Bursts:
    """Return what the threads ``lanes`` did that lies in one piece of ``main`` which may be a wait."""
    some = np.flatnonzero(np.isin(pieces.lane, lanes))
    begins = changes(pieces.lane[some], pieces.holder[some])
    ends = np.append(begins[1:], True)
    lane, start, end = pieces.lane[some[begins]], pieces.start[some[begins]], pieces.end[some[ends]]
    piece = pieces.within(np.full(len(start), main), start)
    owner = pieces.owner[piece]
    may = [number for number, name in enumerate(facts.categories) if name in _MAY_WAIT]
    inside = (piece >= 0) & (end <= pieces.end[piece])
    inside &= np.isin(facts.category[owner], may) & (owner >= 0)
    share = float(np.count_nonzero(inside)) / max(len(inside), 1)
    lane, start, end, piece = lane[inside], start[inside], end[inside], piece[inside]
    order = np.lexsort((start, lane, piece))
    lane, start, end, piece = lane[order], start[order], end[order], piece[order]
    first = np.flatnonzero(changes(piece, lane)) if len(piece) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(piece)) - 1
    last = last[: len(first)]
    return _Bursts(
        piece[first],
        np.full(len(first), main),
        lane[first],
        start[first],
        end[last],
        start[first],
        np.full(len(first), share),
        np.ones(len(first), np.bool_),
    )


def _talking(spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces) -> IntArray:
    """Return the pieces that are collectives of gloo."""
    names = [number for number, name in enumerate(spans.names) if name.startswith(GLOO)]
    return np.flatnonzero(np.isin(spans.name_ix[facts.ixs[pieces.owner]], names)) if names else _NONE


def _collectives(facts: ProfileFacts, pieces: LanePieces, main: int, some: IntArray) -> _Bursts:
    """Return the collectives ``some`` for which a piece of ``main`` may be the wait, see the module."""
    begins = changes(pieces.lane[some], pieces.owner[some])
    first, last = some[begins], some[np.append(begins[1:], True)]
    start, end = pieces.start[first], pieces.end[last]
    piece = pieces.until(np.full(len(first), main), end)
    may = [number for number, name in enumerate(facts.categories) if name in _MAY_WAIT]
    idle = (piece >= 0) & np.isin(facts.category[pieces.owner[piece]], may)
    left, since = pieces.end[piece] - end, np.maximum(start, pieces.start[piece])
    inside = idle & ((left <= SOON_NS) | (left <= end - since) & _is_usual(piece, end, since, left, idle))
    share = float(np.count_nonzero(inside)) / len(inside)
    first, start, end, piece, since = (of[inside] for of in (first, start, end, piece, since))
    count = len(piece)
    lanes = np.full(count, main), pieces.lane[first]
    return _Bursts(piece, *lanes, start, end, since, np.full(count, share), np.zeros(count, np.bool_))


def _is_usual(piece: IntArray, end: IntArray, since: IntArray, left: IntArray, idle: BoolArray) -> bool:
    """Return whether collectives usually end late in the ``idle`` pieces, see `USUAL`; by each the last."""
    order = np.flatnonzero(idle)
    order = order[np.lexsort((end[order], piece[order]))]
    last = order[np.append(piece[order][1:] != piece[order][:-1], True)[: len(order)]]
    late = (left[last] <= SOON_NS) | (left[last] * LATE <= end[last] - since[last])
    return len(last) >= FEWEST and bool(np.count_nonzero(late) >= USUAL * len(last))


def _given(facts: ProfileFacts, pieces: LanePieces, some: IntArray) -> Edges:
    """Return the edges from the main threads to the starts of the collectives ``some``, given to threads."""
    main_of = {rank: lane for lane, (rank, name) in enumerate(facts.lanes) if name == MAIN}
    mains = np.array([main_of.get(rank, -1) for rank, _ in facts.lanes] or [-1], np.int64)
    first = some[changes(pieces.lane[some], pieces.owner[some])]
    main, start = mains[pieces.lane[first]], pieces.start[first]
    before = pieces.until(main, start)
    known = np.flatnonzero((before >= 0) & (main != pieces.lane[first]))
    return Edges.of(PROGRAM, before[known], start[known], first[known], evidence=INFERRED, confidence=GIVEN)


def _cut(pieces: LanePieces, bursts: _Bursts) -> tuple[LanePieces, BoolArray, IntArray, IntArray]:
    """Return the pieces, cut; which of them are waits; for each burst start and end of its wait."""
    cut, place = np.unique(bursts.piece, return_inverse=True)
    low, high = np.full(len(cut), np.iinfo(np.int64).max), np.full(len(cut), np.iinfo(np.int64).min)
    np.minimum.at(low, place, bursts.since)
    np.maximum.at(high, place, bursts.end)
    kept = np.ones(len(pieces), np.bool_)
    kept[cut] = False
    old = np.concatenate([np.flatnonzero(kept), cut, cut, cut])
    start = np.concatenate([pieces.start[kept], pieces.start[cut], low, high])
    end = np.concatenate([pieces.end[kept], low, high, pieces.end[cut]])
    waits = np.zeros(len(old), np.bool_)
    waits[len(old) - 2 * len(cut) : len(old) - len(cut)] = True
    real = np.flatnonzero(end > start)
    real = real[np.lexsort((start[real], pieces.lane[old[real]]))]
    old = old[real]
    found = LanePieces(pieces.lane[old], start[real], end[real], pieces.owner[old], pieces.holder[old])
    return found, waits[real], low[place], high[place]


def _edges(pieces: LanePieces, bursts: _Bursts, start: IntArray, end: IntArray) -> Edges:
    """Return the edges from what came before each wait to the bursts, and from these to its end."""
    before, wait = pieces.until(bursts.main, start), pieces.until(bursts.main, end)
    first, last = pieces.within(bursts.lane, bursts.start), pieces.until(bursts.lane, bursts.end)
    some = np.flatnonzero((before >= 0) & bursts.begins)
    sure = bursts.confidence
    return Edges.join(
        [
            Edges.of(
                PROGRAM, before[some], start[some], first[some], evidence=INFERRED, confidence=sure[some]
            ),
            Edges.of(PROGRAM, last, bursts.end, wait, to_end=True, evidence=INFERRED, confidence=sure),
        ]
    )
