# SPDX-License-Identifier: Apache-2.0
"""Event graphs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, Edges, EventGraph
from grademl_otel.analyzers.graph.path import EVIDENCE, KINDS, OBSERVED, WAIT, Lane, kind_of


@dataclass(frozen=True)
class A:
    """An activity; its name is how edges call it, and its phase unless that is given."""

    name: str
    lane: str
    start: int
    end: int
    phase: str = ""
    rank: int | None = 0
    kind: str = ""
    waits: bool = False
    step: int = -1
    item: str = ""
    span_ix: int = -1
    holder: int = -1
    inferred: bool = False


@dataclass(frozen=True)
class E:
    """An edge from moment ``at`` of ``source``, else from its end, to the end of ``target``, or its start."""

    source: str
    target: str
    kind: str = "queue"
    at: int | None = None
    to_end: bool = False
    evidence: str = OBSERVED
    confidence: float = 1.0


def graph_of(activities: Sequence[A], edges: Sequence[E] = (), lanes: Sequence[Lane] = ()) -> EventGraph:
    """Return the graph; lanes are numbered as ``lanes`` says, else as they are first seen."""
    known = list(dict.fromkeys([*lanes, *((a.rank, a.lane) for a in activities)]))
    phases = list(dict.fromkeys(a.phase or a.name for a in activities))
    items = list(dict.fromkeys(a.item for a in activities if a.item))
    ordered = sorted(activities, key=lambda a: (known.index((a.rank, a.lane)), a.start))
    place = {a.name: ix for ix, a in enumerate(ordered)}

    def ints(values: list[int]) -> Any:
        return np.array(values, np.int64)

    return EventGraph(
        lane=ints([known.index((a.rank, a.lane)) for a in ordered]),
        start=ints([a.start for a in ordered]),
        end=ints([a.end for a in ordered]),
        phase=ints([phases.index(a.phase or a.name) for a in ordered]),
        kind=ints(
            [KINDS.index(a.kind or (WAIT if a.waits else kind_of(a.phase or a.name))) for a in ordered]
        ),
        waits=np.array([a.waits for a in ordered], bool),
        step=ints([a.step for a in ordered]),
        item=ints([items.index(a.item) if a.item else -1 for a in ordered]),
        span_ix=ints([a.span_ix for a in ordered]),
        holder=ints([a.holder for a in ordered]),
        inferred=np.array([a.inferred for a in ordered], bool),
        phases=phases,
        lanes=known,
        items=items,
        edges=Edges(
            source=ints([place[e.source] for e in edges]),
            at=ints([ordered[place[e.source]].end if e.at is None else e.at for e in edges]),
            target=ints([place[e.target] for e in edges]),
            to_end=np.array([e.to_end for e in edges], bool),
            kind=ints([EDGE_KINDS.index(e.kind) for e in edges]),
            evidence=ints([EVIDENCE.index(e.evidence) for e in edges]),
            confidence=np.array([e.confidence for e in edges], np.float64),
        ),
    )
