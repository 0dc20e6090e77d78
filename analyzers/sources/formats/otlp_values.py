# SPDX-License-Identifier: Apache-2.0
"""Attributes, events and scopes as OTLP/JSON writes them; undecodable parts are left out, never an error."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grademl_otel.analyzers.model.raw import Event
from grademl_otel.analyzers.sources.formats.decoding import decoded_or_none, objects_in
from grademl_otel.analyzers.sources.formats.otlp_integers import pairs_of

STATUS_DESCRIPTION: Final = "otel.status_description"
"""The attribute for the message of a span's status, as OpenTelemetry names it where there is no field."""
NO_SCOPE: Final = (b"", b"{}", b"null")
"""What stands for no instrumentation scope, raw."""
_MAX_DEPTH: Final = 16
LARGE: Final = 1 << 14
"""Attributes of so many bytes are tables, or hold some."""


@dataclass(frozen=True)
class OtlpJson:
    """Raw attributes are the array of key-value pairs, raw events the array of events."""

    @property
    def name(self) -> str:
        return "otlp-json"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return otlp_attributes(raw)

    def events(self, raw: bytes) -> Sequence[Event]:
        return [_event(item) for item in objects_in(raw)]


OTLP_JSON: Final = OtlpJson()


def otlp_attributes(raw: bytes) -> dict[str, Any]:
    """Decode ``[{"key": ..., "value": {"intValue": "7"}}, ...]``."""
    pairs = pairs_of(raw) if len(raw) >= LARGE else None
    if pairs is None:
        return _attributes(objects_in(raw))
    return {key: otlp_value(value) if numbers is None else numbers for key, numbers, value in pairs}


def otlp_scope(raw: bytes) -> dict[str, Any]:
    """Decode an instrumentation scope: ``name``, ``version`` and ``attributes``."""
    scope = decoded_or_none(raw)
    scope = scope if isinstance(scope, dict) else {}
    name, version = (scope.get(key) for key in ("name", "version"))
    return {
        "name": name if isinstance(name, str) else "",
        "version": version if isinstance(version, str) else "",
        "attributes": _attributes(scope.get("attributes")),
    }


def otlp_value(value: Any, depth: int = 0) -> Any:
    """Return the plain value of an OTLP/JSON AnyValue; None for an empty, unknown or too deep one."""
    if not isinstance(value, dict) or not value or depth > _MAX_DEPTH:
        return None
    (kind, raw), *_ = value.items()
    kind = kind.replace("_", "").lower()
    if kind == "stringvalue":
        return raw if isinstance(raw, str) else None
    if kind == "intvalue":
        return to_int(raw)
    if kind == "boolvalue":
        return raw if isinstance(raw, bool) else None
    if kind == "doublevalue":
        return to_float(raw)
    if kind == "bytesvalue":
        return to_bytes(raw)
    items = raw.get("values") if isinstance(raw, dict) else None
    if not isinstance(items, list):
        items = []
    if kind == "arrayvalue":
        return _integers(items) or [otlp_value(item, depth + 1) for item in items]
    if kind == "kvlistvalue":
        return _attributes(items, depth + 1)
    return None


def to_int(raw: Any) -> int | None:
    """Return an integer that is written as a number or a string."""
    try:
        return int(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def to_float(raw: Any) -> float | None:
    """Return a float that is written as a number or a string, as NaN, Infinity and -Infinity are."""
    try:
        return float(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def to_bytes(raw: Any) -> bytes | None:
    """Return bytes that are written as base64."""
    try:
        return base64.b64decode(raw, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None


def _attributes(pairs: Any, depth: int = 0) -> dict[str, Any]:
    if not isinstance(pairs, list):
        return {}
    # A key that is not there is the empty one: writers leave out what is empty.
    return {
        str(pair.get("key", "")): otlp_value(pair.get("value"), depth)
        for pair in pairs
        if isinstance(pair, dict) and pair
    }


def _integers(items: list[Any]) -> list[int] | None:
    """Return an array of integers at once, as step tables have many; None for anything else."""
    try:
        return [int(item["intValue"]) for item in items]
    except (TypeError, ValueError, OverflowError, KeyError):
        return None


def _event(item: dict[str, Any]) -> Event:
    name = item.get("name")
    time = to_int(item.get("timeUnixNano", item.get("time_unix_nano", 0)))
    return Event(time or 0, name if isinstance(name, str) else "", _attributes(item.get("attributes")))
