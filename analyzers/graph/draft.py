# SPDX-License-Identifier: Apache-2.0
"""An event graph in the making: what it is made of comes in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import Edges, EventGraph
from grademl_otel.analyzers.graph.path import KINDS, Lane

_COLUMNS: Final = (
    "lane", "start", "end", "phase", "kind", "waits", "step", "item", "span_ix", "holder", "inferred",
)  # fmt: skip
_FLAGS: Final = ("waits", "inferred")


class Draft:
    """Collects what an event graph is made of; activities are numbered as they are added."""

    def __init__(self, items: Sequence[str]) -> None:
        self._items = items
        self._lanes: dict[Lane, int] = {}
        self._phases: dict[str, int] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self._edges: list[Edges] = []
        self._count = 0

    def lane(self, rank: int | None, name: str) -> int:
        """Return the number of a lane."""
        return self._lanes.setdefault((rank, name), len(self._lanes))

    def phase(self, name: str) -> int:
        """Return the number of a phase."""
        return self._phases.setdefault(name, len(self._phases))

    def add(
        self,
        lane: IntArray,
        start: IntArray,
        end: IntArray,
        phase: str | IntArray,
        kind: str | IntArray,
        *,
        waits: bool | BoolArray = False,
        step: int | IntArray = -1,
        item: int | IntArray = -1,
        span_ix: int | IntArray = -1,
        holder: int | IntArray = -1,
        inferred: bool | BoolArray = False,
    ) -> IntArray:
        """Add activities, one for each element, and return their numbers; those that are empty count, too.

        ``waits`` says of which the end may be decided by what they wait for: it is where an edge tells what.
        """
        given = (
            lane, start, end,
            self.phase(phase) if isinstance(phase, str) else phase,
            KINDS.index(kind) if isinstance(kind, str) else kind,
            waits, step, item, span_ix, holder, inferred,
        )  # fmt: skip
        count = len(start)
        for name, values in zip(_COLUMNS, given, strict=True):
            typed: npt.NDArray[Any] = np.asarray(values, np.bool_ if name in _FLAGS else np.int64)
            self._columns[name].append(typed if typed.ndim else np.full(count, typed))
        self._count += count
        return np.arange(self._count - count, self._count)

    def connect(self, *edges: Edges) -> None:
        """Add edges between numbers of activities; those with -1 for a number are left out."""
        self._edges += [some.where((some.source >= 0) & (some.target >= 0)) for some in edges]

    def graph(self) -> EventGraph:
        """Return the graph: activities by (lane, start), none empty, each ended where the next one starts.

        It takes what was collected along: columns of a long run are not held twice.
        """
        lane, start, end = (self._column(name) for name in ("lane", "start", "end"))
        order = _order(lane, start, end)
        if order is not None:
            lane, start, end = lane[order], start[order], end[order]
        crossing = np.flatnonzero((lane[1:] == lane[:-1]) & (end[:-1] > start[1:]))
        if len(crossing):
            end = end.copy()
            end[crossing] = start[crossing + 1]
        kept = np.flatnonzero(end > start)
        columns = {"lane": lane[kept], "start": start[kept], "end": end[kept]}
        chosen = kept if order is None else order[kept]
        del lane, start, end, order, kept
        for name in _COLUMNS[len(columns) :]:
            columns[name] = self._column(name)[chosen]
        number: IntArray = np.full(self._count, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        edges = self._between(columns, number)
        ended = np.zeros(len(chosen), np.bool_)
        ended[edges.target[edges.to_end]] = True
        columns["waits"] &= ended
        return EventGraph(
            **columns, phases=list(self._phases), lanes=list(self._lanes), items=self._items, edges=edges
        )

    def _column(self, name: str) -> npt.NDArray[Any]:
        empty: npt.NDArray[Any] = np.zeros(0, np.bool_ if name in _FLAGS else np.int64)
        return np.concatenate([empty, *self._columns.pop(name)])

    def _between(self, columns: dict[str, Any], number: IntArray) -> Edges:
        """Return the edges between the activities' new numbers, without those that cannot be."""
        edges = Edges.join(self._edges)
        edges = replace(edges, source=number[edges.source], target=number[edges.target])
        edges = edges.where((edges.source >= 0) & (edges.target >= 0))
        # What an activity lost to the next one in its lane, its edges cannot lead from.
        moment = np.clip(edges.at, columns["start"][edges.source], columns["end"][edges.source])
        bound = np.where(edges.to_end, columns["end"][edges.target], columns["start"][edges.target])
        return replace(edges, at=moment).where(moment <= bound)


def numbers_of(pieces: IntArray, numbers: IntArray) -> IntArray:
    """Return the ``numbers`` of ``pieces``; -1 where a piece is -1."""
    found: IntArray = np.full(len(pieces), -1, np.int64)
    known = np.flatnonzero(pieces >= 0)
    found[known] = numbers[pieces[known]]
    return found


def _order(lane: IntArray, start: IntArray, end: IntArray) -> IntArray | None:
    """Return the order by (lane, start, end); None where it is that already.

    The lanes that were added first and in order, as the long main lanes, are not sorted again.
    """
    back = (lane[1:] < lane[:-1]) | ((lane[1:] == lane[:-1]) & (start[1:] < start[:-1]))
    wrong = np.flatnonzero(back)
    if not len(wrong):
        return None
    first = int(min(lane[wrong].min(), lane[wrong + 1].min()))
    before, rest = np.flatnonzero(lane < first), np.flatnonzero(lane >= first)
    return np.concatenate([before, rest[np.lexsort((end[rest], start[rest], lane[rest]))]])
