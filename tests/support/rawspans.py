# SPDX-License-Identifier: Apache-2.0
"""Spans as they lie on disk or come from Jaeger, decoded by nothing of ours: tests see what was stored."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TYPES = {"stringValue": "str", "intValue": "int", "doubleValue": "double", "boolValue": "bool"}


@dataclass(frozen=True)
class Value:
    """An attribute's value and its type on the wire: str, int, double, bool, or one of these with `[]`."""

    type: str
    value: Any


@dataclass(frozen=True)
class RawSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    start: int
    end: int
    kind: int
    status: int
    attributes: dict[str, Value]
    resource: dict[str, Value]
    scope: str
    links: tuple[tuple[str, str, dict[str, Value]], ...]
    """(trace id, span id, attributes) of each link."""

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key].value

    def column(self, name: str) -> list[int]:
        """A column of a window's step table, with an element for each row.

        Empty if it is not there: so are all of them where a step has run for seconds, and no row is over.
        """

        def stored(name: str) -> list[int]:
            column = self.attributes.get(f"grademl.table.{name}")
            return [] if column is None else list(column.value)

        values, rows = stored(name), len(stored("start_us"))
        return values * rows if len(values) == 1 else values


def read_lines(path: Path) -> list[RawSpan]:
    """The spans of a file with one OTLP/JSON request a line; one that is being written is not there yet."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [span for line in lines if line for span in decode(json.loads(line))]


def read_jaeger(query_url: str, trace_ids: Iterable[str]) -> list[RawSpan]:
    """The spans of these traces, raw, through Jaeger's API v3; traces that it does not have are left out."""
    spans = []
    for trace_id in trace_ids:
        try:
            with urllib.request.urlopen(
                f"{query_url}/api/v3/traces/{trace_id}?rawTraces=true", timeout=30
            ) as answer:
                spans += decode(json.load(answer)["result"])
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
    return spans


def decode(request: dict[str, Any]) -> Iterator[RawSpan]:
    """The spans of one OTLP/JSON request."""
    for of_resource in request["resourceSpans"]:
        resource = _attributes(of_resource["resource"])
        for of_scope in of_resource["scopeSpans"]:
            for span in of_scope.get("spans", ()):  # Jaeger may give scopes without any
                yield RawSpan(
                    name=span["name"],
                    trace_id=span["traceId"],
                    span_id=span["spanId"],
                    parent_id=span.get("parentSpanId", ""),
                    start=int(span["startTimeUnixNano"]),
                    end=int(span["endTimeUnixNano"]),
                    kind=span.get("kind", 0),
                    status=span.get("status", {}).get("code", 0),
                    attributes=_attributes(span),
                    resource=resource,
                    scope=of_scope["scope"]["name"],
                    links=tuple(
                        (link["traceId"], link["spanId"], _attributes(link)) for link in span.get("links", [])
                    ),
                )


def _attributes(holder: dict[str, Any]) -> dict[str, Value]:
    return {each["key"]: _value(each["value"]) for each in holder.get("attributes", [])}


def _value(value: dict[str, Any]) -> Value:
    ((field, content),) = value.items()
    if field == "arrayValue":
        items = [_value(each) for each in content.get("values", [])]
        (kind,) = {each.type for each in items} or {"empty"}
        return Value(f"{kind}[]", [each.value for each in items])
    if field == "intValue":
        content = int(content)
    return Value(TYPES[field], content)
