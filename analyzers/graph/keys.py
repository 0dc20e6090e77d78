# SPDX-License-Identifier: Apache-2.0
"""What a path is added up by: a number for each of its sections, and of all that could be on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.model.columns import SpanColumns

PHASE: Final = "phase"
RANK: Final = "rank"
LANE: Final = "lane"
OPERATION: Final = "operation"
"""Service and phase."""
KEYS: Final = (PHASE, RANK, LANE, OPERATION)

_NUMBERED: Final = re.compile(r"(?<=^ProfilerStep)#\d+$")


class Placed(Protocol):
    """Sections or activities: `Sections`, `EventGraph`."""

    @property
    def phase(self) -> IntArray: ...
    @property
    def lane(self) -> IntArray: ...
    @property
    def span_ix(self) -> IntArray: ...
    @property
    def phases(self) -> Sequence[str]: ...
    @property
    def lanes(self) -> Sequence[Lane]: ...


class Keys:
    """Numbers of the keys of one kind, from 0 in the order in which they are met, and their names."""

    def __init__(self, by: str, spans: SpanColumns, service: str = "") -> None:
        """``service`` is that of what has no span, as a run's activities from a table."""
        self._by, self._spans = by, spans
        self._service = [*(str(one.get("service.name", "")) for one in spans.resources), service]
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, placed: Placed) -> IntArray:
        """Return the number of the key of each section or activity."""
        if self._by == RANK:
            return self._named([rank_name(rank) for rank, _ in placed.lanes], placed.lane)
        if self._by == LANE:
            return self._named([lane_name(lane) for lane in placed.lanes], placed.lane)
        if self._by == PHASE:
            return self._named([operation_name(name) for name in placed.phases], placed.phase)
        return self._operations(placed.phases, placed.phase, placed.span_ix)

    def of_spans(self, ix: IntArray) -> IntArray:
        """Return the number of the key of each span; by lane -1, as each would have to be decoded for it."""
        spans = self._spans
        if self._by == RANK:
            ranks = [resource.get(semconv.RANK) for resource in spans.resources]
            named = [rank_name(rank if isinstance(rank, int) else None) for rank in ranks]
            return self._named(named, spans.resource_ix[ix].astype(np.int64))
        if self._by == LANE:
            return np.full(len(ix), -1, np.int64)
        names = spans.name_ix[ix].astype(np.int64)
        if self._by == PHASE:
            return self._named([operation_name(name) for name in spans.names], names)
        return self._operations(spans.names, names, ix)

    def _operations(self, phases: Sequence[str], phase: IntArray, span_ix: IntArray) -> IntArray:
        spans = self._spans
        service = np.full(len(phase), len(self._service) - 1, np.int64)
        service[span_ix >= 0] = spans.resource_ix[span_ix[span_ix >= 0]]
        pairs, number = np.unique(phase * len(self._service) + service, return_inverse=True)
        found = [divmod(pair, len(self._service)) for pair in pairs.tolist()]
        named = [f"{self._service[of]} {operation_name(phases[at])}".strip() for at, of in found]
        return self._named(named, number.reshape(-1))

    def _named(self, names: Sequence[str], number: IntArray) -> IntArray:
        """Return ``number``, indices into ``names``, as numbers of keys; only names that occur get one."""
        table = np.full(len(names) + 1, -1, np.int64)
        for at in np.unique(number).tolist():
            table[at] = self._numbers.setdefault(names[at], len(self._numbers))
        found: IntArray = table[number]
        return found


def operation_name(name: str) -> str:
    """Return what calls of ``name`` are added up as: steps of a profile together, as PyTorch has it."""
    return _NUMBERED.sub("*", name)


def rank_name(rank: int | None) -> str:
    return "no rank" if rank is None else f"rank {rank}"


def lane_name(lane: Lane) -> str:
    rank, name = lane
    return name or "no lane" if rank is None else f"{rank_name(rank)} {name}".strip()
