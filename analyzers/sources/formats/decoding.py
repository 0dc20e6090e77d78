# SPDX-License-Identifier: Apache-2.0
"""Conversions that all readers share: ids, times, attribute values; lenient, bounded, never evaluating."""

from __future__ import annotations

import base64
import binascii
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from grademl_otel.analyzers.model.raw import Event

_BASE64_BYTES: Final = {24: 16, 12: 8}
_OUR_KEYS: Final = "grademl."


class Unreadable(Exception):
    """A document is not what its reader reads; the text says why, in a few words."""


class NotJson(Unreadable):
    """It is no JSON at all, or not one whole document."""


class JaegerTags(bytes):
    """Raw attributes in Jaeger's form (a list of typed tags); plain bytes are in OTLP's."""

    __slots__ = ()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Switch the cyclic collector off while parsing: it otherwise takes most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def parse_id(text: str | None, size: int) -> int:
    """Return the id of ``size`` bytes written as hex (padding may be missing) or base64; 0 when absent.

    Raises Unreadable for anything else.
    """
    if not text:
        return 0
    if len(text) <= 2 * size:
        try:
            return int.from_bytes(bytes.fromhex(text if len(text) % 2 == 0 else "0" + text), "big")
        except ValueError:
            pass
    if _BASE64_BYTES.get(len(text)) == size:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) == size:
            return int.from_bytes(raw, "big")
    raise Unreadable(f"{text[:40]!r} is no id of {size} bytes")


def parse_int(value: Any) -> int:
    """Return an integer given as a number or a decimal string; 0 when absent, -1 when it is neither."""
    if type(value) is int:
        return value
    if not value:
        return 0
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1


@dataclass(frozen=True)
class JsonForm:
    """Attributes as a JSON list of pairs."""

    name: str
    decode: Callable[[bytes], dict[str, Any]]

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return self.decode(raw)

    def events(self, raw: bytes) -> Sequence[Event]:
        return ()


def _pairs(raw: bytes) -> list[dict[str, Any]]:
    try:
        items = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def otlp_attributes(raw: bytes) -> dict[str, Any]:
    """Decode OTLP/JSON attributes, ``[{"key": ..., "value": {"intValue": "7"}}, ...]``."""
    return {str(item["key"]): otlp_value(item.get("value")) for item in _pairs(raw) if "key" in item}


def otlp_value(value: Any, depth: int = 0) -> Any:
    """Return the plain value of an OTLP/JSON AnyValue; None for an empty, unknown or too deep one."""
    if not isinstance(value, dict) or not value or depth > 16:
        return None
    (kind, raw), *_ = value.items()
    kind = kind.replace("_", "").lower()
    if kind == "stringvalue":
        return raw if isinstance(raw, str) else None
    if kind == "intvalue":
        return _to_int(raw)
    if kind == "boolvalue":
        return raw if isinstance(raw, bool) else None
    if kind == "doublevalue":
        return _to_float(raw)
    if kind == "bytesvalue":
        return _to_bytes(raw)
    items = raw.get("values") if isinstance(raw, dict) else None
    if kind == "arrayvalue":
        return _integers(items) or [otlp_value(item, depth + 1) for item in items or ()]
    if kind == "kvlistvalue":
        pairs = [item for item in items or () if isinstance(item, dict) and "key" in item]
        return {str(item["key"]): otlp_value(item.get("value"), depth + 1) for item in pairs}
    return None


def _integers(items: Any) -> list[int] | None:
    """Return an array of integers at once, as step tables have many; None for anything else."""
    try:
        return [int(item["intValue"]) for item in items]
    except (TypeError, ValueError, OverflowError, KeyError):
        return None


_JAEGER_FIELDS: Final = frozenset(
    {"span.kind", "otel.status_code", "otel.scope.name", "otel.scope.version", "w3c.tracestate"}
)
"""Tags in which Jaeger keeps fields of a span; they are no attributes."""


def jaeger_tags(raw: bytes) -> dict[str, Any]:
    """Decode Jaeger tags, ``[{"key": ..., "type": "int64", "value": 7}, ...]``.

    Jaeger's v1 API turns arrays into JSON strings; those of our own keys are turned back.
    """
    items = [item for item in _pairs(raw) if "key" in item]
    status = any(item["key"] == "otel.status_code" for item in items)
    return {
        str(item["key"]): jaeger_value(str(item["key"]), item.get("type"), item.get("value"))
        for item in items
        if item["key"] not in _JAEGER_FIELDS and not (status and item["key"] == "error")
    }


def jaeger_value(key: str, kind: Any, value: Any) -> Any:
    """Return the plain value of a Jaeger tag; typed by ``kind``, else by its JSON type."""
    if kind == "int64":
        return _to_int(value)
    if kind == "float64":
        return _to_float(value)
    if kind == "bool":
        return value if isinstance(value, bool) else str(value).lower() == "true"
    if kind == "binary":
        return _to_bytes(value)
    if isinstance(value, str) and value.startswith("[") and key.startswith(_OUR_KEYS):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _to_int(raw: Any) -> int | None:
    try:
        return int(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_float(raw: Any) -> float | None:
    """Floats are numbers, or the strings NaN, Infinity, -Infinity."""
    try:
        return float(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_bytes(raw: Any) -> bytes | None:
    try:
        return base64.b64decode(raw, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None


OTLP_JSON: Final = JsonForm("otlp-json", otlp_attributes)
JAEGER_JSON: Final = JsonForm("jaeger-json", jaeger_tags)
