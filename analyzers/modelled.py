# SPDX-License-Identifier: Apache-2.0
"""All that was read for a query, as runs and as one execution model: made once, for all that show it."""

from __future__ import annotations

from dataclasses import replace

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.execution.of_traces import SpanIdentity
from grademl_otel.analyzers.execution.whole import ExecutionModel, execution_model
from grademl_otel.analyzers.model.clocks import clocks_of_traces
from grademl_otel.analyzers.model.run import Run, build_runs
from grademl_otel.analyzers.subject import BUILT, Subject


def runs_of(about: Subject) -> list[Run]:
    """Return every attempt of every run that was read, by start; of a part of a run that part alone."""
    if about.run is None:
        return []
    if about.is_part:
        return [about.run]
    found: list[Run] | None = about.made.get("runs")
    if found is None:
        found = about.made["runs"] = build_runs(about.telemetry, about.query.clocks, about.made.get(BUILT))
    return found


def model_of(about: Subject, identity: SpanIdentity | None = None) -> ExecutionModel:
    """Return the execution model of ``about``; NothingFound when there is nothing in it.

    Without a choice of ranks, steps or a fit it is of all that was read: every attempt of every run, and
    all traces of others. The same object for the same ``identity``.
    """
    models: dict[SpanIdentity, ExecutionModel] = about.made.setdefault("models", {})
    key = identity or SpanIdentity()
    if key not in models:
        models[key] = _model(about, key)
    return models[key]


def _model(about: Subject, identity: SpanIdentity) -> ExecutionModel:
    query, telemetry = about.query, about.telemetry
    spans, runs = telemetry.spans, runs_of(about)
    if about.is_part:
        found = execution_model(runs[0].spans, runs, identity, others=False)
    elif runs:
        corrected = clocks_of_traces(spans, query.clocks).correct(spans)
        found = execution_model(corrected, runs, identity)
    else:
        found = execution_model(spans, [], identity)
    if len(found) < 2:
        raise NothingFound(f"{telemetry.uri}: no phase in it matches the selection")
    told = about.completeness
    found = replace(found, verdict=told.verdict, incomplete_because=told.reasons)
    return found if query.inferred else found.observed()
