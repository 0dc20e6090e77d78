# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana dashboards into collector-config/grafana/dashboards/, from the names of their one source.

    python tools/dashboards.py

Names of metrics come from `grademl_otel.semconv` and `grademl_otel.catalog`; a name that is in neither ends
this with an error. `prometheus_names` says what Prometheus makes of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_panels import Json, Panel, Query, Row, dashboard, data_source, label_values, link, pages
from prometheus_names import COUNTER, HISTOGRAM, label_name, metric_name

from grademl_otel import catalog, semconv

FOLDER: Final = Path(__file__).resolve().parents[1] / "collector-config" / "grafana" / "dashboards"

TRAINING: Final[Mapping[str, tuple[str, str]]] = {
    semconv.METRIC_STEP_DURATION: ("s", HISTOGRAM),
    semconv.METRIC_PHASE_TIME: ("s", COUNTER),
    semconv.METRIC_STEPS: ("{step}", COUNTER),
    semconv.METRIC_SAMPLES: ("{sample}", COUNTER),
    semconv.METRIC_TRACER_COST: ("s", COUNTER),
    semconv.METRIC_TRACER_LOST: ("{mark}", COUNTER),
    semconv.METRIC_TRACER_UNSENT: ("{span}", COUNTER),
}
"""Unit and kind of the metrics of a rank, as `convert/totals.py` makes them."""

PROMOTED: Final = (semconv.RUN_ID, semconv.ATTEMPT, semconv.RANK, "host.name", "k8s.node.name")
"""Attributes of the resource that are labels of every series, as prometheus/prometheus.yml says."""

RUN_LABEL: Final = label_name(semconv.RUN_ID)
RANK_LABEL: Final = label_name(semconv.RANK)
PHASE_LABEL: Final = label_name(semconv.PHASE)
KIND_LABEL: Final = label_name(semconv.STEP_KIND)
REASON_LABEL: Final = label_name(semconv.REASON)
ATTEMPT_LABEL: Final = label_name(semconv.ATTEMPT)
HOST_LABEL: Final = label_name("host.name")
GPU_LABEL: Final = label_name("hw.id")
GPU_INDEX_LABEL: Final = label_name("grademl.gpu.index")
TASK_LABEL: Final = label_name(catalog.gpu.TASK)
CLOCK_LABEL: Final = label_name(catalog.gpu.DOMAIN)
LINK_LABEL: Final = label_name(catalog.gpu.LINK)
DIRECTION_LABEL: Final = label_name(catalog.gpu.DIRECTION)
SENSOR_LABEL: Final = label_name(catalog.gpu.LOCATION)
THROTTLE_LABEL: Final = label_name(catalog.gpu.REASON)
ERROR_LABEL: Final = label_name(catalog.gpu.ERROR_TYPE)
SOURCE_LABEL: Final = label_name("grademl.sampler.source")

OF_RUN: Final = f'job=~"$job",{RUN_LABEL}=~"$run"'
OF_RANKS: Final = f'{OF_RUN},{RANK_LABEL}=~"$rank"'
OF_HOST: Final = f'{HOST_LABEL}=~"$host"'
OF_GPUS: Final = f'{OF_HOST},hw_type="gpu",{GPU_LABEL}=~"$gpu"'

OUTERMOST: Final = (
    semconv.DATA_WAIT,
    semconv.DATA_TRANSFER,
    semconv.FORWARD,
    semconv.BACKWARD,
    semconv.OPTIMIZER,
    semconv.ZERO_GRAD,
    semconv.CHECKPOINT_SAVE,
    semconv.CHECKPOINT_LOAD,
    semconv.LOG,
)
"""Phases of the training thread that do not lie in each other, as a rule: their times can be added up."""


def series(name: str) -> str:
    """Return what Prometheus calls the metric ``name``; KeyError for one that nobody records."""
    if name in TRAINING:
        return metric_name(name, *TRAINING[name])
    found = next((metric for metric in catalog.METRICS if metric.name == name), None)
    if found is None:
        raise KeyError(f"no such metric in semconv or the catalog: {name}")
    return metric_name(found.name, found.unit, found.kind)


def per_second(name: str, selector: str) -> str:
    """How fast a counter grows; of seconds: which share of the time."""
    return f"rate({series(name)}{{{selector}}}[$__rate_interval])"


def duration(part: str, selector: str) -> str:
    """Growth per second of one part (``bucket``, ``sum``, ``count``) of the step's duration."""
    return f"rate({series(semconv.METRIC_STEP_DURATION)}_{part}{{{selector}}}[$__rate_interval])"


def steps_per_second(selector: str, by: str) -> str:
    kind = f'{KIND_LABEL}="train"'
    return f"sum by ({by}) ({per_second(semconv.METRIC_STEPS, f'{selector},{kind}')})"


def phase(name: str) -> str:
    return f'{PHASE_LABEL}="{name}"'


# --- Pages ------------------------------------------------------------------------------------------------


def overview() -> Json:
    """One run: how fast, where its time goes, what was lost."""
    each_rank = f"{RUN_LABEL}, {RANK_LABEL}"
    stats = [
        Panel(
            "Steps per second",
            "Training steps (updates of the model). All ranks make the same steps, so this is their mean.",
            [
                Query(
                    f"avg by ({RUN_LABEL}) ({steps_per_second(OF_RANKS, each_rank)})",
                    f"{{{{{RUN_LABEL}}}}}",
                )
            ],
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Samples per second",
            "All ranks together; absent where the size of a batch is not known.",
            [
                Query(
                    f"sum by ({RUN_LABEL}) ({per_second(semconv.METRIC_SAMPLES, OF_RANKS)})",
                    f"{{{{{RUN_LABEL}}}}}",
                )
            ],
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Steps so far",
            "Training steps since the run began, of the rank that is farthest.",
            [
                Query(
                    f"max by ({RUN_LABEL}) (sum without ({ATTEMPT_LABEL}, instance) ("
                    f'{series(semconv.METRIC_STEPS)}{{{OF_RANKS},{KIND_LABEL}="train"}}))',
                    f"{{{{{RUN_LABEL}}}}}",
                )
            ],
            kind="stat",
            width=5,
            height=4,
        ),
        Panel(
            "Waiting for data",
            "Share of the time in which the training thread waits for a batch, mean of the ranks. Above some "
            "percent the loader is the limit: `grademl` tells why.",
            [
                Query(
                    f"avg by ({RUN_LABEL}) ("
                    f"{per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{phase(semconv.DATA_WAIT)}')})",
                    f"{{{{{RUN_LABEL}}}}}",
                )
            ],
            unit="percentunit",
            kind="stat",
            width=5,
            height=4,
            steps=((0.1, "orange"), (0.3, "red")),
        ),
        Panel(
            "Ranks",
            "Processes that report steps.",
            [
                Query(
                    f"count by ({RUN_LABEL}) "
                    f"(count by ({each_rank}) ({series(semconv.METRIC_STEPS)}{{{OF_RANKS}}}))",
                    f"{{{{{RUN_LABEL}}}}}",
                )
            ],
            kind="stat",
            width=4,
            height=4,
        ),
    ]
    quantiles = [
        Query(
            f"histogram_quantile({quantile}, sum by (le) ({duration('bucket', OF_RANKS)}))",
            f"p{round(quantile * 100)}",
        )
        for quantile in (0.5, 0.95, 0.99)
    ]
    quantiles.append(
        Query(f"sum({duration('sum', OF_RANKS)}) / sum({duration('count', OF_RANKS)})", "mean"),
    )
    outermost = "|".join(name.replace(".", "\\\\.") for name in OUTERMOST)
    time = [
        Panel(
            "Duration of a step",
            "Of all ranks. Quantiles are interpolated between the limits of the histogram (1, 2, 5, 10 ... "
            "ms): the exact ones are in the report.",
            quantiles,
            unit="s",
        ),
        Panel(
            "Steps by their duration",
            "How many steps took how long.",
            [
                Query(
                    f"sum by (le) (increase({series(semconv.METRIC_STEP_DURATION)}_bucket{{{OF_RANKS}}}"
                    "[$__rate_interval]))",
                    "{{le}}",
                    heatmap=True,
                )
            ],
            unit="s",
            kind="heatmap",
            low=None,
        ),
        Panel(
            "Where the time goes",
            "Share of the wall time that the training thread spends in each phase, mean of the ranks; phases "
            "that lie in others are not here. What is missing to 100 % lies between phases or is not "
            "seen. Times are the host's: on a GPU, enqueueing and waiting.",
            [
                Query(
                    f"avg by ({PHASE_LABEL}) ("
                    + per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{PHASE_LABEL}=~"{outermost}"')
                    + ")",
                    f"{{{{{PHASE_LABEL}}}}}",
                )
            ],
            unit="percentunit",
            stacked=True,
        ),
        Panel(
            "Inside these, and beside them",
            "The same for phases that lie in others (recompute, collectives, compilation, collections), for "
            "those of loader workers (several at once: above 100 %), and for phases of the program's own.",
            [
                Query(
                    f"avg by ({PHASE_LABEL}) ("
                    + per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{PHASE_LABEL}!~"{outermost}"')
                    + ")",
                    f"{{{{{PHASE_LABEL}}}}}",
                )
            ],
            unit="percentunit",
        ),
    ]
    tracing = [
        Panel(
            "What recording costs",
            "Share of the time that the tracer itself takes in the training process (estimated).",
            [
                Query(
                    f"max by ({RANK_LABEL}) ({per_second(semconv.METRIC_TRACER_COST, OF_RANKS)})",
                    f"rank {{{{{RANK_LABEL}}}}}",
                )
            ],
            unit="percentunit",
            width=8,
        ),
        Panel(
            "What did not arrive",
            "Spans since the run began: `spooled` were put aside at some time, and sent since or not yet; "
            "`dropped` and `refused` are lost. Nothing is here as long as all arrive.",
            [
                Query(
                    f"sum by ({REASON_LABEL}) ({series(semconv.METRIC_TRACER_UNSENT)}{{{OF_RANKS}}})",
                    f"{{{{{REASON_LABEL}}}}}",
                ),
                Query(f"sum({series(semconv.METRIC_TRACER_LOST)}{{{OF_RANKS}}})", "marks lost"),
            ],
            width=8,
        ),
        Panel(
            "Evaluation and incomplete steps",
            "Steps per second by what they are, mean of the ranks.",
            [
                Query(
                    f"avg by ({KIND_LABEL}) ({per_second(semconv.METRIC_STEPS, OF_RANKS)})",
                    f"{{{{{KIND_LABEL}}}}}",
                )
            ],
            width=8,
        ),
    ]
    return dashboard(
        "grademl-overview",
        "Training overview",
        "A training run: how fast it is, where the time of a step goes, and whether anything was lost.",
        _variables(),
        [Row("Now", stats), Row("Steps", time), Row("Recording", tracing)],
        _links(),
    )


def ranks() -> Json:
    """The ranks of a run side by side: who is slow, and who waits."""
    rank = f"rank {{{{{RANK_LABEL}}}}}"
    mean = (
        f"sum by ({RANK_LABEL}) ({duration('sum', OF_RANKS)}) / "
        f"sum by ({RANK_LABEL}) ({duration('count', OF_RANKS)})"
    )

    def share(name: str) -> str:
        selector = f"{OF_RANKS},{phase(name)}"
        return f"sum by ({RANK_LABEL}) ({per_second(semconv.METRIC_PHASE_TIME, selector)})"

    side_by_side = [
        Panel(
            "Duration of a step by rank",
            "Mean. Ranks that synchronize all take as long as the slowest: then the waits below tell who is.",
            [Query(mean, rank)],
            unit="s",
        ),
        Panel(
            "95th percentile by rank",
            "Interpolated between the limits of the histogram.",
            [
                Query(
                    f"histogram_quantile(0.95, sum by (le, {RANK_LABEL}) ({duration('bucket', OF_RANKS)}))",
                    rank,
                )
            ],
            unit="s",
        ),
        Panel(
            "Slowest ranks",
            "The five with the longest mean step.",
            [Query(f"topk(5, {mean})", rank)],
            unit="s",
            kind="bargauge",
            width=8,
        ),
        Panel(
            "Spread",
            "Mean step of the slowest rank over that of the fastest. 1: all alike.",
            [Query(f"max({mean}) / min({mean})", "slowest / fastest")],
            kind="timeseries",
            low=1,
            width=8,
        ),
        Panel(
            "How far each rank is",
            "Training steps since the run began, of all its attempts.",
            [
                Query(
                    f"sum by ({RANK_LABEL}) ({series(semconv.METRIC_STEPS)}"
                    f'{{{OF_RANKS},{KIND_LABEL}="train"}})',
                    rank,
                )
            ],
            width=8,
        ),
    ]
    phases = [
        Panel(
            f"{title} by rank",
            about,
            [Query(share(name), rank)],
            unit="percentunit",
            width=8,
        )
        for name, title, about in (
            (
                semconv.DATA_WAIT,
                "Waiting for data",
                "Share of the time. A rank alone above the others has the slow loader that all wait for.",
            ),
            (
                semconv.COLLECTIVE_WAIT,
                "Waiting for other ranks",
                "Share of the time in which the thread stands still for a collective. The rank that waits "
                "least is the one that the others wait for.",
            ),
            (
                semconv.COLLECTIVE,
                "Collectives",
                "Time from issue to completion, added up; several run side by side.",
            ),
            (semconv.FORWARD, "Forward", "Share of the time."),
            (semconv.BACKWARD, "Backward", "Share of the time; waits for gradients of others may lie in it."),
            (semconv.OPTIMIZER, "Optimizer", "Share of the time."),
        )
    ]
    processes = [
        Panel(
            "CPU by rank",
            "CPUs that the process of a rank and its workers use.",
            [Query(f"sum by ({RANK_LABEL}) ({per_second('grademl.process.tree.cpu.time', OF_RANKS)})", rank)],
            width=8,
        ),
        Panel(
            "Memory by rank",
            "Resident memory of a rank and its workers; what several share counts in each.",
            [
                Query(
                    f"sum by ({RANK_LABEL}) ({series('grademl.process.tree.memory')}{{{OF_RANKS}}})",
                    rank,
                )
            ],
            unit="bytes",
            width=8,
        ),
        Panel(
            "Main thread waits for a CPU",
            "Share of the time in which the training thread was ready to run and did not. Too many workers.",
            [
                Query(
                    f"sum by ({RANK_LABEL}) ({per_second('grademl.process.main_thread.delay', OF_RANKS)})",
                    rank,
                )
            ],
            unit="percentunit",
            width=8,
        ),
    ]
    steps = series(semconv.METRIC_STEPS)
    return dashboard(
        "grademl-ranks",
        "Ranks",
        "The ranks of a distributed run side by side: who is slow, who waits, and the hosts they run on.",
        [*_variables(), label_values("host", HOST_LABEL, "Host", f"{steps}{{{OF_RUN}}}")],
        [
            Row("Steps", side_by_side),
            Row("Phases", phases),
            Row("Processes", processes),
            Row("Hosts", _hosts()),
        ],
        _links(),
    )


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
    stats = [
        Panel(
            "GPUs",
            "GPUs (and instances of them) that are sampled.",
            [Query(f"count({now('hw.gpu.memory.limit')})", "GPUs")],
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
            [Query(f"sum({now('hw.gpu.memory.usage')}) / sum({now('hw.gpu.memory.limit')})", "used")],
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
            "Part of the time in which a kernel ran. Gaps between steps, waits for data and for other ranks show "
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
            "Bytes per second between host and GPU: batches, offloaded states, and all that has no better way. "
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
            "Generation times lanes now, over the most that GPU and slot can do. Idle GPUs lower the generation; "
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
            "Since sampling began, by kind. Uncorrected ECC and Xid errors end trainings; corrected ones, replays "
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
            "Readings that failed and samples that came late, per minute. Nothing is here as long as all goes well.",
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


def _hosts() -> list[Panel]:
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
            "CPU time over what the job may use (cores, cpuset, quota). Loader workers that fill it are the limit.",
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


def pages_by_file() -> dict[str, Json]:
    """Return the pages, by the names of their files."""
    return {"overview.json": overview(), "gpu.json": gpu(), "ranks.json": ranks()}


def _variables() -> list[Json]:
    steps = series(semconv.METRIC_STEPS)
    return [
        data_source("metrics", "prometheus", "Prometheus", "grademl-prometheus"),
        label_values("job", "job", "Service", steps),
        label_values("run", RUN_LABEL, "Run", f'{steps}{{job=~"$job"}}'),
        label_values("rank", RANK_LABEL, "Rank", f"{steps}{{{OF_RUN}}}"),
    ]


def _links() -> list[Json]:
    return [
        pages("More"),
        link("Traces in Jaeger", "http://127.0.0.1:16686/search?service=${job}"),
    ]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in pages_by_file().items():
        (FOLDER / name).write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
