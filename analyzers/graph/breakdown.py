# SPDX-License-Identifier: Apache-2.0
"""The temporal breakdown: what each device or main thread did at every instant, and why it was idle.

The classes are those of HTA (Holistic Trace Analysis): computing, communicating, both at once, nothing but
copying, and idle. They are disjoint and sum to the wall time exactly, in integers.

Idle time of a device ends with the next piece of work. Its kind is

host wait    this was given to the device only after it had become idle: the host was late
kernel wait  it was given before, and begins within `SHORT_NS`: from one kernel to the next
other        it was given before, and something else held it up, such as another stream
unknown      nothing tells when it was given

Time after the last piece is host wait: nothing was given any more. A profile without devices has that of its
main thread, whose idleness is `untraced` where it does nothing, `data.wait` where it takes a batch from the
workers of a `DataLoader`, `other` where it waits for other threads. Of a main thread of a run the kinds are
what it waits for, or what the time outside its steps was; see `run_breakdown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.intervals import Canvas
from grademl_otel.analyzers.graph.profiles.device_work import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GLOO,
    DeviceWork,
    ProfileWork,
    profile_work,
)
from grademl_otel.analyzers.graph.profiles.profile_facts import MAIN, STREAM, WORKERS
from grademl_otel.analyzers.graph.profiles.profile_path import profiles
from grademl_otel.analyzers.graph.profiles.span_graph import span_graph
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.graph.runs.main_lane import GAPS, NAMES, OTHER, UNTRACED, MainLanes
from grademl_otel.analyzers.graph.trees.span_tree import trace_roots
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Run

if TYPE_CHECKING:
    from grademl_otel.analyzers.subject import Subject

SHORT_NS: Final = 5_000
"""From the end of one kernel to the start of the next, where both were given before."""
HOST_WAIT: Final = "host wait"
KERNEL_WAIT: Final = "kernel wait"
OTHER_WAIT: Final = "other"
UNKNOWN: Final = "unknown"
IDLE_KINDS: Final = (HOST_WAIT, KERNEL_WAIT, OTHER_WAIT, UNKNOWN)


@dataclass(frozen=True)
class TemporalBreakdown:
    """Where the time of one device, or of one main thread, went; ns. All parts sum to ``wall_ns``."""

    rank: int | None
    lane: str
    """``device 0``, or ``main`` for the main thread."""
    wall_ns: int
    compute_ns: int
    """Computing, and not communicating."""
    communication_ns: int
    """Communicating, and not computing: the exposed part."""
    overlap_ns: int
    """Both at once."""
    memory_ns: int
    """Copying, and nothing else."""
    idle: dict[str, int]
    """Kind -> time; the longest first."""

    @property
    def idle_ns(self) -> int:
        """Time of all kinds of idleness."""
        return sum(self.idle.values())

    @property
    def overlap_share(self) -> float | None:
        """Part of the communication that computing hides; None without communication."""
        whole = self.communication_ns + self.overlap_ns
        return self.overlap_ns / whole if whole else None


def temporal_breakdown(subject: Subject) -> list[TemporalBreakdown]:
    """Return the breakdown of each rank of the run, or of each device of the profiles; else none."""
    if subject.run is not None:
        return run_breakdown(subject.run)
    spans = subject.telemetry.spans
    return profile_breakdown(spans, profiles(spans, trace_roots(spans)))


def profile_breakdown(spans: SpanColumns, roots: Sequence[int]) -> list[TemporalBreakdown]:
    """Return that of each device of the profiles under ``roots``, of one without any that of its main thread.

    It is over the time of its profile.
    """
    if not roots:
        return []
    told = profile_work(spans, roots)
    trace = spans.trace_ix[told.facts.ixs[told.work.place]]
    return [one for root in roots for one in _of_devices(spans, root, told, trace == spans.trace_ix[root])]


def _of_devices(
    spans: SpanColumns, root: int, told: ProfileWork, of_trace: BoolArray
) -> list[TemporalBreakdown]:
    facts, work = told.facts, told.work
    if not spans.possible[root]:
        return []
    if not of_trace.any():
        return _of_host(spans, root)
    devices: dict[tuple[int | None, str], list[int]] = {}
    for lane in facts.streams.tolist():
        rank, name = facts.lanes[lane]
        devices.setdefault((rank, name[len(STREAM) :].partition(".")[0]), []).append(lane)
    low, high = int(spans.start[root]), int(spans.end[root])
    found = []
    for (rank, device), lanes in devices.items():
        mine = np.flatnonzero(np.isin(work.lane, lanes) & of_trace)
        if len(mine):
            found.append(_of_device(rank, f"device {device}", low, high, work, mine))
    return found


def _of_host(spans: SpanColumns, root: int) -> list[TemporalBreakdown]:
    """Return that of the main thread of a profile without devices; gloo's threads communicate."""
    graph = span_graph(spans, [root])
    low, high = int(spans.start[root]), int(spans.end[root])
    gloo = [number for number, name in enumerate(graph.phases) if name.startswith(GLOO)]
    batches = [number for number, name in enumerate(graph.phases) if name.endswith(WORKERS)]
    found = []
    for lane, (rank, name) in enumerate(graph.lanes):
        if name != MAIN:
            continue
        start, end = np.clip(graph.start, low, high), np.clip(graph.end, low, high)
        mine, aside = graph.lane == lane, np.isin(graph.phase, gloo) & (graph.lane != lane)
        canvas = Canvas.over(low, high, start[mine | aside], end[mine | aside])
        length = np.diff(canvas.bounds)
        works = mine & ~graph.waits & ~graph.inferred
        computes, waits, loads, talks = (
            _busy(canvas, start[some], end[some])
            for some in (works, mine & graph.waits, mine & np.isin(graph.phase, batches), aside)
        )
        idle = ~computes & ~talks
        kinds = {
            semconv.DATA_WAIT: idle & loads,
            OTHER_WAIT: idle & waits & ~loads,
            UNTRACED: idle & ~waits,
        }
        found.append(
            TemporalBreakdown(
                rank=rank,
                lane=MAIN,
                wall_ns=high - low,
                compute_ns=int(length[computes & ~talks].sum()),
                communication_ns=int(length[talks & ~computes].sum()),
                overlap_ns=int(length[talks & computes].sum()),
                memory_ns=0,
                idle=_longest_first({kind: int(length[some].sum()) for kind, some in kinds.items()}),
            )
        )
    return found


def _of_device(
    rank: int | None, lane: str, low: int, high: int, work: DeviceWork, mine: IntArray
) -> TemporalBreakdown:
    start, end = np.clip(work.start[mine], low, high), np.clip(work.end[mine], low, high)
    canvas = Canvas.over(low, high, start, end)
    length = np.diff(canvas.bounds)
    computes, talks, copies = (
        _busy(canvas, start[work.sort[mine] == sort], end[work.sort[mine] == sort])
        for sort in (COMPUTE, COMMUNICATION, COPY)
    )
    free = ~(computes | talks | copies)
    kinds = _idle_kinds(canvas, free, work, mine)
    sums = {kind: int(length[free & (kinds == number)].sum()) for number, kind in enumerate(IDLE_KINDS)}
    return TemporalBreakdown(
        rank=rank,
        lane=lane,
        wall_ns=high - low,
        compute_ns=int(length[computes & ~talks].sum()),
        communication_ns=int(length[talks & ~computes].sum()),
        overlap_ns=int(length[computes & talks].sum()),
        memory_ns=int(length[copies & ~computes & ~talks].sum()),
        idle=_longest_first(sums),
    )


def _busy(canvas: Canvas, start: IntArray, end: IntArray) -> BoolArray:
    """Return in which pieces of ``canvas`` any of these intervals, whose bounds are its own, is."""
    change = np.zeros(len(canvas) + 1, np.int64)
    np.add.at(change, np.searchsorted(canvas.bounds, start), 1)
    np.add.at(change, np.searchsorted(canvas.bounds, end), -1)
    busy: BoolArray = np.cumsum(change)[: len(canvas)] > 0
    return busy


def _idle_kinds(canvas: Canvas, free: BoolArray, work: DeviceWork, mine: IntArray) -> IntArray:
    """Return the kind of idleness, an index into `IDLE_KINDS`, of each piece of ``canvas`` that is free."""
    kinds: IntArray = np.full(len(canvas), IDLE_KINDS.index(HOST_WAIT), np.int64)
    order = mine[np.lexsort((work.launched[mine], work.start[mine]))]
    idle = np.flatnonzero(free)
    begin, end = canvas.bounds[idle], canvas.bounds[idle + 1]
    following = np.searchsorted(work.start[order], end)
    idle, begin, end = (of[following < len(order)] for of in (idle, begin, end))
    ones = order[following[following < len(order)]]
    given = np.where(work.launch[ones] >= 0, work.launched[ones], np.iinfo(np.int64).max)
    kinds[idle] = np.select(
        [work.launch[ones] < 0, given > begin, end - begin <= SHORT_NS],
        [IDLE_KINDS.index(kind) for kind in (UNKNOWN, HOST_WAIT, KERNEL_WAIT)],
        IDLE_KINDS.index(OTHER_WAIT),
    )
    return kinds


# --- Runs -------------------------------------------------------------------------------------------------


def run_breakdown(run: Run) -> list[TemporalBreakdown]:
    """Return that of each rank's main thread, over the wall time of the run.

    Waiting for data, for ranks, for the device (`device.sync`) and collectives of which the parts are not
    known are kinds of idleness by the names of these phases; so are checkpoints, and what `main_lane` tells
    of time outside of steps. Communication is the transfer of collectives, in the thread itself, or beside it
    while it computes: that is the overlap. While the thread waits or copies, what is beside it counts as
    that. All other time of steps is computing.
    """
    found = activities(run)
    main, beside = found.main, found.collectives
    result = []
    for rank in run.ranks:
        mine = beside.of_rank(rank)
        some = np.arange(mine.start, mine.stop)[beside.beside[mine] & beside.completed[mine]]
        since = np.where(beside.apart[some], beside.last[some], beside.issue[some])
        result.append(_of_main(run, main, rank, since, beside.end[some]))
    return result


_WAITS: Final = (
    semconv.DATA_WAIT, *semconv.WORKER_PHASES, semconv.DEVICE_SYNC, semconv.COLLECTIVE,
    semconv.COLLECTIVE_WAIT, RANKS_WAIT, semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD,
)  # fmt: skip
_IDLES: Final = frozenset((*_WAITS, *(GAPS - {OTHER, semconv.EVALUATE})))


def _of_main(run: Run, main: MainLanes, rank: int, since: IntArray, until: IntArray) -> TemporalBreakdown:
    pieces = main.of(rank)
    low, high = run.start, run.end
    since, until = np.clip(since, low, high), np.clip(until, low, high)
    canvas = Canvas.over(low, high, main.start[pieces], since, until)
    length = np.diff(canvas.bounds)
    piece = pieces.start + np.searchsorted(main.start[pieces], canvas.bounds[:-1], "right") - 1
    name, top = main.name[piece], main.top[piece]
    # What a wait holds, as the fetch in one without workers, is waited for.
    name = np.where(top == NAMES.index(semconv.DATA_WAIT), top, name)
    talks = name == NAMES.index(COLLECTIVE_TRANSFER)
    copies = name == NAMES.index(semconv.DATA_TRANSFER)
    idles = np.isin(name, _numbers(_IDLES))
    computes = ~(talks | copies | idles)
    aside = _busy(canvas, since, until)
    sums = {
        NAMES[number]: int(length[idles & (name == number)].sum())
        for number in np.unique(name[idles]).tolist()
    }
    return TemporalBreakdown(
        rank=rank,
        lane="main",
        wall_ns=high - low,
        compute_ns=int(length[computes & ~aside].sum()),
        communication_ns=int(length[talks].sum()),
        overlap_ns=int(length[computes & aside].sum()),
        memory_ns=int(length[copies].sum()),
        idle=_longest_first(sums),
    )


def _numbers(names: frozenset[str]) -> list[int]:
    return [number for number, name in enumerate(NAMES) if name in names]


def _longest_first(sums: dict[str, int]) -> dict[str, int]:
    return {kind: ns for kind, ns in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if ns}
