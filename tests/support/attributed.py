# SPDX-License-Identifier: Apache-2.0
"""Small execution models and resource models, for tests of who used what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.execution import ExecutionModel
from grademl_otel.analyzers.execution.assembly import assemble
from grademl_otel.analyzers.execution.dependencies import Dependencies
from grademl_otel.analyzers.execution.draft import Draft
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED
from grademl_otel.analyzers.graph.path import INFERRED
from grademl_otel.analyzers.resource_model.model import NO_PARENT, Resource, ResourceMetric, ResourceModel

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Ph:
    """A phase and what is part of it; times in seconds."""

    name: str
    start: float = 0
    end: float = 0
    parts: Sequence[Ph] = ()
    host: str = ""
    beside: bool = False
    derived: bool = False
    number: int | None = None
    """Of ranks, attempts, steps: counted by the name."""
    id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Type tags."""


def model_of(*phases: Ph) -> ExecutionModel:
    """Return the execution model of these phases below the root."""
    draft = Draft()
    for phase in phases:
        _add(draft, phase, 0)
    instances, types, _ = assemble(draft)
    return ExecutionModel(instances, types, Dependencies.of(np.zeros((0, 2), np.int64), INFERRED), (), ())


def _add(draft: Draft, phase: Ph, parent: int) -> None:
    own = draft.add_one(
        draft.kind(phase.name, phase.tags, None if phase.number is None else phase.name),
        parent,
        round(phase.start * SECOND),
        round(phase.end * SECOND),
        number=-1 if phase.number is None else phase.number,
        label=draft.label({"id": phase.id}) if phase.id else -1,
        host=draft.host(phase.host),
        flags=(BESIDE if phase.beside else 0) | (DERIVED if phase.derived else 0),
    )
    for part in phase.parts:
        _add(draft, part, own)


def run_of(*ranks: Ph, run: str = "r") -> Ph:
    """Return a run with one attempt of these ranks."""
    attempt = Ph("attempt", derived=True, number=0, parts=ranks)
    return Ph("run", derived=True, parts=(attempt,), id=run, tags={"script": "train.py"})


def rank(number: int, end: float, *parts: Ph, host: str = "", start: float = 0) -> Ph:
    return Ph("rank", start, end, parts, host=host, number=number)


def observed(*values: float, capacity: float = math.inf, start: float = 0, every: float = 1) -> Observations:
    """Return averages over intervals of ``every`` seconds from ``start`` on; NaN: nothing was observed."""
    at = np.round((start + np.arange(len(values) + 1) * every) * SECOND).astype(np.int64)
    seen = ~np.isnan(np.array(values, np.float64))
    return Observations(at[:-1][seen], at[1:][seen], np.array(values, np.float64)[seen], capacity)


def resources_of(
    *metrics: tuple[str, Observations] | tuple[str, Observations, str] | tuple[str, Observations, str, str],
    machines: Mapping[str, str] | None = None,
    tags: Mapping[str, Mapping[str, str]] | None = None,
    problems: Sequence[str] = (),
) -> ResourceModel:
    """Return the resource model of metrics, each (type, observations, id of its resource, machine)."""
    hosts: dict[str, int] = {}
    resources: list[Resource] = []
    found: list[ResourceMetric] = []
    known: dict[tuple[str, str, str], int] = {}
    for type_, seen, *more in metrics:
        of, _, name = type_.partition(".")
        own, machine = [*more, "", ""][:2]
        if machine not in hosts:
            hosts[machine] = len(resources)
            resources.append(Resource("host", machine, NO_PARENT, machine or None))
        key = (machine, of, own)
        if key not in known:
            known[key] = len(resources)
            resources.append(Resource(of, own, hosts[machine], None, dict((tags or {}).get(own, {}))))
        found.append(ResourceMetric(known[key], name, type_, "1", seen, ("test",)))
    return ResourceModel(resources, found, problems, machines or {})
