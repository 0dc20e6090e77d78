# SPDX-License-Identifier: Apache-2.0
"""What the pages ask for: names of series and labels from their one source, selectors, and rates.

Names of metrics come from `grademl_otel.semconv` and `grademl_otel.catalog`; a name that is in neither is an
error. `grademl_otel.catalog.prometheus_names` says what Prometheus makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from grafana_panels import Json, data_source, label_values, link, pages

from grademl_otel import catalog, semconv
from grademl_otel.catalog.prometheus_names import COUNTER, HISTOGRAM, label_name, metric_name

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


def ranks_of(selector: str, by: str = "") -> str:
    """How many ranks there are: not all of them have every phase, and a mean is of all."""
    each = f"count by ({RUN_LABEL}, {RANK_LABEL}) ({series(semconv.METRIC_TRACER_COST)}{{{selector}}})"
    return f"count by ({by}) ({each})" if by else f"scalar(count({each}))"


def phase(name: str) -> str:
    return f'{PHASE_LABEL}="{name}"'


# --- What the pages of a run have in common ---------------------------------------------------------------


def variables_of_a_run() -> list[Json]:
    steps = series(semconv.METRIC_STEPS)
    return [
        data_source("metrics", "prometheus", "Prometheus", "grademl-prometheus"),
        label_values("job", "job", "Service", steps),
        label_values("run", RUN_LABEL, "Run", f'{steps}{{job=~"$job"}}'),
        label_values("rank", RANK_LABEL, "Rank", f"{steps}{{{OF_RUN}}}"),
    ]


def links_of_a_run() -> list[Json]:
    return [
        pages("More"),
        link("Traces in Jaeger", "http://127.0.0.1:16686/search?service=${job}"),
    ]
