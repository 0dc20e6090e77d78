# SPDX-License-Identifier: Apache-2.0
"""A real Jaeger: what OTLP wrote is what each of its query APIs gives back, column for column."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from grademl_otel.analyzers.copy.pull import origin_of, pull
from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.sources import Selection, Source, SourceOptions, open_source
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers import jaeger, jaeger_reader, windows
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_http import JaegerV1
from tests.analyzers.test_every_format import expected, found, same
from tests.support import servers
from tests.support.every_format import otlp_protobuf
from tests.support.guarded_jaeger import TENANT, Guarded, start_guarded_jaeger
from tests.support.truth import NOT_JSON, SPANS, Span

pytestmark = pytest.mark.real

APIS = ("v3", "gRPC", "v1")
S = 1_000_000_000


def send(address: str, body: bytes) -> None:
    answer = requests.post(
        f"{address}/v1/traces", data=body, headers={"Content-Type": "application/x-protobuf"}, timeout=60
    )
    assert answer.status_code == 200, answer.text


def open_api(server: servers.Jaeger, api: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server as a source, by the API that is asked for."""
    if api == "v1":

        def only_v1(client: HttpClient) -> tuple[JaegerV1, list[str]]:
            return JaegerV1(client), JaegerV1(client).services()

        monkeypatch.setattr(jaeger, "connect", only_v1)
    return open_source(f"jaeger+grpc://{server.query_grpc}" if api == "gRPC" else server.source)


def elsewhere(spans: Sequence[Span]) -> list[Span]:
    """The same spans in traces of their own: the server is shared, and keeps what it is sent.

    Keys of maps are sorted, as they are where Jaeger's v1 API makes text of them.
    """
    salt = secrets.randbits(56) << 4
    return [
        replace(
            span,
            trace=span.trace ^ salt,
            links=[replace(link, trace=link.trace ^ salt) for link in span.links],
            attributes=ordered(span.attributes),
            resource=replace(span.resource, attributes=ordered(span.resource.attributes)),
        )
        for span in spans
    ]


def ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(item) for item in value] if isinstance(value, list) else value


def wanted(api: str, spans: Sequence[Span]) -> dict[tuple[int, int], dict[str, Any]]:
    """What `api` returns of ``spans``: Jaeger makes a span without length one of a nanosecond."""
    rows = expected("Jaeger v1" if api == "v1" else "OTLP", spans)
    for span in spans:
        row = rows[span.trace, span.id]
        if span.start == span.end and api != "v1":
            row["end"] += 1
    return rows


def without_warnings(telemetry: Telemetry) -> dict[tuple[int, int], dict[str, Any]]:
    rows = found(telemetry.spans)
    for row in rows.values():
        row["attributes"] = {k: v for k, v in row["attributes"].items() if k != "@jaeger@warnings"}
    return rows


@pytest.fixture(scope="module")
def truth(jaeger: servers.Jaeger) -> list[Span]:
    """All that a span can hold, sent to the server."""
    spans = elsewhere(SPANS)
    send(jaeger.otlp_http, otlp_protobuf(spans))
    return spans


@pytest.mark.parametrize("api", APIS)
def test_each_api_gives_back_what_was_sent(
    api: str, jaeger: servers.Jaeger, truth: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_api(jaeger, api, monkeypatch)
    ids = tuple({span.trace for span in truth})
    servers.wait_until(lambda: len(_by_id(source, ids)) == len(truth), "arriving of all spans")
    telemetry = source.read(Selection(trace_ids=ids))
    same(without_warnings(telemetry), wanted(api, truth))
    assert (telemetry.ledger.duplicates, telemetry.ledger.conflicting) == (0, 0)
    assert telemetry.ledger.partial_traces == []


def test_numbers_that_json_has_no_form_for(jaeger: servers.Jaeger) -> None:
    spans = elsewhere([NOT_JSON])
    send(jaeger.otlp_http, otlp_protobuf(spans))
    source = open_source(f"jaeger+grpc://{jaeger.query_grpc}")
    servers.wait_until(lambda: len(_by_id(source, (spans[0].trace,))) == 1, "arriving of the span")
    same(found(source.read(Selection(trace_ids=(spans[0].trace,))).spans), expected("OTLP", spans))


def _by_id(source: Source, ids: tuple[int, ...]) -> SpanColumns | tuple[()]:
    try:
        return source.read(Selection(trace_ids=ids)).spans
    except NothingFound:
        return ()


# --- Many traces ------------------------------------------------------------------------------------------

TRACES = 10_000
START = int(time.time()) * S - 600 * S


@pytest.fixture(scope="module")
def crowd(jaeger: servers.Jaeger) -> str:
    """The name of a service with many small traces, some of them at one moment."""
    service = f"crowd-{secrets.token_hex(4)}"
    data = TracesData()
    group = data.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = service
    spans = group.scope_spans.add().spans
    first = secrets.randbits(100) << 20
    for number in range(TRACES):
        # A crowd of 1,000 within a microsecond, the others 20 ms apart.
        at = START + (number if number < 1000 else 1000 + number * 20_000_000)
        for span in (1, 2):
            spans.add(
                trace_id=(first + number).to_bytes(16, "big"),
                span_id=span.to_bytes(8, "big"),
                parent_span_id=b"" if span == 1 else (1).to_bytes(8, "big"),
                name="step",
                start_time_unix_nano=at,
                end_time_unix_nano=at + 1000,
            ).attributes.add(key="parity").value.int_value = number % 2
    send(jaeger.otlp_http, data.SerializeToString())
    return service


@pytest.mark.parametrize("api", ["v3", "gRPC"])
def test_all_of_many_traces_are_found_once(
    api: str, crowd: str, jaeger: servers.Jaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaeger_reader, "TRACES_PER_SEARCH", 400)
    monkeypatch.setattr(windows, "_ANSWER_BYTES", 0)  # the limit stays
    address = f"jaeger+grpc://{jaeger.query_grpc}" if api == "gRPC" else jaeger.source
    source = open_source(address, SourceOptions(max_traces=2 * TRACES))
    telemetry = source.read(Selection(service=crowd))
    spans = telemetry.spans
    assert len(spans) == 2 * TRACES
    assert len(set(zip(spans.trace_hi.tolist(), spans.trace_lo.tolist(), strict=True))) == TRACES
    assert telemetry.ledger.duplicates == 0
    assert telemetry.ledger.warnings == []


def test_the_v1_api_pages_by_microseconds(
    crowd: str, jaeger: servers.Jaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_api(jaeger, "v1", monkeypatch)
    monkeypatch.setattr(jaeger_reader, "TRACES_PER_SEARCH", 400)
    monkeypatch.setattr(windows, "_ANSWER_BYTES", 0)
    bounded = replace(source, options=SourceOptions(max_traces=2 * TRACES))
    telemetry = bounded.read(Selection(service=crowd, start=START, end=START + 29 * S + 990_000_000))
    assert len(telemetry.spans) == 2 * 1500  # a thousand within a microsecond, the others 20 ms apart
    assert (telemetry.ledger.duplicates, telemetry.ledger.warnings) == (0, [])


def test_a_search_by_attribute(crowd: str, jaeger: servers.Jaeger) -> None:
    selection = Selection(service=crowd, attributes=(("parity", "1"),))
    for address in (jaeger.source, f"jaeger+grpc://{jaeger.query_grpc}"):
        telemetry = open_source(address, SourceOptions(max_traces=300)).read(selection)
        spans = telemetry.spans
        assert {spans.attributes(ix)["parity"] for ix in range(len(spans))} == {1}
        told = any("does not search by attribute" in line for line in telemetry.ledger.warnings)
        assert told or len(spans) >= 300


def test_a_copy_of_many_traces(crowd: str, jaeger: servers.Jaeger, tmp_path: Path) -> None:
    address = f"jaeger+grpc://{jaeger.query_grpc}"
    selection = Selection(service=crowd, start=START - 3600 * S, end=START + 1000 * S)
    pulled = pull(open_source(address), tmp_path / "copy", origin_of(address, address, selection, None))
    assert (pulled.spans, pulled.failed, pulled.error) == (2 * TRACES, 0, None)
    assert len(open_source(str(tmp_path / "copy")).read(Selection()).spans) == 2 * TRACES


def test_pieces_of_traces_that_are_named(truth: list[Span], jaeger: servers.Jaeger) -> None:
    ids = sorted({span.trace for span in truth})
    builder, ledger = SpanBuilder(1000), Ledger()
    for piece in open_source(jaeger.source).pieces(Selection(trace_ids=tuple(ids)), ledger):
        piece.read(builder, ledger)
    same(without_warnings(Telemetry("", builder.finish(ledger), ledger)), wanted("v3", truth))


def test_what_is_said_of_the_server(jaeger: servers.Jaeger, truth: list[Span]) -> None:
    probe = open_source(jaeger.source).probe()
    assert (probe.kind, probe.api, probe.problems) == ("Jaeger", "api_v3 over HTTP", ())
    assert probe.version in ("before v2.19", "v2.19 or later")
    assert {"trainer", "loader"} <= set(probe.services)
    assert probe.clock_offset_ns is not None
    assert probe.clock_error_ns is not None
    assert abs(probe.clock_offset_ns) <= probe.clock_error_ns + 100_000_000
    by_grpc = open_source(f"jaeger+grpc://{jaeger.query_grpc}").probe()
    assert (by_grpc.api, by_grpc.services, by_grpc.clock_offset_ns) == (
        "api_v3 over gRPC", probe.services, None,
    )  # fmt: skip


# --- TLS, tenants, a base path, client certificates -------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(jaeger: servers.Jaeger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = start_guarded_jaeger(tmp_path_factory.mktemp("guarded"))
    with servers.stopping(server):
        yield server


def test_tls_tenants_and_a_base_path(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="certificate is not accepted"):
        open_source(guarded.https).read(Selection(trace_ids=(1,)))
    with pytest.raises(SourceError, match=r"missing tenant header; pass --header .*x-tenant"):
        open_source(guarded.https, SourceOptions(ca=guarded.ca)).read(Selection(trace_ids=(1,)))
    monkeypatch.setenv("GRADEML_CA", guarded.ca)
    monkeypatch.setenv("GRADEML_HEADERS", "x-tenant=another-team-of-a-test")
    with pytest.raises(SourceError, match="unknown tenant") as refused:
        open_source(guarded.https).read(Selection(trace_ids=(1,)))
    assert "another-team" not in str(refused.value)
    monkeypatch.setenv("GRADEML_HEADERS", f"x-tenant={TENANT}")
    probe = open_source(guarded.https).probe()
    assert (probe.api, probe.problems) == ("api_v3 over HTTP", ())
    with pytest.raises(SourceError, match="wants a client certificate"):
        open_source(guarded.grpcs.replace("jaeger+grpcs", "https"), SourceOptions(timeout_s=2)).read(
            Selection(trace_ids=(1,))
        )


def test_grpc_with_tls_and_a_client_certificate(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SourceOptions(ca=guarded.ca, headers={"X-Tenant": TENANT}, timeout_s=10)
    with pytest.raises(SourceError, match="no gRPC connection within"):
        open_source(guarded.grpcs, replace(options, timeout_s=1)).read(Selection(trace_ids=(1,)))
    monkeypatch.setenv("GRADEML_CLIENT_CERT", guarded.client)
    assert open_source(guarded.grpcs, options).probe().problems == ()
    refused = open_source(guarded.grpcs, replace(options, headers={})).probe().problems
    assert len(refused) == 1
    assert "missing tenant header; pass --header" in refused[0]
