# SPDX-License-Identifier: Apache-2.0
"""The critical path of a run: what the end of the run waited for, back to its start.

The walk (see `walk`) goes backwards from the main lane that ended last, through the event graph of the run
(see `run_graph`): into the worker that made a batch that was waited for, to the rank that came last to a
collective, into what a device did. The sections tile the run's wall time exactly.
"""

from __future__ import annotations

import weakref

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.path import GAP, EnteredBy, Path, Section, Sections
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.main_lane import UNTRACED, last_rank
from grademl_otel.analyzers.graph.runs.run_graph import MAIN, run_graph
from grademl_otel.analyzers.graph.walk import walk
from grademl_otel.analyzers.model.facts import Run

_latest: tuple[weakref.ref[Run], bool, Path] | None = None


def run_path(run: Run, inferred: bool = True) -> Path:
    """Return the critical path over ``[run.start, run.end)``, from the main lane that ended last.

    Without ``inferred`` edges that nobody observed are not followed. The latest is kept, as several parts of
    an answer ask in a row.
    """
    global _latest
    latest = _latest  # one read: another thread may replace it
    if latest is not None and latest[0]() is run and latest[1] == inferred:
        return latest[2]
    if run.ranks:
        found = _path(run, last_rank(run), run.start, run.end, inferred)
    else:
        found = _without_lanes(run.start, run.end)
    _latest = (weakref.ref(run), inferred, found)
    return found


def step_path(run: Run, rank: int, step: int, inferred: bool = True) -> Path:
    """Return the critical path of training step ``step`` of ``rank``, over that row of the step table.

    Raises LookupError, with the steps there are, when it was not recorded.
    """
    steps = run.steps
    not_training = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
    of_rank = (steps.rank == rank) & ((steps.flags & not_training) == 0)
    rows = np.flatnonzero(of_rank & (steps.step == step))
    if not len(rows):
        known = steps.step[of_rank]
        there = f"{known.min()} to {known.max()}" if len(known) else "none"
        raise LookupError(f"no training step {step} of rank {rank}; recorded: {there}")
    main = activities(run).main
    pieces = np.flatnonzero(main.row == rows[0])
    if not len(pieces):
        return Path(int(steps.start[rows[0]]), int(steps.start[rows[0]]), Sections.of([]))
    return _path(run, rank, int(main.start[pieces[0]]), int(main.end[pieces[-1]]), inferred)


def _path(run: Run, rank: int, low: int, high: int, inferred: bool) -> Path:
    graph = run_graph(run, inferred)
    return walk(graph, list(graph.lanes).index((rank, MAIN)), low, high)


def _without_lanes(start: int, end: int) -> Path:
    gap = Section(start, end, UNTRACED, GAP, None, MAIN, None, None, None, EnteredBy("program"))
    return Path(start, end, Sections.of([gap] if end > start else []))
