# SPDX-License-Identifier: Apache-2.0
"""The ranks of a run side by side: who is slow, and who waits; and the hosts that they are on."""

from __future__ import annotations

from asking import (
    HOST_LABEL,
    KIND_LABEL,
    OF_RANKS,
    OF_RUN,
    RANK_LABEL,
    RUN_LABEL,
    duration,
    links_of_a_run,
    per_second,
    phase,
    series,
    variables_of_a_run,
)
from grafana_panels import Json, Panel, Query, Row, dashboard, label_values
from host_panels import of_hosts

from grademl_otel import semconv


def ranks() -> Json:
    """The ranks of a run side by side: who is slow, and who waits."""
    each_rank = f"{RUN_LABEL}, {RANK_LABEL}"
    rank = f"rank {{{{{RANK_LABEL}}}}} of {{{{{RUN_LABEL}}}}}"
    mean = (
        f"sum by ({each_rank}) ({duration('sum', OF_RANKS)}) / "
        f"sum by ({each_rank}) ({duration('count', OF_RANKS)})"
    )

    def share(name: str) -> str:
        selector = f"{OF_RANKS},{phase(name)}"
        return f"sum by ({each_rank}) ({per_second(semconv.METRIC_PHASE_TIME, selector)})"

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
                    f"histogram_quantile(0.95, sum by (le, {each_rank}) ({duration('bucket', OF_RANKS)}))",
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
            [Query(f"max by ({RUN_LABEL}) ({mean}) / min by ({RUN_LABEL}) ({mean})", f"{{{{{RUN_LABEL}}}}}")],
            kind="timeseries",
            low=1,
            width=8,
        ),
        Panel(
            "How far each rank is",
            "Training steps since the run began, of all its attempts.",
            [
                Query(
                    f"sum by ({each_rank}) ({series(semconv.METRIC_STEPS)}"
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
            [Query(f"sum by ({each_rank}) ({per_second('grademl.process.tree.cpu.time', OF_RANKS)})", rank)],
            width=8,
        ),
        Panel(
            "Memory by rank",
            "Resident memory of a rank and its workers; what several share counts in each.",
            [
                Query(
                    f"sum by ({each_rank}) ({series('grademl.process.tree.memory')}{{{OF_RANKS}}})",
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
                    f"sum by ({each_rank}) ({per_second('grademl.process.main_thread.delay', OF_RANKS)})",
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
        [*variables_of_a_run(), label_values("host", HOST_LABEL, "Host", f"{steps}{{{OF_RUN}}}")],
        [
            Row("Steps", side_by_side),
            Row("Phases", phases),
            Row("Processes", processes),
            Row("Hosts", of_hosts()),
        ],
        links_of_a_run(),
    )
