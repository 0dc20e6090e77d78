# SPDX-License-Identifier: Apache-2.0
"""GPUs of a program that trains nothing, such as an inference server: metrics through its own OpenTelemetry.

Observable instruments of the meter provider in place give what a sampler has read last. Training has its
relay for that; there this is silent, see `observer`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from grademl_otel.catalog import gpu, sampler
from grademl_otel.catalog.metric import COUNTER, GAUGE, Metric
from grademl_otel.config import GPU_INSTRUMENTOR_NAME, Settings, disabled
from grademl_otel.instrumentations.gpu.observer import Observer
from grademl_otel.messages import warn
from grademl_otel.semconv import SCOPE_NAME
from grademl_otel.version import __version__

__all__ = ["GpuInstrumentor"]

_ROWS: Final = {metric.name: metric for metric in reversed(gpu.METRICS + sampler.METRICS)}
"""One for each name: an instrument has one description."""


class GpuInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """The `opentelemetry_instrumentor` of GPUs; never raises.

    ``instrument(meter_provider=...)`` uses that provider instead of the global one.
    """

    _observer: Observer | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing need be installed: what drivers there are is found out when metrics are collected first."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        try:
            provider = kwargs.get("meter_provider")
            if not _wanted(of_its_own=provider is not None):
                return
            observer = self._observer
            if observer is None:  # instruments cannot be taken back; those that are there ask this one
                observer = self._observer = Observer()
            meter = metrics.get_meter(SCOPE_NAME, __version__, provider)
            for metric in reversed(_ROWS.values()):
                _create(meter, metric, observer)
            observer.resume(provider)
        except Exception as error:
            warn(f"GPUs are not sampled: {type(error).__name__}: {error}")

    def _uninstrument(self, **kwargs: Any) -> None:
        observer = self._observer
        try:
            if observer is not None:
                observer.pause()
        except Exception as error:
            warn(f"GPUs are sampled on: {type(error).__name__}: {error}")


def _wanted(of_its_own: bool) -> bool:
    """Whether settings let GPUs be sampled; metrics that go nowhere matter where nobody named a provider."""
    if disabled(os.environ, GPU_INSTRUMENTOR_NAME) or not Settings.from_env().gpu_interval_s:
        return False
    return of_its_own or os.environ.get(OTEL_METRICS_EXPORTER, "").strip().lower() != "none"


def _create(meter: metrics.Meter, metric: Metric, observer: Observer) -> None:
    callbacks: list[Callable[..., Any]] = [partial(observer.observe, metric.name)]
    if metric.kind == GAUGE:
        meter.create_observable_gauge(metric.name, callbacks, metric.unit, metric.description)
    elif metric.kind == COUNTER:
        meter.create_observable_counter(metric.name, callbacks, metric.unit, metric.description)
    else:
        meter.create_observable_up_down_counter(metric.name, callbacks, metric.unit, metric.description)
