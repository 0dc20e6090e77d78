# SPDX-License-Identifier: Apache-2.0
"""The page of `grademl resources -f html`: as that of a report, about resources alone."""

from __future__ import annotations

from typing import Final

from grademl_otel.analyzers.attribution.answer import Found
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.html import finding_tables, resource_tables
from grademl_otel.analyzers.html.charts.palette import telling_apart
from grademl_otel.analyzers.html.embedding import document_json, plain_json
from grademl_otel.analyzers.html.front import CLOCKS, MOST_NOTES, Front, moment
from grademl_otel.analyzers.html.page import fixed, template
from grademl_otel.analyzers.html.provenance import command, provenance
from grademl_otel.analyzers.html.resource_part import resource_parts
from grademl_otel.analyzers.reporting import header
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument
from grademl_otel.analyzers.reporting.resources_screen import subject_in_words
from grademl_otel.analyzers.reporting.short_paths import phase_name
from grademl_otel.analyzers.subject import Subject

_SHORT_ID: Final = 8


def resources_page(about: Subject, found: Found, document: ResourcesDocument) -> str:
    """Return the page that shows ``document``, the answer ``found`` on ``about``."""
    complete = document.completeness
    behind = (
        finding_tables.data_in_numbers(complete),
        finding_tables.clocks(complete),
        resource_tables.problems(document.problems),
    )
    with telling_apart(phase_name(one.key) for one in document.phases):
        return template().render(
            verb="resources",
            front=_front(document),
            parts=resource_parts(found, document, with_verdict=False),
            not_judged=[_untold(one) for one in document.abstained],
            behind=[table for table in behind if table is not None],
            provenance=provenance(document),
            commands=[
                (
                    "This page",
                    command(about.query, document, "resources")
                    + found.question.words()
                    + " -f html -o resources.html",
                )
            ],
            report_json=document_json(document),
            report_name=f"grademl-resources-{(document.source.run or 'traces')[:_SHORT_ID]}.json",
            charts_json=plain_json({}),
            **fixed(),
        )


def _front(document: ResourcesDocument) -> Front:
    source, complete, notes = document.source, document.completeness, document.notes
    shifted = [one for one in complete.clocks[1:] if one.applied]
    what = f"run {source.run}" if source.run is not None else f"traces of {source.uri}"
    lines = document.verdict
    return Front(
        title=f"Resources of {what}",
        kind="traces" if source.run is None else "run",
        subject=subject_in_words(document)[1:],
        facts=[("When", moment(int(document.window.origin_unix_ns)))],
        ended=[],
        more_ended=0,
        verdict=complete.verdict,
        data=header.data_counts(complete),
        notes=notes[:MOST_NOTES],
        more_notes=max(0, len(notes) - MOST_NOTES),
        clocks=[header.clock_in_words(one) for one in shifted[:CLOCKS]],
        more_clocks=max(0, len(shifted) - CLOCKS),
        severity="none",
        lines=lines,
        gain=None,
        fixes=[],
        evidence=[],
        path="",
    )


def _untold(one: Abstained) -> tuple[list[str], str, str]:
    return [one.rule], one.missing, one.how_to_get
