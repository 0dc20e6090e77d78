# SPDX-License-Identifier: Apache-2.0
"""A path's sections as entries of the answer, and added up by a key."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from grademl_otel.analyzers.graph.path import Path, Section
from grademl_otel.analyzers.graph.summary import SummaryRow, run_summary, tree_summary
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting.document import (
    Edge,
    Omitted,
    PathInfo,
    SectionEntry,
    SpanIds,
    SummaryEntry,
)

BY: Final = ("phase", "rank", "lane", "operation", "section")
"""Keys that a path can be added up by."""


def path_info(path: Path, spans: SpanColumns, top: int | None = None) -> PathInfo:
    """Return ``path`` with all of its sections, or the ``top`` longest and what that leaves out."""
    kept = list(path.sections)
    if top is not None and top < len(kept):
        kept = sorted(kept, key=lambda section: -section.duration)[:top]
        kept.sort(key=lambda section: section.start)
    shown = sum(section.duration for section in kept)
    return PathInfo(
        total_ns=path.total_ns,
        sections=[_entry(section, path.start, spans) for section in kept],
        omitted=Omitted(len(path.sections) - len(kept), path.total_ns - shown),
    )


def _entry(section: Section, origin: int, spans: SpanColumns) -> SectionEntry:
    ix = section.span_ix
    by = section.entered_by
    return SectionEntry(
        start_ns=section.start - origin,
        end_ns=section.end - origin,
        phase=section.phase,
        kind=section.kind,
        rank=section.rank,
        lane=section.lane,
        step=section.step,
        item=section.item,
        span=None if ix is None else SpanIds(spans.trace_id_hex(ix), spans.span_id_hex(ix)),
        entered_by=Edge(by.edge, by.evidence, by.confidence),
    )


def key_of(section: Section, by: str, spans: SpanColumns, ours: str = "") -> str:
    """Return what ``section`` is counted under: its phase, rank, lane, operation, or itself.

    ``ours`` is the service of what has no span, as a run's activities from a table.
    """
    if by == "rank":
        return "no rank" if section.rank is None else f"rank {section.rank}"
    if by == "lane":
        return section.lane if section.rank is None else f"rank {section.rank} {section.lane}"
    if by == "operation":
        ix = section.span_ix
        service = ours if ix is None else str(spans.resource(ix).get("service.name", ""))
        return f"{service} {section.phase}".strip()
    if by == "section":
        parts = [section.phase, section.kind]
        parts += [] if section.rank is None else [f"rank {section.rank}"]
        parts += [section.lane] if section.lane else []
        parts += [] if section.step is None else [f"step {section.step}"]
        parts += [f"item {section.item}"] if section.item else []
        return " ".join(parts)
    return section.phase


def summary_of_run(run: Run, path: Path, by: str, top: int | None = None) -> list[SummaryEntry]:
    """Return the path of ``run`` added up by ``by``, the largest key first; of phases what else is known."""
    if by == "phase":
        return [_known(row) for row in run_summary(run, path)[:top]]
    service = run.spans.resource(int(run.span_ixs[0])).get("service.name", "") if len(run.span_ixs) else ""
    return _added_up(path, run.spans, by, top, str(service))


def summary_of_trace(
    spans: SpanColumns, root: int, path: Path, by: str, top: int | None = None
) -> list[SummaryEntry]:
    """Return the path of the tree under ``root`` added up by ``by``, the largest key first."""
    if by == "phase" and path.sections:
        return [_known(row) for row in tree_summary(spans, root, path)[:top]]
    return _added_up(path, spans, by, top)


def _known(row: SummaryRow) -> SummaryEntry:
    return SummaryEntry(
        key=row.key,
        path_ns=row.path_ns,
        path_share=row.path_share,
        blocked_ns=row.blocked_ns,
        total_ns=row.total_ns,
        slack_ns=row.slack_ns,
        drag_ns=row.drag_ns,
    )


def _added_up(path: Path, spans: SpanColumns, by: str, top: int | None, ours: str = "") -> list[SummaryEntry]:
    """Return the sections added up by key; by ``section`` each is a key of its own, the longest first."""
    times: dict[str, int] = defaultdict(int)
    if by == "section":
        longest = sorted(path.sections, key=lambda section: (-section.duration, section.start))
        found = [(key_of(section, by, spans, ours), section.duration) for section in longest]
    else:
        for section in path.sections:
            times[key_of(section, by, spans, ours)] += section.duration
        found = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    total = path.total_ns or 1
    return [SummaryEntry(key, ns, ns / total, None, None, None, None) for key, ns in found[:top]]
