# SPDX-License-Identifier: Apache-2.0
"""What the user adds to what is beside the spans: further monitors, other names of hosts, capacities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grademl_otel.analyzers.secrecy import keep


@dataclass(frozen=True)
class Capacity:
    """The most that a metric can be, where nobody measured it, or better known."""

    metric: str
    """Type of the metric: ``network.rx``; ``*`` stands for any text: ``network.*``."""
    value: float
    unit: str
    """Any of the dimension of the metric: ``By/s``, ``Gbit/s``."""
    resource: str | None = None
    """Pattern of the resource's path, in the path language: ``/host*/network[id=eth0]``; None for all."""
    where: str = ""
    """Where it is written, for errors: ``rules.toml:12``."""


@dataclass(frozen=True)
class ResourceSettings:
    """Everything is optional."""

    metrics: tuple[str, ...] = ()
    """Files and folders of OTLP metrics, beside those that are with the spans."""
    prometheus: tuple[str, ...] = ()
    """Addresses of servers that speak Prometheus's HTTP API: ``http://prometheus:9090``."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For these servers, and for no other; beside those of ``$GRADEML_PROMETHEUS_HEADERS``."""
    csv: tuple[str, ...] = ()
    """Files as docs/resources.md describes them."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a host -> what else it is called: addresses, instances of an exporter."""
    capacities: tuple[Capacity, ...] = ()
    """Later ones win."""

    def __post_init__(self) -> None:
        keep(self.headers.values())
