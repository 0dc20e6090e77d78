# SPDX-License-Identifier: Apache-2.0
"""Jaeger over gRPC: counts, refusals, silence, limits; against a server of raw bytes in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from grademl_otel.analyzers.errors import GrademlError, UsageError
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.servers import jaeger_grpc, jaeger_wire
from grademl_otel.analyzers.sources.servers.jaeger_api import Search, Summary
from tests.support import servers

S = 1_000_000_000
NOW = time.time_ns() - 100 * S
SERVICE = "jaeger.api_v3.QueryService"


def trace(number: int, spans: int) -> bytes:
    data = TracesData()
    group = data.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = group.scope_spans.add()
    for span in range(1, spans + 1):
        scope.spans.add(
            trace_id=number.to_bytes(16, "big"),
            span_id=span.to_bytes(8, "big"),
            name="query",
            start_time_unix_nano=NOW + number * S,
            end_time_unix_nano=NOW + number * S + 1000,
        )
    return data.SerializeToString()


def varint(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128,)) + varint(value >> 7)


def field_of(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def summary(number: int, spans: int) -> bytes:
    start = NOW + number * S
    times = b"\x21" + start.to_bytes(8, "little") + b"\x29" + (start + 1000).to_bytes(8, "little")
    return field_of(1, field_of(1, f"{number:032x}".encode()) + times + b"\x30" + varint(spans))


@dataclass
class FakeGrpc:
    """What the server does at each method; change it while it runs."""

    port: int = 0
    calls: dict[str, Callable[[bytes, Any], Iterator[bytes]]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"jaeger+grpc://127.0.0.1:{self.port}"

    def has(self, spans: dict[int, int], counted: dict[int, int] | None = None) -> None:
        """Hold traces: number -> spans; `counted` is what the server says of them."""
        by_id = {f"{number:032x}".encode(): trace(number, count) for number, count in spans.items()}

        def get(request: bytes, context: Any) -> Iterator[bytes]:
            if request[2:34] not in by_id:
                context.abort(grpc.StatusCode.NOT_FOUND, "trace not found")
            yield by_id[request[2:34]]

        self.calls = {
            "GetServices": lambda request, context: iter([field_of(1, b"shop")]),
            "GetTrace": get,
            "FindTraces": lambda request, context: iter([] if b"grademl" in request else by_id.values()),
        }
        if counted is not None:
            answer = b"".join(summary(number, count) for number, count in counted.items())
            self.calls["FindTraceSummaries"] = lambda request, context: iter([answer])


class _Generic(grpc.GenericRpcHandler):
    def __init__(self, fake: FakeGrpc) -> None:
        self._fake = fake

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        self._fake.asked.append((method, dict(details.invocation_metadata)))
        call = self._fake.calls.get(method)
        if call is None or f"/{SERVICE}/" not in details.method:
            return None
        if method == "GetServices":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: next(call(request, context)))
        return grpc.unary_stream_rpc_method_handler(call)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrpc]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(jaeger_grpc, "_FIRST_PAUSE_S", 0.001)
    found = FakeGrpc()
    pool = ThreadPoolExecutor(8)
    server = grpc.server(pool, handlers=[_Generic(found)])
    found.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield found
    finally:
        found.over.set()
        server.stop(None).wait(10)
        pool.shutdown()


def refused(address: str, **options: Any) -> str:
    began = time.monotonic()
    with pytest.raises(GrademlError) as caught:
        open_source(address, SourceOptions(**options)).read(Selection(service="shop"))
    assert time.monotonic() - began < 20
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fails(code: grpc.StatusCode, said: str) -> Callable[[bytes, Any], Iterator[bytes]]:
    def call(request: bytes, context: Any) -> Iterator[bytes]:
        context.abort(code, said)
        yield b""

    return call


def test_counts_are_compared_with_what_came(fake: FakeGrpc) -> None:
    fake.has({1: 3, 2: 5}, {1: 3, 2: 7, 9: 4})
    telemetry = open_source(fake.url).read(Selection(service="shop"))
    assert len(telemetry.spans) == 8
    assert telemetry.uri == fake.url, "an address that can be given again"
    assert sorted(telemetry.ledger.partial_traces) == [f"{2:032x}", f"{9:032x}"]
    assert f"trace {2:032x}: 5 of the 7 spans that the server counts" in telemetry.ledger.warnings


def test_headers_are_sent_as_metadata(fake: FakeGrpc) -> None:
    fake.has({1: 1})
    options = SourceOptions(headers={"X-Tenant": "team", "Authorization": "Bearer hunter2"})
    assert len(open_source(fake.url, options).read(Selection(trace_ids=(1, 5))).spans) == 1
    assert {metadata["x-tenant"] for _, metadata in fake.asked} == {"team"}
    assert {metadata["authorization"] for _, metadata in fake.asked} == {"Bearer hunter2"}
    assert fake.asked[0][1]["user-agent"].startswith("grademl/")


def test_headers_that_grpc_treats_in_its_own_way(fake: FakeGrpc) -> None:
    fake.has({1: 1})
    open_source(fake.url, SourceOptions(headers={"x-trace-bin": "abc"})).read(Selection(trace_ids=(1,)))
    assert {metadata["x-trace-bin"] for _, metadata in fake.asked} == {b"abc"}
    with pytest.raises(UsageError, match="a!b is no name that gRPC sends"):
        open_source(fake.url, SourceOptions(headers={"a!b": "hunter2"})).list()


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "who?", "who?; pass --header"),
        (grpc.StatusCode.PERMISSION_DENIED, "unknown tenant", "unknown tenant; pass --header"),
        (grpc.StatusCode.UNIMPLEMENTED, "", "no jaeger.api_v3.QueryService; is Jaeger running there?"),
        (grpc.StatusCode.INTERNAL, "disk\non fire", "INTERNAL: disk on fire"),
        (grpc.StatusCode.UNAVAILABLE, "too busy", "unavailable (too busy)"),
    ],
)
def test_refusals(code: grpc.StatusCode, said: str, told: str, fake: FakeGrpc) -> None:
    fake.calls = {"GetServices": fails(code, said)}
    assert told in refused(fake.url)
    if code is grpc.StatusCode.UNAVAILABLE:
        assert len(fake.asked) == jaeger_grpc._TRIES


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[jaeger_grpc.JaegerGrpc] = []
    abort = jaeger_grpc.JaegerGrpc.abort
    monkeypatch.setattr(jaeger_grpc.JaegerGrpc, "abort", lambda api: (ended.append(api), abort(api)))
    port = servers.free_ports(1)[0]
    said = refused(f"jaeger+grpc://127.0.0.1:{port}", timeout_s=0.5)
    assert (
        f"jaeger grpc://127.0.0.1:{port}: no gRPC connection within 0.5 s; is Jaeger running there?" in said
    )
    assert len(ended) == 1, "gRPC goes on trying in a thread of its own"


def test_a_silent_server_has_the_time_out_s(fake: FakeGrpc) -> None:
    fake.has({1: 1})

    def silent(request: bytes, context: Any) -> Iterator[bytes]:
        fake.over.wait(60)
        yield b""

    fake.calls["FindTraces"] = silent
    assert "no answer within 0.5 s" in refused(fake.url, timeout_s=0.5)
    fake.calls["GetServices"] = silent
    assert "no answer within 0.5 s" in refused(fake.url, timeout_s=0.5)


def test_a_trace_beyond_the_bound_is_refused(fake: FakeGrpc) -> None:
    fake.has({1: 1000})
    with pytest.raises(GrademlError, match="more than 10,000 bytes"):
        open_source(fake.url, SourceOptions(max_bytes=10_000)).read(Selection(trace_ids=(1,)))
    assert len(open_source(fake.url).read(Selection(trace_ids=(1,))).spans) == 1000


def test_a_stream_that_breaks_off_leaves_what_came(fake: FakeGrpc) -> None:
    fake.has({1: 3, 2: 3})

    def broken(request: bytes, context: Any) -> Iterator[bytes]:
        yield trace(2, 3)
        context.abort(grpc.StatusCode.INTERNAL, "disk on fire")

    get = fake.calls["GetTrace"]
    fake.calls["GetTrace"] = lambda request, context: (
        broken(request, context) if request[33:34] == b"2" else get(request, context)
    )
    telemetry = open_source(fake.url).read(Selection(trace_ids=(1, 2)))
    assert len(telemetry.spans) == 6
    assert telemetry.ledger.partial_traces == [f"{2:032x}"]
    assert "INTERNAL: disk on fire" in str(telemetry.ledger.broken)


def test_answers_that_are_none(fake: FakeGrpc) -> None:
    fake.has({1: 1})
    fake.calls["GetTrace"] = lambda request, context: iter([b"\xff\xff\xff"])
    with pytest.raises(GrademlError, match="an answer that cannot be read"):
        open_source(fake.url).read(Selection(trace_ids=(1,)))
    fake.calls["FindTraceSummaries"] = lambda request, context: iter([field_of(1, field_of(1, b"no id"))])
    assert len(open_source(fake.url).read(Selection(service="shop")).spans) == 1
    fake.calls["GetServices"] = lambda request, context: iter([b"\xff\xff\xff"])
    assert "services that are not Jaeger's" in refused(fake.url)


def test_messages_are_those_of_the_service() -> None:
    assert jaeger_wire.get_trace(0x1F) == b"\x0a\x20" + b"0" * 30 + b"1f" + b"\x20\x01"
    wanted = Search("s", "o", (("k", "v"),))
    query = b"\x0a\x01s\x12\x01o\x1a\x06\x0a\x01k\x12\x01v"
    query += b"\x22\x04\x08\x01\x10\x02\x2a\x02\x08\x03\x40\xac\x02\x48\x01"
    assert jaeger_wire.find_traces(wanted, S + 2, 3 * S, 300) == b"\x0a" + varint(len(query)) + query
    assert jaeger_wire.summaries([summary(7, 300)]) == [Summary(7, NOW + 7 * S, NOW + 7 * S + 1000, 300)]
    assert jaeger_wire.service_names(field_of(1, b"b") + field_of(1, b"a")) == ["a", "b"]
