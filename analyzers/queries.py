# SPDX-License-Identifier: Apache-2.0
"""One question to the analyzer: which source, how to read it, and which part of it to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance
from grademl_otel.analyzers.model.clocks import ClockRule
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.sources.base import Progress, no_progress


@dataclass(frozen=True)
class Query:
    """The options of every command, with the meaning that docs/commands.md gives them. Times in Unix ns."""

    source: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str | None = None
    """File of the certificates to trust instead of the system's."""
    timeout: float | None = None
    max_spans: int | None = None
    progress: Progress = field(default=no_progress, repr=False, compare=False)
    run: str | None = None
    """Id of a run, or its first digits; None for the latest."""
    attempt: int | None = None
    every_attempt: bool = False
    """Whether to answer for each attempt: see `answers.each_attempt`."""
    fit: int | None = None
    """Number of a fit within the run, from 1; None for the latest."""
    traces: tuple[str, ...] = ()
    service: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """(key, value as text); one span of a trace must have them all."""
    since: int | None = None
    """A duration in ns before now."""
    start: int | None = None
    end: int | None = None
    ranks: tuple[int, ...] | None = None
    steps: StepRange | None = None
    tolerance: OverlapTolerance | None = None
    """Overlap of siblings of one lane to be cut; None for the default."""
    clocks: ClockRule | None = None
    """What to do about clocks that differ; None for what the spans tell."""
    inferred: bool = True
    """Whether to go by what only times tell, too: edges of evidence ``inferred``."""

    @staticmethod
    def of(source: str | None, *, traces: Sequence[str] = (), **options: object) -> Query:
        """Return the query of these options; UsageError when they contradict each other."""
        query = Query(source, traces=tuple(traces), **options)  # type: ignore[arg-type]
        if query.since is not None and (query.start is not None or query.end is not None):
            raise UsageError("--since and --from/--to contradict each other; give one of them")
        if query.start is not None and query.end is not None and query.start >= query.end:
            raise UsageError("--from must lie before --to")
        of_run = (query.run, query.fit, query.ranks, query.steps)
        if query.traces and any(part is not None for part in of_run):
            raise UsageError(
                "--trace selects a trace, --run, --fit, --ranks and --steps a part of a run; give one of them"
            )
        if query.every_attempt and query.traces:
            raise UsageError("--trace selects a trace, --attempt all those of a run; give one of them")
        return query
