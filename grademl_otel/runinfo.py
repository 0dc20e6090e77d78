# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself before its first step: identity, resource, clock, destination."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from typing import Any

from grademl_otel import semconv
from grademl_otel.config import DEFAULT_STORE, FILE, Destination, Settings, without_credentials
from grademl_otel.identity import Place, clock_id
from grademl_otel.marks import RunInfo


def describe_run(
    run_id: str,
    place: Place,
    settings: Settings,
    destination: Destination,
    provider: Any,
    framework: tuple[str, str],
) -> RunInfo:
    """Return the run's description.

    The resource is that of ``provider``, the SDK's tracer provider in place or None, as the user configured
    it, and who this process is. ``framework`` is its name and version.
    """
    resource = _resource_attributes(provider)
    resource.setdefault("host.name", platform.node())
    resource.update(
        {
            semconv.RUN_ID: run_id,
            semconv.ATTEMPT: place.attempt,
            semconv.RANK: place.rank,
            semconv.LOCAL_RANK: place.local_rank,
            semconv.WORLD_SIZE: place.world_size,
            semconv.CLOCK_ID: clock_id(),
            "process.pid": os.getpid(),
        }
    )
    name, version = framework
    if name:
        resource[semconv.FRAMEWORK_NAME] = name
        resource[semconv.FRAMEWORK_VERSION] = version
    return RunInfo(
        run_id=run_id,
        attempt=place.attempt,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        perf_to_unix_ns=_perf_to_unix_ns(),
        exporters=destination.exporters,
        store=str(settings.store_dir),
        script=_script(),
        resource=resource,
        traces=destination.traces,
        metrics=destination.metrics,
    )


def announcement(info: RunInfo) -> str:
    """The one line that says where the telemetry of a run goes, without credentials."""
    places = []
    if "otlp" in info.exporters:
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        endpoint = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        places.append(f"OTLP {without_credentials(endpoint)}" if endpoint else "OTLP on this host")
    if FILE in info.exporters:
        store = _short(info.store)
        source = "" if store == f"./{DEFAULT_STORE}" else f" {shlex.quote(store)}"
        places.append(f"{store}; report: grademl{source}")
    return f"recording run {info.run_id} to {' and '.join(places) or 'the tracer provider in place'}"


def _perf_to_unix_ns() -> int:
    """The offset from ``perf_counter_ns`` to Unix time, from the tightest of a few readings."""
    readings = []
    for _ in range(5):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def _resource_attributes(provider: Any) -> dict[str, Any]:
    resource = getattr(provider, "resource", None)
    if resource is None:
        from opentelemetry.sdk.resources import (
            Resource,
        )  # here, because only a program without a provider pays

        resource = Resource.create()
    attributes: dict[str, Any] = {}
    for key, value in resource.attributes.items():
        if isinstance(value, (str, bool, int, float)):
            attributes[key] = value
        elif isinstance(value, (tuple, list)):
            attributes[key] = list(value)
    return attributes


def _script() -> str:
    """Base name of the program; for ``python -m package`` the module's name."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


def _short(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return path if relative.startswith("..") else f"./{relative}"
