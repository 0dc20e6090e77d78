# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a run do: CPU, memory, disks, networks."""

from __future__ import annotations

from asking import DIRECTION_LABEL, ERROR_LABEL, GPU_LABEL, HOST_LABEL, OF_HOST, per_second, series
from grafana_panels import Panel, Query

from grademl_otel.catalog.prometheus_names import label_name


def of_hosts() -> list[Panel]:
    """What the hosts of a run do."""
    name = f"{{{{{HOST_LABEL}}}}}"

    def of_host(expr: str, by: str = "") -> str:
        return f"max by ({', '.join(filter(None, (HOST_LABEL, by)))}) ({expr})"

    def now(metric: str) -> str:
        return of_host(f"{series(metric)}{{{OF_HOST}}}")

    def ways(metric: str, device: str, direction: str, extra: str = "") -> Query:
        rate = of_host(per_second(metric, OF_HOST + extra), f"{device}, {direction}")
        return Query(
            f"sum by ({HOST_LABEL}, {direction}) ({rate})",
            f"{name} {{{{{direction}}}}}",
        )

    disk = label_name("disk.io.direction")
    interface = label_name("network.interface.name")
    pressure = label_name("grademl.host.pressure.resource")
    some = f'{label_name("grademl.host.pressure.kind")}="some"'
    port = ',hw_type="network"'
    return [
        Panel(
            "CPU",
            "CPU time over what the job may use (cores, cpuset, quota). Loader workers may fill it.",
            [
                Query(
                    f"{of_host(per_second('grademl.host.cpu.busy', OF_HOST))} / "
                    f"{now('grademl.host.cpu.capacity')}",
                    name,
                )
            ],
            unit="percentunit",
            width=8,
        ),
        Panel(
            "Memory",
            "Used of what the job may use, and the memory of the host.",
            [
                Query(now("grademl.host.memory.used"), name),
                Query(f"max({now('system.memory.limit')})", "host"),
            ],
            unit="bytes",
            width=8,
        ),
        Panel(
            "Pressure",
            "Share of the time in which some task stood still for want of CPU, memory or disks.",
            [
                Query(
                    of_host(per_second("grademl.host.pressure.time", f"{OF_HOST},{some}"), pressure),
                    f"{name} {{{{{pressure}}}}}",
                )
            ],
            unit="percentunit",
            width=8,
        ),
        Panel(
            "Network",
            "All interfaces of a host together; without InfiniBand.",
            [ways("system.network.io", interface, DIRECTION_LABEL, f',{interface}!="lo"')],
            unit="Bps",
            width=8,
        ),
        Panel(
            "InfiniBand and RoCE",
            "All ports of a host together. One host below the others sends or gets less, or has a port down.",
            [ways("hw.network.io", GPU_LABEL, DIRECTION_LABEL, port)],
            unit="Bps",
            width=8,
        ),
        Panel(
            "Disks",
            "All disks of a host together. Network file systems are not here.",
            [ways("system.disk.io", label_name("system.device"), disk)],
            unit="Bps",
            width=8,
        ),
        Panel(
            "Ports that wait",
            "Ticks per second in which a port had data and could not send them: the network is congested.",
            [
                Query(
                    of_host(per_second("grademl.network.congestion.wait", OF_HOST + port), GPU_LABEL),
                    f"{name} {{{{{GPU_LABEL}}}}}",
                )
            ],
            width=8,
        ),
        Panel(
            "Errors of ports",
            "Since sampling began, by the kernel's name. symbol_error and link_downed tell of a bad cable.",
            [
                Query(
                    of_host(f"{series('hw.errors')}{{{OF_HOST}{port}}}", f"{GPU_LABEL}, {ERROR_LABEL}"),
                    f"{name} {{{{{GPU_LABEL}}}}} {{{{{ERROR_LABEL}}}}}",
                )
            ],
            width=8,
        ),
        Panel(
            "Held down by a quota",
            "CPU seconds per second that the job stood still because its quota was used up.",
            [Query(of_host(per_second("grademl.host.cgroup.cpu.throttled", OF_HOST)), name)],
            unit="percentunit",
            width=8,
        ),
    ]
