# SPDX-License-Identifier: Apache-2.0
"""Collectives in the main lanes: what a thread that stands still in one waits for, and what is transfer.

A collective that blocks its caller is a phase of its lane; here it gets its two parts. One that runs beside
the thread takes none of its time until the thread waits for it, which is a phase, too: it ends when the
collective does. Backward does not end before the collectives are complete that it issued: after the last of
them there is nothing left to compute, and the thread stands still until they are done. That end of backward
is inferred from their times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.collectives import Collectives

RANKS_WAIT: Final = "ranks.wait"
"""The part of a collective in which other ranks had not all arrived."""
COLLECTIVE_TRANSFER: Final = "collective.transfer"
"""The rest of it."""
COLLECTIVE_PARTS: Final = (RANKS_WAIT, COLLECTIVE_TRANSFER)

_SLACK_NS: Final = 1_000_000
"""By how much an end or an arrival may seem later than the end of the phase that waited for it."""


@dataclass(frozen=True)
class Parts:
    """Pieces inside phases of main lanes, as parallel arrays; times in ns."""

    start: IntArray
    end: IntArray
    phase: IntArray
    """Index of the phase that it lies in."""
    kind: IntArray
    """0 waiting for the others to arrive, 1 transfer, 2 not told apart."""
    span_ix: IntArray
    """Span of the collective; -1 where it stands for several."""
    one: IntArray
    """The collective that it waited for, of several the last."""
    inferred: BoolArray

    @classmethod
    def of(
        cls,
        start: IntArray,
        cut: IntArray,
        end: IntArray,
        phase: IntArray,
        span_ix: IntArray,
        arrived: IntArray,
        done: IntArray,
        told: BoolArray,
        inferred: bool,
    ) -> Parts:
        """Return waits ``[start, cut)`` and transfers ``[cut, end)``; where not ``told`` one piece each.

        ``arrived`` and ``done`` are the collectives that ended the waits and the transfers.
        """
        cut = np.clip(cut, start, end)
        first = np.where(told, cut, end)
        both = cls(
            np.concatenate([start, first]),
            np.concatenate([first, end]),
            np.concatenate([phase, phase]),
            np.concatenate([np.where(told, 0, 2), np.ones(len(start), np.int64)]),
            np.concatenate([span_ix, span_ix]),
            np.concatenate([arrived, done]),
            np.full(2 * len(start), inferred),
        )
        return both.where(both.end > both.start)

    def where(self, mask: BoolArray) -> Parts:
        return Parts(
            self.start[mask], self.end[mask], self.phase[mask],
            self.kind[mask], self.span_ix[mask], self.one[mask], self.inferred[mask],
        )  # fmt: skip


def of_blocking(found: Collectives, start: IntArray, end: IntArray, span_ix: IntArray) -> Parts:
    """Return the parts of the phases that are collectives themselves: one for each ``span_ix`` known here."""
    order = np.argsort(found.span_ix, kind="stable")
    at = np.searchsorted(found.span_ix[order], span_ix)
    at = np.minimum(at, max(0, len(order) - 1))
    phase = np.flatnonzero(found.span_ix[order][at] == span_ix) if len(order) else np.zeros(0, np.int64)
    one = order[at[phase]] if len(order) else phase
    told = found.apart[one]
    phase, one = phase[told], one[told]
    return Parts.of(
        start[phase], found.last[one], end[phase], phase, span_ix[phase], one, one,
        np.ones(len(one), np.bool_), False,
    )  # fmt: skip


def waited_for(
    found: Collectives, rank: IntArray, start: IntArray, end: IntArray, waits: IntArray
) -> tuple[IntArray, IntArray]:
    """Return (waits, the collective that each is for), of those in which a thread waits for one beside it.

    Which one is told by its end: of those of the rank that end in the wait the last. ``rank``, ``start`` and
    ``end`` are those of all phases.
    """
    beside = np.flatnonzero(found.beside)
    none = np.zeros(0, np.int64)
    phases, ones = [none], [none]
    for at in np.unique(rank[waits]).tolist():
        theirs = beside[found.rank[beside] == at]
        theirs = theirs[np.argsort(found.end[theirs], kind="stable")]
        mine = waits[rank[waits] == at]
        place = np.searchsorted(found.end[theirs], end[mine] + _SLACK_NS, "right") - 1
        known = place >= 0
        known[known] = found.end[theirs[place[known]]] > start[mine[known]]
        phases.append(mine[known])
        ones.append(theirs[place[known]])
    return np.concatenate(phases), np.concatenate(ones)


def of_waits(found: Collectives, start: IntArray, end: IntArray, phases: IntArray, ones: IntArray) -> Parts:
    """Return the parts of the waits ``phases`` for the collectives ``ones``."""
    return Parts.of(
        start[phases], found.last[ones], end[phases], phases, found.span_ix[ones], ones, ones,
        found.apart[ones], False,
    )  # fmt: skip


def of_backward(
    found: Collectives, rank: IntArray, start: IntArray, end: IntArray, backward: IntArray, waited: IntArray
) -> Parts:
    """Return the ends of backward at which it waits for the collectives that it issued.

    ``backward`` are the indices of such phases; ``rank``, ``start`` and ``end`` are those of all phases. It
    does not wait for those that the program waits for itself, ``waited``, nor for one that a rank came to
    only after it ended. The end of a collective may be heard of after backward has gone on.
    """
    order = backward[np.lexsort((start[backward], rank[backward]))]
    beside = np.setdiff1d(np.flatnonzero(found.beside), waited)
    owner: IntArray = np.full(len(beside), -1, np.int64)
    for one in np.unique(found.rank[beside]).tolist():
        low, high = np.searchsorted(rank[order], (one, one + 1))
        mine = np.flatnonzero(found.rank[beside] == one)
        if high == low:
            continue
        at = np.searchsorted(start[order[low:high]], found.issue[beside[mine]], "right") - 1
        phase = order[low + np.maximum(at, 0)]
        inside = (at >= 0) & (found.issue[beside[mine]] <= end[phase])
        inside &= found.last[beside[mine]] <= end[phase] + _SLACK_NS
        owner[mine] = np.where(inside & found.completed[beside[mine]], phase, -1)
    beside, owner = beside[owner >= 0], owner[owner >= 0]
    phases, place = np.unique(owner, return_inverse=True)
    count, none = len(phases), np.iinfo(np.int64).min
    issued: IntArray = np.full(count, none, np.int64)
    np.maximum.at(issued, place, found.issue[beside])
    pending = found.end[beside] > issued[place]
    last = _last_of_each(found.last, beside[pending], place[pending], count)
    final = _last_of_each(found.end, beside, place, count)
    arrived = np.where(last >= 0, found.last[last], none)
    told = np.ones(count, np.bool_)
    np.logical_and.at(told, place, found.apart[beside])
    several = np.full(count, -1, np.int64)
    done = np.minimum(found.end[final], end[phases])
    return Parts.of(issued, arrived, done, phases, several, last, final, told, True)


def _last_of_each(time: IntArray, ones: IntArray, place: IntArray, count: int) -> IntArray:
    """Return for each of ``count`` places the one of ``ones`` there whose ``time`` is latest; -1 for none."""
    latest: IntArray = np.full(count, -1, np.int64)
    order = np.lexsort((-ones, time[ones], place))
    latest[place[order]] = ones[order]  # of several at one place the last written stays
    return latest


def told_apart(found: Collectives, expected: IntArray, detailed: BoolArray) -> BoolArray:
    """Return the rows whose waiting is known: their ``expected`` collectives are all here, with partners."""
    inside = found.row >= 0
    here = np.bincount(found.row[inside], minlength=len(expected))
    unknown = np.bincount(found.row[inside & ~found.apart], minlength=len(expected))
    told: BoolArray = detailed & (here == expected) & (unknown == 0)
    return told
