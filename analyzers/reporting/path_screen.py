# SPDX-License-Identifier: Apache-2.0
"""`grademl critical-path` as text: the path by a key and its longest sections; of many traces the spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from grademl_otel.analyzers.graph.keys import OPERATION, PHASE
from grademl_otel.analyzers.reporting import header
from grademl_otel.analyzers.reporting.breakdown import breakdown_table, worth_telling
from grademl_otel.analyzers.reporting.canvas import BAR, Canvas, Table, bar, table
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    PathInfo,
    PopulationInfo,
    SectionEntry,
    SummaryEntry,
)
from grademl_otel.analyzers.units import count, milliseconds, percent, seconds

KEYS: Final = 20
"""Keys shown unless told otherwise."""
SECTIONS: Final = 10
"""Sections, likewise."""
_LONG_NS: Final = 10e9
_BAR: Final = 12
_CALLS: Final = ("server", "client", "producer", "consumer")
"""Kinds of spans of which two bear one name: who calls names it as who is called."""
_EXPLAINED: Final = {
    "slack_ns": "slack: how much later the tightest of it could end, and the whole would not.",
    "drag_ns": "drag: how much earlier the whole would end if it took no time, and all else as long as it"
    " did; no forecast.",
}

_BEFORE: Final = "on path: with what went by before it began, in gaps and handoffs."


def draw(canvas: Canvas, document: CriticalPathDocument, by: str = PHASE, top: int | None = None) -> None:
    """Write the head, then the path of one run or trace, or of many traces together.

    ``top`` is how many keys and sections are shown, of those that ``document`` has.
    """
    header.draw(canvas, document)
    canvas.blank()
    keys = top or KEYS
    if isinstance(document.path, PopulationInfo):
        canvas.tables([population_table(document.path, keys)])
        if (more := len(document.path.population) - keys) > 0:
            canvas.line(f"and {more:,} more (--top, --json)")
        if by not in (PHASE, OPERATION):
            canvas.line(f"By {by} the path of one trace is added up: --trace ID, or all with --per-trace.")
        return
    shown = document.summary[:keys]
    # The phase of a span that is not ours is its operation.
    phase = "phase" if document.source.run is not None else "operation"
    canvas.tables([summary_table(phase if by == "phase" else by, shown)])
    if (more := len(document.summary) - len(shown)) > 0:
        canvas.line(f"and {more:,} more (--top, --json)")
    said = [words for name, words in _EXPLAINED.items() if _any(shown, name)]
    if any(entry.total_ns is not None and entry.path_ns > entry.total_ns for entry in shown):
        said.insert(0, _BEFORE)
    if said:
        canvas.line(" ".join(said))
    if by != "section" and document.path.sections:
        canvas.blank()
        canvas.tables([sections_table(document.path, top or SECTIONS, phase)])
    if worth_telling(document.breakdown):
        canvas.blank()
        canvas.tables([breakdown_table(document.breakdown)])


def summary_table(by: str, entries: list[SummaryEntry]) -> Table:
    """Return the path added up by ``by``, beside all the time of a key where that is known."""
    time = _times(sum(entry.path_ns for entry in entries))
    columns = [(by, "left"), ("on path", "right"), ("share", "right")]
    rows = [[entry.key, time(entry.path_ns), percent(entry.path_share)] for entry in entries]
    for heading, name in (("in total", "total_ns"), ("slack", "slack_ns"), ("drag", "drag_ns")):
        if _any(entries, name):
            columns.append((heading, "right"))
            for row, entry in zip(rows, entries, strict=True):
                ns = getattr(entry, name)
                row.append("" if ns is None else time(ns) if ns else "0")
    columns.append(("", BAR))
    for row, entry in zip(rows, entries, strict=True):
        row.append(bar(entry.path_share, _BAR))
    spare = ("drag", "slack", "in total")
    return table(f"Critical path by {by}", columns, rows, header=True, spare=spare)


def _any(entries: list[SummaryEntry], name: str) -> bool:
    return any(getattr(entry, name) for entry in entries)


def sections_table(path: PathInfo, most: int, phase: str) -> Table:
    """Return the ``most`` longest sections in the order of time; with their services where these differ."""
    time = _times(path.total_ns)
    longest = path.sections.longest(most)
    services = longest.services()
    if len({*services} - {""}) < 2:
        services = [""] * len(longest)
    return table(
        f"The longest of {count(len(path.sections) + path.omitted.sections, 'section')}",
        [("from", "right"), ("took", "right"), (phase, "left"), ("kind", "left"), ("where", "left")],
        [
            (time(s.start_ns), milliseconds(s.end_ns - s.start_ns), s.phase, s.kind, where(s, service))
            for s, service in zip(longest, services, strict=True)
        ],
        header=True,
        spare=("kind", "from", "where"),
    )


def _times(whole_ns: float) -> Callable[[float], str]:
    """Return how times within ``whole_ns`` are written: of a request tenths of a second say nothing."""
    return seconds if whole_ns >= _LONG_NS else milliseconds


def where(section: SectionEntry, service: str = "") -> str:
    """Return service, rank, lane, step and item of a section, as far as known."""
    parts = [service] if service else []
    parts += [] if section.rank is None else [f"rank {section.rank}"]
    parts += [section.lane] if section.lane else []
    parts += [] if section.step is None else [f"step {section.step:,}"]
    parts += [f"item {section.item}"] if section.item else []
    return " · ".join(parts)


def population_table(path: PopulationInfo, most: int) -> Table:
    """Return section time by service and operation over many traces, the ``most`` largest."""
    return table(
        "Critical path of the traces by service and operation",
        [
            ("service", "left"),
            ("operation", "left"),
            ("share", "right"),
            ("p50", "right"),
            ("p95", "right"),
            ("p99", "right"),
            ("tail - median", "right"),
            ("", BAR),
        ],
        [
            (
                entry.service,
                f"{entry.operation} ({entry.kind})" if entry.kind in _CALLS else entry.operation,
                percent(entry.share),
                _time(entry.p50_ns),
                _time(entry.p95_ns),
                _time(entry.p99_ns),
                _signed(entry.tail_minus_median_ns),
                bar(entry.share),
            )
            for entry in path.population[:most]
        ],
        header=True,
        spare=("p50", "p99", "tail - median"),
    )


def _time(ns: int | None) -> str:
    return "?" if ns is None else milliseconds(ns)


def _signed(ns: int | None) -> str:
    if ns is None:
        return "?"
    return f"{'-' if ns < 0 else '+'}{milliseconds(abs(ns))}"
