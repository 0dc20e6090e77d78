# SPDX-License-Identifier: Apache-2.0
"""`grademl resources` as text: what was the bottleneck of which phases, what they used, what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.reporting.canvas import Canvas, Table, table
from grademl_otel.analyzers.reporting.header import data_in_words
from grademl_otel.analyzers.reporting.quantities import used_in_words, value_in_words
from grademl_otel.analyzers.reporting.resources_document import (
    BottleneckEntry,
    IssueEntry,
    MetricEntry,
    PhaseEntry,
    ResourcesDocument,
    UseEntry,
)
from grademl_otel.analyzers.reporting.short_paths import shortened
from grademl_otel.analyzers.units import count, duration, percent, seconds

PHASES: Final = 20
"""Rows of phases, unless more are asked for."""
METRICS: Final = 40
_ISSUES: Final = 10
_LISTED: Final = 8
_COLUMNS: Final = 5
"""Types of resources that have a column."""
_INDENT: Final = len("data  ")
ALONE: Final = "Each alone: gains are never to be added up."
_FROM: Final = 0.0005
"""A use below this part of its metric is not worth a row."""
_GAIN: Final = 0.005
"""A gain below this part of the whole is not worth one either."""


def draw(canvas: Canvas, document: ResourcesDocument, top: int | None = None) -> None:
    """Write the verdict, then bottlenecks, use, resources, issues, and what is not told."""
    phases, metrics = top or PHASES, top or METRICS
    canvas.line(" · ".join(subject_in_words(document)))
    incomplete = document.completeness.verdict == "incomplete"
    canvas.line(data_in_words(document.completeness), label="data", style="bold yellow" if incomplete else "")
    _listed(canvas, document.notes)
    canvas.blank()
    for number, line in enumerate(document.verdict):
        canvas.line(line, label="" if number else "VERDICT", style="bold", indent=len("VERDICT  "))
    shown = document.phases[:phases]
    issues = [one for one in document.issues if one.relative >= _GAIN][: top or _ISSUES]
    if document.bottlenecks:
        canvas.blank()
        canvas.tables([bottleneck_table(shown, document.bottlenecks)])
        _more(canvas, document, "phases", len(shown), len(document.phases))
    rows = [one for one in document.use if one.key in {phase.key for phase in shown}]
    if rows:
        canvas.blank()
        canvas.tables([use_table(shown, rows)])
    if document.metrics:
        canvas.blank()
        canvas.tables([metric_table(document.metrics[:metrics])])
        _more(canvas, document, "metrics", min(metrics, len(document.metrics)), len(document.metrics))
    if issues:
        canvas.blank()
        canvas.tables([issue_table(issues)])
        canvas.line(ALONE)
        for line in document.simulation:
            canvas.line(f"- {line}")
    if document.problems or document.abstained:
        canvas.blank()
    for line in document.problems[:_LISTED]:
        canvas.line(line, label="doubtful")
    if (more := len(document.problems) - _LISTED) > 0:
        canvas.line(f"and {more:,} more (--json)", label="doubtful")
    for one in document.abstained:
        canvas.line(f"{one.rule}: {one.missing}; to get it: {one.how_to_get}", label="not told")


def subject_in_words(document: ResourcesDocument) -> list[str]:
    """Return what was looked at, a fact each."""
    source = document.source
    what = f"traces of {source.uri}" if source.run is None else f"run {source.run}"
    attempt = [f"attempt {source.attempt}"] if source.attempt else []
    resources = len({one.resource for one in document.metrics}) + document.omitted.get("resources", 0)
    metrics = len(document.metrics) + document.omitted.get("metrics", 0)
    return [
        what,
        *attempt,
        duration(document.window.wall_ns),
        f"{count(metrics, 'metric')} of {count(resources, 'resource')}",
    ]


def bottleneck_table(phases: Sequence[PhaseEntry], found: Sequence[BottleneckEntry]) -> Table:
    """Return for each phase the parts of its known time in which resources were full, by type.

    Nothing stands where a phase does not use any of the type.
    """
    begin, names = shortened([phase.key for phase in phases])
    of_key: dict[str, dict[str, BottleneckEntry]] = {}
    full: dict[str, int] = {}
    for one in found:
        of_key.setdefault(one.key, {})[one.resource] = one
        full[one.resource] = full.get(one.resource, 0) + one.full_ns
    resources = sorted(full, key=lambda name: (-full[name], name))[:_COLUMNS]

    def cells(name: str, phase: PhaseEntry) -> list[str]:
        of = of_key.get(phase.key, {})
        parts = [percent(of[one].share) if one in of else "" for one in resources]
        free = None if not phase.known_ns or phase.free_ns is None else phase.free_ns / phase.known_ns
        known = None if phase.known_ns is None or not phase.busy_ns else phase.known_ns / phase.busy_ns
        # Known time is measured in whole ns of segments: never more than all of it.
        observed = _share(None if known is None else min(known, 1.0))
        return [name, f"{phase.phases:,}", seconds(phase.busy_ns), *parts, _share(free), observed]

    columns = [("phase", "left"), ("n", "right"), ("time", "right")]
    columns += [(name, "right") for name in (*resources, "nothing", "observed")]
    title = "Bottlenecks: part of the observed time in which what it used was full"
    rows = [cells(name, phase) for name, phase in zip(names, phases, strict=True)]
    return table(f"{title}{_within(begin)}", columns, rows, header=True, spare=("n", "observed"))


def use_table(phases: Sequence[PhaseEntry], use: Sequence[UseEntry]) -> Table:
    """Return what each phase used of each type of metrics."""
    rows: list[list[str]] = []
    begin, names = shortened([phase.key for phase in phases])
    for name, phase in zip(names, phases, strict=True):
        own = [one for one in use if one.key == phase.key and (one.share is None or one.share >= _FROM)]
        for number, one in enumerate(own):
            rows.append(
                [
                    "" if number else name,
                    one.metric,
                    value_in_words(one.mean, one.unit),
                    _share(one.utilization),
                    used_in_words(one.used, one.unit),
                    _share(one.share),
                ]
            )
    columns = [("phase", "left"), ("metric", "left"), ("mean", "right"), ("of what it could", "right")]
    columns += [("in all", "right"), ("share", "right")]
    return table(f"Use by phase{_within(begin)}", columns, rows, header=True, spare=("in all",))


def metric_table(metrics: Sequence[MetricEntry]) -> Table:
    """Return what was observed of each metric, and how much of it is no phase's."""
    rows = [
        [
            one.resource,
            one.metric,
            value_in_words(one.mean, one.unit),
            value_in_words(one.peak, one.unit),
            value_in_words(one.capacity, one.unit),
            _share(None if one.full_ns is None or not one.observed_ns else one.full_ns / one.observed_ns),
            _share(one.coverage),
            _share(unattributed_share(one)),
        ]
        for one in metrics
    ]
    columns = [("resource", "left"), ("metric", "left"), ("mean", "right"), ("peak", "right")]
    columns += [(name, "right") for name in ("capacity", "full", "observed", "no phase's")]
    spare = ("peak", "observed", "capacity")
    return table("Resources, and how much of each is no phase's", columns, rows, header=True, spare=spare)


def issue_table(issues: Sequence[IssueEntry]) -> Table:
    """Return what would make phases faster."""
    begin, names = shortened([one.of for one in issues])
    rows = [
        [
            issue_in_words(one, name),
            _time(one.gain_ns),
            percent(one.relative),
            f"{_time(one.least_ns)} .. {_time(one.most_ns)}",
        ]
        for one, name in zip(issues, names, strict=True)
    ]
    columns = [("if", "left"), ("all is shorter by", "right"), ("of it", "right"), ("range", "right")]
    title = f"What would help, as simulated{_within(begin)}"
    return table(title, columns, rows, header=True, spare=("range",))


def issue_in_words(one: IssueEntry, name: str | None = None) -> str:
    """Return what is changed; ``name`` is that of the phases where their path is too long."""
    of = name or one.of
    if one.kind == "imbalance":
        return f"{of} took equally long within each {one.cause.rpartition('/')[2]}"
    return f"{one.cause} was never full in {of}"


def unattributed_share(one: MetricEntry) -> float | None:
    """Return the part of what was used that is no phase's; None where nothing is known of it."""
    if one.unattributed is None or not one.used:
        return None
    return min(1.0, max(0.0, one.unattributed / one.used))


def untold_in_words(abstained: Iterable[Abstained]) -> list[str]:
    """Return what is not told, and how to get it, a line each."""
    return [f"{one.rule}: {one.missing}; to get it: {one.how_to_get}" for one in abstained]


def _within(begin: str) -> str:
    return f" (within {begin})" if begin else ""


def _time(ns: int) -> str:
    if not ns:
        return "0 s"
    return f"-{seconds(-ns)}" if ns < 0 else seconds(ns)


def _share(value: float | None) -> str:
    return "?" if value is None else percent(value)


def _listed(canvas: Canvas, notes: Sequence[str]) -> None:
    for note in notes[:_LISTED]:
        canvas.line(f"- {note}", indent=_INDENT)
    if (more := len(notes) - _LISTED) > 0:
        canvas.line(f"- and {more:,} more (--json)", indent=_INDENT)


def _more(canvas: Canvas, document: ResourcesDocument, name: str, shown: int, there: int) -> None:
    left = there - shown + document.omitted.get(name, 0)
    if left:
        canvas.line(f"and {left:,} more (--top, --json)")
