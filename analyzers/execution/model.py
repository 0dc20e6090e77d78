# SPDX-License-Identifier: Apache-2.0
"""The execution model: all that ran, as one tree of typed phases, on arrays.

After GradeML (ICPE'21) and Grade10 (CLUSTER'20). A run of a million steps has millions of phases, and none of
them is an object: names, identifiers and paths are made of those that somebody looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, IndexArray, IntArray
from grademl_otel.analyzers.execution.identity import NTH, Kind, Tags, identifier, tag_text
from grademl_otel.analyzers.execution.order import Tree

DERIVED: Final = 1
"""Nobody recorded it: it begins with the first of its children and ends with the last."""
MISSING: Final = 2
"""Derived, and spans name it as their parent: it was there and did not arrive."""
SELF: Final = 4
"""The time of its parent in which no other child ran: a leaf that stands for all of its gaps."""
INFERRED: Final = 8
"""Its length is known, its place is not: a sum over several of a step."""
BESIDE: Final = 16
"""In another lane than its parent, of whose time it takes none."""

SELF_NAME: Final = "self"


@dataclass(frozen=True, eq=False, repr=False)
class Types(Tree):
    """The types of phases: those with equal type paths are one. A tree like that of the instances."""

    name: Sequence[str]
    tags: Sequence[Tags]

    def identifier(self, node: int) -> str:
        return identifier(self.name[node], self.tags[node])

    def path(self, node: int) -> str:
        """Return the type path: identifiers from below the root, each after a ``/``."""
        return _path(self, node)

    @cached_property
    def _of_path(self) -> dict[str, int]:
        return {self.path(node): node for node in range(len(self))}

    def at(self, path: str) -> int:
        """Return the type with this path; KeyError when there is none."""
        return self._of_path[path]

    def kinds(self) -> IntArray:
        return np.arange(len(self))

    def instance_texts(self, nodes: IntArray) -> tuple[list[str], IntArray]:
        """Return (texts, for each of ``nodes`` the index of that which its identifier has in brackets)."""
        return [tag_text(self.tags[node]) for node in nodes.tolist()], np.arange(len(nodes))

    def escaped_name(self, node: int) -> str:
        """Return the identifier of ``node`` without its brackets."""
        return identifier(self.name[node])


@dataclass(frozen=True, eq=False, repr=False)
class Phases(Tree):
    """Instances of phases as parallel arrays, in preorder; siblings by start, then end. Times are Unix ns."""

    start: IntArray
    end: IntArray
    busy: IntArray
    """ns in which it ran: its duration, of self time the sum of the gaps."""
    type: IndexArray
    """Index into the types."""
    kind: IndexArray
    """Index into ``all_kinds``."""
    number: IntArray
    """Value of the tag that its kind counts; -1 for none."""
    label: IndexArray
    """Index into ``labels``, its other tags; -1 for none."""
    nth: IndexArray
    """Number among the siblings that would be called the same; -1 where there is no other."""
    span_ix: IndexArray
    """Index into the columns; -1 for one that comes from a table, or is derived."""
    host: IndexArray
    """Index into ``hosts``: metadata, no part of its identity. Its own, else that of its nearest ancestor."""
    flags: npt.NDArray[np.int8]
    """`DERIVED`, `MISSING`, `SELF`, `INFERRED`, `BESIDE`."""
    all_kinds: Sequence[Kind]
    labels: Sequence[Tags]
    hosts: Sequence[str]

    @property
    def duration(self) -> IntArray:
        """ns from start to end; 0 for one that ends before it starts."""
        duration: IntArray = np.maximum(self.end - self.start, 0)
        return duration

    @property
    def leaves(self) -> BoolArray:
        """Mask of the phases without children; those with self time have a leaf for it."""
        return ~self.inner

    def has(self, flag: int) -> BoolArray:
        """Return the mask of the phases with ``flag``."""
        mask: BoolArray = (self.flags & flag) > 0
        return mask

    def name(self, node: int) -> str:
        return self.all_kinds[int(self.kind[node])].name

    def tags(self, node: int) -> Tags:
        """Return all tags of ``node``, sorted by key."""
        kind = self.all_kinds[int(self.kind[node])]
        found = [*kind.tags]
        if kind.counted is not None and self.number[node] >= 0:
            found.append((kind.counted, str(int(self.number[node]))))
        if self.label[node] >= 0:
            found += self.labels[int(self.label[node])]
        if self.nth[node] >= 0:
            found.append((NTH, str(int(self.nth[node]))))
        return tuple(sorted(found))

    def escaped_name(self, node: int) -> str:
        """Return the identifier of ``node`` without its brackets."""
        return identifier(self.name(node))

    def identifier(self, node: int) -> str:
        """Return what ``node`` is called; no sibling is called the same."""
        return identifier(self.name(node), self.tags(node))

    def path(self, node: int) -> str:
        """Return its identifier after those of its ancestors, each after a ``/``; ``/`` for the root."""
        return _path(self, node)

    def kinds(self) -> IndexArray:
        return self.kind

    def instance_texts(self, nodes: IntArray) -> tuple[list[str], IntArray]:
        """Return (texts, for each of ``nodes`` the index of that which its identifier has in brackets)."""
        alone = (self.number[nodes] < 0) & (self.nth[nodes] < 0)
        key = self.kind[nodes].astype(np.int64) * (len(self.labels) + 1) + self.label[nodes]
        which = np.empty(len(nodes), np.int64)
        _, first, which[alone] = np.unique(key[alone], return_index=True, return_inverse=True)
        texts = [tag_text(self.tags(node)) for node in nodes[alone][first].tolist()]
        # Of those that are numbered all of one kind and label differ in nothing but their number.
        counted = np.array([kind.counted is not None for kind in self.all_kinds], np.bool_)
        numbered = ~alone & counted[self.kind[nodes]] & (self.nth[nodes] < 0)
        _, first, alike = np.unique(key[numbered], return_index=True, return_inverse=True)
        around = [self._around_number(node) for node in nodes[numbered][first].tolist()]
        alike = alike.reshape(-1)
        told = np.array([one is not None for one in around] or [False], np.bool_)[alike]
        numbered[numbered], alike = told, alike[told]
        which[numbered] = len(texts) + np.arange(len(alike))
        numbers = self.number[nodes][numbered].tolist()
        pairs = zip(map(around.__getitem__, alike.tolist()), numbers, strict=True)
        texts += [f"{one[0]}{number}{one[1]}" for one, number in pairs if one is not None]
        rest = ~alone & ~numbered
        which[rest] = len(texts) + np.arange(np.count_nonzero(rest))
        texts += [tag_text(self.tags(node)) for node in nodes[rest].tolist()]
        return texts, which

    def _around_number(self, node: int) -> tuple[str, str] | None:
        """Return what stands before and after the number in the brackets of ``node``, which has one.

        None where another of its tags has the same key: then their values tell which is first.
        """
        tags, key = self.tags(node), self.all_kinds[int(self.kind[node])].counted
        at = [place for place, (name, _) in enumerate(tags) if name == key]
        if len(at) != 1:
            return None
        after = tag_text(tags[at[0] + 1 :])
        return tag_text((*tags[: at[0]], (tags[at[0]][0], ""))), f", {after}" if after else ""


def _path(tree: Types | Phases, node: int) -> str:
    above = [node, *tree.ancestors(node)][:-1]
    return "/" + "/".join(tree.identifier(one) for one in reversed(above))
