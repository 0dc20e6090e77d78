# SPDX-License-Identifier: Apache-2.0
"""Narrows columns to a selection: by whole traces, and by whole runs where the spans are ours."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.model.columns import ORPHAN, SpanColumns, Telemetry
from grademl_otel.analyzers.sources.base import Selection

_MASK64 = 2**64 - 1
_PLAIN = (
    "trace_hi",
    "trace_lo",
    "span_id",
    "parent_id",
    "start",
    "end",
    "name_ix",
    "kind",
    "status",
    "flags",
    "resource_ix",
    "scope_ix",
)
"""Columns of which those of the spans are all that is taken."""


def selected(telemetry: Telemetry, selection: Selection) -> Telemetry:
    """Return what of a file or a copy ``selection`` asks for.

    Raises NothingFound when that is nothing, and UsageError when it is more than one run.
    """
    spans, where = narrow(telemetry.spans, selection), telemetry.uri
    if not len(spans):
        raise NothingFound(f"{where}: no span in it matches; see `grademl runs {where}`")
    if selection.run_id is not None and len(run_ids(spans)) > 1:
        raise ambiguous(where, selection.run_id)
    return replace(telemetry, spans=spans)


def ambiguous(where: str, prefix: str) -> UsageError:
    """Return the error of a run id of which too little was given."""
    return UsageError(f"{where}: several runs begin with {prefix}; give more of the id")


def narrow(spans: SpanColumns, selection: Selection) -> SpanColumns:
    """Return the spans of the groups that match ``selection``; a group is a run of ours or a foreign trace.

    ``run`` keeps foreign traces out; a trace id keeps only that trace, even of a run.
    """
    keep = np.ones(len(spans), np.bool_)
    if selection.trace_ids:
        keep &= _of_traces(spans, selection.trace_ids)
    if selection.run_id is not None:
        wanted = np.array([_is_run(r, selection.run_id) for r in spans.resources] or [False])
        keep &= wanted[spans.resource_ix]
    conditions = _conditions(spans, selection)
    if conditions and len(spans):
        group = _groups(spans)
        for match in conditions:
            hit = np.zeros(int(group.max()) + 1, np.bool_)
            hit[group[match]] = True
            keep &= hit[group]
    return spans if bool(keep.all()) else take(spans, np.flatnonzero(keep))


def _conditions(spans: SpanColumns, selection: Selection) -> list[npt.NDArray[np.bool_]]:
    """Return masks of spans, of each of which a group must hold one."""
    conditions = []
    if selection.service is not None or selection.operation is not None or selection.attributes:
        conditions.append(matches(spans, selection))
    if selection.start is not None:
        conditions.append(spans.possible & (spans.end >= selection.start))
    if selection.end is not None:
        conditions.append(spans.possible & (spans.start <= selection.end))
    return conditions


def take(spans: SpanColumns, kept: IntArray) -> SpanColumns:
    """Return the spans at ``kept`` (ascending); a span whose parent is left out becomes an orphan."""
    new_ix = np.full(len(spans) + 1, ORPHAN, np.int64)
    new_ix[kept] = np.arange(len(kept))
    parent = spans.parent_ix[kept]
    return replace(
        spans,
        **{name: getattr(spans, name)[kept] for name in _PLAIN},
        parent_ix=np.where(parent < 0, parent, new_ix[parent]),
        links=spans.links.take(kept, len(spans)),
        raw_attributes=spans.raw_attributes.take(kept),
        raw_events=spans.raw_events.take(kept),
    )


def _of_traces(spans: SpanColumns, trace_ids: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(spans), np.bool_)
    for trace in trace_ids:
        found |= (spans.trace_hi == np.uint64(trace >> 64)) & (spans.trace_lo == np.uint64(trace & _MASK64))
    return found


def _groups(spans: SpanColumns) -> IntArray:
    """Return for each span the number of its group: its run, or its trace where it is of no run."""
    runs: dict[tuple[str, str], int] = {}
    of_resource = np.full(len(spans.resources), -1, np.int64)
    for ix, attributes in enumerate(spans.resources):
        if semconv.RUN_ID in attributes:
            key = (str(attributes[semconv.RUN_ID]), str(attributes.get(semconv.ATTEMPT)))
            of_resource[ix] = runs.setdefault(key, len(runs))
    run = of_resource[spans.resource_ix]
    return np.where(run >= 0, run, len(runs) + spans.trace_ix)


def matches(spans: SpanColumns, selection: Selection) -> npt.NDArray[np.bool_]:
    """Mark the spans of the service, operation and attributes asked for."""
    match = np.ones(len(spans), np.bool_)
    if selection.service is not None:
        services = np.array([r.get("service.name") == selection.service for r in spans.resources] or [False])
        match &= services[spans.resource_ix]
    if selection.operation is not None:
        names = np.array([name == selection.operation for name in spans.names] or [False])
        match &= names[spans.name_ix]
    if selection.attributes:
        for ix in np.flatnonzero(match).tolist():
            own, shared = spans.attributes(ix), spans.resource(ix)
            match[ix] = all(
                any(key in some and _text(some[key]) == text for some in (own, shared))
                for key, text in selection.attributes
            )
    return match


def _text(value: object) -> str:
    """Return an attribute's value as it is typed on a command line, and as servers compare it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def run_ids(spans: SpanColumns) -> set[str]:
    """Return the ids of the runs of ours that ``spans`` are of."""
    used = {int(ix) for ix in np.unique(spans.resource_ix)}
    return {str(spans.resources[ix][semconv.RUN_ID]) for ix in used if semconv.RUN_ID in spans.resources[ix]}


def _is_run(attributes: dict[str, object], prefix: str) -> bool:
    return str(attributes.get(semconv.RUN_ID, "")).lower().startswith(prefix.lower())
