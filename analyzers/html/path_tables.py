# SPDX-License-Identifier: Apache-2.0
"""The tables of a page about the critical path: by a key, its longest sections, of many traces the spread."""

from __future__ import annotations

from typing import Final

from grademl_otel.analyzers.html import cells
from grademl_otel.analyzers.html.parts import DataTable
from grademl_otel.analyzers.reporting.document import (
    PathInfo,
    PopulationInfo,
    ReportDocument,
)

KEYS: Final = 60
"""Keys of the path that are shown, the largest."""
SECTIONS: Final = 100
"""Sections of the path that are shown, the longest."""
_EXPLAINED: Final = {
    "blocked_ns": "Blocked: how long main threads stood still for it.",
    "slack_ns": "Slack: how much later the tightest of it could end, and the whole would not.",
    "drag_ns": "Drag: how much earlier the whole would end if it took no time, and all else as long as it"
    " did; no forecast.",
}
_TITLES: Final = {
    "blocked_ns": "Blocked",
    "total_ns": "In total",
    "self_ns": "By itself",
    "slack_ns": "Slack",
    "drag_ns": "Drag",
}


def path_by_phase(document: ReportDocument) -> DataTable | None:
    """Return the path added up by phase (of spans of others by operation), beside all the time of a key."""
    shown = document.summary[:KEYS]
    if not shown:
        return None
    show = cells.clock_for(document.window.wall_ns)
    told = [name for name in _TITLES if cells.any_known(shown, name)]
    key = _key(document)
    return DataTable(
        "path-by-phase",
        f"The critical path by {key}",
        [
            cells.text("key", key.capitalize()),
            cells.number("path_ns", "On the path"),
            cells.number("path_share", "Share"),
            *(cells.number(name, _TITLES[name]) for name in told),
        ],
        [
            [
                cells.phase(one.key),
                cells.time(one.path_ns, show),
                cells.share(one.path_share, one.key),
                *(
                    cells.NOTHING if (ns := getattr(one, name)) is None else cells.time(ns, show)
                    for name in told
                ),
            ]
            for one in shown
        ],
        _of("keys", len(shown), len(document.summary)),
    )


def explained(document: ReportDocument) -> list[str]:
    """Return what the columns of `path_by_phase` mean, as far as they are in it."""
    shown = document.summary[:KEYS]
    return [words for name, words in _EXPLAINED.items() if cells.any_known(shown, name)]


def longest_sections(document: ReportDocument) -> DataTable | None:
    """Return the longest sections of the path in the order of time."""
    path = document.path
    if not isinstance(path, PathInfo) or not len(path.sections):
        return None
    longest = path.sections.longest(SECTIONS)
    services = longest.services()
    several = len({*services} - {""}) > 1
    show = cells.moments_within(path.total_ns)
    key = _key(document)
    return DataTable(
        "longest-sections",
        "The longest sections of the critical path, in the order of time",
        [
            cells.number("start_ns", "From"),
            cells.number("end_ns", "To"),
            cells.number("duration_ns", "Took"),
            cells.text("phase", key.capitalize()),
            cells.text("kind", "Kind"),
            *([cells.text("service", "Service")] if several else []),
            cells.number("rank", "Rank"),
            cells.text("lane", "Lane"),
            cells.number("step", "Step"),
            cells.text("item", "Item"),
            cells.text("edge", "Entered by"),
            cells.text("evidence", "Evidence"),
            cells.text("trace_id", "Trace"),
            cells.text("span_id", "Span"),
        ],
        [
            [
                cells.time(one.start_ns, show),
                cells.time(one.end_ns, show),
                cells.time(one.end_ns - one.start_ns),
                cells.phase(one.phase),
                cells.words(one.kind),
                *([cells.words(service)] if several else []),
                cells.NOTHING if one.rank is None else cells.count(one.rank),
                cells.words(one.lane),
                cells.NOTHING if one.step is None else cells.count(one.step),
                cells.words(one.item),
                cells.words(one.entered_by.edge),
                cells.words(one.entered_by.evidence),
                cells.words(None if one.span is None else one.span.trace_id),
                cells.words(None if one.span is None else one.span.span_id),
            ]
            for one, service in zip(longest, services, strict=True)
        ],
        _of("sections", len(longest), len(path.sections) + path.omitted.sections),
    )


def population(document: ReportDocument) -> DataTable | None:
    """Return section time by service and operation over many traces."""
    path = document.path
    if not isinstance(path, PopulationInfo) or not path.population:
        return None
    shown = path.population[:KEYS]
    return DataTable(
        "population",
        "The critical paths of the traces by service and operation, in time per trace",
        [
            cells.text("service", "Service"),
            cells.text("operation", "Operation"),
            cells.text("kind", "Kind"),
            cells.text("evidence", "Evidence"),
            cells.number("traces", "Traces"),
            cells.number("path_ns", "Together"),
            cells.number("share", "Share"),
            cells.number("p50_ns", "p50"),
            cells.number("p95_ns", "p95"),
            cells.number("p99_ns", "p99"),
            cells.number("tail_minus_median_ns", "Tail - median"),
        ],
        [
            [
                cells.words(one.service),
                cells.phase(one.operation),
                cells.words(one.kind),
                cells.words(one.evidence),
                cells.count(one.traces),
                cells.time(one.path_ns),
                cells.share(one.share, one.operation),
                cells.time(one.p50_ns),
                cells.time(one.p95_ns),
                cells.time(one.p99_ns),
                cells.time(one.tail_minus_median_ns),
            ]
            for one in shown
        ],
        _of("keys", len(shown), len(path.population)),
    )


def _key(document: ReportDocument) -> str:
    """Return what a phase is called: that of a span of others is its operation."""
    return "phase" if document.source.run is not None else "operation"


def _of(what: str, shown: int, there: int) -> str:
    return "" if shown == there else f"The {shown:,} largest of {there:,} {what}."
