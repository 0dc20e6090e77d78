# SPDX-License-Identifier: Apache-2.0
"""Jaeger's query API over HTTP: api_v3 (OTLP/JSON, stable), and v1 for servers that have no v3."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Final

import msgspec

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.documents import read_json
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.http_client import JSON, Clock, HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_api import JaegerApi, Search, Summary
from grademl_otel.analyzers.sources.servers.refusals import NotFound, Unexpected

_S: Final = 1_000_000_000
_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999, the last that RFC 3339 can write."""


class _Services(msgspec.Struct):
    """The list of services: ``services`` in v3, ``data`` in v1."""

    services: list[str] | None = None
    data: list[str] | None = None


class _Summary(msgspec.Struct):
    traceId: str
    minStartTimeUnixNano: int = 0
    maxEndTimeUnixNano: int = 0
    spanCount: int = 0


class _Summaries(msgspec.Struct):
    summaries: list[_Summary] = []


class _OverHttp:
    """What both APIs have in common."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @property
    def clock(self) -> Clock | None:
        return self._client.clock

    def read(self, answer: Answer, builder: SpanBuilder, ledger: Ledger) -> None:
        read_json(answer.chunks(), builder, ledger, self._client.name, self._client.max_bytes)

    def abort(self) -> None:
        self._client.abort()

    def _traces(self, path: str, params: dict[str, str]) -> Answer | None:
        try:
            return self._client.get(path, params, JSON, partial=True)
        except NotFound:
            return None

    def _service_names(self, path: str) -> list[str]:
        try:
            answer = msgspec.json.decode(self._client.get_json(path), type=_Services)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            name, advice = self._client.name, self._client.advice
            raise SourceError(f"{name}: services that are not Jaeger's JSON; {advice}") from None
        return sorted(answer.services or answer.data or ())


class JaegerV3(_OverHttp):
    """The stable API. Parameters are sent under their names of v2.19 on and those before."""

    api = "api_v3 over HTTP"
    finest_ns = 1

    has_summaries: bool | None = None

    def services(self) -> list[str]:
        return self._service_names("/api/v3/services")

    def trace(self, trace_id: int) -> Answer | None:
        return self._traces(f"/api/v3/traces/{trace_id:032x}", {"rawTraces": "true", "raw_traces": "true"})

    def search(self, wanted: Search, start: int, end: int, limit: int) -> Answer | None:
        return self._traces("/api/v3/traces", _query(wanted, start, end, limit))

    def summaries(self, wanted: Search, start: int, end: int, limit: int) -> list[Summary] | None:
        if self.has_summaries is False:
            return None
        try:
            body = self._client.get_json("/api/v3/trace-summaries", _query(wanted, start, end, limit))
            found = msgspec.json.decode(body, type=_Summaries, strict=False).summaries
            self.has_summaries = True
            return [
                Summary(int(one.traceId, 16), one.minStartTimeUnixNano, one.maxEndTimeUnixNano, one.spanCount)
                for one in found
            ]
        except NotFound as answer:
            # Before v2.19 there is no such path; after it, no such trace.
            if "no traces found" in str(answer).lower():
                self.has_summaries = True
                return []
        except Unexpected:
            pass  # the page of the user interface, which servers give for paths that they do not know
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass  # a summary that cannot be understood is none
        self.has_summaries = False
        return None


class JaegerV1(_OverHttp):
    """The API of the user interface, for servers before v3 over HTTP: microseconds, arrays as text."""

    api = "v1 over HTTP, for want of api_v3: times in microseconds"
    finest_ns = 1000
    has_summaries = False

    def services(self) -> list[str]:
        return self._service_names("/api/services")

    def trace(self, trace_id: int) -> Answer | None:
        return self._traces(f"/api/traces/{trace_id:032x}", {"raw": "true"})

    def search(self, wanted: Search, start: int, end: int, limit: int) -> Answer | None:
        params = {
            "start": str(max(0, start // 1000)),
            "end": str(max(0, -(-end // 1000))),
            "limit": str(limit),
            "raw": "true",
        }
        if wanted.service:
            params["service"] = wanted.service
        if wanted.operation:
            params["operation"] = wanted.operation
        if wanted.attributes:
            params["tags"] = json.dumps(dict(wanted.attributes))
        return self._traces("/api/traces", params)

    def summaries(self, wanted: Search, start: int, end: int, limit: int) -> list[Summary] | None:
        return None


def connect(client: HttpClient) -> tuple[JaegerApi, list[str]]:
    """Return the API that the server speaks, and its services.

    Raises NotFound or Unexpected when it is no Jaeger.
    """
    newest = JaegerV3(client)
    try:
        return newest, newest.services()
    except (NotFound, Unexpected) as missing:
        oldest = JaegerV1(client)
        try:
            return oldest, oldest.services()
        except NotFound:
            raise missing from None


def _query(wanted: Search, start: int, end: int, limit: int) -> dict[str, str]:
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
    return params


def _rfc3339(at: int) -> str:
    seconds, ns = divmod(max(at, 0), _S)
    moment = datetime.fromtimestamp(min(seconds, _LAST_SECOND), tz=timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"
