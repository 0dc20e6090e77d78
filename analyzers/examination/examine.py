# SPDX-License-Identifier: Apache-2.0
"""From a query to the answer of `grademl doctor`: the source is probed, then what is asked for is read."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import numpy as np

from grademl_otel.analyzers.errors import GrademlError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.examination.here import BAD, checks
from grademl_otel.analyzers.examination.recorded import signals
from grademl_otel.analyzers.examination.trial import record
from grademl_otel.analyzers.model.columns import SpanColumns, Telemetry
from grademl_otel.analyzers.model.facts import Completeness
from grademl_otel.analyzers.model.foreign import judge_foreign
from grademl_otel.analyzers.model.run import Run, build_run, foreign_services, list_runs
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.doctor_document import (
    SERVERS,
    DoctorDocument,
    NameCount,
    RunLook,
    ServerClock,
    SourceLook,
    SpansLook,
)
from grademl_otel.analyzers.reporting.document import RunEntry
from grademl_otel.analyzers.sources import Source
from grademl_otel.analyzers.sources.base import Probe
from grademl_otel.analyzers.sources.registry import SOURCE_VARIABLE
from grademl_otel.analyzers.subject import open_query, selection_of

_NAMES: Final = 20


def examine(query: Query) -> DoctorDocument:
    """Return what can be said of the source; raises UsageError alone: all else is in the document."""
    here = None
    if query.source is None and not os.environ.get(SOURCE_VARIABLE):
        looked = checks(os.environ)
        able = not any(check.state == BAD for check in looked)
        here = [*looked, record(os.environ)] if able else looked
    wrong = [f"{c.what}: {c.detail}; {c.how_to_fix}" for c in here or () if c.state == BAD]
    try:
        source = open_query(query)
    except UsageError:
        raise
    except GrademlError as error:
        nothing = isinstance(error, NothingFound)
        return DoctorDocument(
            source=None,
            here=here,
            notes=[str(error)] if nothing else [],
            problems=wrong if nothing else [*wrong, str(error)],
        )
    probe = source.probe()
    notes, problems = list(probe.notes), [*wrong, *probe.problems]
    telemetry = None
    if not probe.problems or probe.kind not in SERVERS:  # of files some may be readable
        try:
            telemetry = source.read(selection_of(query))
        except NothingFound as nothing_found:
            notes.append(str(nothing_found))
        except SourceError as error:
            problems.append(str(error))
    if telemetry is not None:
        notes += telemetry.ledger.warnings
        if telemetry.ledger.broken:
            problems.append(f"{telemetry.uri}: {telemetry.ledger.broken}")
    found = _document(source, probe, query, telemetry)
    return replace(found, here=here, notes=notes, problems=problems)


def error_of(document: DoctorDocument) -> GrademlError | None:
    """Return what the answer is followed by on stderr: the first problem, or that nothing is there."""
    if document.problems:
        more = f" (and {len(document.problems) - 1} more, above)" if len(document.problems) > 1 else ""
        return SourceError(document.problems[0] + more)
    if document.empty:
        where = "no SOURCE" if document.source is None else document.source.uri
        said = document.notes[-1:] if document.notes else [f"{where}: nothing in it to analyze"]
        return NothingFound(said[0])
    return None


def _document(source: Source, probe: Probe, query: Query, telemetry: Telemetry | None) -> DoctorDocument:
    run = None if telemetry is None else build_run(telemetry, attempt=query.attempt)
    judged = None if telemetry is None else _judged(telemetry, run)
    runs = list(probe.runs)
    services = list(probe.services)
    if telemetry is not None:
        runs = runs or list_runs(telemetry)
        services = services or foreign_services(telemetry)
    ours = {one.service for one in runs}
    return DoctorDocument(
        source=_look(source, probe),
        services=[name for name in services if name not in ours],
        runs=[RunEntry.of(one) for one in runs],
        spans=None if telemetry is None else _spans(telemetry.spans),
        run=None if run is None else _run(run),
        verdict=None if judged is None else judged.verdict,
        incomplete_because=[] if judged is None else judged.reasons,
    )


def _judged(telemetry: Telemetry, run: Run | None) -> Completeness:
    return judge_foreign(telemetry) if run is None else run.completeness


def _look(source: Source, probe: Probe) -> SourceLook:
    clock = None
    if probe.clock_offset_ns is not None and probe.clock_error_ns is not None:
        clock = ServerClock(probe.clock_offset_ns, probe.clock_error_ns)
    return SourceLook(source.uri, probe.kind, probe.api, probe.version, dict(probe.limits), clock)


def _run(run: Run) -> RunLook:
    ended = {one.how for one in run.completeness.ended}
    how = next((one for one in ("killed", "exception", "unknown", "exit") if one in ended), "unknown")
    info = completeness_info(run.completeness, run.clocks, ours=True)
    return RunLook(run.run_id, run.attempt, how, signals(run), info.clocks)


def _spans(spans: SpanColumns) -> SpansLook:
    counts = np.bincount(spans.name_ix, minlength=len(spans.names)) if len(spans) else np.zeros(0, np.int64)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    possible = spans.possible
    traces = np.unique(np.stack((spans.trace_hi, spans.trace_lo), axis=1), axis=0)
    return SpansLook(
        count=len(spans),
        traces=len(traces),
        first_unix_ns=str(int(spans.start[possible].min())) if possible.any() else None,
        last_unix_ns=str(int(spans.end[possible].max())) if possible.any() else None,
        names=[NameCount(spans.names[ix], int(counts[ix])) for ix in order[:_NAMES].tolist()],
        more_names=max(0, len(order) - _NAMES),
    )
