# SPDX-License-Identifier: Apache-2.0
"""Asynchronous devices in the event graph, where the step table says when they did a phase.

A phase of the host launches that of the device, which a stream does after what it was given before. A
``device.sync`` of the host ends when what was launched before it is done. A phase that ran several times in a
step has no place in time and is left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.activities import Activities
from grademl_otel.analyzers.graph.draft import Draft, numbers_of
from grademl_otel.analyzers.graph.event_graph import DEVICE, Edges
from grademl_otel.analyzers.graph.main_lane import NAMES
from grademl_otel.analyzers.graph.path import TRANSFER, WORK
from grademl_otel.analyzers.model.columns import IntArray
from grademl_otel.analyzers.model.facts import Run

_UNNAMED: Final = "device"
"""Lane of a device whose streams no span tells of."""
_TIE_NS: Final = 1_000_000
"""By how much a device may seem to begin before it was told to, or to end after it was waited for: its clock
is tied to that of the host only as well as it can be while the device is busy."""


def add_devices(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add what devices did; ``main`` are the numbers of the pieces of the main lanes."""
    steps = run.steps
    lanes = _lanes(run)
    none = np.zeros(0, np.int64)
    parts: list[tuple[IntArray, ...]] = [(none,) * 5]
    for phase in semconv.DEVICE_PHASES:
        column = semconv.DEVICE_PREFIX + phase
        if column not in steps.count or phase not in steps.count:
            continue
        rows = np.flatnonzero((steps.count[column] == 1) & (steps.count[phase] == 1))
        names = [lanes.get((rank, phase), _UNNAMED) for rank in run.ranks]
        lane = np.array([draft.lane(rank, name) for rank, name in zip(run.ranks, names, strict=True)])
        start, launch = steps.first[column][rows], steps.first[phase][rows]
        number = draft.add(
            lane[np.searchsorted(np.array(run.ranks, np.int64), steps.rank[rows])],
            start,
            start + steps.busy[column][rows],
            column,
            TRANSFER if phase == semconv.DATA_TRANSFER else WORK,
            step=steps.step[rows],
        )
        parts.append((number, steps.rank[rows], start, start + steps.busy[column][rows], launch))
    number, rank, start, end, launch = (np.concatenate(column) for column in zip(*parts, strict=True))
    told = launch <= start + _TIE_NS
    at = np.minimum(launch[told], start[told])
    source = numbers_of(found.main.at(rank[told], at, ended=False), main)
    draft.connect(Edges.of(DEVICE, source, at, number[told]))
    _connect_syncs(draft, found, main, number, rank, end, launch)


def _connect_syncs(
    draft: Draft,
    found: Activities,
    main: IntArray,
    number: IntArray,
    rank: IntArray,
    end: IntArray,
    launch: IntArray,
) -> None:
    """Let each ``device.sync`` wait for the last to end of what was launched before it began."""
    order = np.lexsort((end, launch, rank))
    syncs = np.flatnonzero(found.main.name == NAMES.index(semconv.DEVICE_SYNC))
    for one in np.unique(rank).tolist():
        low, high = np.searchsorted(rank[order], (one, one + 1))
        mine, pieces = order[low:high], syncs[found.main.rank[syncs] == one]
        # Of all that was launched so far, the place of the one that ended last.
        reached = np.maximum.accumulate(end[mine])
        last = np.maximum.accumulate(np.where(end[mine] == reached, np.arange(len(mine)), 0))
        place = np.searchsorted(launch[mine], found.main.start[pieces], side="left") - 1
        pieces, place = pieces[place >= 0], place[place >= 0]
        source = mine[last[place]]
        waited = end[source] <= found.main.end[pieces] + _TIE_NS
        source, pieces = source[waited], pieces[waited]
        at = np.minimum(end[source], found.main.end[pieces])
        draft.connect(Edges.of(DEVICE, number[source], at, main[pieces], to_end=True))


def _lanes(run: Run) -> dict[tuple[int, str], str]:
    """Return (rank, phase) -> the lane of its stream, as the first span of each says."""
    spans = run.spans
    found: dict[tuple[int, str], str] = {}
    for phase in semconv.DEVICE_PHASES:
        name = semconv.DEVICE_PREFIX + phase
        if name not in spans.names:
            continue
        ixs = run.span_ixs[spans.name_ix[run.span_ixs] == spans.names.index(name)]
        ixs = ixs[np.argsort(spans.start[ixs], kind="stable")]
        resources, first = np.unique(spans.resource_ix[ixs], return_index=True)
        for ix in ixs[first[np.argsort(resources)]].tolist():
            rank, lane = spans.resource(ix).get(semconv.RANK), spans.attributes(ix).get(semconv.LANE)
            if isinstance(rank, int) and isinstance(lane, str):
                found.setdefault((rank, phase), lane)
    return found
