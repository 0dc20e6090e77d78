# SPDX-License-Identifier: Apache-2.0
"""The critical paths of many plain span trees at once: the rule of `tree`, on arrays.

A tree is *plain* when nothing but times, names and kinds decides its path: no lanes, no links that block, no
siblings of one thread that overlap within the tolerance. Then

- the window of a span is from the latest start to the earliest end of it and all that is above it;
- among the children of one parent, sorted as the walk asks for them, what follows a child on the path is the
  first that ends at its start or before: one binary search for each, and those that the last one leads to
  are found by pointer doubling (Wyllie 1979), as are the windows and what is on the path: all of its
  ancestors are on it and it is among those of its parent;
- the sections are what the children on the path leave of their parents.

Nothing here takes a Python step per span, or per level or sibling: log2 of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.trees.doubling import all_along, narrowed, reached
from grademl_otel.analyzers.graph.trees.plainness import MOST_TIME
from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER, SpanColumns

_MOST: Final = np.iinfo(np.int64).max
_LEAST: Final = np.iinfo(np.int64).min

Choice = Callable[[IntArray], int]
"""Returns which of some spans, alike in all that the rule looks at, is on the path."""
Units = Callable[[IntArray], IntArray]
"""Returns a number for the thread of each of some spans; -1 where it is not known."""


@dataclass(frozen=True)
class PlainPaths:
    """Sections of some trees, by tree and time, as arrays."""

    tree: IntArray
    start: IntArray
    end: IntArray
    span_ix: IntArray
    follows: BoolArray
    """Whether it is the last thing of a thread before another of the same."""
    clipped_ns: IntArray
    """Of each tree."""
    overlaps: BoolArray
    """Of each tree: whether it is not plain, for siblings of one thread overlap; its sections are void."""


def plain_paths(
    spans: SpanColumns,
    members: IntArray,
    up: IntArray,
    roots: IntArray,
    tolerance: OverlapTolerance,
    choose: Choice,
    units: Units,
) -> PlainPaths:
    """Return the paths of the trees under ``roots``.

    ``members`` are indices of spans, ``up`` and ``roots`` places among them: the parent of each, itself where
    it has none. The lengths of all members must add up to less than `MOST_TIME`, and start at 0 or after.
    """
    trees = _Trees(spans, members, up, roots)
    children = _Children(trees, spans)
    on = _on_path(trees, children.ix[children.chosen])
    if children.settle_alike(spans, choose, units):
        on = _on_path(trees, children.ix[children.chosen])
    overlaps = np.zeros(len(roots), bool)
    overlaps[trees.tree[children.overlapping(on, tolerance, units)]] = True
    return _sections(trees, children, on, overlaps, units)


class _Trees:
    """Spans of some trees, each with the window in which it can matter."""

    def __init__(self, spans: SpanColumns, members: IntArray, up: IntArray, roots: IntArray) -> None:
        self.members, self.up, self.roots = members, up, roots
        self.start, self.end = spans.start[members], spans.end[members]
        kind = spans.kind[members]
        self.is_root = np.zeros(len(members), bool)
        self.is_root[roots] = True
        self.absent = (self.end < self.start) | ((kind == KIND_CONSUMER) & (kind[up] == KIND_PRODUCER))
        """What has no place in its parent, nor what is below it."""
        self.absent &= ~self.is_root
        lo, hi = np.where(self.absent, _MOST, self.start), np.where(self.absent, _LEAST, self.end)
        hi[roots] = np.maximum(lo[roots], hi[roots])
        top, self.lo, self.hi = narrowed(up, lo, hi)
        number = np.full(len(members), -1, np.int64)
        number[roots] = np.arange(len(roots))
        self.tree: IntArray = number[top]
        """Number of the root; -1 of what is below none of them."""
        self.there = (self.tree >= 0) & (self.lo < self.hi)
        self.length: IntArray = np.where(self.there, self.hi - self.lo, 0)


class _Children:
    """All children that may be on the path: of one parent together, in the order in which the walk asks.

    Times are told as `key`: how long before the end of the parent, all parents one after the other on one
    axis; so that one search finds moments in all of them.
    """

    def __init__(self, trees: _Trees, spans: SpanColumns) -> None:
        self._trees = trees
        ix = np.flatnonzero(trees.there & ~trees.is_root)
        holder = trees.up[ix]
        room = np.zeros(len(trees.members), np.int64)
        room[holder] = trees.length[holder] + 1
        origin = np.cumsum(room) - room + trees.hi
        key = origin[holder] - trees.hi[ix]
        order = self._order(ix, key, spans)
        self.ix: IntArray = ix[order]
        """Places among the members."""
        self.holder: IntArray = holder[order]
        self._key: IntArray = key[order]
        """Of the end of each; ascending."""
        self._until: IntArray = origin[self.holder] - trees.lo[self.ix]
        """Of the start of each."""
        firsts = changes(self.holder)
        heads = np.flatnonzero(firsts)
        following = np.searchsorted(self._key, self._until)
        self._last_after: IntArray = following - 1
        """Which of its siblings ends first of those that end after its start: itself, if not another."""
        ends = np.append(heads[1:], len(self.ix))[np.cumsum(firsts) - 1]
        alone = following >= ends
        following[alone] = np.flatnonzero(alone)
        self.chosen = reached(heads, following)

    def _order(self, ix: IntArray, key: IntArray, spans: SpanColumns) -> IntArray:
        order = np.argsort(key)
        ordered = key[order]
        same = ordered[1:] == ordered[:-1]
        if same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            some = ix[order[tied]]
            name = spans.name_ix[self._trees.members[some]]
            distinct, number = np.unique(name, return_inverse=True)
            words = [spans.names[at] for at in distinct.tolist()]
            rank = np.empty(len(words), np.int64)
            rank[sorted(range(len(words)), key=words.__getitem__)] = np.arange(len(words))
            waits = np.array([word in semconv.WAIT_PHASES for word in words], bool)
            by_rule = (some, rank[number], self._trees.lo[some], waits[number], ordered[tied])
            order[tied] = order[tied][np.lexsort(by_rule)]
        return order

    def settle_alike(self, spans: SpanColumns, choose: Choice, units: Units) -> bool:
        """Let ``choose`` tell which of siblings alike in time and name it is; return whether there are any.

        It matters only where what is below them differs, their kind, or where they ran.
        """
        trees = self._trees
        one = np.flatnonzero(self._key[1:] == self._key[:-1])  # and the next after it
        some, other = self.ix[one], self.ix[one + 1]
        names = spans.name_ix[trees.members[some]], spans.name_ix[trees.members[other]]
        alike = (trees.lo[some] == trees.lo[other]) & (names[0] == names[1])
        one, some, other = one[alike], some[alike], other[alike]
        if not len(one):
            return False
        new = np.append(True, np.diff(one) > 1)
        asked = self.chosen[one[new]][np.cumsum(new) - 1]  # the first of them, if any
        one, some, other, new = one[asked], some[asked], other[asked], new[asked]
        if not len(one):
            return False
        holds = np.zeros(len(trees.members), bool)
        holds[trees.up] = True
        ixs = trees.members[some], trees.members[other]
        differ = holds[some] | holds[other] | (units(ixs[0]) != units(ixs[1]))
        for column in (spans.kind, spans.resource_ix):
            differ |= column[ixs[0]] != column[ixs[1]]
        matters = np.logical_or.reduceat(differ, np.flatnonzero(new))
        begin, end = one[new], one[np.append(new[1:], True)] + 2
        if not matters.any():
            return False
        of_those = one[matters[np.cumsum(new) - 1]]
        maybe = self.chosen.copy()
        maybe[of_those] = maybe[of_those + 1] = True
        matters &= _on_path(trees, self.ix[maybe])[self.holder[begin]]
        for first, until in zip(begin[matters].tolist(), end[matters].tolist(), strict=True):
            self.chosen[first] = False
            self.chosen[first + choose(trees.members[self.ix[first:until]])] = True
        return bool(matters.any())

    def overlapping(self, on: BoolArray, tolerance: OverlapTolerance, units: Units) -> IntArray:
        """Return parents on the path of which two children of one thread overlap within the tolerance.

        There the walk would cut one of the two. None of those that it would cut are missing here, and of the
        others those are here of which yet another ends close enough.
        """
        trees = self._trees
        allowed = tolerance.of_each(trees.length)
        close = _close(self._key, self._until, self._last_after, allowed[self.holder]) & on[self.holder]
        if not close.any():
            return np.zeros(0, np.int64)
        asked = np.zeros(len(trees.members), bool)
        asked[self.holder[close]] = True
        some = np.flatnonzero(asked[self.holder])
        unit = units(trees.members[self.ix[some]])
        some, unit = some[unit >= 0], unit[unit >= 0]
        # The same once more among those of one thread: each parent and thread has a place on the axis.
        order = np.lexsort((self._key[some], unit, self.holder[some]))
        some, unit = some[order], unit[order]
        holder = self.holder[some]
        room = trees.length[holder] + 1
        place = np.where(changes(holder, unit), room, 0)
        if place.sum(dtype=np.float64) > MOST_TIME:
            return holder  # more threads of long parents than the axis has room for: all to the walk
        origin = np.cumsum(place) - room + trees.hi[holder]
        key, until = origin - trees.hi[self.ix[some]], origin - trees.lo[self.ix[some]]
        found: IntArray = holder[_close(key, until, np.searchsorted(key, until) - 1, allowed[holder])]
        return found


def _on_path(trees: _Trees, chosen: IntArray) -> BoolArray:
    """Return which spans are on the path, when these are among those of their parents."""
    on = np.zeros(len(trees.members), bool)
    on[chosen] = True
    on[trees.roots] = trees.lo[trees.roots] < trees.hi[trees.roots]
    return all_along(trees.up, on)


def _close(key: IntArray, until: IntArray, last_after: IntArray, allowed: IntArray) -> BoolArray:
    """Return of which another one ends within ``allowed`` after its start, and not after it."""
    itself = last_after == np.arange(len(key))
    itself[1:] &= key[1:] != key[:-1]
    close: BoolArray = (until - key[last_after] <= allowed) & ~itself
    return close


def _sections(
    trees: _Trees, children: _Children, on: BoolArray, overlaps: BoolArray, units: Units
) -> PlainPaths:
    """Return what the children on the path leave of their parents, and what those without any take."""
    lo, hi, members = trees.lo, trees.hi, trees.members
    chosen = np.flatnonzero(children.chosen)
    chosen = chosen[on[children.ix[chosen]]]
    child, holder = children.ix[chosen], children.holder[chosen]
    first = changes(holder)
    later = np.append(child[:1], child[:-1])  # the sibling that the walk was in before
    until = np.where(first, hi[holder], lo[later])
    every = np.flatnonzero(on)
    begun = hi.copy()
    earliest = np.append(first[1:], True)[: len(first)]
    begun[holder[earliest]] = lo[child[earliest]]
    owner = np.concatenate((holder, every))
    start, end = np.concatenate((hi[child], lo[every])), np.concatenate((until, begun[every]))
    some = np.flatnonzero(start < end)
    owner, start, end = owner[some], start[some], end[some]
    tree = trees.tree[owner]
    root = trees.roots[tree]
    axis = np.cumsum(trees.length[trees.roots]) - trees.length[trees.roots] - lo[trees.roots]
    order = np.argsort(start + axis[tree])
    owner, start, end, tree, root = (part[order] for part in (owner, start, end, tree, root))
    last = end == hi[owner]
    follows = last & (owner == root)
    tails = np.zeros(len(members), bool)
    tails[owner[last]] = True
    together = np.flatnonzero(~first & (until == hi[child]) & tails[child])
    if len(together):
        one, other = np.split(units(members[np.append(child[together], later[together])]), 2)
        same = np.zeros(len(members), bool)
        same[child[together[(one == other) & (one >= 0)]]] = True
        follows |= last & same[owner]
    return PlainPaths(
        tree=tree,
        start=start,
        end=end,
        span_ix=members[owner],
        follows=follows,
        clipped_ns=_clipped(trees, on),
        overlaps=overlaps,
    )


def _clipped(trees: _Trees, on: BoolArray) -> IntArray:
    """Return, of each tree, what was cut off children of what is on the path."""
    met = (on | trees.is_root)[trees.up]
    some = np.flatnonzero(met & ~trees.is_root & ~trees.absent)
    cut = trees.end[some] - trees.start[some] - np.maximum(trees.hi[some] - trees.lo[some], 0)
    clipped = np.zeros(len(trees.roots), np.int64)
    np.add.at(clipped, trees.tree[some], cut)
    return clipped
