# SPDX-License-Identifier: Apache-2.0
"""One run: how fast, where its time goes, what was lost."""

from __future__ import annotations

from asking import (
    ATTEMPT_LABEL,
    KIND_LABEL,
    OF_RANKS,
    OUTERMOST,
    PHASE_LABEL,
    RANK_LABEL,
    REASON_LABEL,
    RUN_LABEL,
    duration,
    links_of_a_run,
    per_second,
    phase,
    ranks_of,
    series,
    steps_per_second,
    variables_of_a_run,
)
from grafana_panels import Json, Panel, Query, Row, TraceQuery, dashboard, data_source

from grademl_otel import semconv


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
                    f"sum by ({RUN_LABEL}) ("
                    f"{per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{phase(semconv.DATA_WAIT)}')})"
                    f" / {ranks_of(OF_RANKS, RUN_LABEL)}",
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
            "Processes of the run that report.",
            [
                Query(
                    ranks_of(OF_RANKS, RUN_LABEL),
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
                    f"sum by ({PHASE_LABEL}) ("
                    + per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{PHASE_LABEL}=~"{outermost}"')
                    + f") / {ranks_of(OF_RANKS)}",
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
                    f"sum by ({PHASE_LABEL}) ("
                    + per_second(semconv.METRIC_PHASE_TIME, f'{OF_RANKS},{PHASE_LABEL}!~"{outermost}"')
                    + f") / {ranks_of(OF_RANKS)}",
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
                    f"sum by ({KIND_LABEL}) ({per_second(semconv.METRIC_STEPS, OF_RANKS)})"
                    f" / {ranks_of(OF_RANKS)}",
                    f"{{{{{KIND_LABEL}}}}}",
                )
            ],
            width=8,
        ),
    ]
    traces = [
        Panel(
            "Steps that took long",
            "Traces of steps of 100 ms and more in this time range, as far as kept. Each holds all ranks.",
            [
                TraceQuery(
                    f'{{resource.{semconv.RUN_ID}=~"$run" && name="{semconv.STEP}" && duration>100ms}}'
                    f" | select(span.{semconv.STEP_NUMBER}, resource.{semconv.RANK})"
                )
            ],
            kind="table",
            width=24,
        )
    ]
    return dashboard(
        "grademl-overview",
        "Training overview",
        "A training run: how fast it is, where the time of a step goes, and whether anything was lost.",
        [*variables_of_a_run(), data_source("traces", "tempo", "Tempo", "grademl-tempo")],
        [Row("Now", stats), Row("Steps", time), Row("Recording", tracing), Row("Traces", traces)],
        links_of_a_run(),
    )
