# SPDX-License-Identifier: Apache-2.0
"""All that is put onto tracks: what a run recorded, and others in its traces; or what others recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.of_table import add_table
from grademl_otel.analyzers.exports.perfetto.slices import Draft, Slices
from grademl_otel.analyzers.exports.perfetto.spans import (
    SpanNotes,
    add_spans_of_others,
    add_spans_of_run,
    process_of_rank,
)
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.material import material


@dataclass(frozen=True)
class Found:
    """Slices, and which of them each span became."""

    slices: Slices
    spans: SpanColumns
    slice_of_span: IntArray
    """-1 for a span that is none of them."""
    process_of_rank: dict[int, int]
    """Of a run."""
    from_table: int
    """How many slices have no span."""
    impossible: int
    """Spans without possible times, which are on no track."""


def found_in(about: Subject) -> Found:
    """Return what ``about`` puts onto tracks. Raises NothingFound where no trace matches."""
    return _of_traces(about) if about.run is None else _of_run(about, about.run)


def _of_run(about: Subject, run: Run) -> Found:
    spans = run.spans
    owners = [identity(resource) for resource in spans.resources]
    ranks = np.array([-1 if one is None else one.rank for one in owners] or [-1], np.int64)
    every = np.sort(run.span_ixs)
    every = every[np.isin(ranks[spans.resource_ix[every]], run.ranks)]
    others = _others_in_traces(spans, every, ranks)
    if about.is_part:
        others = others[(spans.end[others] > run.start) & (spans.start[others] < run.end)]
    own, theirs = every[_placed(spans, every)], others[_placed(spans, others)]
    draft, notes = Draft(), SpanNotes(spans)
    slice_of_span = np.full(len(spans), -1, np.int64)
    slice_of_span[own] = add_spans_of_run(draft, spans, own, notes)
    processes = {
        rank: process_of_rank(
            draft, _resource_of(run, spans, own[ranks[spans.resource_ix[own]] == rank], rank)
        )
        for rank in run.ranks
    }
    from_table = add_table(draft, run, processes, own)
    slice_of_span[theirs] = add_spans_of_others(draft, material(about).spans, theirs, notes)
    impossible = len(every) + len(others) - len(own) - len(theirs)
    return Found(draft.finish(), spans, slice_of_span, processes, from_table, impossible)


def _of_traces(about: Subject) -> Found:
    spans, paths = about.telemetry.spans, about.paths()
    wanted = np.zeros(len(spans), np.bool_)  # by number of trace
    wanted[spans.trace_ix[paths.roots]] = True
    every = np.flatnonzero(wanted[spans.trace_ix])
    chosen = every[_placed(spans, every)]
    draft = Draft()
    slice_of_span = np.full(len(spans), -1, np.int64)
    slice_of_span[chosen] = add_spans_of_others(draft, spans, chosen, SpanNotes(spans))
    return Found(draft.finish(), spans, slice_of_span, {}, 0, len(every) - len(chosen))


def _others_in_traces(spans: SpanColumns, own: IntArray, ranks: IntArray) -> IntArray:
    """Return the spans of no run of ours in traces that have spans of it."""
    wanted = np.zeros(len(spans), np.bool_)  # by number of trace
    wanted[spans.trace_ix[own]] = True
    others: IntArray = np.flatnonzero(wanted[spans.trace_ix] & (ranks[spans.resource_ix] < 0))
    return others


def _placed(spans: SpanColumns, ixs: IntArray) -> npt.NDArray[np.bool_]:
    """Return which of the spans have a place in time that the format has, too."""
    placed: npt.NDArray[np.bool_] = spans.possible[ixs] & (spans.start[ixs] >= 0)
    return placed


def _resource_of(run: Run, spans: SpanColumns, own: IntArray, rank: int) -> dict[str, Any]:
    """Return a resource of ``rank``: that of its run span, else of any of its ``own`` spans."""
    ix = run.run_spans.get(rank, int(own[0]) if len(own) else -1)
    return spans.resource(ix) if ix >= 0 else {sc.RUN_ID: run.run_id, sc.RANK: rank}
