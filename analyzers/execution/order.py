# SPDX-License-Identifier: Apache-2.0
"""Trees as arrays of parents: levels, and the order in which every subtree stands together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IndexArray, IntArray
from grademl_otel.analyzers.model.arrays import changes

Indices = IndexArray | IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """Nodes in preorder: the root is 0, a parent stands before its children, a subtree is a slice."""

    parent: IndexArray
    """-1 for the root."""
    size: IndexArray
    """Number of nodes of the subtree, the node itself among them."""

    def __len__(self) -> int:
        return len(self.parent)

    def __repr__(self) -> str:
        # Arrays in full, as of a dataclass, would fill the screen of who looks at one.
        return f"<{len(self):,} {type(self).__name__.lower()}>"

    @cached_property
    def _families(self) -> Families:
        return Families(self.parent)

    def children(self, node: int) -> IntArray:
        """Return the children of ``node``, in order."""
        return self._families.of(node)

    def subtree(self, node: int) -> slice:
        """Return the slice of ``node`` and all below it."""
        return slice(node, node + int(self.size[node]))

    def is_above(self, node: int, other: int) -> bool:
        """Return whether ``node`` is an ancestor of ``other``."""
        return node < other < node + int(self.size[node])

    def ancestors(self, node: int) -> list[int]:
        """Return the ancestors of ``node``, its parent first, the root last."""
        found = []
        while (node := int(self.parent[node])) >= 0:
            found.append(node)
        return found

    @property
    def inner(self) -> BoolArray:
        """Mask of the nodes with children."""
        inner: BoolArray = self.size > 1
        return inner

    def below(self, chosen: BoolArray) -> BoolArray:
        """Return the mask of all that lies below a ``chosen`` node."""
        at = np.flatnonzero(chosen & self.inner)
        change = np.zeros(len(self) + 1, np.int64)
        np.add.at(change, at + 1, 1)
        np.add.at(change, at + self.size[at], -1)
        below: BoolArray = np.cumsum(change[:-1]) > 0
        return below

    def holding(self, chosen: BoolArray) -> BoolArray:
        """Return the mask of the ``chosen`` nodes and of all that they are part of."""
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(chosen)))
        holding: BoolArray = before[np.arange(len(self)) + self.size] > before[:-1]
        return holding


class Families:
    """The children of every node, those of one together; ``order`` may give them an order."""

    def __init__(self, parent: Indices, order: IntArray | None = None) -> None:
        """``order``: all nodes, sorted by parent first."""
        self.order: IntArray = np.argsort(parent, kind="stable") if order is None else order
        self._first: IntArray = np.searchsorted(parent[self.order], np.arange(-1, len(parent) + 1))

    def of(self, node: int) -> IntArray:
        """Return the children of ``node``; of -1 the roots."""
        return self.order[self._first[node + 1] : self._first[node + 2]]

    def of_all(self, nodes: IntArray) -> IntArray:
        """Return the children of all ``nodes``, those of the first one first."""
        first, count = self._first[nodes + 1], self._first[nodes + 2] - self._first[nodes + 1]
        begin = np.repeat(first - (np.cumsum(count) - count), count)
        return self.order[begin + np.arange(len(begin))]


def levels(families: Families) -> list[IntArray]:
    """Return the nodes level by level, the roots first, siblings together.

    What is in a cycle of parents, or below one, is on no level.
    """
    found = [families.of(-1)]
    while len(found[-1]):
        found.append(families.of_all(found[-1]))
    return found[:-1]


def preorder(parent: Indices, by_level: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return for each node its place in preorder, and the size of its subtree.

    ``by_level`` holds all nodes, siblings together and in the order that they shall have.
    """
    size, place = np.ones(len(parent), np.int64), np.zeros(len(parent), np.int64)
    for nodes in reversed(by_level[1:]):
        of = parent[nodes]
        first = np.flatnonzero(changes(of))
        size[of[first]] += np.add.reduceat(size[nodes], first)
    for level, nodes in enumerate(by_level):
        before = np.cumsum(size[nodes]) - size[nodes]
        if level:
            of = parent[nodes]
            first = np.flatnonzero(changes(of))
            before -= np.repeat(before[first], np.diff(np.append(first, len(nodes))))
            before += place[of] + 1
        place[nodes] = before
    return place, size
