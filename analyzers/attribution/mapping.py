# SPDX-License-Identifier: Apache-2.0
"""Which phases may use which resources: those of their host, GPU and process.

Where both sides say which machine they are and it is not the same, phases do not use the resource; where one
does not say, nothing speaks against it. A rank that names its GPUs uses no others; one that names none may
use all of its host. What is told of a process is used by the phases of its rank alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.attribution.rules import ranks_of
from grademl_otel.analyzers.execution.model import Phases, Types
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.resource_model.model import NO_PARENT, ResourceModel

GPU: Final = "gpu"
PROCESS: Final = "process"


class RankKey(NamedTuple):
    """Which rank a phase is of."""

    run: str
    attempt: int
    rank: int


Gpus = Mapping[RankKey, frozenset[str]]
"""Rank -> ids of the GPUs that it uses, where it names them."""


@dataclass(frozen=True)
class Owner:
    """Whose phases: of one rank, and on one host."""

    host: str
    """As phases call it; empty where they do not."""
    rank: RankKey | None
    node: int = -1
    """Phase of the rank; -1 for none."""


@dataclass(frozen=True, eq=False)
class Owners:
    """Of all phases whose they are."""

    all: list[Owner]
    of_phase: IntArray
    """By phase, index into ``all``."""


def owners_of(phases: Phases, types: Types) -> Owners:
    """Return whose each of ``phases`` is."""
    nodes = np.flatnonzero(np.isin(phases.type, ranks_of(types)))
    rank = np.full(len(phases), -1, np.int64)
    for node in nodes.tolist():
        rank[phases.subtree(node)] = node
    width = len(phases.hosts) + 1
    distinct, of_phase = np.unique((rank + 1) * width + phases.host + 1, return_inverse=True)
    found = [
        Owner(
            phases.hosts[key % width - 1] if key % width else "",
            _key(phases, node) if (node := key // width - 1) >= 0 else None,
            node,
        )
        for key in distinct.tolist()
    ]
    return Owners(found, of_phase.reshape(-1))


def with_peers(phases: Phases, types: Types) -> BoolArray:
    """Return the mask of the types in ranks that are one of several of an attempt."""
    mask = np.zeros(len(types), np.bool_)
    nodes = np.flatnonzero(np.isin(phases.type, ranks_of(types)))
    attempts, number = np.unique(phases.parent[nodes], return_counts=True)
    several = nodes[np.isin(phases.parent[nodes], attempts[number > 1])]
    for rank in np.unique(phases.type[several]).tolist():
        mask[types.subtree(rank)] = True
    return mask


def _key(phases: Phases, rank: int) -> RankKey:
    attempt = int(phases.parent[rank])
    run = int(phases.parent[attempt])
    return RankKey(
        dict(phases.tags(run)).get("id", ""), int(phases.number[attempt]), int(phases.number[rank])
    )


def gpus_of(runs: Iterable[Run]) -> dict[RankKey, frozenset[str]]:
    """Return the GPUs that the ranks of ``runs`` (attempts) have named, on the run or on any window."""
    found: dict[RankKey, set[str]] = {}
    for run in runs:
        spans = run.spans
        named = [ix for ix, name in enumerate(spans.names) if name in (semconv.RUN, semconv.WINDOW)]
        some = run.span_ixs[np.isin(spans.name_ix[run.span_ixs], named)]
        some = some[spans.raw_attributes.that_may_have(semconv.GPU_ID.encode(), some)]
        for ix in some.tolist():
            rank, ids = spans.resource(ix).get(semconv.RANK), spans.attributes(ix).get(semconv.GPU_ID)
            if isinstance(rank, int) and (known := _ids(ids)):
                found.setdefault(RankKey(run.run_id, run.attempt, rank), set()).update(known)
    return {key: frozenset(ids) for key, ids in found.items()}


def _ids(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, (list, tuple)) else []


@dataclass(frozen=True, eq=False)
class Mapped:
    """Which owners may use which resource."""

    owners: Owners
    resources: ResourceModel
    gpus: Gpus = field(default_factory=dict)

    def may_use(self, resource: int) -> BoolArray:
        """Return the mask of the owners whose phases may use ``resource``."""
        if resource not in self._made:
            mask = self._on_machine(self.machine(resource))
            for owner in np.flatnonzero(mask).tolist():
                mask[owner] = self._is_own(resource, self.owners.all[owner].rank)
            self._made[resource] = mask
        return self._made[resource]

    def machine(self, resource: int) -> str | None:
        """Return the machine of ``resource``, else that of its nearest ancestor that tells one."""
        while resource != NO_PARENT:
            one = self.resources.resources[resource]
            if one.machine is not None:
                return one.machine
            resource = one.parent
        return None

    @cached_property
    def machines(self) -> list[str | None]:
        """The machine of each owner; None where its phases name none."""
        return [self.resources.machine_of(one.host) if one.host else None for one in self.owners.all]

    @cached_property
    def unnamed(self) -> list[RankKey]:
        """Ranks that name no GPU where their host has several: so they may use all of these."""
        several = [
            machine
            for machine, number in self._gpus_of_machines.items()
            if machine is not None and number > 1
        ]
        pairs = zip(self.owners.all, self.machines, strict=True)
        return [
            one.rank
            for one, machine in pairs
            if one.rank is not None and machine in several and one.rank not in self.gpus
        ]

    @cached_property
    def _gpus_of_machines(self) -> dict[str | None, int]:
        found: dict[str | None, int] = {}
        for ix, one in enumerate(self.resources.resources):
            if one.type == GPU and "parent" not in one.tags:
                machine = self.machine(ix)
                found[machine] = found.get(machine, 0) + 1
        return found

    @cached_property
    def _made(self) -> dict[int, BoolArray]:
        return {}

    @cached_property
    def _whole(self) -> dict[str, str]:
        """Instance of a GPU -> the GPU."""
        return {
            one.id: one.tags["parent"]
            for one in self.resources.resources
            if one.type == GPU and "parent" in one.tags
        }

    def _on_machine(self, machine: str | None) -> BoolArray:
        """Return the mask of the owners that are on ``machine``, or may be."""
        if machine is None:
            return np.ones(len(self.owners.all), np.bool_)
        return np.isin(self._machine_of_owner, (self._numbers.get(machine, -2), -1))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: ix for ix, name in enumerate(dict.fromkeys(filter(None, self.machines)))}

    @cached_property
    def _machine_of_owner(self) -> IntArray:
        return np.array([-1 if one is None else self._numbers[one] for one in self.machines], np.int64)

    def _is_own(self, resource: int, rank: RankKey | None) -> bool:
        """Whether ``resource``, and all that it is part of, may be used by ``rank`` of that machine."""
        while resource != NO_PARENT:
            one = self.resources.resources[resource]
            if one.type == GPU and rank is not None and rank in self.gpus:
                ids = self.gpus[rank]
                if one.id not in ids and one.id not in {self._whole.get(each) for each in ids}:
                    return False
            if one.type == PROCESS and not _is_of(one.tags, rank):
                return False
            resource = one.parent
        return True


def _is_of(tags: Mapping[str, str], rank: RankKey | None) -> bool:
    """Whether a process with these tags is that of ``rank``."""
    if rank is None or "rank" not in tags:
        return False
    told = (("run", rank.run), ("attempt", str(rank.attempt)), ("rank", str(rank.rank)))
    return all(tags.get(key, value) == value for key, value in told)
