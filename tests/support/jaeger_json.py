# SPDX-License-Identifier: Apache-2.0
"""Simulated telemetry as Jaeger's v1 API gives it: microseconds cut off, arrays as JSON strings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .telemetry import Recording, Span, resource


def _plain(any_value: dict[str, Any]) -> tuple[str, Any]:
    """Return (Jaeger tag type, value) of an OTLP/JSON AnyValue."""
    ((kind, raw),) = any_value.items()
    if kind == "intValue":
        number = int(raw)
        return "int64", number if abs(number) < 2**53 else str(number)
    if kind == "doubleValue":
        return "float64", raw
    if kind == "boolValue":
        return "bool", raw
    if kind == "stringValue":
        return "string", raw
    return "string", json.dumps([_plain(v)[1] for v in raw["values"]], separators=(",", ":"))


def _tags(attrs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"key": a["key"], "type": kind, "value": plain} for a in attrs for kind, plain in [_plain(a["value"])]
    ]


def jaeger_v1(training: Recording, spans: Iterable[tuple[int, Span]]) -> dict[str, Any]:
    """Return ``spans`` as Jaeger's v1 API does."""
    traces: dict[str, list[tuple[dict[str, Any], Span]]] = {}
    for rank, span in spans:
        traces.setdefault(span["traceId"], []).append((resource(training, rank), span))
    data = [jaeger_trace(trace) for trace in traces.values()]
    return {"data": data, "total": 0, "limit": 0, "offset": 0, "errors": None}


def jaeger_trace(trace: Iterable[tuple[dict[str, Any], Span]]) -> dict[str, Any]:
    """Return one trace, (OTLP/JSON resource, span) each, as Jaeger's v1 API does."""
    processes: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    spans = []
    trace_id = ""
    for owner, span in trace:
        key = json.dumps(owner)
        process = names.setdefault(key, f"p{len(names) + 1}")
        if process not in processes:
            service = [a for a in owner["attributes"] if a["key"] == "service.name"]
            processes[process] = {
                "serviceName": service[0]["value"]["stringValue"] if service else "",
                "tags": _tags([a for a in owner["attributes"] if a["key"] != "service.name"]),
            }
        trace_id = span["traceId"]
        spans.append(_jaeger_span(span, process))
    return {"traceID": trace_id, "spans": spans, "processes": processes, "warnings": None}


def _jaeger_span(span: Span, process: str) -> dict[str, Any]:
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    references = []
    if "parentSpanId" in span:
        references.append({"refType": "CHILD_OF", "traceID": span["traceId"], "spanID": span["parentSpanId"]})
    references += [
        {"refType": "FOLLOWS_FROM", "traceID": link["traceId"], "spanID": link["spanId"]}
        for link in span.get("links", ())
    ]
    extra: list[dict[str, Any]] = [{"key": "span.kind", "type": "string", "value": "internal"}]
    if span["status"].get("code") == 2:
        extra += [
            {"key": "otel.status_code", "type": "string", "value": "ERROR"},
            {"key": "error", "type": "bool", "value": True},
        ]
    return {
        "traceID": span["traceId"],
        "spanID": span["spanId"],
        "operationName": span["name"],
        "references": references,
        "startTime": start // 1000,
        "duration": (end - start) // 1000,
        "tags": _tags(span["attributes"]) + extra,
        "logs": [],
        "processID": process,
        "warnings": None,
    }
