# SPDX-License-Identifier: Apache-2.0
"""Where the telemetry of a run goes: what our settings and the user's OpenTelemetry settings say together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from grademl_otel.config import FILE, NONE, OTLP, Settings

ENDPOINT_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
DEFAULT_COLLECTOR: Final = ("localhost", 4317)
PROBE_TIMEOUT_S: Final = 0.1


class Destination(NamedTuple):
    """Where the telemetry of a run goes, decided once at its start."""

    exporters: tuple[str, ...]
    """``file``, ``otlp`` or both; empty when the user's own provider takes the spans."""
    traces: bool
    metrics: bool
    through_provider: bool
    """Spans go through the tracer provider in place, in this process."""

    @property
    def nowhere(self) -> bool:
        """True when there is nothing to record for."""
        return not (self.traces or self.metrics) or not (self.exporters or self.through_provider)


def decide_destination(
    settings: Settings,
    environ: Mapping[str, str],
    foreign_provider: bool = False,
    probe: Callable[[], bool] | None = None,
    processors: bool = True,
) -> Destination:
    """Decide where the telemetry goes.

    `GRADEML_EXPORTER` says it; else a user's own exporter or provider (``foreign_provider``: not built by the
    configurator, or with processors that the user added) takes the spans; else an OTLP endpoint in the
    environment does; else the file store, and OTLP as well when ``probe`` finds a collector at the default
    endpoint. Without ``processors`` the provider in place, if any, has nobody to take a span.
    `OTEL_TRACES_EXPORTER=none` and `OTEL_METRICS_EXPORTER=none` hold whatever else is said. A configuration
    file (`OTEL_CONFIG_FILE`) says all that is wanted: where it wants no spans, none are made.
    """
    traces = _exporter_names(environ, "OTEL_TRACES_EXPORTER")
    metrics = _exporter_names(environ, "OTEL_METRICS_EXPORTER")
    through_provider = False
    exporters: tuple[str, ...]
    if settings.exporters is not None:
        exporters = settings.exporters
    elif configuration_file(environ):
        exporters = ()
        through_provider = processors
    elif processors and (foreign_provider or traces - {OTLP, NONE, "otlp_proto_grpc", "otlp_proto_http"}):
        exporters = ()
        through_provider = True
    elif any(environ.get(name) for name in ENDPOINT_VARIABLES):
        exporters = (OTLP,)
    else:
        exporters = (FILE, OTLP) if (probe or collector_answers)() else (FILE,)
    return Destination(
        exporters=exporters,
        traces=NONE not in traces,
        metrics=NONE not in metrics,
        through_provider=through_provider and NONE not in traces,
    )


def configuration_file(environ: Mapping[str, str]) -> str:
    """Return the path of the file that configures the user's OpenTelemetry, empty for none."""
    return environ.get("OTEL_CONFIG_FILE", "").strip()


def collector_answers() -> bool:
    """Return True when something listens at OTLP's default endpoint; costs at most 0.1 s."""
    try:
        with socket.create_connection(DEFAULT_COLLECTOR, PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def without_credentials(endpoint: str) -> str:
    """Return ``endpoint`` as it may be shown: without user, password and query."""
    scheme, separator, rest = endpoint.rpartition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"


def _exporter_names(environ: Mapping[str, str], name: str) -> set[str]:
    return {part.strip().lower() for part in environ.get(name, "").split(",") if part.strip()}
