# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself before its first step: identity, resource, clock, destination."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grademl_otel import semconv
from grademl_otel.config import FILE, Settings
from grademl_otel.destination import Destination, without_credentials
from grademl_otel.identity import clock_id
from grademl_otel.marks import RunInfo
from grademl_otel.naming import Named
from grademl_otel.resource_detectors.facts import facts
from grademl_otel.semconv import DEFAULT_STORE


def describe_run(
    named: Named,
    settings: Settings,
    destination: Destination,
    provider: Any,
    framework: tuple[str, str],
) -> RunInfo:
    """Return the description of the run ``named``.

    The resource is that of ``provider``, the SDK's tracer provider in place or None, as the user configured
    it, what is known of where it runs, which the user's attributes overrule, and who this process is.
    ``framework`` is its name and version.
    """
    resource = _resource_attributes(provider)
    resource.setdefault("host.name", platform.node())
    for key, value in facts(os.environ).items():
        resource.setdefault(key, value)
    resource[semconv.CLOCK_ID] = clock_id()
    resource["process.pid"] = os.getpid()
    name, version = framework
    if name:
        resource[semconv.FRAMEWORK_NAME] = name
        resource[semconv.FRAMEWORK_VERSION] = version
    info = RunInfo(
        run_id=named.run_id,
        attempt=named.place.attempt,
        rank=named.place.rank,
        local_rank=named.place.local_rank,
        world_size=named.place.world_size,
        perf_to_unix_ns=_perf_to_unix_ns(),
        exporters=destination.exporters,
        store=str(settings.store_dir),
        script=_script(),
        resource=resource,
        traces=destination.traces,
        metrics=destination.metrics,
        links=launching_span(os.environ),
    )
    return renamed(info, named)


def renamed(info: RunInfo, named: Named) -> RunInfo:
    """Return ``info`` with the name, the place and the parent of ``named``."""
    place, parent = named.place, named.parent
    identity = {
        semconv.RUN_ID: named.run_id,
        semconv.ATTEMPT: place.attempt,
        semconv.RANK: place.rank,
        semconv.LOCAL_RANK: place.local_rank,
        semconv.WORLD_SIZE: place.world_size or None,
    }
    resource = {key: value for key, value in {**info.resource, **identity}.items() if value is not None}
    return replace(
        info,
        run_id=named.run_id,
        attempt=place.attempt,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        resource=resource,
        parent="" if parent is None else parent.name,
    )


def launching_span(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Trace id and span id, in hex, of the span that ``environ`` says this process was started in, if any.

    Read by the propagators that the user configured, with names as environment variables have them:
    ``TRACEPARENT``. What they make nothing of is left out.
    """
    try:
        from opentelemetry import propagate, trace

        found = propagate.extract(environ, getter=_EnvironGetter())  # type: ignore[arg-type]
        span = trace.get_current_span(found).get_span_context()
        if not span.is_valid:
            return ()
        return ((f"{span.trace_id:032x}", f"{span.span_id:016x}"),)
    except Exception:  # a propagator of the user's may raise anything
        return ()


class _EnvironGetter:
    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key.upper().replace("-", "_"))
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


def announcement(info: RunInfo, verb: str = "recording") -> str:
    """The one line that says where the telemetry of a run goes, without credentials."""
    places = []
    if "otlp" in info.exporters:
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        endpoint = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        places.append(f"OTLP {without_credentials(endpoint)}" if endpoint else "OTLP on this host")
    if FILE in info.exporters:
        store = _short(info.store)
        import shlex  # only here: not everybody's start-up is to pay for it

        source = "" if store == f"./{DEFAULT_STORE}" else f" {shlex.quote(store)}"
        places.append(f"{store}; report: grademl{source}" if info.traces else store)
    only = "" if info.traces else "; metrics only, so there is no report: OTEL_TRACES_EXPORTER=none"
    return f"{verb} run {info.run_id} to {' and '.join(places) or 'the tracer provider in place'}{only}"


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
