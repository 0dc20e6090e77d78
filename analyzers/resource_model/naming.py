# SPDX-License-Identifier: Apache-2.0
"""What metrics of monitors mean: which resource, which metric of it, in which unit; or a capacity.

One table for all: metrics of ours and of the Collector's hostmetrics receiver (the same names; attributes of
its older releases are read, too), the same in Prometheus as it translates OTLP, and those of the exporters
that most have: node_exporter and dcgm-exporter. A metric that is in none of its rows is never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.analyzers.resource_model import units
from grademl_otel.catalog import ALL, gpu, host, interconnect
from grademl_otel.catalog.metric import COUNTER, Metric
from grademl_otel.catalog.prometheus_names import label_name, metric_name


@dataclass(frozen=True)
class Meaning:
    """A row: of the points of one metric those with certain attributes."""

    metric: str
    """As its monitor calls it."""
    unit: str
    """That its values have where none is told (Prometheus tells none)."""
    counter: bool
    type: str
    """Of the resource."""
    name: str
    """Of the metric within its resource; of a capacity that metric."""
    gives: str
    """Unit of the result: of counters per second."""
    id: tuple[str, ...] = ()
    """Attributes that tell the resource from others of its type: their values, with ``/`` between them."""
    called: str = ""
    """Its id where no attribute tells it."""
    part: str = ""
    """Attribute whose value, where there is one, stands behind the id: of an instance of a GPU."""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attribute -> values of which it has one."""
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attribute -> values of which it has none."""
    capacity: bool = False
    """Whether its values are the most that the metric can be."""
    sign: int = 1
    """-1: taken off the others that are added up."""
    over: tuple[str, ...] = ()
    """Attributes over whose values is added up. Series that differ in others are several monitors of one."""
    needs: frozenset[str] = frozenset()
    """Metrics that a sum consists of: without one of them there is none."""
    counts: str = ""
    """Attribute of which each value stands for a unit of capacity: CPUs."""
    stands_in: bool = False
    """Whether it counts more than what the metric is of: a host, not what the job may use of it."""
    fixed: float | None = None
    """Its capacity by definition: 1 of a fraction."""

    @property
    def factor(self) -> float:
        """What values in ``unit`` are times to be in ``gives``; of counters before they are rates."""
        found = 1.0 if self.counter else units.factor(self.unit, self.gives)
        assert found is not None, self.metric
        return found

    def fits(self, attributes: Mapping[str, str]) -> bool:
        """Whether points with these attributes are meant."""
        return all(attributes.get(key, "") in values for key, values in self.where.items()) and not any(
            attributes.get(key, "") in values for key, values in self.unless.items()
        )

    def id_of(self, attributes: Mapping[str, str]) -> str | None:
        """Return the id of the resource; None where an attribute that is needed for it is missing."""
        parts = [attributes.get(key, "") for key in self.id]
        if not all(parts):
            return None
        if attributes.get(self.part):
            parts.append(attributes[self.part])
        return "/".join(parts) or self.called

    def part_of(self, attributes: Mapping[str, str]) -> tuple[str, ...]:
        """Return which summand points with these attributes are of."""
        return (self.metric, *(attributes.get(key, "") for key in self.over))


_ID: Final = ("hw.id",)
_RANK: Final = (semconv.RANK,)
_WAY: Final = interconnect.DIRECTION
_IDLE: Final = ("idle", "iowait", "wait")
_CPU: Final = "{cpu}"


def _of(metric: Metric, type_: str, name: str, gives: str = "", **more: Any) -> Meaning:
    counter = metric.kind == COUNTER
    rate = metric.unit + "/s" if counter else metric.unit
    return Meaning(metric.name, metric.unit, counter, type_, name, gives or rate, **more)


def _both(metric: Metric, type_: str, names: tuple[str, str], way: str, **more: Any) -> Iterator[Meaning]:
    """Yield the rows of both directions."""
    words = ("read", "write") if way == "disk.io.direction" else ("receive", "transmit")
    where = more.pop("where", {})
    for name, word in zip(names, words, strict=True):
        yield _of(metric, type_, name, where={**where, way: (word,)}, **more)


def _gpus() -> Iterator[Meaning]:
    yield _of(gpu.UTILIZATION, "gpu", "utilization", id=_ID, where={gpu.TASK: ("general", "")}, fixed=1.0)
    yield _of(gpu.MEMORY_BUSY, "gpu", "memory_busy", id=_ID, fixed=1.0)
    yield _of(gpu.MEMORY_USAGE, "gpu", "memory", id=_ID)
    yield _of(gpu.MEMORY_LIMIT, "gpu", "memory", id=_ID, capacity=True)
    yield _of(gpu.POWER, "gpu", "power", id=_ID, where={"hw.type": ("gpu",)})
    yield _of(gpu.POWER_LIMIT, "gpu", "power", id=_ID, capacity=True)
    for domain, name in (("sm", "sm_clock"), ("memory", "memory_clock")):
        where = {gpu.DOMAIN: (domain,)}
        yield _of(gpu.SM_CLOCK, "gpu", name, id=_ID, where=where)
        yield _of(gpu.CLOCK_LIMIT, "gpu", name, id=_ID, where=where, capacity=True)
    yield _of(gpu.THROTTLED, "gpu", "throttled", id=_ID, fixed=1.0)
    for link in ("pcie", "nvlink", "xgmi"):
        names = (f"{link}_rx", f"{link}_tx")
        where = {gpu.LINK: (link,)}
        yield from _both(gpu.XGMI_IO, "gpu", names, _WAY, id=_ID, where=where)
        for name in names:
            yield _of(gpu.LINK_LIMIT, "gpu", name, id=_ID, where=where, capacity=True)


def _links() -> Iterator[Meaning]:
    yield from _both(interconnect.PORT_RECEIVED, "port", ("rx", "tx"), _WAY, id=_ID)
    yield from _both(interconnect.RECEIVED, "network", ("rx", "tx"), _WAY, id=(interconnect.INTERFACE,))
    for type_ in ("port", "network"):  # a port is called device/number, no interface has a slash in its name
        for name in ("rx", "tx"):
            yield _of(interconnect.LIMIT, type_, name, id=_ID, capacity=True)


def _hosts() -> Iterator[Meaning]:
    yield _of(host.CPU_BUSY, "cpu", "busy", _CPU)
    yield _of(host.CPU_CAPACITY, "cpu", "busy", capacity=True)
    yield _of(host.CPU_CAPACITY, "cpu", "throttled", capacity=True)
    yield _of(
        host.CPU_TIME,
        "cpu",
        "busy",
        _CPU,
        unless={"cpu.mode": _IDLE},
        over=("cpu.mode", "cpu.logical_number"),
        counts="cpu.logical_number",
        stands_in=True,
    )
    yield _of(host.LOGICAL_COUNT, "cpu", "busy", capacity=True, stands_in=True)
    yield _of(host.CGROUP_THROTTLED, "cpu", "throttled", _CPU)
    yield _of(host.BUSIEST, "cpu", "busiest", fixed=1.0)
    yield _of(host.LOGICAL_BUSY, "core", "busy", "1", id=("cpu.logical_number",), fixed=1.0)
    yield _of(host.MEMORY_USED, "memory", "used")
    yield _of(host.CGROUP_MEMORY_LIMIT, "memory", "used", capacity=True)
    yield _of(host.MEMORY_USAGE, "memory", "used", where={"system.memory.state": ("used",)}, stands_in=True)
    yield _of(host.MEMORY_LIMIT, "memory", "used", capacity=True, stands_in=True)
    for metric, of in ((host.PRESSURE, "host"), (host.CGROUP_PRESSURE, "cgroup")):
        for resource in ("cpu", "memory", "io"):
            yield _of(
                metric,
                "pressure",
                resource,
                "1",
                called=of,
                where={host.RESOURCE: (resource,), host.KIND: ("some",)},
                fixed=1.0,
            )
    disk, way = ("system.device",), "disk.io.direction"
    yield from _both(host.DISK_READ, "disk", ("read", "write"), way, id=disk)
    yield from _both(host.DISK_OPERATIONS, "disk", ("read_operations", "write_operations"), way, id=disk)
    yield _of(host.DISK_IO_TIME, "disk", "busy", "1", id=disk, fixed=1.0)


def _processes() -> Iterator[Meaning]:
    way = "disk.io.direction"
    yield _of(host.TREE_CPU_TIME, "process", "cpu", _CPU, id=_RANK)
    yield _of(host.PROCESS_CPU_TIME, "process", "own_cpu", _CPU, id=_RANK, over=("cpu.mode",))
    yield _of(host.PROCESS_MEMORY, "process", "memory", id=_RANK)
    yield _of(host.TREE_MEMORY, "process", "tree_memory", id=_RANK)
    yield _of(host.MAIN_THREAD_DELAY, "process", "main_thread_delay", "1", id=_RANK, fixed=1.0)
    yield from _both(host.TREE_DISK_IO, "process", ("disk_read", "disk_write"), way, id=_RANK)
    yield from _both(host.TREE_IO, "process", ("read", "write"), way, id=_RANK)


OTLP: Final[tuple[Meaning, ...]] = (*_gpus(), *_links(), *_hosts(), *_processes())
"""Metrics with their own names."""


def _node() -> Iterator[Meaning]:
    """Yield the rows of node_exporter."""

    def counter(metric: str, type_: str, name: str, gives: str, **more: Any) -> Meaning:
        unit = "s" if "seconds" in metric else "By"
        return Meaning(metric, unit, True, type_, name, gives, **more)

    yield counter(
        "node_cpu_seconds_total",
        "cpu",
        "busy",
        _CPU,
        unless={"mode": _IDLE},
        over=("cpu", "mode"),
        counts="cpu",
        stands_in=True,
    )
    total, available = "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"
    needs = frozenset((total, available))
    used = Meaning(total, "By", False, "memory", "used", "By", needs=needs, stands_in=True)
    yield used
    yield replace(used, metric=available, sign=-1)
    yield replace(used, needs=frozenset(), capacity=True)
    device = ("device",)
    for name, word in (("rx", "receive"), ("tx", "transmit")):
        yield counter(f"node_network_{word}_bytes_total", "network", name, "By/s", id=device)
        speed = Meaning("node_network_speed_bytes", "By/s", False, "network", name, "By/s", device)
        yield replace(speed, capacity=True)
    for name, word in (("rx", "received"), ("tx", "transmitted")):
        port = ("device", "port")
        yield counter(f"node_infiniband_port_data_{word}_bytes_total", "port", name, "By/s", id=port)
        rate = Meaning("node_infiniband_rate_bytes_per_second", "By/s", False, "port", name, "By/s", port)
        yield replace(rate, capacity=True)
    for name, word in (("read", "read"), ("write", "written")):
        yield counter(f"node_disk_{word}_bytes_total", "disk", name, "By/s", id=device)
    for name, word in (("read_operations", "reads"), ("write_operations", "writes")):
        operations = f"node_disk_{word}_completed_total"
        yield Meaning(operations, "{operation}", True, "disk", name, "{operation}/s", device)
    yield counter("node_disk_io_time_seconds_total", "disk", "busy", "1", id=device, fixed=1.0)
    for name in ("cpu", "memory", "io"):
        stalls = f"node_pressure_{name}_waiting_seconds_total"
        yield counter(stalls, "pressure", name, "1", called="host", fixed=1.0)


def _dcgm() -> Iterator[Meaning]:
    """Yield the rows of dcgm-exporter. Its PCIe and NVLink fields of profiling are rates already."""

    def field_of(metric: str, unit: str, name: str, gives: str, **more: Any) -> Meaning:
        row = Meaning(f"DCGM_FI_{metric}", unit, False, "gpu", name, gives, ("UUID",), part="GPU_I_ID")
        return replace(row, **more)

    yield field_of("DEV_GPU_UTIL", "%", "utilization", "1", fixed=1.0)
    yield field_of("DEV_MEM_COPY_UTIL", "%", "memory_busy", "1", fixed=1.0)
    yield field_of("DEV_FB_USED", "MiBy", "memory", "By")
    yield field_of("DEV_FB_TOTAL", "MiBy", "memory", "By", capacity=True)
    needs = frozenset(("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"))
    for part in ("USED", "FREE"):  # what both are together; what the driver keeps is in neither
        yield field_of(f"DEV_FB_{part}", "MiBy", "memory", "By", capacity=True, needs=needs)
    yield field_of("DEV_POWER_USAGE", "W", "power", "W")
    for limit in ("DEV_POWER_MGMT_LIMIT", "DEV_ENFORCED_POWER_LIMIT"):
        yield field_of(limit, "W", "power", "W", capacity=True)
    yield field_of("DEV_SM_CLOCK", "MHz", "sm_clock", "Hz")
    yield field_of("DEV_MEM_CLOCK", "MHz", "memory_clock", "Hz")
    for name in ("sm", "mem"):
        clock = "sm_clock" if name == "sm" else "memory_clock"
        yield field_of(f"DEV_MAX_{name.upper()}_CLOCK", "MHz", clock, "Hz", capacity=True)
    for metric, name in (
        ("GR_ENGINE_ACTIVE", "engine_active"),
        ("SM_ACTIVE", "sm_active"),
        ("PIPE_TENSOR_ACTIVE", "tensor_active"),
        ("DRAM_ACTIVE", "memory_active"),
    ):
        yield field_of(f"PROF_{metric}", "1", name, "1", fixed=1.0)
    for link in ("PCIE", "NVLINK"):
        for way in ("RX", "TX"):
            yield field_of(f"PROF_{link}_{way}_BYTES", "By/s", f"{link}_{way}".lower(), "By/s")


EXPORTERS: Final[tuple[Meaning, ...]] = (*_node(), *_dcgm())
"""Metrics with the names of Prometheus exporters."""

_OLDER: Final = {
    "system.cpu.": {"state": "cpu.mode", "cpu": "cpu.logical_number"},
    "process.cpu.": {"state": "cpu.mode"},
    "system.memory.": {"state": "system.memory.state"},
    "system.disk.": {"device": "system.device", "direction": "disk.io.direction"},
    "system.network.": {"device": "network.interface.name", "direction": "network.io.direction"},
}
"""What attributes were called in older releases, by the beginning of the metric's name."""

HOST_KEYS: Final = ("host.name", "host.id", "k8s.node.name", semconv.CLOCK_ID)
"""Attributes of a resource that tell its host, the best first."""
HOST_LABELS: Final = (
    *(label_name(key) for key in HOST_KEYS[:3]),
    *HOST_KEYS[:3],
    "nodename",
    "Hostname",
    "node",
    "kubernetes_node",
    "hostname",
    "host",
    label_name(semconv.CLOCK_ID),
    semconv.CLOCK_ID,
    "instance",
)
"""Labels that tell a host, the best first; of ``instance`` the port is no part of it."""
TAGS: Final = {
    "hw.name": "name",
    "hw.model": "model",
    "hw.parent": "parent",
    "modelName": "model",
    semconv.RUN_ID: "run",
    semconv.ATTEMPT: "attempt",
    semconv.RANK: "rank",
}
"""What else is told of a resource, and how it is called in its tags."""
_KNOWN_PREFIXES: Final = ("hw.", "system.", "process.", "grademl.gpu.", "grademl.host.", "grademl.process.")


@cache
def by_metric() -> Mapping[str, tuple[Meaning, ...]]:
    """Return the rows of each metric of OTLP."""
    return _grouped(OTLP)


@cache
def by_prometheus_name() -> Mapping[str, tuple[Meaning, ...]]:
    """Return the rows of each metric of Prometheus, with labels instead of attributes.

    What it took by OTLP has suffixes or not (Mimir), or its own name and attributes, as the server is set up.
    """
    escaped = (row for suffixes in (True, False) for row in (_translated(row, suffixes) for row in OTLP))
    return _grouped((*escaped, *(row for row in OTLP if "." in row.metric), *EXPORTERS))


@cache
def of_type(type_: str) -> Meaning | None:
    """Return a row that tells of metrics of this type, as ``gpu.utilization``."""
    kind, _, name = type_.partition(".")
    rows = (row for row in (*OTLP, *EXPORTERS) if not row.capacity)
    return next((row for row in rows if row.name == name and row.type == kind), None)


@cache
def capacity_by_definition(type_: str) -> float | None:
    """Return the capacity of metrics of this type that are fractions: 1."""
    kind, _, name = type_.partition(".")
    for row in (*OTLP, *EXPORTERS):
        if row.name == name and row.type == kind and row.fixed is not None:
            return row.fixed
    return None


def attributes_of(metric: str, given: Mapping[str, object]) -> dict[str, str]:
    """Return attributes as texts, by the names that they have now."""
    older = next((names for prefix, names in _OLDER.items() if metric.startswith(prefix)), {})
    return {older.get(key, key): _text(value) for key, value in given.items()}


def is_unknown(metric: str) -> bool:
    """Whether a metric should be of a resource, by its name, and is none that is known here."""
    return metric.startswith(_KNOWN_PREFIXES) and metric not in _in_catalog()


@cache
def _in_catalog() -> frozenset[str]:
    return frozenset(metric.name for metric in ALL) | by_metric().keys()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _grouped(rows: Iterable[Meaning]) -> dict[str, tuple[Meaning, ...]]:
    found: dict[str, list[Meaning]] = {}
    for row in rows:
        found.setdefault(row.metric, []).append(row)
    return {metric: tuple(some) for metric, some in found.items()}


def _translated(row: Meaning, suffixes: bool) -> Meaning:
    """Return the row of a metric that Prometheus took by OTLP and has escaped."""
    kind = next(metric.kind for metric in ALL if metric.name == row.metric)
    assert not row.needs
    return replace(
        row,
        metric=metric_name(row.metric, row.unit, kind) if suffixes else label_name(row.metric),
        id=tuple(map(label_name, row.id)),
        where={label_name(key): values for key, values in row.where.items()},
        unless={label_name(key): values for key, values in row.unless.items()},
        over=tuple(map(label_name, row.over)),
        counts=label_name(row.counts) if row.counts else "",
    )
