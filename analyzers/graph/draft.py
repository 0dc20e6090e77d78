# SPDX-License-Identifier: Apache-2.0
"""An event graph in the making: what it is made of comes in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.graph.event_graph import BoolArray, Edges, EventGraph
from grademl_otel.analyzers.graph.path import KINDS, Lane
from grademl_otel.analyzers.model.columns import IntArray

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
        """Return the graph: activities by (lane, start), none empty, each ended where the next one starts."""
        columns = {name: np.concatenate([_NONE[name], *parts]) for name, parts in self._columns.items()}
        order = _order(columns["lane"], columns["start"], columns["end"])
        if order is not None:
            columns = {name: column[order] for name, column in columns.items()}
        lane, start, end = columns["lane"], columns["start"], columns["end"]
        crossing = np.flatnonzero((lane[1:] == lane[:-1]) & (end[:-1] > start[1:]))
        if len(crossing):
            end = columns["end"] = end.copy()
            end[crossing] = start[crossing + 1]
        kept = np.flatnonzero(end > start)
        if len(kept) < len(start):
            columns = {name: column[kept] for name, column in columns.items()}
        number: IntArray = np.full(self._count, -1, np.int64)
        number[kept if order is None else order[kept]] = np.arange(len(kept))
        columns["waits"], edges = self._tied(columns, number)
        return EventGraph(
            **columns, phases=list(self._phases), lanes=list(self._lanes), items=self._items, edges=edges
        )

    def _tied(self, columns: dict[str, Any], number: IntArray) -> tuple[BoolArray, Edges]:
        """Return which activities wait, and the edges, between the activities' new numbers."""
        edges = Edges.join(self._edges)
        source, target = number[edges.source], number[edges.target]
        there = (source >= 0) & (target >= 0)
        edges, source, target = edges.where(there), source[there], target[there]
        moment = np.clip(edges.at, columns["start"][source], columns["end"][source])
        bound = np.where(edges.to_end, columns["end"][target], columns["start"][target])
        possible = moment <= bound
        edges, source, target, moment = (
            edges.where(possible), source[possible], target[possible], moment[possible],
        )  # fmt: skip
        ended = np.zeros(len(columns["start"]), np.bool_)
        ended[target[edges.to_end]] = True
        waits: BoolArray = columns["waits"] & ended
        return waits, Edges(
            source, moment, target, edges.to_end, edges.kind, edges.evidence, edges.confidence
        )


_NONE: Final[dict[str, npt.NDArray[Any]]] = {
    name: np.zeros(0, np.bool_ if name in _FLAGS else np.int64) for name in _COLUMNS
}


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
