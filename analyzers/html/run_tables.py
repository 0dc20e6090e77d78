# SPDX-License-Identifier: Apache-2.0
"""The tables of a page about a run: where the time went, the steady step, ranks, how they ended."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from grademl_otel.analyzers.graph.runs.main_lane import STEP_PHASES
from grademl_otel.analyzers.html import cells
from grademl_otel.analyzers.html.parts import Cell, DataTable
from grademl_otel.analyzers.reporting.breakdown import MAIN
from grademl_otel.analyzers.reporting.document import (
    BreakdownEntry,
    DeviceInfo,
    EndedInfo,
    LoaderInfo,
    RanksInfo,
    ReportDocument,
    StepInfo,
)
from grademl_otel.analyzers.reporting.ranks import latest_first, of_steps
from grademl_otel.analyzers.reporting.report_screen import STEPS
from grademl_otel.analyzers.units import clock, milliseconds, percent, size

RANKS: Final = 256
"""Ranks of a table, those that come first in it."""
_OUTSIDE: Final = "outside of phases"


def where_the_time_went(document: ReportDocument) -> DataTable | None:
    """Return the lane budget with the steps' phases as one row; the mean over ranks if there are several."""
    ranks = len({entry.rank for entry in document.lane_budget})
    if not ranks:
        return None
    total: dict[str, int] = defaultdict(int)
    for entry in document.lane_budget:
        of_steps_ = entry.per_step_ns is not None or entry.phase in STEP_PHASES
        total[STEPS if of_steps_ else entry.phase] += entry.ns
    wall = document.window.wall_ns
    who = "the training thread" if ranks == 1 else f"the training threads, mean of {ranks:,} ranks"
    show = cells.clock_for(wall)
    return DataTable(
        "where-the-time-went",
        f"Where the {clock(wall)} of {who} went",
        [
            cells.text("part", "Part"),
            cells.number("ns", "Time"),
            cells.number("share", "Share"),
        ],
        [
            [
                cells.phase(name) if name != STEPS else cells.words(name),
                cells.time(round(ns / ranks), show),
                cells.share(ns / (wall * ranks or 1), name if name != STEPS else None),
            ]
            for name, ns in sorted(total.items(), key=lambda item: -item[1])
        ],
    )


def steady_step(step: StepInfo | None) -> DataTable | None:
    """Return what the steady step is made of."""
    if step is None:
        return None
    spread = (
        f"mean {milliseconds(step.mean_ns)}, p50 {milliseconds(step.p50_ns)}, p95 {milliseconds(step.p95_ns)}"
    )
    host = "; time of the host, which only hands work to the device" if step.host_time else ""
    few = ", too few to rely on" if step.few else ""
    nested = any(one.within for one in step.phases)
    return DataTable(
        "steady-step",
        f"The steady step: {spread} ({step.n:,} of all ranks{few}{host})",
        [
            cells.text("phase", "Phase"),
            *([cells.text("within", "Within")] if nested else []),
            cells.number("mean_ns", "Mean"),
            cells.number("p50_ns", "p50"),
            cells.number("p95_ns", "p95"),
            cells.number("share", "Share"),
        ],
        [
            [
                cells.phase(one.phase, one.within is not None),
                *([cells.words(one.within)] if nested else []),
                cells.time(one.mean_ns),
                cells.time(one.p50_ns),
                cells.time(one.p95_ns),
                cells.part(one.share) if one.within else cells.share(one.share, one.phase),
            ]
            for one in step.phases
        ],
    )


def on_the_device(device: DeviceInfo | None) -> DataTable | None:
    """Return what the device did in the same steps."""
    if device is None:
        return None
    later = device.behind_p50_ns
    pace = f"done {milliseconds(later)} after the host" if later > 0 else "done before the host"
    rows = [(one.phase, one.mean_ns, one.share) for one in device.phases]
    rows.append((_OUTSIDE, device.idle_ns, device.idle_ns / device.step_ns if device.step_ns else 0.0))
    return DataTable(
        "on-the-device",
        f"The same steps on the device: mean of {device.n:,}, {pace}",
        [cells.text("phase", "Phase"), cells.number("mean_ns", "Mean"), cells.number("share", "Share")],
        [[cells.phase(name), cells.time(ns), cells.share(share, name)] for name, ns, share in rows],
    )


def ranks_side_by_side(info: RanksInfo | None) -> DataTable | None:
    """Return the ranks beside each other, those that come latest first."""
    if info is None:
        return None
    shown = latest_first(info)[:RANKS]
    return DataTable(
        "ranks",
        f"Ranks, the latest first ({of_steps(info)})",
        [
            cells.number("rank", "Rank"),
            cells.number("step_ns", "Step"),
            cells.number("own_ns", "Own work"),
            cells.number("wait_ns", "Waits for others"),
            cells.number("transfer_ns", "Transfer"),
            cells.number("overlapped_ns", "Overlapped"),
            cells.number("late_ns", "Late by"),
            cells.number("last_steps", "Last in"),
            cells.prose("most_of_its_own", "Most of its own work"),
        ],
        [
            [
                cells.count(one.rank),
                cells.time(one.step_ns),
                cells.time(sum(phase.ns for phase in one.own)),
                cells.time(one.wait_ns),
                cells.time(one.transfer_ns),
                cells.time(one.overlapped_ns),
                cells.time(one.late_ns),
                cells.count(one.last_steps),
                cells.words(", ".join(f"{p.phase} {milliseconds(p.ns)}" for p in one.own[:3])),
            ]
            for one in shown
        ],
        _rest(len(shown), len(info.ranks), "ranks"),
    )


def threads_and_devices(entries: list[BreakdownEntry]) -> DataTable | None:
    """Return what each main thread or device did, those that compute least first."""
    if not entries:
        return None
    order = sorted(entries, key=lambda one: (one.compute_ns + one.overlap_ns, one.rank or 0, one.lane))
    what = "main threads" if all(one.lane == MAIN for one in entries) else "devices"
    shown = order[:RANKS]
    parts = ("compute_ns", "communication_ns", "overlap_ns", "memory_ns")
    return DataTable(
        "threads-and-devices",
        f"What the {what} did, of the wall time; those that compute least first",
        [
            cells.number("rank", "Rank"),
            cells.text("lane", "Lane"),
            cells.number("wall_ns", "Wall time"),
            cells.number("compute_ns", "Computing"),
            cells.number("communication_ns", "Communicating"),
            cells.number("overlap_ns", "Both at once"),
            cells.number("memory_ns", "Copying"),
            cells.number("idle_ns", "Idle"),
            cells.prose("idle_mostly", "Idle mostly"),
        ],
        [
            [
                cells.NOTHING if one.rank is None else cells.count(one.rank),
                cells.words(one.lane),
                cells.time(one.wall_ns),
                *(_of_wall(getattr(one, name), one.wall_ns) for name in parts),
                _of_wall(sum(idle.ns for idle in one.idle), one.wall_ns),
                cells.words(
                    ", ".join(f"{idle.kind} {_percent(idle.ns, one.wall_ns)}" for idle in one.idle[:3])
                ),
            ]
            for one in shown
        ],
        _rest(len(shown), len(entries), "lanes"),
    )


def how_it_ended(ended: list[EndedInfo], wall_ns: int) -> DataTable | None:
    """Return how each rank ended, those that did not end in order first."""
    if not ended:
        return None
    shown = sorted(ended, key=lambda one: (one.how == "exit", one.rank))[:RANKS]
    show = cells.clock_for(wall_ns)
    return DataTable(
        "how-it-ended",
        "How each rank ended; times from the start",
        [
            cells.number("rank", "Rank"),
            cells.text("how", "How"),
            cells.text("error", "Error"),
            cells.number("last_step", "Last step"),
            cells.text("open_phase", "In"),
            cells.number("open_since_ns", "Since"),
            cells.number("last_mark_ns", "Last sign of life"),
        ],
        [
            [
                cells.count(one.rank),
                cells.words(one.how),
                cells.words(one.error),
                cells.NOTHING if one.last_step is None else cells.count(one.last_step),
                cells.words(one.open_phase),
                cells.NOTHING if one.open_since_ns is None else cells.time(one.open_since_ns, show),
                cells.time(one.last_mark_ns, show),
            ]
            for one in shown
        ],
        _rest(len(shown), len(ended), "ranks"),
    )


def loaders(found: list[LoaderInfo]) -> DataTable | None:
    """Return the data loaders, as the run was told of them."""
    if not found:
        return None
    return DataTable(
        "loaders",
        "Data loaders",
        [
            cells.number("loader", "Loader"),
            cells.number("workers", "Workers"),
            cells.number("prefetch", "Prefetch"),
            cells.number("batch_size", "Batch size"),
            cells.text("persistent", "Workers stay"),
        ],
        [
            [
                cells.count(one.loader),
                cells.count(one.workers),
                cells.count(one.prefetch),
                cells.count(one.batch_size),
                Cell("yes" if one.persistent else "no", "true" if one.persistent else "false"),
            ]
            for one in found
        ],
    )


def memory(document: ReportDocument) -> DataTable | None:
    """Return the memory of devices, as the allocator of each rank counts it."""
    found = document.run.memory if document.run is not None else []
    if not found:
        return None
    kinds = ("allocated", "reserved", "peak")
    return DataTable(
        "device-memory",
        "Memory of devices; allocated at most is the peak",
        [
            cells.number("rank", "Rank"),
            cells.number("device", "Device"),
            cells.number("allocated_bytes", "Allocated at last"),
            cells.number("reserved_bytes", "Reserved at last"),
            cells.number("peak_bytes", "Allocated at most"),
        ],
        [
            [
                cells.count(one.rank),
                cells.count(one.device),
                *(Cell(size(getattr(one, kind)), getattr(one, kind)) for kind in kinds),
            ]
            for one in found[:RANKS]
        ],
        _rest(min(len(found), RANKS), len(found), "devices"),
    )


def _of_wall(ns: int, wall_ns: int) -> Cell:
    return Cell(_percent(ns, wall_ns), ns)


def _percent(ns: int, wall_ns: int) -> str:
    return percent(ns / (wall_ns or 1))


def _rest(shown: int, there: int, what: str) -> str:
    return "" if shown == there else f"{shown:,} of {there:,} {what}; the data of the page has all."
