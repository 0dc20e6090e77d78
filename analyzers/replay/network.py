# SPDX-License-Identifier: Apache-2.0
"""Tasks that wait for each other: when each begins and ends.

A task begins its delay after the last of those that it waits for has ended, never before its earliest time,
and, where its pool is limited, when a place in it is free; it ends its duration later. Without limits that is
a longest path, taken on arrays, for many sets of durations at once. Tasks that only follow each other are one
chain, which is one sum; a year of steps one after another is no more work than their number. With limits it
is a queue of events (`pools`). Both say the same of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from grademl_otel.analyzers.arrays import IntArray

NO_POOL: Final = -1


class Circular(ValueError):
    """Tasks wait for each other in a circle."""


class Stuck(ValueError):
    """Tasks hold places in pools, and wait for such that others hold."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """When each task ran; arrays over tasks (n), or tasks and sets of durations (n, k). ns from 0."""

    start: IntArray
    end: IntArray


@dataclass(frozen=True, eq=False)
class Pools:
    """Places that tasks take as they begin and give back as they, or others, end; who asks first is first."""

    places: Sequence[int]
    """Of each pool."""
    takes: IntArray
    """(n) The pool of which a task takes a place as it begins; `NO_POOL`."""
    gives: IntArray
    """(n) The pool to which it gives a place back as it ends; `NO_POOL`."""


class _Level(NamedTuple):
    """Chains that wait for nothing but what is in levels before; places are those in the order of levels."""

    rows: slice
    heads: IntArray
    """Of each chain its first task, from the first of ``rows`` on."""
    lengths: IntArray
    waits_for: IntArray
    """What the heads wait for, those of one head together."""
    of_head: IntArray | None
    """Where in these each head's begin; None where each waits for one."""


class Network:
    """A number of tasks and what each of them waits for."""

    def __init__(
        self,
        count: int,
        before: IntArray,
        after: IntArray,
        *,
        delay: IntArray | None = None,
        earliest: IntArray | None = None,
        pools: Pools | None = None,
    ) -> None:
        """``after[i]`` waits for the end of ``before[i]``.

        ``delay``: ns between the last of these ends, of tasks that wait for none 0, and the begin.
        ``earliest``: a task does not begin before; 0 says nothing.
        """
        self.count = count
        self.before, self.after = before, after
        self.delay = np.zeros(count, np.int64) if delay is None else delay
        self.earliest = np.zeros(count, np.int64) if earliest is None else earliest
        self.pools = pools
        if len(before) and not 0 <= min(before.min(), after.min()) <= max(before.max(), after.max()) < count:
            raise ValueError("tasks wait for tasks of the network")
        if (self.delay < 0).any():
            raise ValueError("delays are not below 0")

    def run(self, duration: IntArray) -> Replayed:
        """Return when each task runs with these durations (n), or sets of durations (n, k), in ns.

        Raises Circular, and Stuck.
        """
        if len(duration) != self.count:
            raise ValueError(f"{len(duration)} durations of {self.count} tasks")
        if (duration < 0).any():
            raise ValueError("durations are not below 0")
        if self.pools is None:
            found = self._longest(duration.reshape(self.count, -1))
        else:
            from grademl_otel.analyzers.replay.pools import by_events

            columns = duration.reshape(self.count, -1).T
            runs = [by_events(self, column) for column in columns]
            start = np.stack([one.start for one in runs], axis=1)
            end = np.stack([one.end for one in runs], axis=1)
            found = Replayed(start, end)
        return Replayed(found.start.reshape(duration.shape), found.end.reshape(duration.shape))

    def _longest(self, duration: IntArray) -> Replayed:
        order, levels = self._plan
        took = (duration + self.delay[:, None])[order]
        floor = (self.earliest - self.delay)[order][:, None]
        end = np.zeros((self.count + 1, duration.shape[1]), np.int64)
        for level in levels:
            begin = end[level.waits_for]
            if level.of_head is not None:
                begin = np.maximum.reduceat(begin, level.of_head, axis=0)
            here, rows = took[level.rows], level.rows
            np.maximum(begin, floor[rows][level.heads], out=begin)
            if len(level.heads) == len(here):
                np.add(begin, here, out=end[rows])
                continue
            total = np.cumsum(here, axis=0)
            begin -= total[level.heads]
            begin += here[level.heads]
            np.add(total, np.repeat(begin, level.lengths, axis=0), out=end[rows])
        found = np.empty_like(duration)
        found[order] = end[:-1]
        return Replayed(found - duration, found)

    @cached_property
    def _plan(self) -> tuple[IntArray, list[_Level]]:
        """The order of levels, and what there is to do in each."""
        chain, place, level = self._chains()
        of_task = level[chain]
        order = np.lexsort((place, chain, of_task))
        row = np.empty(self.count, np.int64)
        row[order] = np.arange(self.count)
        heads = np.flatnonzero(place[order] == 0)
        lengths = np.diff(np.append(heads, self.count))
        # What heads wait for, in the order of heads; those that wait for nothing wait for the origin, time 0.
        of_heads = place[self.after] == 0
        before, after = row[self.before[of_heads]], row[self.after[of_heads]]
        nothing = heads[np.bincount(after, minlength=self.count)[heads] == 0]
        before = np.concatenate((before, np.full(len(nothing), self.count)))
        after = np.concatenate((after, nothing))
        before = before[np.argsort(after, kind="stable")]
        number = np.bincount(after, minlength=self.count)[heads]
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(number)))
        bounds = np.flatnonzero(np.diff(of_task[order[heads]], prepend=-1, append=-1))
        found = []
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            begin = int(heads[low])
            end = int(heads[high]) if high < len(heads) else self.count
            starts = first[low:high]
            single = int(first[high] - first[low]) == high - low
            found.append(
                _Level(
                    slice(begin, end),
                    heads[low:high] - begin,
                    lengths[low:high],
                    before[first[low] : first[high]],
                    None if single else starts - first[low],
                )
            )
        return order, found

    def _chains(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return (chain, place in it) of each task, and the level of each chain."""
        waits_for, later = (
            lists(self.count, *pair) for pair in ((self.after, self.before), (self.before, self.after))
        )
        waiting = [len(each) for each in waits_for]
        alone = (self.earliest > self.delay).tolist()
        chain, place, continued = [-1] * self.count, [0] * self.count, bytearray(self.count)
        level: list[int] = []
        ready = [task for task in range(self.count - 1, -1, -1) if not waiting[task]]
        done = 0
        while ready:
            task = ready.pop()
            done += 1
            before = waits_for[task]
            if len(before) == 1 and not continued[before[0]] and not alone[task]:
                continued[before[0]] = 1
                chain[task], place[task] = chain[before[0]], place[before[0]] + 1
            else:
                chain[task] = len(level)
                level.append(1 + max((level[chain[one]] for one in before), default=-1))
            for one in later[task]:
                waiting[one] -= 1
                if not waiting[one]:
                    ready.append(one)
        if done < self.count:
            raise Circular(f"{self.count - done} tasks wait for each other in a circle, or for such")
        return np.array(chain, np.int64), np.array(place, np.int64), np.array(level, np.int64)


def lists(count: int, of: IntArray, what: IntArray) -> list[list[int]]:
    """Return for each task ``what`` stands beside it in ``of``."""
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], np.arange(count + 1)).tolist()
    values = what[order].tolist()
    return [values[low:high] for low, high in pairwise(first)]
