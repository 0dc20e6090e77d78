# SPDX-License-Identifier: Apache-2.0
"""A path by a key: how much of it each is, how much there is of each in all, and how tight its time is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.blocked import blocked_by_phase, blocked_by_rank
from grademl_otel.analyzers.graph.event_graph import EventGraph
from grademl_otel.analyzers.graph.keys import LANE, OPERATION, PHASE, RANK, Keys, lane_name, rank_name
from grademl_otel.analyzers.graph.path import Path, Sections
from grademl_otel.analyzers.graph.runs.main_lane import GAPS, UNTRACED
from grademl_otel.analyzers.graph.runs.run_graph import MAIN, run_graph
from grademl_otel.analyzers.graph.schedule import MOST_JOINS, Schedule
from grademl_otel.analyzers.graph.self_time import self_times
from grademl_otel.analyzers.graph.trees.tree_schedule import TreeSchedule
from grademl_otel.analyzers.model.arrays import added
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Run

_MOST_DRAGS: Final = 32
_MOST_PASSES: Final = 1_500_000
"""Keys, the largest first, of which drag is told; and the constraints looked at for all of them together."""
_FAR: Final = np.iinfo(np.int64).max

TOO_LARGE: Final = "the graph has more than {:,} dependencies"
NOT_BY_TIMES: Final = (
    "the path of this trace rests on more than the times of its spans: lanes, links or overlaps"
)


@dataclass(frozen=True)
class SummaryRow:
    """One key; None where a number is not defined, never 0 in its place. Times in ns."""

    key: str
    path_ns: int
    path_share: float
    blocked_ns: int | None
    """Time that a main lane stood still for it."""
    total_ns: int | None
    """Time spent in it in all lanes, on the path or not, with all that ran within."""
    self_ns: int | None
    """The same without what ran within."""
    slack_ns: int | None
    """How much later the tightest of it could end before the whole ends later; 0 on the path."""
    drag_ns: int | None
    """How much earlier the whole would end if all of it took no time, and all else as long as it did. No
    gain: what bounds a queue, or is chosen by who comes first, is no length. 0 off the path."""


@dataclass(frozen=True)
class Summary(Sequence[SummaryRow]):
    """The rows, largest part of the path first, then what ran beside it; and what they cannot tell."""

    rows: list[SummaryRow]
    untold: str | None = None
    """Why slack and drag are None where they are defined; None where they are told."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> SummaryRow: ...
    @overload
    def __getitem__(self, at: slice) -> list[SummaryRow]: ...
    def __getitem__(self, at: int | slice) -> SummaryRow | list[SummaryRow]:
        return self.rows[at]


@dataclass
class _Sums:
    """What is known of each key, by its number."""

    names: list[str]
    path: IntArray
    total: list[int | None]
    itself: list[int | None]
    blocked: dict[str, int]
    slack: list[int | None]
    drag: Callable[[int], int] | None
    cost: int = 1
    """Of one drag, in constraints."""

    def _drag(self, at: int) -> int | None:
        # What is not on the path holds up nothing, as far as times tell.
        return None if self.drag is None else self.drag(at) if self.path[at] else 0

    def rows(self, whole: int, beside: Callable[[str], bool]) -> list[SummaryRow]:
        path = self.path.tolist()
        order = sorted(range(len(path)), key=lambda at: (-path[at], -(self.total[at] or 0), self.names[at]))
        order = [at for at in order if path[at] or ((self.total[at] or 0) > 0 and beside(self.names[at]))]
        dragged = set(order[: max(1, min(_MOST_DRAGS, _MOST_PASSES // max(1, self.cost)))])
        return [
            SummaryRow(
                key=self.names[at],
                path_ns=path[at],
                path_share=path[at] / whole if path[at] else 0.0,
                blocked_ns=self.blocked.get(self.names[at]),
                total_ns=self.total[at],
                self_ns=self.itself[at],
                slack_ns=self.slack[at],
                drag_ns=self._drag(at) if at in dragged else None,
            )
            for at in order
        ]


def run_summary(run: Run, path: Path, by: str = PHASE, inferred: bool = True) -> Summary:
    """Return ``path`` of ``run`` by phase, rank, lane or operation, with what ran beside the path last.

    Totals are over all lanes; within one lane the innermost counts, so that self time is the same. Blocked
    is, for a phase of loader workers, the part of the waits during which the worker of the awaited batch was
    in it; for a wait all of it; for a rank and its main lane all that it waited. Without ``inferred`` edges
    slack and drag go by what was observed.
    """
    service = run.spans.service(int(run.span_ixs[0])) if len(run.span_ixs) else ""
    found = _of_graph(run_graph(run, inferred), path, Keys(by, run.spans, service))
    found.sums.blocked = _blocked(run, by, service)
    return found.summary(path, _is_no_gap if by == PHASE else _anything)


def profile_summary(spans: SpanColumns, graph: EventGraph, path: Path, by: str = PHASE) -> Summary:
    """Return ``path`` through the profiles of ``graph`` by a key, with what ran beside the path last.

    Totals are of all spans of the profiles, with all that ran within each; self time is that of the innermost
    in each lane.
    """
    keys = Keys(by, spans)
    ixs = np.flatnonzero(np.isin(spans.trace_ix, spans.trace_ix[np.unique(graph.span_ix)]) & spans.possible)
    of_span = keys.of_spans(ixs)
    found = _of_graph(graph, path, keys)
    if by not in (LANE, RANK):  # these hold all calls, one within the other: each time counts once
        found.sums.total = _added(of_span, spans.end[ixs] - spans.start[ixs], len(keys))
    return found.summary(path, _anything)


@dataclass
class _OfGraph:
    """The sums of a path through a graph, and whether it is small enough for slack and drag."""

    sums: _Sums
    told: bool

    def summary(self, path: Path, beside: Callable[[str], bool]) -> Summary:
        untold = None if self.told else TOO_LARGE.format(MOST_JOINS)
        return Summary(self.sums.rows(path.total_ns, beside), untold)


def _of_graph(graph: EventGraph, path: Path, keys: Keys) -> _OfGraph:
    of_section, of_activity = keys.of(path.sections), keys.of(graph)
    told = len(graph.edges) <= MOST_JOINS
    schedule = Schedule.of(graph, path.start, path.end) if told else None
    count = len(keys)
    length = np.minimum(graph.end, path.end) - np.maximum(graph.start, path.start)
    totals = _added(of_activity, np.maximum(length, 0), count)
    slack: list[int | None] = [None] * count
    drag = None
    if schedule is not None:
        slack = _least(of_activity[schedule.kept], schedule.slack(), count)

        def drag(key: int, found: Schedule = schedule) -> int:
            return found.drag(of_activity[found.kept] == key)

    sums = _Sums(
        names=keys.names,
        path=path.sections.by(of_section, count),
        total=totals,
        itself=totals,
        blocked={},
        slack=slack,
        drag=drag,
        cost=1 if schedule is None else schedule.joins,
    )
    return _OfGraph(sums, told)


def tree_summary(
    spans: SpanColumns,
    root_ix: int,
    path: Path,
    by: str = PHASE,
    cut: tuple[Sections, IntArray] | None = None,
) -> Summary:
    """Return ``path`` of the tree under ``root_ix`` by a key, with what ran beside the path last.

    Self time is a span's time without that of its children, whatever lanes these are in; of a rank that is
    its time in total. By lane the path alone is added up. ``cut`` are sections that those of ``path`` were
    cut into, and of which of them each is a part: off the path nothing is cut.
    """
    sections, origin = cut if cut is not None else (path.sections, np.arange(len(path.sections)))
    keys = Keys(by, spans)
    of_section = keys.of(sections)
    below, itself = self_times(spans, root_ix)
    of_span = keys.of_spans(below)
    count = len(keys)
    small = 2 * len(below) <= MOST_JOINS  # each span depends on two things at least
    found = TreeSchedule.of(spans, root_ix, path) if small else None
    slack: list[int | None] = [None] * count
    drag = None
    if found is not None and by != LANE:
        of_member = keys.of_spans(found.members.ix)
        slack = _least(of_member, found.slack(), count)

        def drag(key: int, tree: TreeSchedule = found) -> int:
            mine = of_section == key
            return tree.drag(of_member == key, origin[mine], sections.duration[mine])

    duration = itself if by == RANK else np.maximum(spans.end[below] - spans.start[below], 0)
    reason = NOT_BY_TIMES if small else TOO_LARGE.format(MOST_JOINS)
    return Summary(
        _Sums(
            names=keys.names,
            path=sections.by(of_section, count),
            total=_added(of_span, duration, count),
            itself=_added(of_span, itself, count),
            blocked={},
            slack=slack,
            drag=drag,
            cost=found.schedule.joins if found is not None else 1,
        ).rows(path.total_ns, _anything),
        None if found is not None else reason,
    )


def _added(key: IntArray, ns: IntArray, count: int) -> list[int | None]:
    """Return the sum of each key; None of one that nothing has."""
    known = key >= 0
    there = np.bincount(key[known], minlength=count) > 0
    sums = added(key[known], ns[known], count)
    return [ns if some else None for ns, some in zip(sums, there.tolist(), strict=True)]


def _least(key: IntArray, ns: IntArray, count: int) -> list[int | None]:
    known = key >= 0
    least = np.full(count, _FAR, np.int64)
    np.minimum.at(least, key[known], ns[known])
    return [None if ns == _FAR else ns for ns in least.tolist()]


def _blocked(run: Run, by: str, service: str) -> dict[str, int]:
    if by in (PHASE, OPERATION):
        found = blocked_by_phase(run)
        return {f"{service} {phase}".strip(): ns for phase, ns in found.items()} if by == OPERATION else found
    return {
        rank_name(rank) if by == RANK else lane_name((rank, MAIN)): ns
        for rank, ns in blocked_by_rank(run).items()
        if by in (RANK, LANE)
    }


def _is_no_gap(phase: str) -> bool:
    return phase not in GAPS and phase != UNTRACED


def _anything(_: str) -> bool:
    return True
