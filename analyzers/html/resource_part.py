# SPDX-License-Identifier: Apache-2.0
"""The section of a page about resources: use over time under the capacity, bottlenecks, tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grademl_otel.analyzers.attribution.answer import Found
from grademl_otel.analyzers.html import resource_tables
from grademl_otel.analyzers.html.charts.bottleneck_chart import bottleneck_chart
from grademl_otel.analyzers.html.charts.use_chart import use_chart
from grademl_otel.analyzers.html.contents import Part
from grademl_otel.analyzers.html.parts import Chart
from grademl_otel.analyzers.html.series.bottlenecks import bottlenecks_over_time
from grademl_otel.analyzers.html.series.resource_use import use_over_time
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument

MOST_CHARTS: Final = 8
"""Types of metrics that are drawn: those whose resources are the scarcest, see `Found.drawn`."""
_NOTES: Final = (
    "Full: all phases together used 95 % of what there is, or these 95 % of what they could.",
    "What it could: the capacity less what others wanted of it.",
)


def resource_parts(found: Found, document: ResourcesDocument, with_verdict: bool = True) -> list[Part]:
    """Return the sections about ``found``, of which ``document`` tells; the verdict is in none without it."""
    parts = [
        Part(
            "part-bottlenecks",
            "Bottlenecks",
            said=document.verdict if with_verdict else [],
            charts=[chart] if (chart := _bottlenecks(found)) is not None else [],
            tables=[table] if (table := resource_tables.bottlenecks(document)) is not None else [],
            folded=[table] if (table := resource_tables.issues(document)) is not None else [],
            notes=_NOTES,
        ),
        Part(
            "part-use",
            "Use of resources",
            charts=list(_use(found)),
            folded=[table] if (table := resource_tables.use(document)) is not None else [],
            tables=[table] if (table := resource_tables.metrics(document)) is not None else [],
        ),
    ]
    return [part for part in parts if part.charts or part.tables]


def _bottlenecks(found: Found) -> Chart | None:
    drawn = bottlenecks_over_time(found.bottlenecks, found.keys, found.window)
    return None if drawn is None else bottleneck_chart(drawn, found.length)


def _use(found: Found) -> Iterator[Chart]:
    left = MOST_CHARTS
    for metric, unit, parts in found.drawn():
        if not left:
            return
        use = use_over_time(metric, unit, parts, found.keys.names, found.window)
        chart = None if use is None else use_chart(use, found.length)
        if chart is not None:
            left -= 1
            yield chart
