# SPDX-License-Identifier: Apache-2.0
"""The charts of the page, as SVG that needs no script to be read.

`series` has their numbers, a module here each of them; `report.js` draws those over time anew at other zooms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.graph.trees.virtual_phases import with_virtual_phases
from grademl_otel.analyzers.html.charts.budget_chart import budget_chart
from grademl_otel.analyzers.html.charts.distribution_chart import distribution_chart
from grademl_otel.analyzers.html.charts.path_chart import path_chart, path_data
from grademl_otel.analyzers.html.charts.steps_chart import steps_chart, steps_data
from grademl_otel.analyzers.html.parts import Chart, Charts
from grademl_otel.analyzers.html.series.budgets import budget_of
from grademl_otel.analyzers.html.series.durations import (
    distribution_of_run,
    distribution_of_traces,
    durations_of_run,
    durations_of_traces,
)
from grademl_otel.analyzers.html.series.events import bands_of_run
from grademl_otel.analyzers.html.series.timeline import timeline
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.reporting.document import PathInfo, ReportDocument
from grademl_otel.analyzers.subject import Subject


def draw(about: Subject, document: ReportDocument) -> Charts:
    """Return the charts of what ``document`` tells of ``about``."""
    if about.run is not None:
        return _of_run(about.run, document, about.query.inferred)
    if isinstance(document.path, PathInfo):
        return _of_trace(about, document.path)
    return _of_traces(about)


def _of_run(run: Run, document: ReportDocument, inferred: bool) -> Charts:
    path = _whole(document.path) or run_path(run, inferred)
    budget = budget_of(document.lane_budget)
    # What the report does not tell, since too much is missing, is not drawn either.
    distribution = None if document.step is None else distribution_of_run(run)
    drawn, data = _timeline(path, run.spans)
    durations = durations_of_run(run, path.start, path.total_ns)
    steps = None
    if durations is not None and path.total_ns:
        bands = bands_of_run(run, path.start)
        steps = steps_chart(durations, bands, path.total_ns)
        data["steps"] = steps_data(durations, bands, path.total_ns)
    return Charts(
        budget=None if budget is None else budget_chart(budget),
        path=drawn,
        steps=steps,
        distribution=None if distribution is None else distribution_chart(distribution),
        data=data,
    )


def _of_trace(about: Subject, info: PathInfo) -> Charts:
    spans = about.telemetry.spans
    path = _whole(info)
    if path is None:
        path = about.paths()[0][1]
        path = replace(path, sections=with_virtual_phases(spans, path.sections).sections)
    drawn, data = _timeline(path, spans)
    return Charts(path=drawn, data=data)


def _of_traces(about: Subject) -> Charts:
    paths = about.paths()
    start, total = int(paths.start.min()), int(paths.end.max()) - int(paths.start.min())
    distribution = distribution_of_traces(paths)
    if not total:
        return Charts()
    durations = durations_of_traces(paths, start, total)
    return Charts(
        steps=steps_chart(durations, [], total),
        distribution=None if distribution is None else distribution_chart(distribution),
        data={"steps": steps_data(durations, [], total)},
    )


def _timeline(path: Path, spans: SpanColumns) -> tuple[Chart | None, dict[str, Any]]:
    found = timeline(path, spans)
    return (None, {}) if found is None else (path_chart(found), {"path": path_data(found)})


def _whole(info: object) -> Path | None:
    """Return the path that a document was made from; None where it holds a part of that."""
    if not isinstance(info, PathInfo) or info.omitted.sections:
        return None
    origin = info.sections.origin
    return Path(origin, origin + info.total_ns, info.sections.arrays)
