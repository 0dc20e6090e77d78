# SPDX-License-Identifier: Apache-2.0
"""From a query to its answer: read, analyze, and put what was found into a document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    RanksDocument,
    ReportDocument,
    RunEntry,
    RunsDocument,
)
from grademl_otel.analyzers.reporting.of_run import critical_path_of_run, ranks_of_run, report_of_run
from grademl_otel.analyzers.reporting.of_traces import critical_path_of_traces, report_of_traces
from grademl_otel.analyzers.reporting.sections import BY
from grademl_otel.analyzers.sources.registry import address
from grademl_otel.analyzers.sources.servers.jaeger_address import asked_in, merged
from grademl_otel.analyzers.subject import Subject, broken_off, open_query, read_subject, selection_of

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.question import Question
    from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument

PAGE_SECTIONS: Final = 2_000
"""Sections of the path, the longest, that a page holds as data."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Answer(Generic[Found]):
    """What was found, and why the source broke off midway, if it did: then it is about a part only."""

    found: Found
    broken: str | None = None


@dataclass(frozen=True)
class Page:
    """A report as one HTML file, and as the document that it shows."""

    document: ReportDocument
    html: str


def report(query: Query, top: int | None = None) -> Answer[ReportDocument]:
    """Answer `grademl report`."""
    _check(top=top)
    about = read_subject(query)
    return Answer(_report(about, top), broken_off(about.telemetry))


def report_page(query: Query, top: int | None = None) -> Answer[Page]:
    """Answer `grademl report -f html`; of the path the page has `PAGE_SECTIONS` unless told otherwise."""
    _check(top=top)
    about = read_subject(query)
    return Answer(page_of(about, top), broken_off(about.telemetry))


def page_of(about: Subject, top: int | None = None) -> Page:
    """Return the page of `report_page` on what was read already."""
    from grademl_otel.analyzers.html.page import page  # here, for what no other answer needs

    document = _report(about, PAGE_SECTIONS if top is None else top)
    return Page(document, page(about, document))


def _report(about: Subject, top: int | None) -> ReportDocument:
    if about.run is None:
        found = report_of_traces(about.telemetry, about.paths(), top, about.clocks, about.query.inferred)
    else:
        found = report_of_run(about.telemetry, about.run, top, about.query.inferred)
    return found.about(about)


def critical_path(query: Query, by: str = "phase", top: int | None = None) -> Answer[CriticalPathDocument]:
    """Answer `grademl critical-path`."""
    _check(by, top)
    about = read_subject(query)
    if about.run is None:
        document = critical_path_of_traces(
            about.telemetry, about.paths(), by, top, about.clocks, query.inferred
        )
    else:
        document = critical_path_of_run(about.telemetry, about.run, by, top, query.inferred)
    return Answer(document, broken_off(about.telemetry))


def per_trace(query: Query, by: str = "phase", top: int | None = None) -> Answer[list[CriticalPathDocument]]:
    """Answer `grademl critical-path --per-trace`: one document for each trace, those of runs too."""
    _check(by, top)
    about = read_subject(query)
    paths = about.paths()
    documents = [
        critical_path_of_traces(about.telemetry, paths[at : at + 1], by, top, about.clocks, query.inferred)
        for at in range(len(paths))
    ]
    return Answer(documents, broken_off(about.telemetry))


def ranks(query: Query) -> Answer[RanksDocument]:
    """Answer `grademl ranks`; NothingFound when there are no ranks of a run to compare."""
    about = read_subject(query)
    if about.run is None:
        raise NothingFound(f"{about.telemetry.uri}: ranks are those of a run of ours, and there is none")
    if len(about.run.ranks) < 2:
        raise NothingFound(f"run {about.run.run_id} has one rank here: there is nothing to compare it with")
    return Answer(ranks_of_run(about.telemetry, about.run, query.inferred), broken_off(about.telemetry))


def resources(query: Query, question: Question | None = None) -> Answer[ResourcesDocument]:
    """Answer `grademl resources`; NothingFound where no resource was observed."""
    # Here, for what no other answer needs.
    from grademl_otel.analyzers.attribution.answer import find
    from grademl_otel.analyzers.reporting.of_resources import resources_document

    about = read_subject(query)
    return Answer(resources_document(about, find(about, question)), broken_off(about.telemetry))


def each_attempt(query: Query) -> list[Query]:
    """Return ``query`` once for each attempt of its run, the first one first, where it asks for all."""
    if not query.every_attempt:
        return [query]
    source, prefix = open_query(query), (query.run or "").lower()
    listed = [run for run in source.list().runs if run.run_id.lower().startswith(prefix)]
    if not listed:
        raise NothingFound(f"{source.uri}: --attempt all lists those of a run of ours, and none matches")
    latest = listed[0].run_id
    numbers = sorted({run.attempt for run in listed if run.run_id == latest})
    return [replace(query, run=latest, attempt=number, every_attempt=False) for number in numbers]


def runs(query: Query) -> Answer[RunsDocument]:
    """Answer `grademl runs`; NothingFound when the source holds neither a run nor another trace."""
    source = open_query(query)
    # A list is of all that is there, so that what the address of a search asks for is looked at here.
    listing, selection = source.list(), merged(selection_of(query), asked_in(address(query.source)))
    entries = [
        RunEntry.of(run)
        for run in listing.runs
        if (selection.service is None or run.service == selection.service)
        and (selection.start is None or run.end >= selection.start)
        and (selection.end is None or run.start <= selection.end)
    ]
    services = [name for name in listing.services if selection.service in (None, name)]
    if not entries and not services:
        raise NothingFound(f"{source.uri}: no run and no other trace in it matches")
    return Answer(RunsDocument(source=source.uri, runs=entries, services=services, warnings=listing.warnings))


def _check(by: str = "phase", top: int | None = None) -> None:
    """Raise UsageError for a key or a limit that does not exist."""
    if by not in BY:
        raise UsageError(f"by {by!r}: a path is added up by one of {', '.join(BY)}")
    if top is not None and top < 1:
        raise UsageError(f"top {top}: give a number above 0")
