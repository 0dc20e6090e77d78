# SPDX-License-Identifier: Apache-2.0
"""Sections of span trees: what a walk tells of each in numbers, and what its span adds to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import EnteredBy, Lane, Sections
from grademl_otel.analyzers.graph.trees.span_tree import SpanTree
from grademl_otel.analyzers.model.columns import SpanColumns

ENTRANCES: Final = tuple(EnteredBy(edge) for edge in ("program", "child", "queue", "link"))
PROGRAM, CHILD, QUEUE, LINK = range(len(ENTRANCES))


@dataclass(frozen=True)
class Pieces:
    """Sections as parallel arrays: all that is not a matter of their spans."""

    start: IntArray
    end: IntArray
    span_ix: IntArray
    kind: IntArray
    """Index into `path.KINDS`."""
    entered: IntArray
    """Index into `ENTRANCES`."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int]]) -> Pieces:
        """Return ``rows`` as arrays."""
        table = np.array(rows, np.int64).reshape(-1, len(fields(cls)))
        return cls(*(table[:, at].copy() for at in range(table.shape[1])))

    @classmethod
    def join(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return all of ``parts``, one after the other."""
        every = [cls.of([]), *parts]
        return cls(*(np.concatenate([getattr(part, f.name) for part in every]) for f in fields(cls)))

    def take(self, at: IntArray) -> Pieces:
        return Pieces(*(getattr(self, f.name)[at] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.start)


def labelled(spans: SpanColumns, pieces: Pieces, tree: SpanTree | None, asked: IntArray) -> Sections:
    """Return ``pieces`` as sections. The attributes of the spans of those ``asked`` for are looked at."""
    ranks = [_rank(resource) for resource in spans.resources]
    lanes: dict[Lane, int] = {}
    of_resource = np.array([lanes.setdefault((rank, ""), len(lanes)) for rank in ranks] or [0], np.int64)
    lane = of_resource[spans.resource_ix[pieces.span_ix]]
    step = np.full(len(pieces), -1, np.int64)
    item = np.full(len(pieces), -1, np.int64)
    items: dict[str, int] = {}
    if tree is not None and len(asked):
        distinct, number = np.unique(pieces.span_ix[asked], return_inverse=True)
        told = []
        for ix in distinct.tolist():
            facts = tree.facts(ix)
            place = facts.lane or (tree.rank(ix), "")
            told.append(
                (
                    lanes.setdefault(place, len(lanes)),
                    -1 if facts.step is None else facts.step,
                    -1 if facts.item is None else items.setdefault(facts.item, len(items)),
                )
            )
        lane[asked], step[asked], item[asked] = np.array(told, np.int64)[number].T
    return Sections(
        start=pieces.start,
        end=pieces.end,
        phase=spans.name_ix[pieces.span_ix].astype(np.int64),
        kind=pieces.kind,
        lane=lane,
        step=step,
        item=item,
        span_ix=pieces.span_ix,
        entered=pieces.entered,
        phases=spans.names,
        lanes=list(lanes) or [(None, "")],
        items=list(items),
        entrances=ENTRANCES,
    )


def _rank(resource: dict[str, object]) -> int | None:
    rank = resource.get(semconv.RANK)
    return rank if isinstance(rank, int) else None
