# SPDX-License-Identifier: Apache-2.0
"""What else ran beside the main lanes of a run: background checkpoints, and spans that others wait for.

A checkpoint that is written while the training goes on begins when its blocking part is over. Where it ends
after the last step, the program is taken to have waited for it. A span that another of the run names in a
link of kind ``blocking`` ended that other one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.draft import Draft, numbers_of
from grademl_otel.analyzers.graph.event_graph import CHILD, LINK, Edges
from grademl_otel.analyzers.graph.path import INFERRED, OBSERVED, WORK
from grademl_otel.analyzers.graph.runs.activities import Activities
from grademl_otel.analyzers.graph.runs.main_lane import WORK_SCOPES
from grademl_otel.analyzers.graph.trees.span_tree import linked_spans
from grademl_otel.analyzers.model.columns import BLOCKING
from grademl_otel.analyzers.model.facts import Run

_BACKGROUND: Final = "background"
_BLOCKING: Final = "blocking"


def add_sides(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add these lanes and edges; ``main`` are the numbers of the pieces of the main lanes."""
    _add_checkpoints(draft, run, found, main)
    _add_linked(draft, run, found, main)


def _add_checkpoints(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    blocked: dict[tuple[int, int], int] = {}
    background: list[tuple[int, int, dict[str, Any]]] = []
    for ix in _named(run, WORK_SCOPES).tolist():
        said, rank = run.spans.attributes(ix), run.spans.resource(ix).get(semconv.RANK)
        part, number = said.get(semconv.CHECKPOINT_PART), said.get(semconv.CHECKPOINT_NUMBER)
        if rank not in run.ranks:
            continue
        if part == _BACKGROUND:
            background.append((ix, int(rank), said))
        elif part == _BLOCKING and isinstance(number, int):
            blocked[int(rank), number] = int(run.spans.end[ix])
    for ix, rank, said in background:
        start, end = int(run.spans.start[ix]), int(run.spans.end[ix])
        after = blocked.get((rank, said.get(semconv.CHECKPOINT_NUMBER, -1)))
        at = start if after is None else min(after, start)
        one = _add_span(draft, run, ix, rank, str(said.get(semconv.LANE, "checkpoint")))
        evidence = INFERRED if after is None else OBSERVED
        draft.connect(Edges.of(CHILD, _piece(found, main, rank, at), _one(at), one, evidence=evidence))
        ended = main[np.flatnonzero((found.main.span_ix == ix) & (found.main.end == end))]
        source, moment = np.repeat(one, len(ended)), np.full(len(ended), end)
        draft.connect(Edges.of(CHILD, source, moment, ended, to_end=True, evidence=INFERRED))


def _add_linked(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add the spans that others wait for, as far as they are not activities, and what these end."""
    known = _last_pieces(found.main.span_ix, main)
    mine = set(run.span_ixs.tolist()) if (links := linked_spans(run.spans, BLOCKING)) else set()
    for target, sources in sorted(links.items()):
        if target not in known or target not in mine:
            continue
        for ix in sources:
            rank = run.spans.resource(ix).get(semconv.RANK)
            if ix not in mine or rank not in run.ranks:
                continue
            end = int(run.spans.end[ix])
            if ix not in known:
                lane = str(run.spans.attributes(ix).get(semconv.LANE, run.spans.name(ix)))
                one = _add_span(draft, run, ix, rank, lane)
                start = int(run.spans.start[ix])
                began = _piece(found, main, rank, start)
                draft.connect(Edges.of(CHILD, began, _one(start), one, evidence=INFERRED))
                known[ix] = int(one[0])
            draft.connect(Edges.of(LINK, _one(known[ix]), _one(end), _one(known[target]), to_end=True))


def _add_span(draft: Draft, run: Run, ix: int, rank: int, lane: str) -> IntArray:
    start, end = _one(int(run.spans.start[ix])), _one(int(run.spans.end[ix]))
    step = run.spans.attributes(ix).get(semconv.STEP_NUMBER)
    return draft.add(
        _one(draft.lane(rank, lane)), start, end, run.spans.name(ix), WORK,
        step=step if isinstance(step, int) else -1, span_ix=ix,
    )  # fmt: skip


def _named(run: Run, names: tuple[str, ...]) -> IntArray:
    """Return the spans of the run with one of ``names``, in order of time."""
    wanted = [ix for ix, name in enumerate(run.spans.names) if name in names]
    ixs = run.span_ixs[np.isin(run.spans.name_ix[run.span_ixs], wanted) & run.spans.possible[run.span_ixs]]
    return ixs[np.lexsort((run.spans.end[ixs], run.spans.start[ixs]))]


def _last_pieces(span_ix: IntArray, number: IntArray) -> dict[int, int]:
    """Return the last piece of each span in a main lane; pieces are in order of time."""
    from_span = np.flatnonzero(span_ix >= 0)
    return dict(zip(span_ix[from_span].tolist(), number[from_span].tolist(), strict=True))


def _piece(found: Activities, main: IntArray, rank: int, moment: int) -> IntArray:
    return numbers_of(found.main.at(_one(rank), _one(moment)), main)


def _one(value: int) -> IntArray:
    return np.array([value], np.int64)
