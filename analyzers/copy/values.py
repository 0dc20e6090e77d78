# SPDX-License-Identifier: Apache-2.0
"""Decoded attributes written back as OTLP/JSON, so that decoding gives the same again."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec


def encode_attributes(attributes: Mapping[str, Any], *, portable: bool = False) -> bytes:
    """Return attributes as OTLP/JSON's array of key-value pairs; ``portable`` as in `otlp_pairs`."""
    return msgspec.json.encode(otlp_pairs(attributes) if portable else _pairs(attributes, _value))


def encode_scope(scope: Mapping[str, Any], *, portable: bool = False) -> bytes:
    """Return a scope (``name``, ``version``, ``attributes``) as an OTLP/JSON object."""
    attributes = scope.get("attributes") or {}
    return msgspec.json.encode(
        {
            "name": scope.get("name", ""),
            "version": scope.get("version", ""),
            "attributes": otlp_pairs(attributes) if portable else _pairs(attributes, _value),
        }
    )


def otlp_pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as any reader of OTLP takes them: an integer of more than 64 bits is text."""
    return _pairs(attributes, _portable)


_INT64: Final = range(-(2**63), 2**63)


def _portable(value: Any) -> dict[str, Any]:
    if isinstance(value, int) and value not in _INT64:
        return {"stringValue": str(value)}
    return _value(value, _portable)


def _pairs(attributes: Mapping[str, Any], write: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"key": key, "value": write(value)} for key, value in attributes.items()]


def _value(value: Any, write: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a value as `AnyValue`; ``write`` (None: this) writes those in it."""
    write = write or _value
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):  # before int: a bool is one in Python
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _named(value)}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value, write)}}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [write(item) for item in value]}}
    return {}


def _named(value: float) -> str:
    """Return what protobuf's JSON calls a number that JSON has none for."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
