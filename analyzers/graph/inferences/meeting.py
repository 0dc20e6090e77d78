# SPDX-License-Identifier: Apache-2.0
"""Edges of meetings of all ranks that are inferred: each goes on when the last of the others has come.

The latest arrival is what binds, and where a walk goes on. Those before it bound what would be gained if that
one came earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.event_graph import COLLECTIVE, Edges, EventGraph
from grademl_otel.analyzers.graph.path import INFERRED

_MOST_ARRIVALS: Final = 8
"""Of the ranks in a meeting, the last so many to come are what the others wait for."""


@dataclass(frozen=True)
class Meetings:
    """Meetings of ranks in an event graph. Matrices are [meeting, rank], times in ns by its clock."""

    source: IntArray
    """The activity in which the rank was when it came, or at whose end."""
    came: IntArray
    target: IntArray
    """Of one that waited the wait, else what it did from then on; -1 where that is not known."""
    waited: BoolArray

    def edges(self, graph: EventGraph, confidence: float) -> Edges:
        """Return the edges from the last that came to the ends of waits, and to starts of what follows."""
        order = np.argsort(-self.came, axis=1, kind="stable")[:, :_MOST_ARRIVALS]
        parts = []
        for rank in range(self.came.shape[1]):
            for who in order.T:
                row = np.flatnonzero((who != rank) & (self.target[:, rank] >= 0))
                source, target = self.source[row, who[row]], self.target[row, rank]
                to_end = self.waited[row, rank]
                bound = np.where(to_end, graph.end[target], graph.start[target])
                at = np.minimum(self.came[row, who[row]], bound)
                there = (source >= 0) & (at > graph.start[source]) & (at <= graph.end[source])
                for chosen, end in ((there & to_end, True), (there & ~to_end, False)):
                    parts.append(
                        Edges.of(
                            COLLECTIVE,
                            source[chosen],
                            at[chosen],
                            target[chosen],
                            to_end=end,
                            evidence=INFERRED,
                            confidence=confidence,
                        )
                    )
        return Edges.join(parts)
