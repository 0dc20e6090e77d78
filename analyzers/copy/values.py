# SPDX-License-Identifier: Apache-2.0
"""Decoded attributes written back as OTLP/JSON, so that decoding gives the same again."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Return attributes as OTLP/JSON's array of key-value pairs."""
    return msgspec.json.encode(_pairs(attributes))


def encode_scope(scope: Mapping[str, Any]) -> bytes:
    """Return a scope (``name``, ``version``, ``attributes``) as an OTLP/JSON object."""
    attributes = _pairs(scope.get("attributes") or {})
    return msgspec.json.encode(
        {"name": scope.get("name", ""), "version": scope.get("version", ""), "attributes": attributes}
    )


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):  # before int: a bool is one in Python
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else str(value).replace("inf", "Infinity")}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value)}}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {}
