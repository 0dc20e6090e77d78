# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry resource of a host's metrics: of no rank and no process, the same from every relay."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from grademl_otel import semconv
from grademl_otel.convert.spans import Resource, Value
from grademl_otel.identity import clock_id

SERVICE: Final = "grademl-host"
"""``service.name`` where the user has set none."""
_OF_HOST: Final = ("host.", "cloud.", "os.", "k8s.node.", "k8s.cluster.", "deployment.")
"""What a run's resource says that is as true of its host."""


def host_resource(environ: Mapping[str, str], run_resource: Mapping[str, Any]) -> Resource:
    """Return the resource of this host; ``run_resource`` is that of a run on it.

    What the user has set in ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` holds for it, too. The
    host is its own instance: backends that tell series apart by ``service.instance.id`` must see one each.
    """
    attributes: dict[str, Value] = {
        key: value
        for key, value in run_resource.items()
        if key.startswith(_OF_HOST) and isinstance(value, str | bool | int | float | list)
    }
    told = _told(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    attributes.update({key: value for key, value in told.items() if not key.startswith("process.")})
    if environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = environ["OTEL_SERVICE_NAME"].strip()
    attributes.setdefault("service.name", SERVICE)
    attributes.setdefault("host.name", platform.node())
    attributes.setdefault("service.instance.id", attributes["host.name"])
    attributes.setdefault("os.type", platform.system().lower())
    attributes[semconv.CLOCK_ID] = clock_id()
    return Resource(attributes)


def _told(text: str) -> dict[str, str]:
    """Return the attributes of ``OTEL_RESOURCE_ATTRIBUTES``: ``key=value,...``, percent-encoded."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs if key.strip()}
