# SPDX-License-Identifier: Apache-2.0
"""Jaeger's query API over HTTP: api_v3 (OTLP/JSON, stable), and v1 for servers that have no v3. Always raw.

Without ``raw`` Jaeger moves spans of other hosts to where it thinks that their clocks belong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final, Protocol

import msgspec

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.refusals import NotFound

_S: Final = 1_000_000_000
ADVICE: Final = "is Jaeger running there? (query port is 16686, 4317/4318 take spans)"


@dataclass(frozen=True)
class Search:
    """What one span of a trace must be like."""

    service: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """Servers before v2.19 do not look at these in v3: they may give more."""


class JaegerApi(Protocol):
    """What is asked of a Jaeger; bodies are JSON documents that `documents.read_document` reads."""

    def services(self) -> list[str]:
        """Return the names of all services, sorted."""

    def trace(self, trace_id: int) -> bytes | None:
        """Return a whole trace, or None when there is no such trace."""

    def search(self, wanted: Search, start: int, end: int, limit: int) -> bytes | None:
        """Return up to ``limit`` whole traces that have a span which matches, or None; times in Unix ns."""


class _Services(msgspec.Struct):
    """The list of services: ``services`` in v3, ``data`` in v1."""

    services: list[str] | None = None
    data: list[str] | None = None


class JaegerV3:
    """The stable API. Parameters are sent under their names of v2.19 on and those before."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def services(self) -> list[str]:
        return _service_names(self._client, "/api/v3/services")

    def trace(self, trace_id: int) -> bytes | None:
        try:
            return self._client.get_json(
                f"/api/v3/traces/{trace_id:032x}", {"rawTraces": "true", "raw_traces": "true"}
            )
        except NotFound:
            return None

    def search(self, wanted: Search, start: int, end: int, limit: int) -> bytes | None:
        since, until, depth = _rfc3339(start), _rfc3339(end), str(limit)
        params = {
            "query.startTimeMin": since,
            "query.start_time_min": since,
            "query.startTimeMax": until,
            "query.start_time_max": until,
            "query.searchDepth": depth,
            "query.search_depth": depth,
            "query.num_traces": depth,
            "query.rawTraces": "true",
            "query.raw_traces": "true",
        }
        if wanted.service:
            params |= {"query.serviceName": wanted.service, "query.service_name": wanted.service}
        if wanted.operation:
            params |= {"query.operationName": wanted.operation, "query.operation_name": wanted.operation}
        if wanted.attributes:
            params["query.attributes"] = json.dumps(dict(wanted.attributes))
        try:
            return self._client.get_json("/api/v3/traces", params)
        except NotFound:
            return None


class JaegerV1:
    """The API of the user interface, for servers before v3 over HTTP: microseconds, arrays as text."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def services(self) -> list[str]:
        return _service_names(self._client, "/api/services")

    def trace(self, trace_id: int) -> bytes | None:
        try:
            return self._client.get_json(f"/api/traces/{trace_id:032x}", {"raw": "true"})
        except NotFound:
            return None

    def search(self, wanted: Search, start: int, end: int, limit: int) -> bytes | None:
        params = {
            "start": str(start // 1000),
            "end": str(-(-end // 1000)),
            "limit": str(limit),
            "raw": "true",
        }
        if wanted.service:
            params["service"] = wanted.service
        if wanted.operation:
            params["operation"] = wanted.operation
        if wanted.attributes:
            params["tags"] = json.dumps(dict(wanted.attributes))
        try:
            return self._client.get_json("/api/traces", params)
        except NotFound:
            return None


def connect(client: HttpClient) -> tuple[JaegerApi, list[str]]:
    """Return the API that the server speaks, and its services.

    Raises SourceError when it is no Jaeger.
    """
    newest, oldest = JaegerV3(client), JaegerV1(client)
    try:
        return newest, newest.services()
    except NotFound as missing:
        try:
            return oldest, oldest.services()
        except NotFound:
            raise SourceError(str(missing)) from None


def _service_names(client: HttpClient, path: str) -> list[str]:
    try:
        answer = msgspec.json.decode(client.get_json(path), type=_Services)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise SourceError(f"{client.name}: services that are not Jaeger's JSON; {client.advice}") from None
    return sorted(answer.services or answer.data or ())


def _rfc3339(at: int) -> str:
    seconds, ns = divmod(max(at, 0), _S)
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"
