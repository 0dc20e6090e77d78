# SPDX-License-Identifier: Apache-2.0
"""Asynchronous devices in the event graph, where their times of the phases of steps were recorded.

A phase of the host launches that of the device, which a stream does after what it was given before. A
``device.sync`` of the host ends when the last to end of what was launched before it is done. Steps with
detail have a span for each; of the others the table tells of a phase that ran once. One that ran several
times has no place in time there and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.draft import Draft, numbers_of
from grademl_otel.analyzers.graph.event_graph import DEVICE, Edges
from grademl_otel.analyzers.graph.path import KINDS, TRANSFER, WORK
from grademl_otel.analyzers.graph.runs.activities import Activities
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.graph.trees.span_tree import linked_spans
from grademl_otel.analyzers.model.facts import Run

_NAMES: Final = tuple(semconv.DEVICE_PREFIX + phase for phase in semconv.DEVICE_PHASES)
_UNNAMED: Final = "device"
"""Lane of a device of whose streams no span tells."""
_HOST: Final = "host"
"""Kind of the link to the phase of the host that gave a device its work."""
_TIE_NS: Final = 1_000_000
"""By how much a device may seem to begin before it was told to, or to end after it was waited for: its clock
is tied to that of the host only as well as it can be while the device is busy."""


def add_devices(draft: Draft, run: Run, found: Activities, main: IntArray) -> None:
    """Add what devices did; ``main`` are the numbers of the pieces of the main lanes."""
    streams: dict[tuple[int, int], str] = {}
    detail = _from_spans(run, streams)
    done = _Done.join(detail, _from_table(run, np.unique(_rows(run, detail))))
    if not len(done.start):
        return
    kinds = np.array(
        [KINDS.index(TRANSFER if name == semconv.DATA_TRANSFER else WORK) for name in semconv.DEVICE_PHASES]
    )
    number = draft.add(
        _lanes(draft, run, done, streams),
        done.start,
        done.end,
        np.array([draft.phase(name) for name in _NAMES])[done.phase],
        kinds[done.phase],
        step=done.step,
        span_ix=done.span_ix,
    )
    told = np.flatnonzero((done.launch >= 0) & (done.launch <= done.start + _TIE_NS))
    at = np.minimum(done.launch, done.start)[told]
    source = numbers_of(found.main.at(done.rank[told], at, ended=False), main)
    draft.connect(Edges.of(DEVICE, source, at, number[told]))
    _connect_syncs(draft, found, main, done, number)


@dataclass(frozen=True)
class _Done:
    """Phases that a device did, as parallel arrays; times in Unix ns."""

    rank: IntArray
    phase: IntArray
    """Index into `DEVICE_PHASES`."""
    start: IntArray
    end: IntArray
    launch: IntArray
    """Start of the phase of the host; -1 where that is not known."""
    step: IntArray
    stream: IntArray
    """Number of the stream where the span tells; -1 where only the table does."""
    span_ix: IntArray

    @classmethod
    def join(cls, *parts: _Done) -> _Done:
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def _from_spans(run: Run, streams: dict[tuple[int, int], str]) -> _Done:
    """Return what spans tell of; ``streams`` gets (rank, number) -> lane."""
    spans = run.spans
    phases = {name: at for at, name in enumerate(_NAMES)}
    wanted = [ix for ix, name in enumerate(spans.names) if name in phases]
    ixs = run.span_ixs[np.isin(spans.name_ix[run.span_ixs], wanted) & spans.possible[run.span_ixs]]
    hosts = linked_spans(spans, _HOST) if len(ixs) else {}
    numbers: dict[tuple[int, str], int] = {}
    rows: list[tuple[int, ...]] = []
    for ix in ixs.tolist():
        said, rank = spans.attributes(ix), spans.resource(ix).get(semconv.RANK)
        lane, step = said.get(semconv.LANE), said.get(semconv.STEP_NUMBER)
        if rank not in run.ranks or not isinstance(lane, str):
            continue
        stream = numbers.setdefault((rank, lane), len(numbers))
        streams[rank, stream] = lane
        launch = min((int(spans.start[host]) for host in hosts.get(ix, ())), default=-1)
        rows.append(
            (
                rank, phases[spans.name(ix)], int(spans.start[ix]), int(spans.end[ix]), launch,
                step if isinstance(step, int) else -1, stream, ix,
            )
        )  # fmt: skip
    return _Done(*np.array(rows, np.int64).reshape(-1, len(fields(_Done))).T)


def _rows(run: Run, detail: _Done) -> IntArray:
    """Return the rows of the step table in which the work of ``detail`` was launched."""
    found = [np.zeros(0, np.int64)]
    for rank in run.ranks:
        mine, rows = detail.launch[(detail.rank == rank) & (detail.launch >= 0)], run.steps.of_rank(rank)
        # Microseconds that were cut off: a row begins before its first phase.
        at = np.searchsorted(run.steps.start[rows], mine, side="right") - 1
        found.append(rows.start + at[at >= 0])
    return np.concatenate(found)


def _from_table(run: Run, detailed: IntArray) -> _Done:
    """Return what the step table tells of rows that are not ``detailed``."""
    steps = run.steps
    left = np.isin(steps.rank, run.ranks)
    left[detailed] = False
    none = np.zeros(0, np.int64)
    parts = [_Done(*(none for _ in fields(_Done)))]
    for at, (phase, column) in enumerate(zip(semconv.DEVICE_PHASES, _NAMES, strict=True)):
        if column not in steps.count or phase not in steps.count:
            continue
        rows = np.flatnonzero(left & (steps.count[column] == 1) & (steps.count[phase] == 1))
        start, unknown = steps.first[column][rows], np.full(len(rows), -1, np.int64)
        parts.append(
            _Done(
                steps.rank[rows], np.full(len(rows), at, np.int64), start, start + steps.busy[column][rows],
                steps.first[phase][rows], steps.step[rows], unknown, unknown,
            )
        )  # fmt: skip
    return _Done.join(*parts)


def _lanes(draft: Draft, run: Run, done: _Done, streams: dict[tuple[int, int], str]) -> IntArray:
    """Return the lanes: that of the span, else the one in which that rank did the phase first."""
    usual: dict[tuple[int, int], str] = {}
    told = np.flatnonzero(done.stream >= 0)
    for at in told[np.lexsort((done.stream[told], done.start[told]))].tolist():
        rank = int(done.rank[at])
        usual.setdefault((rank, int(done.phase[at])), streams[rank, int(done.stream[at])])
    code = (done.rank * len(_NAMES) + done.phase) * (len(streams) + 1) + done.stream + 1
    kinds, first, which = np.unique(code, return_index=True, return_inverse=True)
    lanes = np.empty(len(kinds), np.int64)
    for kind, at in enumerate(first.tolist()):
        rank, phase, stream = (int(column[at]) for column in (done.rank, done.phase, done.stream))
        name = streams[rank, stream] if stream >= 0 else usual.get((rank, phase), _UNNAMED)
        lanes[kind] = draft.lane(rank, name)
    return lanes[which]


def _connect_syncs(draft: Draft, found: Activities, main: IntArray, done: _Done, number: IntArray) -> None:
    """Let each ``device.sync`` wait for the last to end of what was launched before it began."""
    known = np.flatnonzero(done.launch >= 0)
    order = known[np.lexsort((done.end[known], done.launch[known], done.rank[known]))]
    syncs = np.flatnonzero(found.main.name == NAMES.index(semconv.DEVICE_SYNC))
    for one in np.unique(done.rank[known]).tolist():
        low, high = np.searchsorted(done.rank[order], (one, one + 1))
        mine, pieces = order[low:high], syncs[found.main.rank[syncs] == one]
        # Of all that was launched so far, the place of the one that ended last.
        reached = np.maximum.accumulate(done.end[mine])
        last = np.maximum.accumulate(np.where(done.end[mine] == reached, np.arange(len(mine)), 0))
        place = np.searchsorted(done.launch[mine], found.main.start[pieces], side="left") - 1
        pieces, place = pieces[place >= 0], place[place >= 0]
        source = mine[last[place]]
        waited = done.end[source] <= found.main.end[pieces] + _TIE_NS
        source, pieces = source[waited], pieces[waited]
        at = np.minimum(done.end[source], found.main.end[pieces])
        draft.connect(Edges.of(DEVICE, number[source], at, main[pieces], to_end=True))
