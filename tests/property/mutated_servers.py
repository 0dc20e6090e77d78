# SPDX-License-Identifier: Apache-2.0
"""Servers without sockets whose answers chance has changed: Jaeger over HTTP and gRPC, and Tempo."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import grpc
import urllib3

from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
from grademl_otel.analyzers.sources.servers import http_client, jaeger_grpc

from ..support import every_format as formats
from ..support.foreign_formats import jaeger_v1
from ..support.mutations import Mutate, of_bytes, of_json, of_protobuf
from ..support.truth import SPANS, T0, WIDE, Span

_JSON: Final = "application/json"
_PROTOBUF: Final = "application/protobuf"
_SPANS: Final[tuple[Span, ...]] = (SPANS[0], SPANS[3])
_OPTIONS: Final = SourceOptions(timeout_s=5, max_spans=1_000, max_bytes=1 << 20, max_traces=20)
_BY_ID: Final = Selection(trace_ids=(WIDE,))
_SEARCH: Final = Selection(service="trainer", operation="train.step", start=T0 - 10**9, end=T0 + 10**9)

Read = Callable[[bytes], Telemetry]
Form = tuple[Mutate, Read]
"""What makes inputs, and what reads one."""
Reply = tuple[int, str, bytes]
"""Status, type, body."""
_NOT_FOUND: Final[Reply] = (404, "text/plain", b"404 page not found\n")


class _Connections:
    """Answers by patterns of paths, as `transport.Connections` does over sockets."""

    replies: Mapping[str, Reply] = {}
    proxied = False

    def __init__(self, *_: object, **__: object) -> None: ...

    def get(self, url: str, headers: Mapping[str, str], *_: object) -> urllib3.BaseHTTPResponse:
        status, kind, body = next(
            (reply for pattern, reply in self.replies.items() if re.search(pattern, url)), _NOT_FOUND
        )
        return urllib3.HTTPResponse(
            io.BytesIO(body), {"Content-Type": kind}, status, preload_content=False, request_url=url
        )

    def abort(self) -> None: ...


def over_http(scheme: str, selection: Selection, replies: Mapping[str, Reply], changed: str) -> Read:
    """Return what reads from a server that gives the input as its answer to the pattern ``changed``."""

    def read(data: bytes) -> Telemetry:
        kind = replies[changed][1]
        own = type("Own", (_Connections,), {"replies": {**replies, changed: (200, kind, data)}})
        with mock.patch.object(http_client, "Connections", own):
            return open_source(f"{scheme}://127.0.0.1", _OPTIONS).read(selection)

    return read


class _Call:
    """The messages of a stream."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._messages)

    def cancel(self) -> None: ...


class _Channel:
    """Answers by the names of methods, as a channel of gRPC does over sockets."""

    def __init__(self, answers: Mapping[str, list[bytes]]) -> None:
        self._answers = answers

    def unary_unary(self, path: str) -> Callable[..., bytes]:
        return lambda *_, **__: self._answers[path.rpartition("/")[2]][0]

    def unary_stream(self, path: str) -> Callable[..., _Call]:
        return lambda *_, **__: _Call(self._answers[path.rpartition("/")[2]])

    def close(self) -> None: ...


class _Ready:
    def result(self, timeout: float) -> None: ...


def over_grpc(selection: Selection, answers: Mapping[str, list[bytes]], changed: str) -> Read:
    def read(data: bytes) -> Telemetry:
        channel = _Channel({**answers, changed: [data]})
        with (
            mock.patch.object(grpc, "insecure_channel", return_value=channel),
            mock.patch.object(grpc, "channel_ready_future", return_value=_Ready()),
            mock.patch.object(jaeger_grpc.Watch, "begin"),  # a thread for each source
        ):
            return open_source("jaeger+grpc://127.0.0.1", _OPTIONS).read(selection)

    return read


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


_ID: Final = f"{WIDE:032x}"
_SUMMARIES: Final = _dump(
    {
        "summaries": [
            {
                "traceId": _ID,
                "rootServiceName": "trainer",
                "minStartTimeUnixNano": str(T0),
                "maxEndTimeUnixNano": str(T0 + 100),
                "spanCount": 2,
            }
        ]
    }
)
_V3: Final[dict[str, Reply]] = {
    "/api/v3/services": (200, _JSON, b'{"services":["trainer"]}'),
    "/api/v3/trace-summaries": (200, _JSON, _SUMMARIES),
    "/api/v3/traces/": (200, _JSON, formats.jaeger_v3(_SPANS)),
    "/api/v3/traces": (200, _JSON, formats.jaeger_v3(_SPANS)),
}
_V1: Final[dict[str, Reply]] = {
    "/api/services": (200, _JSON, b'{"data":["trainer"],"errors":null}'),
    "/api/traces": (200, _JSON, jaeger_v1(_SPANS)),
}
_FOUND: Final = _dump(
    {
        "traces": [
            {
                "traceID": _ID.lstrip("0"),
                "rootServiceName": "trainer",
                "rootTraceName": "train.step",
                "startTimeUnixNano": str(T0),
                "durationMs": 100,
                "spanSets": [{"spans": [{"spanID": "1", "startTimeUnixNano": str(T0)}], "matched": 1}],
                "serviceStats": {"trainer": {"spanCount": 2}},
            }
        ],
        "metrics": {"completedJobs": 1, "totalJobs": 1},
    }
)
_TEMPO: Final[dict[str, Reply]] = {
    "/api/echo": (200, "text/plain", b"echo"),
    "/api/v2/traces/": (200, _PROTOBUF, formats.tempo_v2_protobuf(_SPANS)),
    "/api/search": (200, _JSON, _FOUND),
    "buildinfo": (200, _JSON, b'{"version":"3.0.3"}'),
}
_SUMMARY: Final = (
    b"\x0a\x20" + _ID.encode() + b"\x12\x07trainer" + b"\x28\x02"
)  # as good as any: what cannot be understood is no summary
_GRPC: Final[dict[str, list[bytes]]] = {
    "GetServices": [b"\x0a\x07trainer"],
    "GetTrace": [formats.otlp_protobuf(_SPANS)],
    "FindTraces": [formats.otlp_protobuf(_SPANS)],
    "FindTraceSummaries": [b"\x0a" + formats.varint(len(_SUMMARY)) + _SUMMARY],
}


def _forms(body: bytes, structure: Callable[[bytes], Mutate], read: Read) -> tuple[Form, Form]:
    return (of_bytes(body), read), (structure(body), read)


_TRACE: Final = "/api/v3/traces/"
_SUMMED: Final = "/api/v3/trace-summaries"
JAEGER: Final = (
    *_forms(_V3[_TRACE][2], of_json, over_http("jaeger", _BY_ID, _V3, _TRACE)),
    *_forms(_SUMMARIES, of_json, over_http("jaeger", _SEARCH, _V3, _SUMMED)),
    *_forms(_V1["/api/traces"][2], of_json, over_http("jaeger", _SEARCH, _V1, "/api/traces")),
    *_forms(_GRPC["GetTrace"][0], of_protobuf, over_grpc(_BY_ID, _GRPC, "GetTrace")),
    *_forms(_GRPC["FindTraceSummaries"][0], of_protobuf, over_grpc(_SEARCH, _GRPC, "FindTraceSummaries")),
)
_TEMPO_TRACE: Final = "/api/v2/traces/"
TEMPO: Final = (
    *_forms(_TEMPO[_TEMPO_TRACE][2], of_protobuf, over_http("tempo", _BY_ID, _TEMPO, _TEMPO_TRACE)),
    *_forms(_FOUND, of_json, over_http("tempo", _SEARCH, _TEMPO, "/api/search")),
)
