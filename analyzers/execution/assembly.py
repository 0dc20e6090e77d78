# SPDX-License-Identifier: Apache-2.0
"""From a draft to the tree: what is not recorded is derived, self time gets its leaves, names become unique.

The result does not depend on the order in which phases were found, on ids, or on when the whole was: siblings
stand in the order of their starts and ends, and where these are equal, of what is below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IndexArray, IntArray
from grademl_otel.analyzers.execution.draft import Columns, Draft
from grademl_otel.analyzers.execution.identity import Kind, Tags
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, INFERRED, SELF, SELF_NAME, Phases, Types
from grademl_otel.analyzers.execution.order import Families, Indices, levels, preorder
from grademl_otel.analyzers.execution.self_time import gaps
from grademl_otel.analyzers.model.arrays import changes

_LATEST: Final = np.iinfo(np.int64).max


class NoTree(ValueError):
    """The parents of a draft make no tree: one does not exist, or they form a cycle; the text says which."""


def assemble(draft: Draft) -> tuple[Phases, Types, IntArray]:
    """Return (instances, types, place in them of each phase of the draft). Raises NoTree."""
    of_self = draft.kind(SELF_NAME)
    columns = draft.take()
    drafted = len(draft)
    _check_parents(columns["parent"], draft)
    by_level = levels(Families(columns["parent"]))
    if sum(map(len, by_level)) < drafted:
        raise NoTree(_cycle(columns["parent"], by_level))
    _derive_times(columns, by_level)
    columns["busy"] = np.maximum(columns["end"] - columns["start"], 0)
    columns = _with_self_time(columns, of_self)
    families = _in_order(columns, draft)
    by_level = levels(families)
    _resolve_hosts(columns, by_level)
    place, size = preorder(columns["parent"], by_level)
    order = np.argsort(place)
    kinds, labels = list(draft.kinds), list(draft.labels)
    types, type_of = _types(columns, by_level, kinds)
    parent = columns["parent"][order]
    parent[1:] = place[parent[1:]]
    by_level.clear()
    del columns["parent"]
    sorted_ = {name: columns.pop(name)[order] for name in list(columns)}
    phases = Phases(
        parent=parent,
        size=size[order].astype(np.int32),
        start=sorted_["start"],
        end=sorted_["end"],
        busy=sorted_["busy"],
        type=type_of[order].astype(np.int32),
        kind=sorted_["kind"],
        number=sorted_["number"],
        label=sorted_["label"],
        nth=_nth(parent, sorted_, kinds, labels),
        span_ix=sorted_["span_ix"],
        host=sorted_["host"],
        flags=sorted_["flags"],
        all_kinds=kinds,
        labels=labels,
        hosts=list(draft.hosts),
    )
    return phases, types, place[:drafted]


def _check_parents(parent: Indices, draft: Draft) -> None:
    roots = np.flatnonzero(parent == -1)
    if roots.tolist() != [0]:
        raise NoTree(f"{len(roots):,} phases without a parent; the root alone has none")
    wrong = np.flatnonzero((parent < -1) | (parent >= len(draft)))
    if len(wrong):
        raise NoTree(f"the parent of {len(wrong):,} phases does not exist; the first is phase {wrong[0]}")


def _cycle(parent: Indices, by_level: list[IntArray]) -> str:
    reached = np.zeros(len(parent), bool)
    for nodes in by_level:
        reached[nodes] = True
    at = int(np.flatnonzero(~reached)[0])
    seen: dict[int, None] = {}
    while at not in seen:
        seen[at] = None
        at = int(parent[at])
    cycle = [*seen][[*seen].index(at) :]
    shown = " -> ".join(map(str, [*cycle[:5], *(["..."] if len(cycle) > 5 else []), at]))
    return f"the parents of {int((~reached).sum()):,} phases lead in a circle: {shown}"


def _derive_times(columns: Columns, by_level: Sequence[IntArray]) -> None:
    """Let derived phases begin with the first of their children and end with the last, the lowest first.

    One that holds nothing takes no time, and none of its parent's.
    """
    parent, start, end = columns["parent"], columns["start"], columns["end"]
    derived = (columns["flags"] & DERIVED) > 0
    start[derived], end[derived] = _LATEST, -_LATEST
    for above, nodes in zip(reversed(by_level[:-1]), reversed(by_level[1:]), strict=True):
        if not derived[above].any():
            continue
        of = parent[nodes]
        first = np.flatnonzero(changes(of))
        owner = of[first]
        mine = derived[owner]
        start[owner[mine]] = np.minimum.reduceat(start[nodes], first)[mine]
        end[owner[mine]] = np.maximum.reduceat(end[nodes], first)[mine]
    empty = derived & (start == _LATEST)
    start[empty] = end[empty] = 0
    for nodes in by_level[1:]:
        lost = nodes[empty[nodes]]
        start[lost] = end[lost] = start[parent[lost]]


def _with_self_time(columns: Columns, of_self: int) -> Columns:
    """Return ``columns`` and, for each phase that ran while none of its children did, a leaf for it."""
    parent, start, end = columns["parent"], columns["start"], columns["end"]
    # Nothing is known to have run in what derived phases do not cover.
    ran = (columns["flags"] & DERIVED) == 0
    children = np.flatnonzero(parent >= 0)
    children = children[ran[parent[children]]]
    of = parent[children]
    # What runs beside its parent covers nothing of it.
    beside = (columns["flags"][children] & BESIDE) > 0
    since = np.where(beside, start[of], start[children])
    until = np.where(beside, start[of], end[children])
    order = np.lexsort((since, of))
    found = gaps(of[order], since[order], until[order], start, end)
    if not len(found):
        return columns
    first = np.flatnonzero(changes(found.phase))
    last = np.append(first[1:], len(found)) - 1
    owner = found.phase[first]
    added = {
        "parent": owner,
        "start": found.start[first],
        "end": found.end[last],
        "busy": np.add.reduceat(found.end - found.start, first),
        "kind": np.full(len(owner), of_self),
        "number": np.full(len(owner), -1),
        "label": np.full(len(owner), -1),
        "span_ix": columns["span_ix"][owner],
        "host": columns["host"][owner],
        "flags": SELF | (columns["flags"][owner] & INFERRED),
    }
    return {
        name: np.concatenate([column := columns.pop(name), added[name].astype(column.dtype)])
        for name in list(columns)
    }


def _in_order(columns: Columns, draft: Draft) -> Families:
    """Return the families, siblings by start, end and, where these are equal, what they are."""
    parent, start, end = columns["parent"], columns["start"], columns["end"]
    order = np.lexsort((end, start, parent))
    same = ~changes(parent[order], start[order], end[order])
    if not same.any():
        return Families(parent, order)
    same[:-1] |= same[1:]
    at = np.flatnonzero(same)  # places of those with a twin in time
    some = order[at]
    digest = _digests(columns, draft)
    order[at] = some[np.lexsort((digest[some], end[some], start[some], parent[some]))]
    return Families(parent, order)


def _digests(columns: Columns, draft: Draft) -> IntArray:
    """Return for each phase a number that says what it and all below it are, whatever order and date."""
    parent, start = columns["parent"], columns["start"]
    of_kind = np.array([_hash(repr(kind)) for kind in draft.kinds], np.uint64)
    of_label = np.array([*(_hash(repr(label)) for label in draft.labels), 0], np.uint64)
    own = of_kind[columns["kind"]] ^ _mixed(of_label[columns["label"]])
    since = start - start[np.maximum(parent, 0)]
    for value in (since, columns["end"] - start, columns["number"]):
        own = _mixed(own ^ _mixed(value.astype(np.uint64)))
    by_level = levels(Families(parent))
    below = np.zeros(len(parent), np.uint64)
    for nodes in reversed(by_level[1:]):
        of = parent[nodes]
        first = np.flatnonzero(changes(of))
        below[of[first]] = np.add.reduceat(_mixed(own[nodes] ^ _mixed(below[nodes])), first)
    digests: IntArray = _mixed(own ^ _mixed(below)).astype(np.int64)
    return digests


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64, the finalizer: every bit of what comes in changes half of those that go out."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


def _resolve_hosts(columns: Columns, by_level: Sequence[IntArray]) -> None:
    """Give each phase without a host that of its nearest ancestor that has one."""
    host, parent = columns["host"], columns["parent"]
    for nodes in by_level[1:]:
        without = nodes[host[nodes] < 0]
        host[without] = host[parent[without]]


def _types(columns: Columns, by_level: Sequence[IntArray], kinds: Sequence[Kind]) -> tuple[Types, IntArray]:
    """Return the types, and the type of each phase: equal where names and type tags are, all the way up."""
    called: dict[tuple[str, Tags], int] = {}
    number = np.array([called.setdefault((one.name, one.tags), len(called)) for one in kinds], np.int64)
    type_of, parents, calls = np.zeros(len(columns["parent"]), np.int64), [-1], [int(number[0])]
    for nodes in by_level[1:]:
        key = type_of[columns["parent"][nodes]] * len(called) + number[columns["kind"][nodes]]
        distinct, type_of[nodes] = np.unique(key, return_inverse=True)
        type_of[nodes] += len(parents)
        parents += (distinct // len(called)).tolist()
        calls += (distinct % len(called)).tolist()
    names = list(called)
    parent, call = np.array(parents, np.int64), np.array(calls, np.int64)
    # Alphabetical, so that the numbers of types do not depend on who was found first.
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    place, size = preorder(parent, levels(Families(parent, np.lexsort((rank[call], parent)))))
    order = np.argsort(place)
    parent = parent[order]
    parent[1:] = place[parent[1:]]
    described = [names[ix] for ix in call[order].tolist()]
    types = Types(
        parent=parent.astype(np.int32),
        size=size[order].astype(np.int32),
        name=[name for name, _ in described],
        tags=[of_type for _, of_type in described],
    )
    return types, place[type_of]


def _nth(parent: IndexArray, columns: Columns, kinds: Sequence[Kind], labels: Sequence[Tags]) -> IndexArray:
    """Return for each phase its number among the siblings that are called the same; -1 where it is alone."""
    called: dict[str, int] = {}
    # Kinds that are written alike are alike, whichever of them counts a tag.
    kind = np.array([called.setdefault(one.identifier, len(called)) for one in kinds], np.int64)
    same = (*_instance_tags(columns, kinds, labels, kind), kind[columns["kind"]], parent)
    order = np.lexsort(same)  # stable: siblings stay in their order
    begins = changes(*(key[order] for key in same))
    first = np.flatnonzero(begins)
    count = np.diff(np.append(first, len(order)))
    nth = np.full(len(parent), -1, np.int32)
    several = np.repeat(count > 1, count)
    nth[order[several]] = (np.arange(len(order)) - np.repeat(first, count))[several]
    return nth


def _instance_tags(
    columns: Columns, kinds: Sequence[Kind], labels: Sequence[Tags], written: IntArray
) -> tuple[IntArray, IntArray]:
    """Return (label, number): equal for two phases of kinds that are ``written`` alike where their tags are.

    A number that a kind counts may also be a label of another.
    """
    label, number = columns["label"].copy(), columns["number"].copy()
    twins = np.flatnonzero(np.bincount(written) > 1)
    known = {of_label: ix for ix, of_label in enumerate(labels)}
    for ix in np.flatnonzero(np.isin(written[columns["kind"]], twins)).tolist():
        key = kinds[int(columns["kind"][ix])].counted
        if key is not None and number[ix] >= 0:
            own = labels[int(label[ix])] if label[ix] >= 0 else ()
            every = tuple(sorted((*own, (key, str(int(number[ix]))))))
            label[ix], number[ix] = known.setdefault(every, len(known)), -1
    return label, number
