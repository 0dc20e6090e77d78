# SPDX-License-Identifier: Apache-2.0
"""The commands as functions: the same options, the same answers, the same errors (`GrademlError`).

Every function takes a source as the command line does (None: ``$GRADEML_SOURCE``, then ``./grademl-runs``)
and, by name, the options of `Query`: ``run``, ``attempt``, ``traces``, ``service``, ``operation``, ``since``
(ns), ``start`` and ``end`` (Unix ns), ``ranks``, ``fit``, ``steps`` (a `StepRange`), ``clocks`` (a
`ClockRule`), ``tolerance``, ``inferred`` (False: only what was observed), ``headers``,
``timeout`` (s), ``max_spans``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from grademl_otel.analyzers import answers
from grademl_otel.analyzers.answers import Answer, Found
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import (
    CriticalPathDocument,
    RanksDocument,
    ReportDocument,
    RunsDocument,
)
from grademl_otel.analyzers.subject import broken_off, read_subject

if TYPE_CHECKING:
    import networkx as nx

    from grademl_otel.analyzers.comparison.document import CheckDocument, DiffDocument
    from grademl_otel.analyzers.copy.pull import Pulled
    from grademl_otel.analyzers.copy.push import Pushed
    from grademl_otel.analyzers.execution import ExecutionModel
    from grademl_otel.analyzers.exports.export import Exported
    from grademl_otel.analyzers.reporting.doctor_document import DoctorDocument
    from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument
    from grademl_otel.analyzers.sql.database import Database
    from grademl_otel.analyzers.sql.result import QueryResult

Address = str | PathLike[str] | None
Done = TypeVar("Done", "Pulled", "Pushed")


def report(source: Address = None, *, top: int | None = None, **options: Any) -> ReportDocument:
    """Return verdict, lane budget, steady step, findings, critical path (its ``top`` longest sections)."""
    return _whole(answers.report(_query(source, options), top))


def critical_path(
    source: Address = None, *, by: str = "phase", top: int | None = None, **options: Any
) -> CriticalPathDocument:
    """Return the critical path of the run, of the one trace, or of many traces together.

    ``by`` is the key of the summary: phase, rank, lane, operation or section.
    """
    return _whole(answers.critical_path(_query(source, options), by, top))


def runs(source: Address = None, **options: Any) -> RunsDocument:
    """Return the runs and attempts that the source holds, the latest first."""
    return _whole(answers.runs(_query(source, options)))


def ranks(source: Address = None, **options: Any) -> RanksDocument:
    """Return the ranks of a run side by side: who waits for whom, for how long, and for what."""
    return _whole(answers.ranks(_query(source, options)))


def resources(
    source: Address = None,
    *,
    by: str = "type",
    phase: str | None = None,
    metric: str | None = None,
    depth: int | None = None,
    rules: str | PathLike[str] | None = None,
    metrics: Sequence[str | PathLike[str]] = (),
    prometheus: Sequence[str] = (),
    prometheus_headers: Mapping[str, str] | None = None,
    csv: Sequence[str | PathLike[str]] = (),
    **options: Any,
) -> ResourcesDocument:
    """Return what used which resources, and what was full, added up ``by`` type of phases, phase or rank.

    ``phase`` and ``metric`` are patterns that select, ``depth`` how many levels below are told apart;
    ``rules`` is a file; ``metrics``, ``prometheus`` and ``csv`` name what monitors know beside the source.
    """
    from grademl_otel.analyzers.attribution.question import Question

    question = Question(
        by,
        phase,
        metric,
        depth,
        rules,
        tuple(metrics),
        tuple(prometheus),
        tuple(csv),
        prometheus_headers or {},
    )
    return _whole(answers.resources(_query(source, options), question))


def doctor(source: Address = None, **options: Any) -> DoctorDocument:
    """Return what can be said of a source: how it is read, what is recorded in it, what is not, and why.

    Without a source the local runs, and whether recording works here. What is wrong is in ``problems``.
    """
    from grademl_otel.analyzers.examination.examine import examine

    return examine(_query(source, options))


def pull(source: Address, folder: str | PathLike[str], *, refresh: bool = False, **options: Any) -> Pulled:
    """Copy what the options select into ``folder``, or what is missing there; with ``refresh`` all anew.

    Of a part that failed ``error`` tells; the same call again goes on from there.
    """
    from grademl_otel.analyzers.copying import pulled

    return _told(pulled(_query(source, options), Path(folder), refresh))


def push(
    source: Address,
    endpoint: str,
    *,
    headers: Mapping[str, str] | None = None,
    verify: str | None = None,
    look: bool = True,
    **options: Any,
) -> Pushed:
    """Send all spans to an OTLP receiver, with ``headers``, and look whether they arrived.

    Where to look is ``verify``, or a Jaeger on the same host; not at all without ``look``. Of a part that
    failed ``error`` tells.
    """
    from grademl_otel.analyzers.copying import pushed

    return _told(pushed(_query(source, options), endpoint, headers or {}, verify, look))


def diff(
    a: Address = None,
    b: Address = None,
    *,
    by: str = "phase",
    fail_on: Sequence[str] = (),
    threshold: float = 0.01,
    options_a: Mapping[str, Any] | None = None,
    options_b: Mapping[str, Any] | None = None,
    **options: Any,
) -> DiffDocument:
    """Return ``b`` beside ``a``: sources, or ``SOURCE#RUN``; ``options_a`` and ``options_b`` are of one side.

    With one source and no choice of its sides, ``b`` is the latest run in it and ``a`` the one before.
    ``by`` is phase or type; ``fail_on`` are limits as ``step_time>5%``, whose results are in the answer;
    differences below ``threshold`` of the step do not matter.
    """
    from grademl_otel.analyzers.comparison import ask

    sources = [None if source is None else fspath(source) for source in (a, a if b is None else b)]
    first, second = (
        ask.query_of(source, **{**options, **(own or {})})
        for source, own in zip(sources, (options_a, options_b), strict=True)
    )
    if b is None and first == second:
        first, second = ask.latest_two(first)
    return _whole(ask.diff(first, second, by=by, fail_on=fail_on, threshold=threshold))


def check(source: Address = None, expressions: Sequence[str] = (), **options: Any) -> CheckDocument:
    """Return of each of ``expressions``, as ``data.wait<10%``, whether it holds of ``source``."""
    from grademl_otel.analyzers.comparison import ask

    return _whole(ask.check(_query(source, options), expressions))


def query(source: Address, sql: str, *, external: bool = False, **options: Any) -> QueryResult:
    """Return the rows that ``sql`` selects of the source's tables, see docs/query.md.

    ``external`` lets SQL reach files and the network. For several queries, read the source once: `database`.
    """
    with database(source, external=external, **options) as session:
        return session.query(sql)


def database(source: Address = None, *, external: bool = False, **options: Any) -> Database:
    """Return a session of SQL over the source, which is read once: ``session.query(sql)``; close it."""
    from grademl_otel.analyzers.sql.database import Database

    about = read_subject(_query(source, options))
    if (broken := broken_off(about.telemetry)) is not None:
        warnings.warn(broken, stacklevel=2)
    return Database(about, external)


def export(
    source: Address,
    to: str,
    output: str | PathLike[str],
    *,
    graph: str | None = None,
    of: str | None = None,
    table: str | None = None,
    **options: Any,
) -> Exported:
    """Write what was read into ``output`` in a form that other tools take; return what was written.

    ``to`` is perfetto, folded, graphml, parquet or otlp (docs/exports.md); ``graph``, ``of`` and ``table``
    choose as the options of these names do.
    """
    from grademl_otel.analyzers.exports.export import Export

    chosen = {"graph": graph, "of": of, "table": table}
    done = Export(_query(source, options), to, chosen).into(fspath(output))
    if done.broken is not None:
        warnings.warn(done.broken, stacklevel=2)
    return done


def dependency_graph(source: Address = None, **options: Any) -> nx.DiGraph:
    """Return the dependency graph as networkx: of a run or profile its activities, else the path."""
    from grademl_otel.analyzers.exports import graphs  # here, for what most answers do without

    return graphs.dependency_graph(_query(source, options))


def execution_model(
    source: Address = None, *, types: Sequence[str] = (), tags: Sequence[str] = (), **options: Any
) -> ExecutionModel:
    """Return the execution model: all that was read as one tree of typed phases.

    ``types`` and ``tags`` name attributes of spans of others that tell types, and instances of one type,
    apart; the service and the name of a span do in any case.
    """
    from grademl_otel.analyzers.execution import SpanIdentity
    from grademl_otel.analyzers.modelled import model_of

    return model_of(read_subject(_query(source, options)), SpanIdentity(tuple(types), tuple(tags)))


def _whole(answer: Answer[Found]) -> Found:
    """Return what was found; with a warning when the source broke off midway."""
    if answer.broken is not None:
        warnings.warn(answer.broken, stacklevel=3)
    return answer.found


def _told(done: Done) -> Done:
    """Return what was done; with a warning when it is not all."""
    if done.error is not None:
        warnings.warn(str(done.error), stacklevel=3)
    return done


def _query(source: Address, options: dict[str, Any]) -> Query:
    return Query.of(None if source is None else fspath(source), **options)
