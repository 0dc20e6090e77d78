# SPDX-License-Identifier: Apache-2.0
"""What is known of one attempt of one run: its steps, scopes, loaders, end, and how complete all that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.clocks import Clocks
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.coverage import Coverage


@dataclass(frozen=True)
class StepTable:
    """The census of steps: one element per row of all window tables, sorted by (rank, start).

    Times are absolute Unix ns with microsecond resolution; rows of a rank never overlap. Per phase three
    arrays of the table's length: ``first`` (absolute ns; meaningless where count is 0), ``busy`` (ns) and
    ``count``.
    """

    rank: IntArray
    step: IntArray
    start: IntArray
    end: IntArray
    micro: IntArray
    flags: IntArray
    window: IntArray
    level: IntArray
    """Recording level: of rows above 1 not all phases were measured."""
    item_pass: IntArray
    item_batch: IntArray
    item_loader: IntArray
    item_worker: IntArray
    first: dict[str, IntArray]
    busy: dict[str, IntArray]
    count: dict[str, IntArray]
    user: frozenset[str] = frozenset()
    """Those of the phases that the program named itself."""

    def __len__(self) -> int:
        return len(self.start)

    def of_rank(self, rank: int) -> slice:
        """Return the slice of the rows of ``rank``, which stand together."""
        first, end = np.searchsorted(self.rank, (rank, rank + 1))
        return slice(int(first), int(end))

    def where(self, mask: npt.NDArray[np.bool_]) -> StepTable:
        """Return the rows for which ``mask`` is true."""
        arrays = {
            name: getattr(self, name)[mask]
            for name in (
                "rank", "step", "start", "end", "micro", "flags", "window", "level",
                "item_pass", "item_batch", "item_loader", "item_worker",
            )
        }  # fmt: skip
        return StepTable(
            **arrays,
            first={k: v[mask] for k, v in self.first.items()},
            busy={k: v[mask] for k, v in self.busy.items()},
            count={k: v[mask] for k, v in self.count.items()},
            user=self.user,
        )


def names_itself(spans: SpanColumns, ix: int) -> bool:
    """Return whether span ``ix`` is a phase that the program named itself, not one of somebody else's."""
    name = spans.name(ix)
    taken = name in semconv.PHASE_INDEX or name in semconv.RESERVED
    return not taken and spans.attributes(ix).get(semconv.PHASE) == name


COMPLETE_LEVEL: Final = 1
"""Recording level up to which all phases are measured."""


@dataclass(frozen=True)
class Reduced:
    """The steps of a rank that were recorded at one of the levels at which not all phases are measured."""

    rank: int
    level: int
    since: int
    """Number of the first such step."""
    until: int | None
    """Number of the last one; None where no step after it was recorded in full."""
    reason: str
    """Of the first part of that level; empty where it gives none."""


@dataclass(frozen=True)
class Scope:
    """A span of the workflow: run, fit, epoch, evaluate, checkpoint.save, checkpoint.load, compile."""

    name: str
    rank: int
    start: int
    end: int
    span_ix: int
    attributes: dict[str, Any]
    error: bool = False
    user: bool = False
    """A phase outside of steps that the program named itself."""


@dataclass(frozen=True)
class Loader:
    """What is known of a data loader, from the passes over it."""

    loader_id: int
    workers: int
    prefetch: int | None
    batch_size: int | None
    persistent: bool
    in_order: bool = True


@dataclass(frozen=True)
class HowEnded:
    """How a rank's process ended."""

    rank: int
    how: str
    """exit, exception, killed, or unknown (no run span arrived)."""
    last_step: int | None
    last_mark_unix_ns: int
    open_phase: str | None = None
    """What it died in; of one that goes on, what ran when it was heard of last."""
    open_since_unix_ns: int | None = None
    error: str | None = None
    silent_ns: int = 0
    """Of one that may still go on: how long others were heard of after it."""


@dataclass
class Completeness:
    """The verdict that precedes every answer; fields as in the JSON schema."""

    verdict: str = "unverifiable"
    """complete, incomplete or unverifiable."""
    reasons: list[str] = field(default_factory=list)
    """One line each: what is missing. Empty when complete."""
    spans_expected: int | None = None
    spans_received: int = 0
    ranks_expected: int | None = None
    ranks_present: list[int] = field(default_factory=list)
    steps_expected: int | None = None
    steps_measured: int = 0
    steps_detailed_all_ranks: int = 0
    orphans: int = 0
    roots: int = 0
    windows_missing: list[int] = field(default_factory=list)
    partial_traces: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    clipped_ns: int = 0
    overlap_ns: int = 0
    tracer_dropped: int = 0
    tracer_cost_fraction: float | None = None
    notes: list[str] = field(default_factory=list)
    """What was measured or sent in part only by design, a line each: no defect."""
    ended: list[HowEnded] = field(default_factory=list)
    coverage: dict[int, Coverage] = field(default_factory=dict)
    """Rank -> how much of its training is here."""

    def worst(self, ranks: Iterable[int]) -> Coverage | None:
        """Return what is missing of the one of ``ranks`` of which most is; None where numbers can be told."""
        found = [self.coverage[rank] for rank in ranks if rank in self.coverage]
        worst = max(found, key=lambda one: one.share, default=None)
        return None if worst is None or worst.trusted else worst

    @property
    def ranks_missing(self) -> int:
        """How many ranks sent nothing, as far as the others know."""
        return max(0, (self.ranks_expected or 0) - len(self.ranks_present))


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device of one rank's process, in bytes, as its allocator counts."""

    rank: int
    device: int
    allocated: int
    reserved: int
    """Both as they were when they were looked at last."""
    peak: int
    """Allocated at most since the program began, or since it reset that."""


@dataclass(frozen=True)
class Run:
    """One attempt of one run."""

    run_id: str
    attempt: int
    script: str
    device: str | None
    ranks: list[int]
    start: int
    """Unix ns: the earliest start of a rank's main lane."""
    end: int
    """Unix ns: the latest end of a rank's main lane."""
    rank_bounds: dict[int, tuple[int, int]]
    """Start and end of each rank's main lane (its run span; else first to last thing seen)."""
    scopes: list[Scope]
    """All scopes of the main lanes but the run spans, sorted by (rank, start)."""
    run_spans: dict[int, int]
    """Rank -> span index of its run span, where one arrived."""
    loaders: dict[int, Loader]
    steps: StepTable
    step_spans: dict[tuple[int, int, int], int]
    """(rank, step number, start ns of the span) -> index of the `step` span, for steps with detail."""
    spans: SpanColumns
    """All spans of the source (other runs' too); indices above refer to these."""
    span_ixs: IntArray
    """Indices of the spans of this run and attempt."""
    completeness: Completeness
    name: str = ""
    """The user's own name for it."""
    parent: str | None = None
    """Run id of the run whose process started this one's."""
    user_phases: frozenset[str] = frozenset()
    """Names of phases that the program named itself, in steps and outside of them."""
    reduced: list[Reduced] = field(default_factory=list)
    """Where steps were recorded without all phases, by (rank, level)."""
    memory: list[DeviceMemory] = field(default_factory=list)
    """Of asynchronous devices, by (rank, device)."""
    clocks: Clocks | None = None
    """Those of its hosts; all times of the run are as the reference showed them."""
    fit: tuple[int, int] = (0, 0)
    """Number of the fit that it was cut to, from 1, and how many there are; 0 where none was recorded."""


@dataclass(frozen=True)
class RunSummary:
    """One line of `grademl runs`."""

    run_id: str
    attempt: int
    script: str
    service: str
    start: int
    end: int
    ranks: int
    steps: int
    ended: str
    name: str = ""
    """The user's own name for the run."""
    parent: str | None = None
    """Run id of the run whose process started this one's."""
    path: str | None = None
    verdict: str | None = None
    """Of `Completeness`; None where not all of the run was read."""
