# SPDX-License-Identifier: Apache-2.0
"""GPUs of the hosts: how busy, how hot, how fast, what goes over their links, what fails."""

from __future__ import annotations

from asking import (
    CLOCK_LABEL,
    DIRECTION_LABEL,
    ERROR_LABEL,
    GPU_INDEX_LABEL,
    GPU_LABEL,
    HOST_LABEL,
    LINK_LABEL,
    OF_GPUS,
    OF_HOST,
    SENSOR_LABEL,
    SOURCE_LABEL,
    TASK_LABEL,
    THROTTLE_LABEL,
    per_second,
    series,
)
from grafana_panels import Json, Panel, Query, Row, dashboard, data_source, label_values, pages

from grademl_otel.catalog.prometheus_names import label_name


def gpu() -> Json:
    """GPUs of the hosts: how busy, how hot, how fast, what goes over their links, what fails."""
    name = f"{{{{{HOST_LABEL}}}}} GPU {{{{{GPU_INDEX_LABEL}}}}}"

    def now(metric: str, extra: str = "", by: str = "") -> str:
        return _of_each_gpu(f"{series(metric)}{{{OF_GPUS}{extra}}}", by)

    def rate(metric: str, extra: str = "", by: str = "") -> str:
        return _of_each_gpu(per_second(metric, OF_GPUS + extra), by)

    def clock(domain: str) -> list[Query]:
        selector = f',{CLOCK_LABEL}="{domain}"'
        return [
            Query(now("grademl.gpu.clock", selector), name),
            Query(f"max({now('grademl.gpu.clock.limit', selector)})", "highest"),
        ]

    def link_bytes(kind: str) -> list[Query]:
        selector = f',{LINK_LABEL}="{kind}"'
        limit = f"max({now('grademl.gpu.link.limit', selector)})"
        return [
            Query(rate("hw.gpu.io", selector, DIRECTION_LABEL), f"{name} {{{{{DIRECTION_LABEL}}}}}"),
            Query(limit, "one direction at most"),
        ]

    general = f',{TASK_LABEL}="general"'
    whole = f',{label_name("hw.parent")}=""'
    stats = [
        Panel(
            "GPUs",
            "GPUs that are sampled, without the instances (MIG) that they are divided into.",
            [Query(f"count({now('hw.gpu.memory.limit', whole)})", "GPUs")],
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Utilization",
            "Mean of the GPUs: the part of the time in which a kernel ran, not how much of a GPU it filled.",
            [Query(f"avg({now('hw.gpu.utilization', general)})", "mean")],
            unit="percentunit",
            kind="stat",
            width=5,
            height=4,
            high=1,
        ),
        Panel(
            "Memory",
            "Used memory of all GPUs over their size.",
            [
                Query(
                    f"sum({now('hw.gpu.memory.usage', whole)}) / sum({now('hw.gpu.memory.limit', whole)})",
                    "used",
                )
            ],
            unit="percentunit",
            kind="stat",
            width=5,
            height=4,
            high=1,
        ),
        Panel(
            "Power",
            "Of all GPUs together.",
            [Query(f"sum({now('hw.power')})", "all")],
            unit="watt",
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Held down",
            "GPUs whose clocks are held down now, by a power limit, by heat or by another GPU.",
            [Query(f"sum({now('grademl.gpu.throttled')})", "GPUs")],
            kind="stat",
            width=5,
            height=4,
            steps=((1, "orange"),),
        ),
    ]
    use = [
        Panel(
            "Utilization by GPU",
            "Part of the time in which a kernel ran. Gaps between steps, waits for data or other ranks show "
            "here as less than 100 %.",
            [Query(now("hw.gpu.utilization", general), name)],
            unit="percentunit",
            high=1,
        ),
        Panel(
            "Memory by GPU",
            "Memory that all processes use, and the size.",
            [
                Query(now("hw.gpu.memory.usage"), name),
                Query(f"max({now('hw.gpu.memory.limit')})", "size"),
            ],
            unit="bytes",
        ),
        Panel(
            "Memory traffic",
            "Part of the time in which device memory was read or written.",
            [Query(now("grademl.gpu.memory.busy"), name)],
            unit="percentunit",
            high=1,
        ),
        Panel(
            "Memory by process",
            "By the process numbers that the driver knows them by: those of the host, not of a container.",
            [
                Query(
                    now("grademl.gpu.process.memory", by=label_name("process.pid")),
                    f"{name} {{{{{label_name('process.pid')}}}}}",
                )
            ],
            unit="bytes",
        ),
    ]
    speed = [
        Panel(
            "Power by GPU",
            "At the limit clocks are lowered.",
            [Query(now("hw.power"), name), Query(f"max({now('grademl.gpu.power.limit')})", "limit")],
            unit="watt",
        ),
        Panel(
            "Temperature",
            "Of the GPU and, where it is told, of its memory.",
            [
                Query(
                    now("hw.temperature", by=SENSOR_LABEL),
                    f"{name} {{{{{SENSOR_LABEL}}}}}",
                )
            ],
            unit="celsius",
            low=None,
        ),
        Panel(
            "Clock of the multiprocessors",
            "An idle GPU lowers it, a busy one below the highest is held down or warms up.",
            clock("sm"),
            unit="hertz",
        ),
        Panel("Clock of the memory", "As above.", clock("memory"), unit="hertz"),
        Panel(
            "Why clocks are held down",
            "Share of the time for each reason.",
            [
                Query(
                    rate("grademl.gpu.throttle.time", by=THROTTLE_LABEL),
                    f"{name} {{{{{THROTTLE_LABEL}}}}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Energy in this time range",
            "What each GPU consumed.",
            [Query(_of_each_gpu(f"increase({series('hw.energy')}{{{OF_GPUS}}}[$__range])"), name)],
            unit="joule",
            kind="bargauge",
        ),
    ]
    links = [
        Panel(
            "PCIe",
            "Bytes per second between host and GPU: batches, offloaded states, what has no better way. "
            "Many drivers tell a rate of 20 ms only, which is then taken for the time until the next.",
            link_bytes("pcie"),
            unit="Bps",
        ),
        Panel(
            "NVLink",
            "Bytes per second over all NVLinks of a GPU: collectives inside a host.",
            link_bytes("nvlink"),
            unit="Bps",
        ),
        Panel(
            "PCIe link below its best",
            "Generation times lanes now, over the most that GPU and slot can do. Idle GPUs lower it; "
            "a busy one below 1 is in the wrong slot, or the link has trained down.",
            [
                Query(
                    f"({now('grademl.gpu.pcie.generation')} * {now('grademl.gpu.pcie.width')}) / "
                    f"({now('grademl.gpu.pcie.generation.limit')} * {now('grademl.gpu.pcie.width.limit')})",
                    name,
                )
            ],
            unit="percentunit",
            high=1,
        ),
        Panel(
            "NVLinks that are up",
            "Fewer than on the other GPUs: a link is down.",
            [Query(now("grademl.gpu.nvlink.links"), name)],
        ),
    ]
    errors = [
        Panel(
            "Errors",
            "Since sampling began, by kind. Uncorrected ECC and Xid errors end trainings; others, as replays "
            "and recoveries of links cost time.",
            [Query(now("hw.errors", by=ERROR_LABEL), f"{name} {{{{{ERROR_LABEL}}}}}")],
            width=8,
        ),
        Panel(
            "Rows of memory that were replaced",
            "In the life of the GPU.",
            [
                Query(
                    now("grademl.gpu.memory.remapped_rows", by=ERROR_LABEL),
                    f"{name} {{{{{ERROR_LABEL}}}}}",
                )
            ],
            width=8,
        ),
        Panel(
            "What could not be sampled",
            "Readings that failed and samples that came late, per minute. Nothing is here while all is well.",
            [
                Query(
                    f"60 * sum by ({HOST_LABEL}, {SOURCE_LABEL}) "
                    f"({per_second('grademl.sampler.failures', OF_HOST)})",
                    f"{{{{{HOST_LABEL}}}}} {{{{{SOURCE_LABEL}}}}} failed",
                ),
                Query(
                    f"60 * sum by ({HOST_LABEL}, {SOURCE_LABEL}) "
                    f"({per_second('grademl.sampler.late', OF_HOST)})",
                    f"{{{{{HOST_LABEL}}}}} {{{{{SOURCE_LABEL}}}}} late",
                ),
            ],
            width=8,
        ),
    ]
    memory = series("hw.gpu.memory.limit")
    return dashboard(
        "grademl-gpu",
        "GPU",
        "GPUs of the hosts: use, memory, power, clocks, links, errors. Sampled once per GPU by grademl-otel.",
        [
            data_source("metrics", "prometheus", "Prometheus", "grademl-prometheus"),
            label_values("host", HOST_LABEL, "Host", f'{memory}{{hw_type="gpu"}}'),
            label_values("gpu", GPU_LABEL, "GPU", f'{memory}{{{OF_HOST},hw_type="gpu"}}'),
        ],
        [
            Row("Now", stats),
            Row("Use", use),
            Row("Power and clocks", speed),
            Row("Links", links),
            Row("Errors", errors),
        ],
        [pages("More")],
    )


def _of_each_gpu(expr: str, by: str = "") -> str:
    """One series for each GPU and value of the label ``by``, also where several programs reported it."""
    labels = ", ".join(filter(None, (HOST_LABEL, GPU_INDEX_LABEL, GPU_LABEL, by)))
    return f"max by ({labels}) ({expr})"
