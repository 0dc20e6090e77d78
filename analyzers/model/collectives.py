# SPDX-License-Identifier: Apache-2.0
"""Collectives joined across ranks by their key: who arrived when, who waited for whom, what was transfer.

A rank arrives at a collective when it issues it. Of the time to its completion it *waits* until the last of
the other members has arrived; the rest is *transfer*. Both are exact: wait + transfer = busy. Members of one
group name the same collective by the same key, so that no order of spans or traces is relied on.

Times of hosts are compared only as far as their clocks can be tied together, see `clocks`. Where that is not
well enough, the transfer of a collective is the shortest time that one of its members was in it: the last to
arrive waits for nobody, and each measures by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.clock_ties import ONE_SIDED
from grademl_otel.analyzers.model.clocks import Clocks, clocks_of_run
from grademl_otel.analyzers.model.facts import Run

_BESIDE: Final = "comm"
"""Lane of what runs beside the thread that issued it."""
_MOST_NS: Final = 1 << 60
_ROUNDING_NS: Final = 2_000
"""What bounds of a row, in whole microseconds, may be off."""


@dataclass(frozen=True)
class Collectives:
    """The collectives of all ranks as parallel arrays, one element per rank and collective.

    Sorted by (rank, issue). Times are Unix ns by the rank's own clock.
    """

    rank: IntArray
    issue: IntArray
    end: IntArray
    """Completion; where that was not observed the return of the call."""
    last: IntArray
    """By the rank's own clock, when the last member had arrived that this one had to wait for."""
    arriver: IntArray
    """The rank of that member, itself if it was the last, the lowest of several; -1 where it is not known."""
    group: IntArray
    """Number of the group of ranks that does it, which does one after the other."""
    key: IntArray
    """Number of the collective, the same on all its members."""
    present: IntArray
    """How many members of the collective are here."""
    size: IntArray
    """How many it has; 0 where it does not say."""
    bytes: IntArray
    """-1 where not known."""
    op: IntArray
    """Index into `ops`."""
    ops: list[str]
    completed: BoolArray
    """Whether the completion was observed."""
    beside: BoolArray
    """Ran beside the thread that issued it, which did not stand still for it."""
    row: IntArray
    """Index into the run's step table; -1 when it was issued outside rows."""
    span_ix: IntArray
    clocks: Clocks
    violations: int
    """Members that left before the last one had arrived, in operations where that cannot be."""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def busy(self) -> IntArray:
        """From issue to completion, in ns."""
        return self.end - self.issue

    @property
    def wait(self) -> IntArray:
        """Part of `busy` before the last arrival, in ns; only where `apart` holds it means anything."""
        return self.last - self.issue

    @property
    def transfer(self) -> IntArray:
        """The rest of `busy`."""
        return self.end - self.last

    @property
    def whole(self) -> BoolArray:
        """Whether all members are here."""
        whole: BoolArray = (self.size > 0) & (self.present >= self.size)
        return whole

    @property
    def apart(self) -> BoolArray:
        """Whether wait and transfer are told apart: all members are here and the completion was seen."""
        return self.whole & self.completed

    def of_rank(self, rank: int) -> slice:
        """Return the slice of the collectives of ``rank``, which stand together."""
        first, end = np.searchsorted(self.rank, (rank, rank + 1))
        return slice(int(first), int(end))


def collectives_of(run: Run) -> Collectives:
    """Return the collectives of ``run``; of ranks that were left out only their arrivals count."""
    found = _read(run)
    every = sorted({int(rank) for rank in np.unique(found["rank"])} | set(run.ranks))
    keys: dict[str, int] = {}
    groups: dict[str, int] = {}
    text = found.pop("text")
    key: IntArray = np.array([keys.setdefault(each, len(keys)) for each in text], np.int64)
    group: IntArray = np.array([groups.setdefault(_group(each), len(groups)) for each in text], np.int64)
    rank, issue, end = found["rank"], found["issue"], found["end"]
    # Of a key that a rank tells twice, the first is its arrival.
    order = np.lexsort((issue, rank, key))
    again = np.zeros(len(order), np.bool_)
    again[1:] = (key[order][1:] == key[order][:-1]) & (rank[order][1:] == rank[order][:-1])
    first = np.ones(len(order), np.bool_)
    first[order[again]] = False
    ops = found.pop("ops")
    one_sided = np.array([op in ONE_SIDED for op in ops] or [False], np.bool_)[found["op"]]
    clocks = run.clocks or clocks_of_run(run.spans, run.span_ixs, every)
    shift = clocks.shift(rank)
    arrival = issue - shift
    present = np.bincount(key[first], minlength=len(keys))[key]
    latest = _latest(key, arrival, first, len(keys))
    left_early = (latest > end - shift) & found["completed"]
    causal = np.where(one_sided & left_early, _before(key, arrival, first, end - shift), latest)
    last = np.clip(causal + shift, issue, end)
    arriver = _who(key, arrival, rank, np.flatnonzero(first), causal)
    if not clocks.tell(every, _length_of_steps(run)):
        several = _of_several_clocks(key, clocks.number(rank), len(keys))
        last = np.where(several & ~one_sided, end - _shortest(key, end - issue, len(keys)), last)
        arriver = np.where(several, -1, arriver)
    margin = np.maximum(clocks.error(rank), clocks.error_ns)
    impossible = first & ~one_sided & left_early & (latest - (end - shift) > np.maximum(margin, _ROUNDING_NS))
    kept = np.flatnonzero(np.isin(rank, run.ranks))
    kept = kept[np.lexsort((end[kept], issue[kept], rank[kept]))]
    return Collectives(
        **{name: column[kept] for name, column in found.items()},
        last=last[kept],
        arriver=arriver[kept],
        group=group[kept],
        key=key[kept],
        present=present[kept] if len(keys) else present,
        ops=ops,
        row=_rows(run, rank[kept], issue[kept]),
        clocks=clocks,
        violations=int(np.count_nonzero(impossible)),
    )


def _read(run: Run) -> dict[str, Any]:
    """Return the spans `collective` of the run as columns; ``text`` holds their keys, ``ops`` the names."""
    spans, ixs = run.spans, run.span_ixs
    if semconv.COLLECTIVE in spans.names:
        ixs = ixs[(spans.name_ix[ixs] == spans.names.index(semconv.COLLECTIVE)) & spans.possible[ixs]]
    else:
        ixs = ixs[:0]
    ranks = np.array([_count(r.get(semconv.RANK)) or 0 for r in spans.resources] or [0], np.int64)
    numbers: list[tuple[int, int, int, int, bool, bool]] = []
    text: list[str] = []
    ops: dict[str, int] = {}
    for ix in ixs.tolist():
        said = spans.attributes(ix)
        key = said.get(semconv.COLLECTIVE_KEY)
        size, moved = _count(said.get(semconv.COLLECTIVE_SIZE)), _count(said.get(semconv.BYTES))
        op = ops.setdefault(str(said.get(semconv.COLLECTIVE_OP, "")), len(ops))
        completed = said.get(semconv.COLLECTIVE_COMPLETED) is True
        beside = said.get(semconv.LANE) == _BESIDE or said.get(semconv.COLLECTIVE_BLOCKING) is False
        text.append(key if isinstance(key, str) and key else f"?{ix}")
        numbers.append((ix, size or 0, -1 if moved is None else moved, op, completed, beside))
    table = np.array(numbers, np.int64).reshape(-1, 6)
    return {
        "text": text,
        "ops": list(ops),
        "rank": ranks[spans.resource_ix[table[:, 0]]] if len(table) else np.zeros(0, np.int64),
        "issue": spans.start[table[:, 0]],
        "end": spans.end[table[:, 0]],
        "size": table[:, 1],
        "bytes": table[:, 2],
        "op": table[:, 3],
        "completed": table[:, 4] > 0,
        "beside": table[:, 5] > 0,
        "span_ix": table[:, 0],
    }


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NS else None


def _length_of_steps(run: Run) -> int:
    """Return the median length of the rows, in ns; 0 without rows."""
    length = run.steps.end - run.steps.start
    return int(np.median(length)) if len(length) else 0


def _of_several_clocks(key: IntArray, clock: IntArray, keys: int) -> BoolArray:
    """Return for each element whether its collective has members on several clocks."""
    least, most = np.full(keys, np.iinfo(np.int64).max, np.int64), np.full(keys, -1, np.int64)
    np.minimum.at(least, key, clock)
    np.maximum.at(most, key, clock)
    several: BoolArray = (least < most)[key] if keys else np.zeros(0, np.bool_)
    return several


def _shortest(key: IntArray, busy: IntArray, keys: int) -> IntArray:
    """Return for each element the shortest time that a member was in its collective."""
    shortest = np.full(keys, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(shortest, key, busy)
    return shortest[key] if keys else busy


def _latest(key: IntArray, arrival: IntArray, first: BoolArray, keys: int) -> IntArray:
    """Return for each element the latest arrival at its collective."""
    latest = np.full(keys, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(latest, key[first], arrival[first])
    return latest[key] if keys else arrival


def _before(key: IntArray, arrival: IntArray, first: BoolArray, left: IntArray) -> IntArray:
    """Return for each element the latest arrival at its collective that was not after it ``left``.

    Of an operation that its members leave at different times nobody waited for who came later.
    """
    best = arrival.copy()
    order = np.flatnonzero(first)[np.lexsort((arrival[first], key[first]))]
    sorted_keys = key[order]
    begin, end = np.searchsorted(sorted_keys, key, "left"), np.searchsorted(sorted_keys, key, "right")
    # Walk back from the latest: members of a collective are few, elements many.
    pending = np.flatnonzero(end > begin)
    at = end - 1
    while len(pending):
        fits = arrival[order[at[pending]]] <= left[pending]
        hit = pending[fits]
        best[hit] = np.maximum(best[hit], arrival[order[at[hit]]])
        pending = pending[~fits]
        at[pending] -= 1
        pending = pending[at[pending] >= begin[pending]]
    return best


def _who(key: IntArray, arrival: IntArray, rank: IntArray, first: IntArray, moment: IntArray) -> IntArray:
    """Return for each element the lowest rank of its collective whose arrival was at that ``moment``.

    ``first`` are the places of the elements that are arrivals; -1 where none of them was then.
    """
    found: IntArray = np.full(len(key), -1, np.int64)
    if not len(first):
        return found
    times, number = np.unique(np.concatenate([arrival[first], moment]), return_inverse=True)
    then, wanted = number[: len(first)], number[len(first) :]
    code = key[first] * len(times) + then
    order = np.lexsort((rank[first], code))
    sought = key * len(times) + wanted
    at = np.minimum(np.searchsorted(code[order], sought), len(order) - 1)
    known = code[order[at]] == sought
    found[known] = rank[first[order[at[known]]]]
    return found


def _group(key: str) -> str:
    """Return the part of a key that all collectives of a group have alike."""
    return key.rpartition(":")[0]


def _rows(run: Run, rank: IntArray, issue: IntArray) -> IntArray:
    """Return the row of the step table that was open at each ``issue``; -1 for none. Sorted by rank."""
    row: IntArray = np.full(len(rank), -1, np.int64)
    for one in run.ranks:
        mine, rows = np.flatnonzero(rank == one), run.steps.of_rank(one)
        if not len(mine) or rows.stop == rows.start:
            continue
        at = np.searchsorted(run.steps.start[rows], issue[mine], "right") - 1
        found = rows.start + np.maximum(at, 0)
        within = (at >= 0) & (issue[mine] < run.steps.end[found] + _ROUNDING_NS)
        row[mine] = np.where(within, found, -1)
    return row
