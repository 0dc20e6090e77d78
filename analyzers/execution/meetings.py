# SPDX-License-Identifier: Apache-2.0
"""Where ranks wait for each other: collectives in which each of them stands still until all have arrived.

Members of one collective name it by the same key, so nothing is guessed. One that runs beside the thread that
issued it is none of these: a rank arrives there in the middle of whatever it does then. Nor is one that
members may leave before all have arrived, or of which a member is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.execution.model import Phases
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.model.clock_ties import ONE_SIDED
from grademl_otel.analyzers.model.collectives import Collectives

NO_MEETING: Final = -1


@dataclass(frozen=True, eq=False)
class Meetings:
    """Arrivals of ranks as parallel arrays."""

    arrival: IntArray
    """The collective, a phase: a rank arrives with its start."""
    held: IntArray
    """The leaf in it that cannot end before all have arrived: the wait; of who did not wait the transfer."""
    number: IntArray
    """Of the meeting; the same for all who meet."""


def no_meetings() -> Meetings:
    """Return none."""
    none = np.zeros(0, np.int64)
    return Meetings(none, none, none)


def note_meetings(meeting_of_span: IntArray, found: Collectives) -> None:
    """Give the span of each collective in which the ranks of one attempt meet the number of that meeting."""
    many = int(found.key.max(initial=-1)) + 1
    one_sided = np.array([op in ONE_SIDED for op in found.ops] or [False], np.bool_)[found.op]
    usable = found.apart & ~found.beside & ~one_sided
    usable &= np.bincount(found.key, minlength=many)[found.key] == found.size
    # Of a key that a rank tells twice nobody knows which is its arrival.
    ranks = int(found.rank.max(initial=0)) + 1
    members = np.bincount(np.unique(found.key * ranks + found.rank) // ranks, minlength=many)
    mine = (np.bincount(found.key, usable, many) == members)[found.key] & (found.size > 1)
    first = int(meeting_of_span.max(initial=NO_MEETING)) + 1
    meeting_of_span[found.span_ix[mine]] = first + found.key[mine]


def meetings(phases: Phases, meeting_of_span: IntArray) -> Meetings:
    """Return the meetings of ``phases``, of those that are noted; where each arrival there is a phase."""
    if not (meeting_of_span >= 0).any():
        return no_meetings()
    of = np.where(phases.span_ix >= 0, meeting_of_span[phases.span_ix], NO_MEETING)
    wait = called(phases, RANKS_WAIT)
    held = np.flatnonzero((of >= 0) & phases.leaves & (wait | called(phases, COLLECTIVE_TRANSFER)))
    arrival = phases.parent[held].astype(np.int64)
    known = called(phases, semconv.COLLECTIVE)[arrival] & (of[arrival] == of[held])
    held, arrival = held[known], arrival[known]
    order = np.lexsort((~wait[held], arrival))
    arrival, first = np.unique(arrival[order], return_index=True)
    number = of[arrival]
    many = int(meeting_of_span.max()) + 1
    expected = np.bincount(meeting_of_span[meeting_of_span >= 0], minlength=many)
    whole = (np.bincount(number, minlength=many) == expected)[number]
    return Meetings(arrival[whole], held[order][first][whole], number[whole])


def called(phases: Phases, name: str) -> BoolArray:
    """Return the mask of the phases with this name."""
    kinds = np.array([kind.name == name for kind in phases.all_kinds] or [False], np.bool_)
    mask: BoolArray = kinds[phases.kind]
    return mask
