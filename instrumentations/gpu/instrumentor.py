# SPDX-License-Identifier: Apache-2.0
"""GPUs of a program that trains nothing, such as an inference server: metrics through its own OpenTelemetry.

Observable instruments of the meter provider in place give what a sampler has read last. Training has its
relay for that; there this is silent, see `observer`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from opentelemetry import metrics
from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from grademl_otel.config import GPU_INSTRUMENTOR_NAME, Settings, disabled
from grademl_otel.instrumentations.gpu.observer import Observer
from grademl_otel.messages import warn
from grademl_otel.semconv import SCOPE_NAME
from grademl_otel.version import __version__

__all__ = ["GpuInstrumentor"]


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
            if self._observer is None:  # instruments cannot be taken back; those that are there ask this one
                self._observer = Observer()
            self._observer.resume(metrics.get_meter(SCOPE_NAME, __version__, provider))
        except Exception as error:
            warn(f"GPUs are not sampled: {type(error).__name__}: {error}")

    def _uninstrument(self, **kwargs: Any) -> None:
        try:
            if self._observer is not None:
                self._observer.pause()
        except Exception as error:
            warn(f"GPUs are sampled on: {type(error).__name__}: {error}")


def _wanted(of_its_own: bool) -> bool:
    """Whether settings let GPUs be sampled; that metrics go nowhere matters where nobody named a provider."""
    environ = os.environ
    if disabled(environ, GPU_INSTRUMENTOR_NAME):
        return False
    if environ.get("GRADEML_GPU_INTERVAL") and not Settings.from_env().gpu_interval_s:
        return False
    return of_its_own or environ.get(OTEL_METRICS_EXPORTER, "").strip().lower() != "none"
