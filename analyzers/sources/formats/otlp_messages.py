# SPDX-License-Identifier: Apache-2.0
"""Attributes, events, scopes and links of OTLP protobuf messages, decoded by opentelemetry-proto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from grademl_otel.analyzers.model.raw import Event
from grademl_otel.analyzers.sources.formats.otlp_values import STATUS_DESCRIPTION

_MAX_DEPTH: Final = 16


@dataclass(frozen=True)
class OtlpProto:
    """The raw bytes are the span's whole message, for attributes and for events."""

    @property
    def name(self) -> str:
        return "otlp-proto"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        span = _parsed(Span, raw)
        attributes = key_values(span.attributes)
        if span.status.message:
            attributes[STATUS_DESCRIPTION] = span.status.message
        return attributes

    def events(self, raw: bytes) -> Sequence[Event]:
        span = _parsed(Span, raw)
        return [
            Event(event.time_unix_nano, event.name, key_values(event.attributes)) for event in span.events
        ]


OTLP_PROTO: Final = OtlpProto()


def resource(raw: bytes) -> dict[str, Any]:
    """Return the attributes of a ``Resource``."""
    return key_values(_parsed(Resource, raw).attributes)


def scope(raw: bytes) -> dict[str, Any]:
    """Return ``name``, ``version`` and ``attributes`` of an ``InstrumentationScope``."""
    scope = _parsed(InstrumentationScope, raw)
    return {"name": scope.name, "version": scope.version, "attributes": key_values(scope.attributes)}


def links(raw: bytes) -> list[tuple[bytes, bytes, dict[str, Any]]]:
    """Return (trace id, span id, attributes) of each link of a ``Span``."""
    span = _parsed(Span, raw)
    return [(link.trace_id, link.span_id, key_values(link.attributes)) for link in span.links]


def key_values(pairs: Any, depth: int = 0) -> dict[str, Any]:
    """Return the plain values of repeated ``KeyValue``."""
    return {pair.key: any_value(pair.value, depth) for pair in pairs}


def any_value(value: Any, depth: int = 0) -> Any:
    """Return the plain value of an ``AnyValue``; None for an empty, unknown or too deep one."""
    kind = value.WhichOneof("value")
    if kind is None or depth > _MAX_DEPTH:
        return None
    inner = getattr(value, kind)
    if kind == "array_value":
        return _integers(inner.values) or [any_value(item, depth + 1) for item in inner.values]
    if kind == "kvlist_value":
        return key_values(inner.values, depth + 1)
    return inner if kind in _PLAIN else None


_PLAIN: Final = frozenset({"string_value", "bool_value", "int_value", "double_value", "bytes_value"})


def _integers(items: Any) -> list[int] | None:
    """Return an array of integers at once, as step tables have many; None for anything else."""
    if not items or items[0].WhichOneof("value") != "int_value":
        return None
    if not all(item.HasField("int_value") for item in items):
        return None
    return [item.int_value for item in items]


def _parsed(message: Any, raw: bytes) -> Any:
    """Return the ``message`` that ``raw`` holds; an empty one where it is damaged."""
    try:
        return message.FromString(raw)
    except DecodeError:
        return message()
