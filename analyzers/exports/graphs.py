# SPDX-License-Identifier: Apache-2.0
"""Graphs of all kinds, as networkx and as GraphML."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Final

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution.drawn import phases_networkx, types_networkx
from grademl_otel.analyzers.exports.forms import DEPENDENCIES, PATH, PHASES, TYPES, Counts
from grademl_otel.analyzers.graph import Path, event_networkx, path_networkx, run_graph, run_path
from grademl_otel.analyzers.graph.drawn import TooLarge, graphml
from grademl_otel.analyzers.graph.profiles.profile_path import graph_of_path
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.modelled import model_of
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import Subject, read_subject

if TYPE_CHECKING:
    import networkx as nx


def dependency_graph(query: Query) -> nx.DiGraph:
    """Return the event graph of the run or profile, or the path of another trace, as networkx."""
    about = read_subject(query)
    return _drawn(about, DEPENDENCIES)


def write(about: Subject, file: IO[bytes], graph: str = DEPENDENCIES) -> Counts:
    """Write one of `GRAPHS` as GraphML. Raises UsageError where it is too large to draw."""
    drawn = _drawn(about, graph)
    file.write(f"{graphml(drawn)}\n".encode())
    return {"nodes": drawn.number_of_nodes(), "edges": drawn.number_of_edges()}


def _drawn(about: Subject, graph: str) -> nx.DiGraph:
    try:
        return _DRAWN[graph](about)
    except TooLarge as refusal:
        raise UsageError(f"{about.telemetry.uri}: {refusal}") from None


def _dependencies(about: Subject) -> nx.DiGraph:
    run = about.run
    if run is None:
        spans, (root, path) = about.telemetry.spans, _only_path(about)
        of_profile = graph_of_path(spans, root, path, about.query.inferred)
        if of_profile is None:
            return _with_ids(path_networkx(path), spans)
        return _with_ids(event_networkx(of_profile, start=path.start, end=path.end), spans)
    graph = run_graph(run, about.query.inferred)
    drawn = event_networkx(graph, run=run.run_id, attempt=run.attempt, start=run.start, end=run.end)
    return _with_ids(drawn, run.spans)


def _path(about: Subject) -> nx.DiGraph:
    if about.run is None:
        return _with_ids(path_networkx(_only_path(about)[1]), about.telemetry.spans)
    return _with_ids(path_networkx(run_path(about.run, about.query.inferred)), about.run.spans)


def _phases(about: Subject) -> nx.DiGraph:
    model, spans = model_of(about), about.telemetry.spans
    return _with_ids(phases_networkx(model), spans)


def _types(about: Subject) -> nx.DiGraph:
    return types_networkx(model_of(about))


def _with_ids(drawn: nx.DiGraph, spans: SpanColumns) -> nx.DiGraph:
    """Return ``drawn`` with what finds a span elsewhere in place of its index: ids, and the service."""
    for _, known in drawn.nodes(data=True):
        if (ix := known.pop("span", None)) is None:
            continue
        known["trace_id"], known["span_id"] = spans.trace_id_hex(ix), spans.span_id_hex(ix)
        if service := spans.service(ix):
            known["service"] = service
    return drawn


def _only_path(about: Subject) -> tuple[int, Path]:
    """Return (root, critical path) of the one trace that matches."""
    paths = about.paths()
    if len(paths) > 1:
        raise UsageError(f"{about.telemetry.uri}: {len(paths):,} traces match; select one with --trace")
    return paths[0]


_DRAWN: Final[dict[str, Callable[[Subject], nx.DiGraph]]] = {
    DEPENDENCIES: _dependencies,
    PATH: _path,
    PHASES: _phases,
    TYPES: _types,
}
