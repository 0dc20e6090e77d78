# SPDX-License-Identifier: Apache-2.0
"""Tags and logs as Jaeger writes them; undecodable parts are left out, never an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from grademl_otel.analyzers.model.columns import STATUS_ERROR, STATUS_OK, STATUS_UNSET
from grademl_otel.analyzers.model.raw import Event
from grademl_otel.analyzers.sources.formats.decoding import decoded_or_none, objects_in
from grademl_otel.analyzers.sources.formats.otlp_values import to_bytes, to_float, to_int

_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_CODES: Final = {"OK": STATUS_OK, "ERROR": STATUS_ERROR}
_SCOPE_NAME: Final = ("otel.scope.name", "otel.library.name")
_SCOPE_VERSION: Final = ("otel.scope.version", "otel.library.version")
FACTS: Final = ("span.kind", "otel.status_code", "error", *_SCOPE_NAME, *_SCOPE_VERSION)
"""Keys of the tags in which Jaeger keeps fields of a span."""
_FIELDS: Final = frozenset({*FACTS, "w3c.tracestate"} - {"error"})
"""Those that are no attributes; ``error`` is one where nothing else gives the status."""
_OUR_KEYS: Final = "grademl."


class Facts(NamedTuple):
    """Fields of a span that Jaeger keeps among its tags."""

    kind: int
    status: int
    scope: tuple[str, str] | None
    """Name and version."""


@dataclass(frozen=True)
class JaegerJson:
    """Raw attributes are the array of tags, raw events the array of logs."""

    @property
    def name(self) -> str:
        return "jaeger-json"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return jaeger_tags(raw)

    def events(self, raw: bytes) -> Sequence[Event]:
        return [_event(log) for log in objects_in(raw)]


JAEGER_JSON: Final = JaegerJson()


def jaeger_tags(raw: bytes) -> dict[str, Any]:
    """Decode ``[{"key": ..., "type": "int64", "value": 7}, ...]``.

    Jaeger's v1 API turns arrays into JSON strings; those of our own keys are turned back.
    """
    return _tags(objects_in(raw))


def _tags(items: list[dict[str, Any]]) -> dict[str, Any]:
    items = [item for item in items if _is_key(item)]
    status = any(item["key"] == "otel.status_code" for item in items)
    return {
        item["key"]: jaeger_value(item["key"], item.get("type"), item.get("value"))
        for item in items
        if item["key"] not in _FIELDS and not (status and item["key"] == "error")
    }


def jaeger_value(key: str, kind: Any, value: Any) -> Any:
    """Return the plain value of a tag; typed by ``kind``, else by its JSON type."""
    if kind == "int64":
        return to_int(value)
    if kind == "float64":
        return to_float(value)
    if kind == "bool":
        return value if isinstance(value, bool) else str(value).lower() == "true"
    if kind == "binary":
        return to_bytes(value)
    if isinstance(value, str) and value.startswith("[") and key.startswith(_OUR_KEYS):
        return decoded_or_none(value) or value
    return value


@lru_cache(maxsize=4096)
def facts(tags: bytes) -> Facts:
    """Return what tags, raw and each with a comma after it, say of a span's fields."""
    found = {item["key"]: item.get("value") for item in objects_in(b"[%b]" % tags[:-1]) if _is_key(item)}
    code, kind = found.get("otel.status_code"), found.get("span.kind")
    status = _CODES.get(code) if isinstance(code, str) else None
    if status is None:
        status = STATUS_ERROR if found.get("error") in (True, "true") else STATUS_UNSET
    name = next((str(found[key]) for key in _SCOPE_NAME if key in found), "")
    version = next((str(found[key]) for key in _SCOPE_VERSION if key in found), "")
    return Facts(
        _KINDS.get(kind.lower(), 0) if isinstance(kind, str) else 0,
        status,
        (name, version) if name or version else None,
    )


def _is_key(item: dict[str, Any]) -> bool:
    return isinstance(item.get("key"), str)


def _event(log: dict[str, Any]) -> Event:
    fields = log.get("fields")
    items = [item for item in fields if isinstance(item, dict)] if isinstance(fields, list) else []
    attributes = _tags(items)
    name = attributes.pop("event", "")
    return Event((to_int(log.get("timestamp")) or 0) * 1000, str(name), attributes)
