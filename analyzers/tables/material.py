# SPDX-License-Identifier: Apache-2.0
"""What the tables of one subject are made of: each thing once, when the first table asks for it.

What few tables need, as graphs and models, is loaded there, too: a query of spans starts without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.attempts import Owners, identity
from grademl_otel.analyzers.model.clocks import clocks_of_traces
from grademl_otel.analyzers.model.columns import SpanColumns, clock_name
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.subject import Subject, open_query, selection_of

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.answer import Found
    from grademl_otel.analyzers.execution.whole import ExecutionModel
    from grademl_otel.analyzers.graph import Sections


@dataclass(frozen=True)
class MadePath:
    """The sections of all paths."""

    sections: Sections
    path: IntArray
    """Number of the path of each section."""
    root: IntArray
    """Number of the span that is the root of each section's path; -1 for the path of a run."""


class Material:
    """The subject, and what several of its tables need."""

    def __init__(self, about: Subject) -> None:
        self.about = about
        self.why_no_points: str | None = None
        self.why_not_attributed: str | None = None

    @property
    def run(self) -> Run | None:
        return self.about.run

    @cached_property
    def shift(self) -> IntArray:
        """What is taken from times of each resource, in ns, to have them as the clock of the others shows.

        Of each run by its own reference, as all answers on it; of all else by that of the traces together.
        """
        from grademl_otel.analyzers.modelled import runs_of

        about, spans = self.about, self.about.telemetry.spans
        shift = np.zeros(len(spans.resources), np.int64)
        if len(spans.clocks) < 2:
            return shift
        clocks = about.clocks
        if clocks is None and not about.is_part:
            clocks = clocks_of_traces(spans, about.query.clocks)
        for one in (clocks, *(run.clocks for run in runs_of(about))):
            if one is not None:
                for resource in np.flatnonzero(one.of_resource >= 0).tolist():
                    shift[resource] = one.of_resource_ns(resource)
        return shift

    @cached_property
    def spans(self) -> SpanColumns:
        """All spans that were read, by their numbers, with times by the clock of the others."""
        spans = self.about.telemetry.spans
        if self.run is None or not self.shift.any():  # those of traces were brought to it in reading
            return spans
        taken = np.where(spans.possible, self.shift[spans.resource_ix], 0)
        return replace(spans, start=spans.start - taken, end=spans.end - taken)

    @cached_property
    def model(self) -> ExecutionModel | None:
        """The execution model; None where it has no phase."""
        from grademl_otel.analyzers.modelled import model_of

        try:
            return model_of(self.about)
        except NothingFound:
            return None

    @cached_property
    def ixs(self) -> IntArray | None:
        """Numbers of the spans that the tables are about, ascending; None for all."""
        run = self.run
        if run is None or not self.about.is_part:
            return None
        owners = Owners(run.spans)
        mine = run.span_ixs[np.isin(owners.rank_of_span[run.span_ixs], run.ranks)]
        return np.sort(mine)

    @cached_property
    def points(self) -> MetricPoints | None:
        """The metric points that are beside the spans; None where there are none: `why_no_points`."""
        from grademl_otel.analyzers.sources.files.metrics import read_metrics

        try:
            return read_metrics(open_query(self.about.query), selection_of(self.about.query))
        except NothingFound as reason:
            self.why_no_points = str(reason)
            return None

    @cached_property
    def attributed(self) -> Found | None:
        """Resources, attributed to phases; None where none was observed: `why_not_attributed`."""
        from grademl_otel.analyzers.attribution.answer import find

        try:
            return find(self.about)
        except NothingFound as reason:
            self.why_not_attributed = str(reason)
            return None

    @cached_property
    def shift_of_points(self) -> IntArray:
        """As `shift`, of the resources of the points: that of the process, else of the host."""
        assert self.points is not None
        of_clock: dict[tuple[str | None, str], int] = {}
        for resource, taken in zip(self.about.telemetry.spans.resources, self.shift.tolist(), strict=True):
            of_clock[_run_of(resource), clock_name(resource)] = taken
        shifts = [
            of_clock.get((_run_of(resource), clock_name(resource)), 0) for resource in self.points.resources
        ]
        return np.array(shifts, np.int64)

    @cached_property
    def points_of_part(self) -> IntArray:
        """Numbers of the points that the tables are about: of a part of a run its ranks, and its time."""
        points, run = self.points, self.run
        assert points is not None
        every = np.arange(len(points))
        if run is None or not self.about.is_part:
            return every
        wanted = {(run.run_id, run.attempt, rank) for rank in run.ranks}
        owners = [identity(resource) for resource in points.resources]
        ours = [one is not None and (one.run_id, one.attempt, one.rank) in wanted for one in owners]
        chosen = np.array(ours, np.bool_)[points.resource_ix]
        if self.about.query.fit is not None or self.about.query.steps is not None:
            time = points.time - self.shift_of_points[points.resource_ix]
            chosen &= (points.time > 0) & (time >= run.start) & (time <= run.end)
        return every[chosen]

    @cached_property
    def made_path(self) -> MadePath:
        """The critical path of the run, or those of the traces that match: none where none does."""
        from grademl_otel.analyzers.graph import Sections, run_path

        if self.run is not None:
            sections = run_path(self.run, self.about.query.inferred).sections
            return MadePath(sections, np.zeros(len(sections), np.int64), np.full(len(sections), -1, np.int64))
        try:
            paths = self.about.paths()
        except NothingFound:
            return MadePath(Sections.of([]), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return MadePath(paths.sections, paths.trace, paths.roots[paths.trace])


def _run_of(resource: dict[str, Any]) -> str | None:
    whose = identity(resource)
    return None if whose is None else f"{whose.run_id}/{whose.attempt}"


def material(about: Subject) -> Material:
    """Return what the tables of ``about`` are made of, the same at every call."""
    found: Material = about.made.setdefault("tables", Material(about))
    return found
