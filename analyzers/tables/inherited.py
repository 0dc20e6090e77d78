# SPDX-License-Identifier: Apache-2.0
"""What nodes of a tree in preorder have from those that they lie within: their depth, a value of the nearest.

The subtree of a node is a slice, so every chosen node opens a bracket and closes it, and what is within reads
along the row which bracket was opened last: linear, however deep the brackets lie in each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grademl_otel.analyzers.arrays import IntArray

if TYPE_CHECKING:
    from grademl_otel.analyzers.execution.order import Indices


def depths(size: Indices) -> IntArray:
    """Return how many nodes each lies within; ``size`` is that of each subtree."""
    return added_up(size, np.ones(len(size), np.int64)) - 1


def added_up(size: Indices, values: IntArray) -> IntArray:
    """Return for each node the sum of ``values`` over it and all that it lies within."""
    count = len(size)
    change = np.zeros(count + 1, np.int64)
    change[:-1] = values
    np.subtract.at(change, np.arange(count) + size, values)
    summed: IntArray = np.cumsum(change[:-1])
    return summed


def inherited(size: Indices, nodes: IntArray, values: IntArray) -> IntArray:
    """Return for each node the value of the innermost of ``nodes`` (ascending) that it is, or lies within.

    -1 where there is none.
    """
    if not len(nodes):
        return np.full(len(size), -1, np.int64)
    ends = nodes + size[nodes]
    around = _around(nodes, ends)
    outer = np.where(around >= 0, values[np.maximum(around, 0)], -1)
    # Where several end at one place what is around the outermost of them goes on, and a start comes last.
    level = _levels(nodes, ends)
    place = np.concatenate([ends, nodes])
    tie = np.concatenate([-level, np.ones(len(nodes), np.int64)])
    order = np.lexsort((tie, place))
    places = np.concatenate([np.zeros(1, np.int64), place[order]])
    told = np.concatenate([np.full(1, -1, np.int64), np.concatenate([outer, values])[order]])
    found: IntArray = np.repeat(told, np.diff(np.append(places, len(size))))
    return found


def _levels(nodes: IntArray, ends: IntArray) -> IntArray:
    """Return within how many others of the slices each one lies."""
    opened = np.arange(len(nodes))
    closed = np.searchsorted(np.sort(ends), nodes, side="right")
    levels: IntArray = opened - closed
    return levels


def _around(nodes: IntArray, ends: IntArray) -> IntArray:
    """Return for each slice which one it lies in directly; -1 for none: the last one a level further out."""
    level, place = _levels(nodes, ends), np.arange(len(nodes))
    key = level * (len(nodes) + 1) + place
    order = np.argsort(key)
    wanted = (level - 1) * (len(nodes) + 1) + place
    before = np.searchsorted(key[order], wanted) - 1
    return np.where(level > 0, order[np.maximum(before, 0)], -1)
