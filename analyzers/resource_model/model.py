# SPDX-License-Identifier: Apache-2.0
"""The resource model: a tree of resources, each with metrics that were observed over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from grademl_otel.analyzers.attribution.observations import Observations
from grademl_otel.analyzers.execution.identity import identifier

NO_PARENT: Final = -1


@dataclass(frozen=True)
class Resource:
    """Something that phases use: a host, its CPUs, a GPU, a disk, a port.

    ``path`` names it: ``/host[name=node-1]/gpu[id=GPU-...]``; types are the path without what is in brackets.
    """

    type: str
    """``host``, ``cpu``, ``core``, ``memory``, ``gpu``, ``disk``, ``network``, ``port``, ``pressure``,
    ``process``, and what CSV files name.
    """
    id: str
    """Among those of its type and host: ``GPU-...``, ``eth0``; empty where a host has one only."""
    parent: int = NO_PARENT
    """Index of its parent among the resources of the model."""
    machine: str | None = None
    """Identity of its host, by which it is matched with phases; None: not known, it matches all."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What else is told of it: ``name``, ``model``; of a process ``run``, ``attempt``, ``rank``; of an
    instance of a GPU ``parent``.
    """


@dataclass(frozen=True, eq=False)
class ResourceMetric:
    """One metric of one resource, as averages over intervals; counters are rates by now."""

    resource: int
    """Index of its resource in the model."""
    name: str
    """Within its resource: ``utilization``, ``busy``, ``read``."""
    type: str
    """``<type of the resource>.<name>``, as ``gpu.utilization``: what rules and groupings go by."""
    unit: str
    """Of its values: By/s, W, 1, ``{cpu}`` (CPU seconds per second)."""
    observed: Observations
    sources: tuple[str, ...]
    """Who told it: ``resource tables``, ``metrics``, ``prometheus http://...``, ``csv FILE``."""


@dataclass(frozen=True, eq=False)
class ResourceModel:
    """All resources and metrics that were found, and what stood in the way of others."""

    resources: Sequence[Resource] = ()
    metrics: Sequence[ResourceMetric] = ()
    problems: Sequence[str] = ()
    """One line each, for people: a gap, a unit that nobody knows, a host that no phase ran on."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """What a host is called, wherever -> the identity that is in `Resource.machine`."""

    def machine_of(self, host: str) -> str:
        """Return the identity of a host that phases name: what `Resource.machine` is compared with."""
        return self.machines.get(host, host)

    def path(self, resource: int) -> str:
        """Return the path of a resource, as the path language writes it; no two have the same."""
        parts = []
        while resource != NO_PARENT:
            one = self.resources[resource]
            key = "name" if one.type == "host" else "id"
            parts.append("/" + identifier(one.type, ((key, one.id),) if one.id else ()))
            resource = one.parent
        return "".join(reversed(parts))

    def metric_path(self, metric: int) -> str:
        """Return ``<path of the resource>:<name>``."""
        found = self.metrics[metric]
        return f"{self.path(found.resource)}:{found.name}"

    def of_resource(self, resource: int) -> Iterator[int]:
        """Yield the metrics of a resource."""
        return (ix for ix, metric in enumerate(self.metrics) if metric.resource == resource)
