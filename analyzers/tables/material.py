# SPDX-License-Identifier: Apache-2.0
"""What the tables of one subject are made of: each thing once, when the first table asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.graph import Sections, run_path
from grademl_otel.analyzers.model.attempts import Owners
from grademl_otel.analyzers.model.clocks import clocks_of_traces
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.modelled import runs_of
from grademl_otel.analyzers.subject import Subject


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

    @property
    def run(self) -> Run | None:
        return self.about.run

    @cached_property
    def spans(self) -> SpanColumns:
        """All spans that were read, by their numbers, with the times of each run by the clock of that run."""
        spans = self.about.telemetry.spans
        if self.run is None or len(spans.clocks) < 2:
            return spans
        if self.about.is_part:
            return self.run.spans
        corrected = clocks_of_traces(spans, self.about.query.clocks).correct(spans)
        start, end = corrected.start.copy(), corrected.end.copy()
        for run in runs_of(self.about):
            start[run.span_ixs] = run.spans.start[run.span_ixs]
            end[run.span_ixs] = run.spans.end[run.span_ixs]
        return replace(corrected, start=start, end=end)

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
    def made_path(self) -> MadePath:
        """The critical path of the run, or those of the traces that match: none where none does."""
        if self.run is not None:
            sections = run_path(self.run, self.about.query.inferred).sections
            return MadePath(sections, np.zeros(len(sections), np.int64), np.full(len(sections), -1, np.int64))
        try:
            paths = self.about.paths()
        except NothingFound:
            return MadePath(Sections.of([]), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return MadePath(paths.sections, paths.trace, paths.roots[paths.trace])


def material(about: Subject) -> Material:
    """Return what the tables of ``about`` are made of, the same at every call."""
    found: Material = about.made.setdefault("tables", Material(about))
    return found
