# SPDX-License-Identifier: Apache-2.0
"""A path's sections as entries of the answer, and added up by a key."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph.keys import KEYS, rank_name
from grademl_otel.analyzers.graph.path import Path, Section, Sections
from grademl_otel.analyzers.graph.profiles.profile_path import graph_of_path
from grademl_otel.analyzers.graph.summary import Summary, profile_summary, run_summary, tree_summary
from grademl_otel.analyzers.graph.trees.virtual_phases import Told
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting.document import Omitted, PathInfo, SummaryEntry
from grademl_otel.analyzers.reporting.section_entries import SectionEntries, longest_first

SECTION: Final = "section"
BY: Final = (*KEYS, SECTION)
"""Keys that a path can be added up by."""

Entries = tuple[list[SummaryEntry], list[Abstained]]
"""A summary, and what it does not tell."""


def path_info(path: Path, spans: SpanColumns, top: int | None = None) -> PathInfo:
    """Return ``path`` with all of its sections, or the ``top`` longest and what that leaves out."""
    every = path.sections
    kept = every if top is None else every.take(np.sort(longest_first(every)[:top]))
    return PathInfo(
        total_ns=path.total_ns,
        sections=SectionEntries(kept, path.start, spans),
        omitted=Omitted(len(every) - len(kept), path.total_ns - sum(kept.duration.tolist())),
    )


def summary_of_run(run: Run, path: Path, by: str, top: int | None = None, inferred: bool = True) -> Entries:
    """Return the path of ``run`` added up by ``by``, the largest key first, with what else is known."""
    if by == SECTION:
        return _one_by_one(path, top), []
    found = run_summary(run, path, by, inferred)
    return _entries(found, top), _untold(found, "select some of the steps")


def summary_of_trace(
    spans: SpanColumns,
    root: int,
    path: Path,
    told: Told,
    by: str,
    top: int | None = None,
    inferred: bool = True,
) -> Entries:
    """Return the path of the tree under ``root`` added up by ``by``, the largest key first.

    ``told`` are its sections, cut into the phases that attributes tell of. Without ``inferred`` edges slack
    and drag of a profile go by what was observed.
    """
    if by == SECTION:
        return _one_by_one(_with(path, told.sections), top), []
    if not len(path.sections):
        return [], []
    graph = graph_of_path(spans, root, path, inferred)
    if graph is not None:
        found = profile_summary(spans, graph, path, by)
        return _entries(found, top), _untold(found, "record fewer steps with the profiler")
    found = tree_summary(spans, root, path, by, (told.sections, told.origin))
    return _entries(found, top), _untold(found, "analyze the run as a whole, where it is one of ours")


def _with(path: Path, sections: Sections) -> Path:
    return Path(path.start, path.end, sections, path.clipped_ns, path.overlap_ns)


def _untold(found: Summary, how: str) -> list[Abstained]:
    return [] if found.untold is None else [Abstained("summary.slack", found.untold, how)]


def _entries(found: Summary, top: int | None) -> list[SummaryEntry]:
    return [SummaryEntry(**vars(row)) for row in found.rows[:top]]


def _one_by_one(path: Path, top: int | None) -> list[SummaryEntry]:
    """Return each section as a key of its own, the longest first. What is on the path has no slack."""
    longest = path.sections.take(longest_first(path.sections)[:top])
    whole = path.total_ns or 1
    return [
        SummaryEntry(
            key=_described(section),
            path_ns=section.duration,
            path_share=section.duration / whole,
            blocked_ns=None,
            total_ns=section.duration,
            self_ns=section.duration,
            slack_ns=0,
            drag_ns=None,
        )
        for section in longest
    ]


def _described(section: Section) -> str:
    parts = [section.phase, section.kind]
    parts += [] if section.rank is None else [rank_name(section.rank)]
    parts += [section.lane] if section.lane else []
    parts += [] if section.step is None else [f"step {section.step}"]
    parts += [f"item {section.item}"] if section.item else []
    return " ".join(parts)
