# SPDX-License-Identifier: Apache-2.0
"""A path by phase: how much of it each is, how long each took in all, and how much blocked a main lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.activities import Activities, activities
from grademl_otel.analyzers.graph.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.main_lane import NAMES, phase_named
from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.graph.shorten import shortened_total
from grademl_otel.analyzers.graph.span_tree import SpanTree
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns
from grademl_otel.analyzers.model.facts import Run

_MOST_SPANS_FOR_DRAG: Final = 2_000


@dataclass(frozen=True)
class SummaryRow:
    """One phase (or operation); None where a number is not defined, never 0 in its place. Times in ns."""

    key: str
    path_ns: int
    path_share: float
    blocked_ns: int | None
    """Time that a main lane stood still for it."""
    total_ns: int | None
    """Time spent in it in all lanes, on the path or not."""
    slack_ns: int | None
    """How much longer it could take before the whole takes longer."""
    drag_ns: int | None
    """How much shorter the whole would be without its part of the path."""


def run_summary(run: Run, path: Path) -> list[SummaryRow]:
    """Return ``path`` of ``run`` by phase, the longest first, with the phases that ran beside the path last.

    The total of a phase is over all lanes; within one lane the innermost phase counts. Blocked is, for a
    phase of loader workers, the part of the waits during which the worker of the awaited batch was in it; for
    a wait all of it. Slack and drag of a run need a replay and are None.
    """
    found = activities(run)
    totals, blocked = _totals(found), _blocked(found)
    on_path = _by_phase(path)
    beside = [(phase, 0) for phase in semconv.PHASES if phase in totals and phase not in dict(on_path)]
    beside.sort(key=lambda entry: -totals[entry[0]])
    return [
        SummaryRow(
            key=phase,
            path_ns=ns,
            path_share=ns / path.total_ns if ns else 0.0,
            blocked_ns=blocked.get(phase),
            total_ns=totals.get(phase),
            slack_ns=None,
            drag_ns=None,
        )
        for phase, ns in on_path + beside
    ]


def tree_summary(spans: SpanColumns, root_ix: int, path: Path) -> list[SummaryRow]:
    """Return ``path`` of the tree under ``root_ix`` by operation, the longest first.

    The drag is given where one span alone holds the operation's part of the path, in trees of up to 2,000
    spans.
    """
    tree = SpanTree(spans)
    below = _below(tree, root_ix)
    totals: dict[str, int] = {}
    for ix in below:
        name = spans.name(ix)
        totals[name] = totals.get(name, 0) + max(0, int(spans.end[ix] - spans.start[ix]))
    holders: dict[str, set[int]] = {}
    for section in path.sections:
        if section.span_ix is not None:
            holders.setdefault(section.phase, set()).add(section.span_ix)
    rows = []
    for phase, ns in _by_phase(path):
        holder = holders.get(phase, set())
        drag = None
        if len(holder) == 1 and len(below) <= _MOST_SPANS_FOR_DRAG:
            (ix,) = holder
            drag = path.total_ns - shortened_total(spans, root_ix, ix, ns, tree)
        rows.append(SummaryRow(phase, ns, ns / path.total_ns, None, totals.get(phase), None, drag))
    return rows


def _by_phase(path: Path) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for section in path.sections:
        sums[section.phase] = sums.get(section.phase, 0) + section.duration
    return sorted(sums.items(), key=lambda entry: (-entry[1], entry[0]))


def _below(tree: SpanTree, root: int) -> list[int]:
    found, pending = [root], [root]
    while pending:
        children = [ix for ix in tree.children(pending.pop()) if ix != root]
        found += children
        pending += children
    return found


def _totals(found: Activities) -> dict[str, int]:
    """Return the time of each phase: in the main lanes the innermost counts, so that nothing counts twice."""
    main, items = found.main, found.items
    sums = np.zeros(len(NAMES), np.int64)
    np.add.at(sums, main.name, main.end - main.start)
    totals: dict[str, int] = {}
    for ix in np.flatnonzero(sums).tolist():
        phase = phase_named(NAMES[ix])
        totals[phase] = totals.get(phase, 0) + int(sums[ix])
    for phase, ns in (
        (semconv.DATA_FETCH, int((items.fetched - items.start).sum())),
        (semconv.DATA_COLLATE, int((items.end - items.collating).sum())),
    ):
        if ns:
            totals[phase] = totals.get(phase, 0) + ns
    return totals


def _blocked(found: Activities) -> dict[str, int]:
    """Return for how long main lanes were blocked on each phase."""
    main, waits = found.main, found.waits
    blocked: dict[str, int] = {}
    for phase in semconv.WAIT_PHASES:
        of_phase = main.name == NAMES.index(phase)
        ns = int((main.end - main.start)[of_phase].sum())
        if ns:
            blocked[phase] = ns
    in_collectives = [NAMES.index(name) for name in (semconv.COLLECTIVE, *COLLECTIVE_PARTS)]
    if ns := int((main.end - main.start)[np.isin(main.name, in_collectives)].sum()):
        blocked[semconv.COLLECTIVE] = ns
    # An inline fetch blocks for as long as it takes.
    inline = {phase: NAMES.index(phase) for phase in semconv.WORKER_PHASES}
    for phase, ix in inline.items():
        ns = int((main.end - main.start)[main.name == ix].sum())
        if ns:
            blocked[phase] = ns
    items = found.items
    pairs = [(wait, item) for wait in range(len(waits)) if (item := found.item_of_wait(wait)) is not None]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    start = waits.start[table[:, 0]]
    end = np.maximum(np.minimum(waits.end[table[:, 0]], items.end[table[:, 1]]), start)
    lane = _lane_numbers(found)
    for phase, begin, finish in (
        (semconv.DATA_FETCH, items.start, items.fetched),
        (semconv.DATA_COLLATE, items.collating, items.end),
    ):
        busy = _BusyTime(lane, begin, finish)
        ns = busy.between(lane[table[:, 1]], start, end)
        if ns:
            blocked[phase] = blocked.get(phase, 0) + ns
    return blocked


def _lane_numbers(found: Activities) -> IntArray:
    """Return for each item the number of its worker's lane, ascending in the order of items."""
    items = found.items
    new = np.zeros(len(items), np.int64)
    if len(items):
        changed = np.zeros(len(items) - 1, bool)
        for column in (items.rank, items.loader, items.worker):
            changed |= column[1:] != column[:-1]
        new[1:] = changed
    return np.cumsum(new)


class _BusyTime:
    """Time that lanes were busy, summed up to any instant; intervals sorted by (lane, start) and disjoint."""

    def __init__(self, lane: IntArray, start: IntArray, end: IntArray) -> None:
        self._origin = int(start.min()) if len(start) else 0
        self._span = (int(end.max()) - self._origin + 1) if len(end) else 1
        # Lanes one after another on one axis.
        self._start = lane * self._span + (start - self._origin)
        order = np.argsort(self._start, kind="stable")
        self._start = self._start[order]
        length = np.maximum(end - start, 0)[order]
        self._length = length
        self._before = np.cumsum(length) - length

    def between(self, lane: IntArray, start: IntArray, end: IntArray) -> int:
        """Return the busy time of ``lane[i]`` in ``[start[i], end[i])``, summed."""
        if not len(self._start):
            return 0
        return int((self._until(lane, end) - self._until(lane, start)).sum())

    def _until(self, lane: IntArray, at: IntArray) -> IntArray:
        moment = lane * self._span + np.clip(at - self._origin, 0, self._span - 1)
        last = np.maximum(np.searchsorted(self._start, moment, side="right") - 1, 0)
        until: IntArray = self._before[last] + np.clip(moment - self._start[last], 0, self._length[last])
        return until
