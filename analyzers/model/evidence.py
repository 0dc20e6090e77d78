# SPDX-License-Identifier: Apache-2.0
"""What the assembly of a run finds out about what it should have found; the verdict is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import NO_PARENT, ORPHAN, Ledger, SpanColumns
from grademl_otel.analyzers.model.facts import HowEnded, StepTable
from grademl_otel.analyzers.model.tables import TablePart

_DISAGREE_SHARE: Final = 0.01
_DISAGREE_NS: Final = 10_000


@dataclass
class Evidence:
    """What the assembly of a run found out about what it should have found."""

    ledger: Ledger
    ranks: list[int]
    world_size: int | None
    parts: list[TablePart] = field(default_factory=list)
    run_attributes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank -> attributes of its run span."""
    ended: list[HowEnded] = field(default_factory=list)
    detailed: set[tuple[int, int]] = field(default_factory=set)
    """(rank, training step) of the step spans."""
    malformed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    overlap_ns: int = 0
    emitted: dict[int, int] = field(default_factory=dict)
    """Rank -> spans that it had sent when the last window that is here was."""
    dropped: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    impossible: int = 0
    """Spans of the run with impossible times."""
    orphans: int = 0
    roots: int = 0
    """Spans without a parent in the run's trace."""
    of_cut_traces: dict[str, int] = field(default_factory=dict)
    """Traces that the server cut, as it says, and how many of their spans are here."""
    sampled: dict[int, float] = field(default_factory=dict)
    """Rank -> per cent of the traces of its steps that a gateway keeps, where it leaves out any."""
    steps_lacking: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of those ranks: of how many steps that it kept no span is here, and of how many one should be."""
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank -> start of its first pass over a loader, else of its main lane, and end of that."""

    def note_window(self, rank: int, attributes: Mapping[str, Any]) -> None:
        """Take the running counts that a window span carries."""
        self.emitted[rank] = max(self.emitted.get(rank, 0), count_of(attributes, semconv.SPANS_EMITTED))
        self.dropped[rank] = max(self.dropped.get(rank, 0), count_of(attributes, semconv.TRACER_DROPPED))

    def count_spans(
        self, spans: SpanColumns, ixs: IntArray, rank_of_span: IntArray, in_run_trace: npt.NDArray[np.bool_]
    ) -> None:
        """Count what arrived of the spans ``ixs``: by rank, orphans, roots.

        ``in_run_trace`` tells of each of them whether it is in a trace of the run itself.
        """
        ranks, counts = np.unique(rank_of_span[ixs], return_counts=True)
        self.received = {int(rank): int(count) for rank, count in zip(ranks, counts, strict=True)}
        self.impossible = int(np.count_nonzero(~spans.possible[ixs]))
        parents = spans.parent_ix[ixs]
        self.orphans = int(np.count_nonzero(parents == ORPHAN))
        self.roots = int(np.count_nonzero((parents == NO_PARENT) & in_run_trace))

    def compare_detail(
        self, spans: SpanColumns, step_spans: Mapping[tuple[int, int, int], int], steps: StepTable
    ) -> None:
        """Note steps whose span and row differ in length by more than 1 %."""
        lengths = {
            (int(rank), int(start) // 1000): int(end - start)
            for rank, start, end in zip(steps.rank, steps.start, steps.end, strict=True)
        }
        differ = 0
        for (rank, _, start), ix in step_spans.items():
            # The row's start was cut to whole microseconds after its window's start.
            near = (lengths.get((rank, start // 1000 - late)) for late in (0, 1))
            row = next((length for length in near if length is not None), None)
            length = int(spans.end[ix] - spans.start[ix])
            if row is not None and abs(row - length) > max(_DISAGREE_NS, _DISAGREE_SHARE * length):
                differ += 1
        if differ:
            self.conflicts.append(
                f"{differ} of {len(step_spans)} steps: span and table row differ by over 1 %"
            )


def count_of(attributes: Mapping[str, Any], key: str) -> int:
    """Return the count under ``key``; 0 when it is absent or no count."""
    value = attributes.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else 0
