# SPDX-License-Identifier: Apache-2.0
"""The report as one file that needs nothing else: text, charts, tables and data, and no request to anywhere.

Every string is escaped by the template engine, and before that loses what is not printed; a policy in the
page allows the one style and the one script that are in it, by their hashes, and nothing else. The same input
gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Final

import jinja2
from markupsafe import Markup

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.html import finding_tables, run_tables
from grademl_otel.analyzers.html.charts import draw
from grademl_otel.analyzers.html.charts.palette import telling_apart
from grademl_otel.analyzers.html.contents import Part, parts
from grademl_otel.analyzers.html.embedding import bounded, brief, document_json, plain_json, printable
from grademl_otel.analyzers.html.front import NOTES, front
from grademl_otel.analyzers.html.provenance import command, provenance
from grademl_otel.analyzers.reporting.document import PopulationInfo, ReportDocument
from grademl_otel.analyzers.reporting.jaeger_hint import to_jaeger
from grademl_otel.analyzers.reporting.report_screen import not_judged
from grademl_otel.analyzers.subject import Subject
from grademl_otel.version import __version__

_STYLES: Final = ("report.css", "charts.css")
_SCRIPTS: Final = ("report.js", "charts.js")
_HERE: Final = "grademl_otel.analyzers.html"
_SHORT_ID: Final = 8
_NOT_JUDGED: Final = 200
"""Reasons that are shown; the data of the page have all."""


def page(about: Subject, document: ReportDocument) -> str:
    """Return the page that shows ``document``, which is the report on ``about``."""
    with telling_apart(_operations(document)):
        return _rendered(about, document)


def _operations(document: ReportDocument) -> list[str]:
    """Return what has a colour on the page, the longest first."""
    if isinstance(document.path, PopulationInfo):
        return [entry.operation for entry in document.path.population]
    return [entry.key for entry in document.summary]


def _rendered(about: Subject, document: ReportDocument) -> str:
    charts = draw(about, document)
    complete = document.completeness
    behind = (
        finding_tables.data_in_numbers(complete),
        finding_tables.clocks(complete),
        run_tables.how_it_ended(document.ended, document.window.wall_ns),
    )
    return template().render(
        verb="report",
        front=front(about, document),
        parts=[*parts(document, charts), *_resources(about)],
        not_judged=not_judged(document.abstained)[:_NOT_JUDGED],
        behind=[table for table in behind if table is not None],
        provenance=provenance(document),
        commands=_commands(about, document),
        report_json=document_json(document),
        report_name=f"grademl-report-{(document.source.run or 'traces')[:_SHORT_ID]}.json",
        charts_json=plain_json(charts.data),
        **fixed(),
    )


def _resources(about: Subject) -> list[Part]:
    """Return the sections on resources; none where none was observed."""
    # Here, for what most runs have not.
    from grademl_otel.analyzers.attribution.answer import find
    from grademl_otel.analyzers.html.resource_part import resource_parts
    from grademl_otel.analyzers.reporting.of_resources import resources_document

    try:
        found = find(about)
    except NothingFound:
        return []
    return resource_parts(found, resources_document(about, found))


def fixed() -> dict[str, object]:
    """Return what is the same on every page."""
    return {
        "notes_at_once": NOTES,
        "style": _joined(_STYLES),
        "script": _joined(_SCRIPTS),
        "policy": _policy(),
        "version": __version__,
    }


def _commands(about: Subject, document: ReportDocument) -> list[tuple[str, str]]:
    """Return (what for, shell command) of what can be asked next."""
    found = [
        ("This page", command(about.query, document, "report") + " -f html -o report.html"),
        ("The critical path by operation", command(about.query, document, "path") + " --by operation"),
    ]
    jaeger = to_jaeger(document.source)
    return found + ([] if jaeger is None else [("This run in Jaeger", jaeger)])


@cache
def template() -> jinja2.Template:
    """Return the template of a page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(_HERE),
        autoescape=True,
        finalize=printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(brief=brief, bounded=bounded)
    return environment.get_template("page.html")


@cache
def _joined(names: tuple[str, ...]) -> Markup:
    files = resources.files(_HERE)
    return Markup("\n".join(files.joinpath(name).read_text("utf-8") for name in names))


@cache
def _policy() -> str:
    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {hashed(_joined(_STYLES))}",
            f"script-src {hashed(_joined(_SCRIPTS))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
