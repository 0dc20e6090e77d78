# SPDX-License-Identifier: Apache-2.0
"""What kept a phase from being faster: which of its resources were full, and what it would gain without that.

For each metric u is what a phase used over what it could have used: the time share that the use would have
taken at full speed. Metrics fall into groups (by resource, by type, ...), of which U is the largest u of its
metrics. S = min(ΣU, 1) is the part of the time that use explains if no two uses overlap;
gain = min(U, 1 - the largest U of others) is the part that would vanish if the group were endlessly fast and
the others kept their share (GradeML, section 5). What is full is said by Grade10's rule: a resource at 95 %
of its capacity is a global bottleneck, a phase at 95 % of what it could use a local one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import EXACT, NONE
from grademl_otel.analyzers.attribution.usage import Attribution
from grademl_otel.analyzers.model.arrays import distinct

NOT_FULL: Final = 0
LOCAL: Final = 1
"""The phase used about all that it could."""
GLOBAL: Final = 2
"""All phases together used about all that there is."""
FULL_FROM: Final = 0.95
Threshold = float | FloatArray
"""From which utilization on a metric is full: of all, or (metrics, 1) of each."""

_SECOND: Final = 1e9


class Part(NamedTuple):
    """One metric as phases with one kind of rule use it."""

    attribution: Attribution
    rule: int
    demands: bool = True
    """False: these phases want nothing of it (demand 0)."""


@dataclass(frozen=True, eq=False)
class Utilizations:
    """How full the metrics of some phases were, on segments of time in which nothing changes."""

    edges: IntArray
    """(m + 1) Unix ns."""
    own: FloatArray
    """(metrics, m) u of phases that are active then, 0 to 1; NaN where it is not known."""
    whole: FloatArray
    """(metrics, m) What all used over the capacity; NaN where it is not known."""


def utilizations(parts: Sequence[Part], within: tuple[IntArray, IntArray] | None = None) -> Utilizations:
    """Return the utilizations of ``parts``, whose capacities are known where anything is to be said.

    ``within`` (starts, ends): nothing is asked of other times, and nothing is right there.
    """
    edges = _edges([part.attribution.upsampled.demand.timeline.edges for part in parts], within)
    own, whole = np.full((2, len(parts), len(edges) - 1), np.nan)
    places: dict[int, IntArray] = {}
    for row, part in enumerate(parts):
        upsampled = part.attribution.upsampled
        capacity, demand = upsampled.capacity, upsampled.demand
        if not np.isfinite(capacity) or part.rule == NONE or not len(demand.exact):
            continue
        value, exact = upsampled.value, demand.exact
        if not part.demands:
            used = np.where(np.isnan(value), np.nan, 0.0)
        elif part.rule == EXACT:
            # min(x / E, 1) over min(C / E, 1): units of demand cancel.
            used = np.minimum(np.minimum(value, exact) / np.minimum(capacity, np.maximum(exact, 1e-300)), 1.0)
        else:
            room = capacity - exact
            with np.errstate(divide="ignore", invalid="ignore"):
                used = np.where(room > 0, np.minimum(np.maximum(value - exact, 0.0) / room, 1.0), 1.0)
            used = np.where(np.isnan(value), np.nan, used)
        if (key := id(demand.timeline)) not in places:
            places[key] = np.searchsorted(demand.timeline.edges, edges[:-1], "right") - 1
        at = places[key]
        inside = (at >= 0) & (at < len(used))
        own[row, inside] = used[at[inside]]
        whole[row, inside] = value[at[inside]] / capacity
    return Utilizations(edges, own, whole)


def _edges(edges: Sequence[IntArray], within: tuple[IntArray, IntArray] | None) -> IntArray:
    """Return all ``edges``, each once, sorted; only those ``within`` intervals, and the ends of these."""
    all_of_them = list({id(each): each for each in edges}.values())
    if within is None:
        return distinct(np.concatenate(all_of_them))
    start, end = np.sort(within[0]), np.sort(within[1])
    found = [start, end]
    for each in all_of_them:
        begun, ended = np.searchsorted(start, each, "right"), np.searchsorted(end, each, "left")
        found.append(each[begun > ended])
    return distinct(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class Impacts:
    """What phases would gain, in seconds; arrays over phases (k), or groups and phases (g, k)."""

    known: FloatArray
    """(k) Of the phase in which at least one metric is known."""
    known_of_group: FloatArray
    """(g, k) In which at least one of the group is."""
    without_overhead: FloatArray
    """(k) ∫S: how long its use of resources takes if no two overlap."""
    gain: FloatArray
    """(g, k) ∫gain: by so much it would be shorter if the group were endlessly fast."""
    full: FloatArray
    """(g, k) In which the group was a bottleneck, local or global."""
    full_globally: FloatArray
    """(g, k) In which it was a global one."""
    uniquely_full: FloatArray
    """(g, k) In which it was the only one."""
    never_full: FloatArray
    """(k) In which no group was one, of the time that is known."""


def impacts(
    start: IntArray,
    end: IntArray,
    found: Utilizations,
    group: Sequence[int],
    full_from: Threshold = FULL_FROM,
    state: npt.NDArray[np.int8] | None = None,
) -> Impacts:
    """Return the impacts of groups of metrics on phases from ``start`` to ``end``.

    ``group``: of each metric (row of ``found``) its group, 0 to the number of groups. ``state`` (g, m): what
    each group is; without it the most that any of its metrics is.
    """
    groups = max(group, default=-1) + 1
    known = ~np.isnan(found.own)
    u = np.where(known, found.own, 0.0)
    by_group = np.zeros((groups, u.shape[1]))
    known_of_group = np.zeros((groups, u.shape[1]), np.bool_)
    for row, which in enumerate(group):
        np.maximum(by_group[which], u[row], out=by_group[which])
        known_of_group[which] |= known[row]
    if state is None:
        state = strongest(statuses(found, full_from), group)
    explained = np.minimum(by_group.sum(axis=0), 1.0)
    gain = np.minimum(by_group, 1.0 - _largest_of_others(by_group))
    full = state > NOT_FULL
    number = full.sum(axis=0)
    integral = _Integral(found.edges, start, end)
    some: BoolArray = np.any(known, axis=0)
    return Impacts(
        known=integral(some),
        known_of_group=integral.of_rows(known_of_group),
        without_overhead=integral(explained),
        gain=integral.of_rows(gain),
        full=integral.of_rows(full),
        full_globally=integral.of_rows(state == GLOBAL),
        uniquely_full=integral.of_rows(full & (number == 1)),
        never_full=integral(some & (number == 0)),
    )


def strongest(state: npt.NDArray[np.int8], group: Sequence[int]) -> npt.NDArray[np.int8]:
    """Return (g, m) the most that any metric of each group is, of ``state`` (metrics, m)."""
    found = np.zeros((max(group, default=-1) + 1, state.shape[1]), np.int8)
    for row, which in enumerate(group):
        np.maximum(found[which], state[row], out=found[which])
    return found


def statuses(found: Utilizations, full_from: Threshold = FULL_FROM) -> npt.NDArray[np.int8]:
    """Return (metrics, m) `NOT_FULL`, `LOCAL` or `GLOBAL`; of what is not known `NOT_FULL`."""
    with np.errstate(invalid="ignore"):
        whole, own = found.whole >= full_from, found.own >= full_from
    return np.where(whole, GLOBAL, np.where(own, LOCAL, NOT_FULL)).astype(np.int8)


def _largest_of_others(values: FloatArray) -> FloatArray:
    """Return for each row the largest of the other rows; 0 without others."""
    if len(values) < 2:
        return np.zeros_like(values)
    order = np.argsort(values, axis=0)
    columns = np.arange(values.shape[1])
    largest, second = values[order[-1], columns], values[order[-2], columns]
    others: FloatArray = np.where(np.arange(len(values))[:, None] == order[-1], second, largest)
    return others


class _Integral:
    """Integrals over phases, in seconds, of what is constant on segments."""

    def __init__(self, edges: IntArray, start: IntArray, end: IntArray) -> None:
        low, high = edges[0], edges[-1]
        begin = np.clip(start, low, high)
        finish = np.maximum(np.clip(end, low, high), begin)
        self._edges = edges
        self._cuts = tuple(self._place(at) for at in (begin, finish))
        self._length = np.diff(edges) / _SECOND

    def __call__(self, values: FloatArray | BoolArray) -> FloatArray:
        """(m) to (k)."""
        sums = np.concatenate((np.zeros(1), np.cumsum(values * self._length)))
        values = np.append(values, 0.0)
        (first, into), (last, over) = self._cuts
        found: FloatArray = np.maximum(
            sums[last] + values[last] * over - sums[first] - values[first] * into, 0.0
        )
        return found

    def of_rows(self, rows: FloatArray | BoolArray) -> FloatArray:
        """(g, m) to (g, k)."""
        return np.stack([self(row) for row in rows]) if len(rows) else np.zeros((0, len(self._cuts[0][0])))

    def _place(self, at: IntArray) -> tuple[IntArray, FloatArray]:
        """Return (segment, seconds into it) of moments, which need not be edges."""
        segment = np.searchsorted(self._edges, at, "right") - 1
        return segment, (at - self._edges[segment]) / _SECOND
