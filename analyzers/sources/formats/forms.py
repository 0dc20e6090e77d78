# SPDX-License-Identifier: Apache-2.0
"""Forms of raw attributes by name, as copies on disk name them; each is imported when it is met."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.raw import Form

_PLACES: Final = {
    "otlp-json": ("otlp_values", "OTLP_JSON"),
    "otlp-json-span": ("otlp_beside", "OTLP_JSON_SPAN"),
    "otlp-proto": ("otlp_messages", "OTLP_PROTO"),
    "jaeger-json": ("jaeger_values", "JAEGER_JSON"),
    "zipkin": ("zipkin", "ZIPKIN"),
    "kineto": ("kineto_values", "KINETO"),
}
"""Name -> (module of this package, its attribute). A name on somebody's disk keeps its meaning."""


@cache
def form_named(name: str) -> Form:
    """Return the form that ``name`` stands for; SourceError for one that this version does not know."""
    place = _PLACES.get(name)
    if place is None:
        raise SourceError(
            f"attributes in the form {name[:40]!r}, which this grademl does not know: upgrade it"
        )
    module = import_module(f"grademl_otel.analyzers.sources.formats.{place[0]}")
    form: Form = getattr(module, place[1])
    return form
