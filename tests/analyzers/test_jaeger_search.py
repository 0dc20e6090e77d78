# SPDX-License-Identifier: Apache-2.0
"""Jaeger's traces of others: counted, paged whatever the store does, copied in pieces, named by pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.base import Piece
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers import windows
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_address import merged, names_traces, parse
from grademl_otel.analyzers.sources.servers.jaeger_api import Search, Summary
from grademl_otel.analyzers.sources.servers.jaeger_http import JaegerV3
from grademl_otel.analyzers.sources.servers.refusals import Unreachable
from tests.analyzers.test_sources_jaeger import DATA, MS, S, foreign_traces, simulate, started
from tests.support.fake_jaeger import FakeJaeger, serve


@pytest.fixture
def fake() -> Iterator[FakeJaeger]:
    with serve(FakeJaeger()) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def read(server: FakeJaeger, options: SourceOptions | None = None, **selection: Any) -> Telemetry:
    return open_source(server.url, options).read(Selection(**selection))


def ids(spans: SpanColumns) -> set[str]:
    return {spans.trace_id_hex(ix) for ix in range(len(spans))}


# --- Summaries --------------------------------------------------------------------------------------------


def test_what_the_server_counts_is_compared_with_what_it_gives(fake: FakeJaeger) -> None:
    fake.summaries = True
    fake.lines = foreign_traces(30, time.time_ns() - 1000 * S, S)
    whole = read(fake, service="shop")
    assert len(whole.spans) == 60
    assert (whole.ledger.partial_traces, whole.ledger.warnings, whole.ledger.duplicates) == ([], [], 0)
    fake.withheld = {f"{3:032x}": 1, f"{7:032x}": 2}
    telemetry = read(fake, service="shop")
    assert len(telemetry.spans) == 57
    assert set(telemetry.ledger.partial_traces) == set(fake.withheld)
    assert f"trace {3:032x}: 1 of the 2 spans that the server counts" in telemetry.ledger.warnings


def test_large_traces_are_fetched_by_id(fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grademl_otel.analyzers.sources.servers.jaeger_reader._SMALL", 2)
    fake.summaries = True
    fake.lines = foreign_traces(30, time.time_ns() - 1000 * S, S)
    assert len(read(fake, service="shop").spans) == 60
    asked = [path.partition("?")[0] for path in fake.requests]
    assert sum(path.startswith("/api/v3/traces/") for path in asked) == 30


def test_the_latest_traces_are_chosen_by_their_summaries(fake: FakeJaeger) -> None:
    fake.summaries = True
    fake.lines = foreign_traces(30, time.time_ns() - 1000 * S, S)
    options = SourceOptions(max_traces=5)
    assert ids(read(fake, options, service="shop").spans) == {f"{n:032x}" for n in range(26, 31)}


def test_a_server_that_gives_a_page_for_what_it_does_not_know(fake: FakeJaeger) -> None:
    fake.page = True
    fake.lines = foreign_traces(3, time.time_ns() - S, MS)
    for fake.v3 in (True, False):
        assert len(read(fake, service="shop").spans) == 6


def test_summaries_that_a_store_does_not_have_are_not_missed(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(3, time.time_ns() - S, MS)
    fake.intercept = lambda path: (501, "text/plain", b"unimplemented") if "summaries" in path else None
    assert len(read(fake, service="shop").spans) == 6


# --- Stores -----------------------------------------------------------------------------------------------


def test_a_store_that_counts_rows_is_seen_through(fake: FakeJaeger) -> None:
    fake.rows = True
    # Which steps have detail follows from the run's id; of some ids none of so few has.
    training = started(600, epochs=1, steps_per_epoch=60, detail_level=4)
    sim = simulate(replace(training, run_id="ab" * 16))
    fake.lines = sim.otlp_lines()
    everything = {span["traceId"] for _, span in sim.spans}
    start = sim.training.start
    found = read(fake, service="trainer", operation="step", start=start - S, end=start + 3600 * S)
    steps = {span["traceId"] for _, span in sim.spans if span["name"] == "step"}
    assert len(steps) > 1
    assert ids(found.spans) >= steps
    assert ids(found.spans) <= everything
    assert found.ledger.duplicates == 0


def test_a_limit_that_the_server_refuses_is_lowered(
    fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.largest = 150
    fake.lines = foreign_traces(700, time.time_ns() - 1000 * S, S)
    telemetry = read(fake, service="shop")
    assert len(telemetry.spans) == 1400
    assert (telemetry.ledger.broken, telemetry.ledger.warnings) == (None, [])
    assert any("searchDepth=1" not in path for path in fake.requests)


@pytest.mark.parametrize("first", [windows.Look(50, 0, 200), windows.Look(200, 0, 200)])
def test_a_server_that_is_gone_is_not_asked_again(first: windows.Look) -> None:
    looks, asked = [first], []

    def ask(start: int, end: int, limit: int) -> windows.Look:
        asked.append((start, end))
        if not looks:
            raise Unreachable("connection refused")
        return looks.pop()

    pace = windows.Pace(100)
    pace.limit = 200  # what it would go back from, were this a refusal
    with pytest.raises(Unreachable):
        list(windows.Windows(ask, 0, 1000 * S, pace))
    assert len(asked) == 2


def test_more_traces_at_a_moment_than_the_server_gives_are_told(
    fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_LARGEST_LIMIT", 200)
    moment = time.time_ns() - 100 * S
    fake.lines = foreign_traces(300, moment, 0)
    telemetry = read(fake, service="shop", start=moment - 1000, end=moment + 1000)
    assert 200 <= len(telemetry.spans) // 2 < 300
    assert len(telemetry.ledger.warnings) == 1
    assert "more traces at one moment" in telemetry.ledger.warnings[0]


def test_attributes_are_looked_for(fake: FakeJaeger) -> None:
    lines = foreign_traces(6, time.time_ns() - 100 * S, S)
    attribute = b'"attributes": [{"key": "user", "value": {"intValue": "7"}}]'
    fake.lines = b"".join(
        line.replace(b'"attributes": []', attribute, 1) if n % 2 else line
        for n, line in enumerate(lines.splitlines(keepends=True))
    )
    for fake.v3 in (True, False):
        found = read(fake, service="shop", attributes=(("user", "7"),))
        assert ids(found.spans) == {f"{n:032x}" for n in (2, 4, 6)}
        with pytest.raises(NothingFound, match="user=8"):
            read(fake, service="shop", attributes=(("user", "8"),))


def test_young_traces_are_said_to_grow(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(2, time.time_ns() - S, MS)
    assert "less than a minute old" in read(fake, service="shop").ledger.warnings[0]


def test_the_api_that_answers_is_seen_with_debug(fake: FakeJaeger, capfd: pytest.CaptureFixture[str]) -> None:
    fake.lines = foreign_traces(2, time.time_ns() - 100 * S, MS)
    for fake.v3, api in ((True, "api_v3 over HTTP"), (False, "v1 over HTTP, for want of api_v3")):
        assert run(["runs", fake.url, "--header", "x-key=hunter2", "--debug"]) == 0
        said = capfd.readouterr().err
        assert api in said
        assert "GET /api/v3/services -> " in said
        assert "hunter2" not in said
    assert run(["runs", fake.url]) == 0
    assert capfd.readouterr().err == ""


def test_attributes_on_the_command_line(fake: FakeJaeger, capfd: pytest.CaptureFixture[str]) -> None:
    lines = foreign_traces(2, time.time_ns() - 100 * S, MS)
    fake.lines = lines.replace(
        b'"attributes": []', b'"attributes": [{"key": "a", "value": {"stringValue": "x=1"}}]', 1
    )
    assert run(["path", fake.url, "--attribute", "a=x=1", "--json"]) == 0
    assert f"{1:032x}" in capfd.readouterr().out
    assert run(["path", fake.url, "--attribute", "a=2"]) == 5
    assert run(["path", fake.url, "--attribute", "a"]) == 2
    assert "is not an attribute such as" in capfd.readouterr().err


# --- Pieces -----------------------------------------------------------------------------------------------


def pieces(fake: FakeJaeger, **selection: Any) -> tuple[list[Piece], Ledger]:
    ledger = Ledger()
    return list(open_source(fake.url).pieces(Selection(**selection), ledger)), ledger


def copied(some: list[Piece]) -> tuple[SpanColumns, Ledger]:
    builder, ledger = SpanBuilder(1_000_000), Ledger()
    for piece in some:
        piece.read(builder, ledger)
    return builder.finish(ledger), ledger


def test_pieces_are_traces_where_they_are_counted(fake: FakeJaeger) -> None:
    fake.summaries = True
    now = time.time_ns()
    fake.lines = foreign_traces(20, now - 2050 * S, 100 * S)
    some, _ = pieces(fake, service="shop")
    assert [piece.key for piece in some] == [f"{n:032x}" for n in range(1, 21)]
    assert {piece.expected for piece in some} == {2}
    assert [piece.final for piece in some] == [n * 100 < 2050 - 600 for n in range(20)]
    fake.withheld = {f"{4:032x}": 1}
    spans, ledger = copied(some)
    assert len(spans) == 39
    assert ledger.partial_traces == [f"{4:032x}"]
    again, _ = pieces(fake, service="shop")
    assert len(copied(again[7:9])[0]) == 4


def test_pieces_are_minutes_where_traces_are_not_counted(fake: FakeJaeger) -> None:
    hour = 3600 * S
    now = time.time_ns()
    fake.lines = foreign_traces(400, now - 9 * 24 * hour, 1800 * S // 100)
    some, _ = pieces(fake, service="shop")
    assert len(some) < 100
    assert {piece.expected for piece in some} == {None}
    assert len({piece.key for piece in some}) == len(some)
    assert all(piece.final for piece in some)
    spans, ledger = copied(some)
    assert len(spans) == 800
    assert (ledger.duplicates, ledger.warnings) == (0, [])
    assert [piece.key for piece in pieces(fake, service="shop")[0]] == [piece.key for piece in some]
    fake.lines += foreign_traces(1, now - 60 * S, S)
    grown, _ = pieces(fake, service="shop")
    assert not grown[0].final
    assert [piece.key for piece in grown][-len(some) :] == [piece.key for piece in some]


def test_pieces_of_a_run_are_what_reading_it_gives(fake: FakeJaeger) -> None:
    sim = simulate(started(2000, ranks=2))
    fake.lines = sim.otlp_lines()
    some, _ = pieces(fake, run=sim.training.run_id)
    assert all(piece.final for piece in some)
    spans, ledger = copied(some)
    assert len(spans) == len(sim.spans)
    assert (ledger.partial_traces, ledger.duplicates) == ([], 0)


# --- Addresses --------------------------------------------------------------------------------------------


def test_a_pasted_search_asks_for_what_the_page_shows(fake: FakeJaeger) -> None:
    start = time.time_ns() - 1000 * S
    fake.lines = foreign_traces(10, start, 10 * S)
    times = f"start={(start + 15 * S) // 1000}&end={(start + 45 * S) // 1000}"
    source = open_source(f"{fake.url}/search?service=shop&operation=query&lookback=custom&{times}&limit=20")
    assert ids(source.read(Selection()).spans) == {f"{n:032x}" for n in (3, 4, 5)}
    assert "service" not in source.uri
    everything = source.read(Selection(start=start - S))
    assert ids(everything.spans) == {f"{n:032x}" for n in range(1, 11)}


@pytest.mark.parametrize(
    ("address", "url", "selection"),
    [
        ("jaeger://h", "http://h:16686", Selection()),
        ("jaegers://h/tracing", "https://h:16686/tracing", Selection()),
        ("jaeger+grpc://h", "grpc://h:16685", Selection()),
        ("jaeger+grpcs://h:1", "grpcs://h:1", Selection()),
        ("https://h/base/trace/1f?uiFind=x", "https://h/base", Selection(trace_ids=(31,))),
        ("http://h/trace/1...2", "http://h", Selection(trace_ids=(1, 2))),
        ("http://h/search?traceID=1&traceID=zz&traceID=2", "http://h", Selection(trace_ids=(1, 2))),
        (
            'http://[::1]:80/b/search?service=s&operation=all&tags={"k":3}',
            "http://[::1]:80/b",
            Selection(service="s", attributes=(("k", "3"),)),
        ),
        ("http://h/search?tags=[[&start=abc&lookback=9q", "http://h", Selection()),
        ("http://h/search", "http://h", Selection()),
    ],
)
def test_addresses(address: str, url: str, selection: Selection) -> None:
    parsed = parse(address)
    assert (parsed.url, parsed.selection) == (url, selection)


def test_a_lookback_is_counted_from_now() -> None:
    asked = parse("http://h/search?service=s&lookback=2h&start=1&end=2").selection
    assert asked.end is None
    assert asked.start is not None
    assert abs(time.time_ns() - asked.start - 7200 * S) < 600 * S


def test_what_is_asked_for_wins_over_the_address() -> None:
    address = Selection(service="a", operation="o", start=1, end=2, trace_ids=(3,))
    assert merged(Selection(), address) == address
    asked = Selection(service="b", start=5)
    assert merged(asked, address) == replace(address, service="b", start=5, end=None)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("http://h/trace/1", True),
        ("http://h/search?service=s&operation=o", True),
        ("http://h/search?service=s", False),
        ("http://h", False),
        ("grademl-runs", False),
        (None, False),
    ],
)
def test_an_address_names_traces(address: str | None, named: bool) -> None:
    assert names_traces(address) is named


def test_recorded_summaries_are_understood(fake: FakeJaeger) -> None:
    recorded = (DATA / "v3_summaries.json").read_bytes()
    fake.intercept = lambda path: (200, "application/json", recorded) if path.endswith("summaries") else None
    api = JaegerV3(HttpClient("jaeger", fake.url, "", SourceOptions()))
    found = api.summaries(Search("trainer"), 0, 2**62, 10)
    assert found is not None
    assert api.has_summaries is True
    assert found[0] == Summary(
        0xA51F44D9C05D833C625D932A7AC00A68, 1796113273791125729, 1796113274049133661, 30
    )
    assert len(found) == recorded.count(b'"traceId"')
