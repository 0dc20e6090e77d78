# SPDX-License-Identifier: Apache-2.0
"""Backward on a GPU runs in threads of its own, while the thread that asked for it waits.

No profiler says that this thread waits: it is in its step, or in a function of Python, and does nothing.
Where all that a thread of autograd did at a time lies in one such piece of the main thread, that piece is
taken for the wait: it is cut where the thread began and where it was done. This is inferred; its confidence
is the share of what these threads did that lies so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel.analyzers.graph.event_graph import PROGRAM, BoolArray, Edges, FloatArray
from grademl_otel.analyzers.graph.flatten import LanePieces
from grademl_otel.analyzers.graph.path import INFERRED
from grademl_otel.analyzers.graph.profile_facts import MAIN, ProfileFacts
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns

_AUTOGRAD: Final = re.compile(r"autograd", re.IGNORECASE)
_ENGINE: Final = "autograd::engine::"
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
    confidence: FloatArray


def with_thread_calls(spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces) -> ThreadCalls:
    """Return ``pieces`` with the waits for threads of autograd as pieces of their own."""
    threads = _threads(spans, facts, pieces)
    found = []
    for main in [lane for lane, (_, name) in enumerate(facts.lanes) if name == MAIN]:
        mine = [lane for lane in threads if facts.lanes[lane][0] == facts.lanes[main][0] and lane != main]
        if mine:
            found.append(_bursts(facts, pieces, main, mine))
    if not any(len(one.piece) for one in found):
        return ThreadCalls(pieces, np.zeros(len(pieces), np.bool_), Edges.join([]))
    bursts = _Bursts(*(np.concatenate([getattr(one, f.name) for one in found]) for f in fields(_Bursts)))
    pieces, waits, start, end = _cut(pieces, bursts)
    return ThreadCalls(pieces, waits, _edges(pieces, bursts, start, end))


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
        np.full(len(first), share),
    )


def _cut(pieces: LanePieces, bursts: _Bursts) -> tuple[LanePieces, BoolArray, IntArray, IntArray]:
    """Return the pieces, cut; which of them are waits; for each burst start and end of its wait."""
    cut, place = np.unique(bursts.piece, return_inverse=True)
    low, high = np.full(len(cut), np.iinfo(np.int64).max), np.full(len(cut), np.iinfo(np.int64).min)
    np.minimum.at(low, place, bursts.start)
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
    before, wait = pieces.until(bursts.main, start), pieces.within(bursts.main, start)
    first, last = pieces.within(bursts.lane, bursts.start), pieces.until(bursts.lane, bursts.end)
    some = np.flatnonzero(before >= 0)
    sure = bursts.confidence
    return Edges.join(
        [
            Edges.of(
                PROGRAM, before[some], start[some], first[some], evidence=INFERRED, confidence=sure[some]
            ),
            Edges.of(PROGRAM, last, bursts.end, wait, to_end=True, evidence=INFERRED, confidence=sure),
        ]
    )
