# SPDX-License-Identifier: Apache-2.0
"""Tempo as a source. No Tempo runs here: answers recorded from one are read, and a fake follows its rules."""

from __future__ import annotations

import gzip
import json
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as grademl
from grademl_otel.analyzers.errors import GrademlError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.model.foreign import judge_foreign
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers import http_client, tempo_caps, tempo_search
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.tempo_api import ADVICE, TENANT_HEADER, TempoApi
from grademl_otel.analyzers.sources.servers.tempo_query import NEWEST, Wanted
from grademl_otel.analyzers.sources.servers.tempo_reader import read_envelope
from grademl_otel.analyzers.sources.servers.tempo_search import RangeTooLong
from tests.support.fake_tempo import PROTOBUF, TEXT, FakeTempo, Reply, serve, traces_data
from tests.support.synthetic import S, Training, simulate

DATA = Path(__file__).parent.parent / "data" / "tempo"
RECORDED: dict[str, dict[str, Any]] = {
    entry["file"].removesuffix(".gz"): entry for entry in json.loads((DATA / "index.json").read_text())
}
READ: set[str] = set()
"""Recorded answers that a test has read."""

THE_TRACE = 0xF694CC85B18FBAC8D40DEB76C8FF4E62


@pytest.fixture
def fake() -> Iterator[FakeTempo]:
    with serve(FakeTempo()) as server:
        yield server


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("GRADEML_HEADERS", raising=False)
    monkeypatch.setattr(http_client, "_FIRST_PAUSE_S", 0.01)


def started(ago_s: int, **fields: Any) -> Training:
    """A training that began so long ago; searches are relative to now."""
    return Training(run_id=secrets.token_hex(16), start=time.time_ns() - ago_s * S, **fields)


def read(server: FakeTempo, options: SourceOptions | None = None, **selection: Any) -> Telemetry:
    return open_source(server.url, options).read(Selection(**selection))


def refused(server: FakeTempo, options: SourceOptions | None = None, **selection: Any) -> GrademlError:
    with pytest.raises(GrademlError) as caught:
        read(server, options, **selection)
    assert "\n" not in str(caught.value)
    return caught.value


def run_of(telemetry: Telemetry) -> Run:
    run = build_run(telemetry)
    assert run is not None
    return run


def told(spans: SpanColumns) -> list[tuple[Any, ...]]:
    """Return all that is known of each span, sorted; attributes as text, since they may be lists."""
    return sorted(
        (
            spans.trace_id_hex(ix), spans.span_id_hex(ix), f"{int(spans.parent_id[ix]):016x}", spans.name(ix),
            int(spans.start[ix]), int(spans.end[ix]), int(spans.kind[ix]), int(spans.status[ix]),
            repr(sorted(spans.attributes(ix).items())), repr(sorted(spans.resource(ix).items())),
            repr(spans.scope(ix)), repr(spans.events(ix)),
        )
        for ix in range(len(spans))
    )  # fmt: skip


def links(spans: SpanColumns) -> list[tuple[str, int, int, str]]:
    own = spans.links
    return sorted(
        (spans.span_id_hex(int(ix)), int(lo), int(span), kind)
        for ix, lo, span, kind in zip(own.span_ix, own.trace_lo, own.span_id, own.kind, strict=True)
    )


def shop(count: int, start: int, apart: int, service: str = "shop", **more: Any) -> bytes:
    """OTLP/JSON lines of ``count`` traces of two spans, ``apart`` ns from each other."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    out = []
    for n in range(count):
        at = start + n * apart
        attributes = [
            {"key": "n", "value": {"intValue": str(n)}},
            {"key": 'odd "key"', "value": {"stringValue": f"value {n}"}},
        ]
        common = {
            "traceId": f"{n + 1:032x}", "kind": 2, "status": {"code": 2}, "attributes": attributes,
            "startTimeUnixNano": str(at), "endTimeUnixNano": str(at + 1000),
        }  # fmt: skip
        spans = [
            {**common, "spanId": f"{1:016x}", "name": "GET /"},
            {**common, "spanId": f"{2:016x}", "name": "query", "parentSpanId": f"{1:016x}"},
        ]
        request = {
            "resourceSpans": [
                {
                    "resource": resource,
                    "scopeSpans": [{"scope": {"name": "lib", "version": "2"}, "spans": spans}],
                }
            ]
        }
        out.append(json.dumps(request) + "\n")
    return "".join(out).encode()


# --- Recorded answers -------------------------------------------------------------------------------------


def recorded(name: str) -> Reply:
    READ.add(name)
    entry = RECORDED[name]
    body = (DATA / entry["file"]).read_bytes()
    return (
        entry["status"],
        entry["content_type"],
        gzip.decompress(body) if entry["file"].endswith(".gz") else body,
    )


def _always(reply: Reply) -> Callable[[str], Reply | None]:
    return lambda path: reply


def api_for(fake: FakeTempo, headers: dict[str, str] | None = None) -> TempoApi:
    address = f"http://127.0.0.1:{fake.port}"
    options = SourceOptions(headers=headers or {}, timeout_s=5)
    return TempoApi(HttpClient(f"tempo {address}", address, ADVICE, options, TENANT_HEADER))


def replaying(fake: FakeTempo, *names: str) -> TempoApi:
    """Return the API of a server that gives one recorded answer after the other, the last again and again."""
    waiting = list(names)
    fake.intercept = lambda path: recorded(waiting.pop(0) if len(waiting) > 1 else waiting[0])
    return api_for(fake)


def columns_of(api: TempoApi, trace: int = THE_TRACE) -> tuple[SpanColumns, str | None]:
    answer = api.trace(trace)
    assert answer is not None
    builder, ledger = SpanBuilder(10**6), Ledger()
    read_envelope(answer, builder, ledger, "tempo")
    return builder.finish(ledger), answer.partial


def test_a_trace_is_the_same_from_each_api_in_each_form(fake: FakeTempo) -> None:
    spans, said = columns_of(replaying(fake, "trace_v2_protobuf.pb"))
    assert said is None
    assert {spans.trace_id_hex(ix) for ix in range(len(spans))} == {f"{THE_TRACE:032x}"}
    names = [spans.name(ix) for ix in range(len(spans))]
    assert names.count("train.step") == 1
    assert len(names) == 6
    error = [ix for ix in range(len(spans)) if spans.status[ix] == 2]
    assert {spans.kind[ix] for ix in range(len(spans))} <= {1, 2, 3}
    assert len(error) <= 1
    for name in ("trace_v2_json.json", "trace_v1_json.json", "trace_v1_protobuf.pb"):
        first = () if "v2" in name else ("err_unknown_path.txt",)
        other, said = columns_of(replaying(fake, *first, name))
        assert (told(other), links(other), said) == (told(spans), links(spans), None)


def test_a_trace_that_is_not_there_is_told_in_three_ways(fake: FakeTempo) -> None:
    assert replaying(fake, "trace_v2_404.json").trace(1) is None
    assert replaying(fake, "err_unknown_path.txt", "trace_v1_404.txt").trace(1) is None
    assert replaying(fake, "err_unknown_path.txt", "mt_teamB_other_tenant_trace_v1.txt").trace(1) is None
    fake.intercept = lambda path: (200, PROTOBUF, b"\x0a\x00\x12\x00")
    assert api_for(fake).trace(1) is None


def test_a_partial_trace_says_so_in_each_form(fake: FakeTempo) -> None:
    message = "Trace exceeds maximum size of 100000 bytes, a partial trace is returned"
    trace = 0xFD3FEB3C9250B7974A9B528B69636321
    spans, said = columns_of(replaying(fake, "trace_v2_partial_protobuf.pb"), trace)
    other, also = columns_of(replaying(fake, "trace_v2_partial_json.json"), trace)
    assert (said, also) == (message, message)
    assert len(spans) > 1000
    assert told(spans) == told(other)
    with pytest.raises(TooLarge, match=r"422 .*max size \(max bytes: 100000\)"):
        replaying(fake, "err_unknown_path.txt", "trace_v1_422_too_large.txt").trace(trace)


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("search_traceql.json", 20, "5bd94530094720677584c4610b3d7095"),
        ("search_select.json", 20, "5bd94530094720677584c4610b3d7095"),
        ("search_mostrecent.json", 3, "5bd94530094720677584c4610b3d7095"),
        ("search_protobuf.pb", 2, "24cab197772b0b4c20588bf80f5aa6ad"),
        ("search_empty.json", 0, ""),
        ("mt_teamA_search.json", 3, "05b8d6752e4da1a2b8f4cc44b51c482f"),
        ("mt_two_tenants.json", 2, "133faf4434f1a956459e3ceca4076664"),
    ],
)
def test_a_search_is_read(name: str, count: int, first: str, fake: FakeTempo) -> None:
    page = replaying(fake, name).search(Wanted("trainer"), 1796107878, 1796111478, 100)
    assert len(page.found) == count
    assert len({one.trace for one in page.found}) == count
    for one in page.found:
        assert one.spans is not None
        assert one.spans > 0
        assert 1796107878 * S < one.start < one.end < one.start + 60 * S
        assert one.root == "train.step"
    if count:
        assert f"{page.found[0].trace:032x}" == first


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in RECORDED
        if name.startswith(("err_", "mt_no", "mt_bad")) and name != "err_unknown_path.txt"
    ],
)
def test_a_refused_search_is_one_line(name: str, fake: FakeTempo) -> None:
    api = replaying(fake, name)
    with pytest.raises((SourceError, RangeTooLong)) as caught:
        api.search(Wanted("trainer"), 0, 1796111478, 10**6)
    if name == "err_range_over_168h.txt":
        assert caught.type is RangeTooLong
        assert api.longest_s == 168 * 3600
        return
    _, _, body = recorded(name)
    text = str(caught.value)
    assert body.decode().split("\n")[0][:60].strip() in text
    assert "\n" not in text
    assert (TENANT_HEADER in text) == name.startswith("mt_no"), (
        "what to pass is told where a tenant is wanted"
    )
    if name == "err_limit_over_max.txt":
        assert api.largest == 262_144


@pytest.mark.parametrize(
    "name", ["trace_v1_badid.txt", "trace_v2_badid.txt", "mt_no_header_trace.txt", "queue_full_429.txt"]
)
def test_a_refused_trace_is_one_line(name: str, fake: FakeTempo) -> None:
    with pytest.raises(SourceError) as caught:
        replaying(fake, name).trace(1)
    assert recorded(name)[2].decode().strip()[:40] in str(caught.value)
    if name == "queue_full_429.txt":
        assert len(fake.requests) == 5, "a queue that is full is tried again"


def test_what_it_is_and_whom_it_serves(fake: FakeTempo) -> None:
    api = replaying(fake, "echo.txt")
    api.greet()
    assert replaying(fake, "buildinfo.json").version() == "3.0.3"
    assert replaying(fake, "tag_values_v2.json").services(0, 1) == ["trainer"]
    assert replaying(fake, "err_unknown_path.txt", "tag_values_v1.json").services(0, 1) == ["trainer"]
    replaying(fake, "err_unknown_path.txt", "buildinfo.json").greet()


def test_every_recorded_answer_was_read() -> None:
    """Runs after the tests above, which read them."""
    if len(READ) > len(RECORDED) // 2:  # not when a few tests are chosen
        assert set(RECORDED) == READ


# --- Our runs ---------------------------------------------------------------------------------------------

SHAPES = {
    "two ranks": {"ranks": 2},
    "many parts and windows": {"epochs": 1, "steps_per_epoch": 300, "rows_per_part": 5, "detail_level": 4},
    "killed": {"killed_at": 25},
    "raised": {"raises_at": 25},
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_run_is_fetched_whole_by_its_id(shape: str, fake: FakeTempo, tmp_path: Path) -> None:
    sim = simulate(started(300, **SHAPES[shape]))
    fake.lines = sim.otlp_lines()
    telemetry = read(fake, run=sim.training.run_id)
    run = run_of(telemetry)
    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    (tmp_path / "traces.jsonl").write_bytes(fake.lines)
    truth = open_source(str(tmp_path / "traces.jsonl")).read(Selection())
    assert told(telemetry.spans) == told(truth.spans)
    assert links(telemetry.spans) == links(truth.spans)
    assert telemetry.ledger.warnings == telemetry.ledger.partial_traces == telemetry.ledger.near_cap == []
    assert not [r for r in fake.requests if r.startswith("/api/search")], "derived ids need no search"
    assert fake.most_at_once <= 2


@pytest.mark.parametrize(("v2", "protobuf"), [(True, True), (True, False), (False, True), (False, False)])
def test_each_api_and_form_gives_the_same_run(v2: bool, protobuf: bool, fake: FakeTempo) -> None:
    sim = simulate(started(300, ranks=2))
    fake.lines, fake.v2, fake.protobuf = sim.otlp_lines(), v2, protobuf
    telemetry = read(fake, run=sim.training.run_id)
    assert run_of(telemetry).completeness.verdict == "complete"
    assert len(telemetry.spans) == len(sim.spans)


@pytest.mark.parametrize("hints", [True, False])
def test_the_latest_run_is_found_by_search(hints: bool, fake: FakeTempo) -> None:
    sims = [simulate(started(100 * (n + 1), **fields)) for n, fields in enumerate(SHAPES.values())]
    fake.lines, fake.hints = b"".join(sim.otlp_lines() for sim in sims), hints
    latest = read(fake)
    assert run_of(latest).run_id == sims[0].training.run_id
    assert latest.ledger.warnings == []
    prefix = sims[2].training.run_id[:12]
    assert run_of(read(fake, run=prefix)).run_id == sims[2].training.run_id
    listing = open_source(fake.url).list()
    assert [run.run_id for run in listing.runs] == [sim.training.run_id for sim in sims]
    assert [run.ended for run in listing.runs] == ["exit", "exit", "killed", "exception"]
    assert listing.services == []


@pytest.mark.parametrize("hours", ["0h0m1s", "168h0m0s", "999999h0m0s"])
def test_a_server_that_refuses_every_time_is_asked_a_few_times(hours: str, fake: FakeTempo) -> None:
    refusal = f"range specified by start and end exceeds {hours}. received start=1 end=2"
    fake.intercept = lambda path: (400, TEXT, refusal.encode()) if "search" in path else None
    assert "range specified" in str(refused(fake, service="shop"))
    assert len(fake.requests) < 20


def test_a_run_of_weeks_ago_is_found_in_parts_of_a_week(fake: FakeTempo) -> None:
    sim = simulate(started(20 * 24 * 3600))
    fake.lines = sim.otlp_lines()
    assert run_of(read(fake)).run_id == sim.training.run_id
    fake.longest_s = 24 * 3600 + 90  # a tenant's own limit
    assert run_of(read(fake)).run_id == sim.training.run_id


def test_the_last_attempt_is_taken_and_another_can_be_asked_for(fake: FakeTempo) -> None:
    first = started(300)
    second = replace(first, attempt=1, start=first.start + 100 * S)
    fake.lines = simulate(first).otlp_lines() + simulate(second).otlp_lines()
    assert run_of(read(fake, run=first.run_id)).attempt == 1
    assert run_of(read(fake, run=first.run_id, attempt=0)).attempt == 0
    assert run_of(read(fake)).attempt == 1
    assert "no run" in str(refused(fake, run=first.run_id, attempt=7))


def test_a_run_that_goes_on_is_found_by_its_windows(fake: FakeTempo) -> None:
    sim = simulate(started(60))
    run_trace = f"{sc.trace_id(sim.training.run_id, 0, sc.TRACE_RUN):032x}"
    kept = []
    for line in sim.otlp_lines().splitlines():
        request = json.loads(line)
        for group in request["resourceSpans"]:
            for scope in group["scopeSpans"]:
                scope["spans"] = [span for span in scope["spans"] if span["traceId"] != run_trace]
        kept.append(json.dumps(request))
    fake.lines = "\n".join(kept).encode()
    run = run_of(read(fake))
    assert run.run_id == sim.training.run_id
    assert run.completeness.verdict == "incomplete"
    assert len(run.steps) == len(sim.rows)


def test_a_run_with_missing_detail_names_it(fake: FakeTempo) -> None:
    sim = simulate(started(300))
    gone = f"{sc.trace_id(sim.training.run_id, 0, sc.TRACE_STEP, 7):032x}"
    fake.lines = sim.otlp_lines()
    fake.intercept = lambda path: (
        (200, "application/json", b'{"trace":{},"metrics":{}}') if gone in path else None
    )
    telemetry = read(fake, run=sim.training.run_id)
    assert telemetry.ledger.partial_traces == [gone]
    completeness = run_of(telemetry).completeness
    assert completeness.verdict == "incomplete"
    assert gone in " ".join(completeness.reasons)


# --- Search -----------------------------------------------------------------------------------------------


def test_a_query_is_quoted_so_that_it_only_ever_means_itself() -> None:
    wanted = Wanted(
        'a"b\\', "x\ny", (("k-a", "7"), ("http.status_code", "b c"), ("on", "true"), ("f", "-1.5"))
    )
    assert wanted.traceql() == (
        '{ resource.service.name = "a\\"b\\\\" && name = "x\\ny" && (."k-a" = "7" || ."k-a" = 7)'
        ' && .http.status_code = "b c" && (.on = "true" || .on = true) && (.f = "-1.5" || .f = -1.5) }'
    )
    assert Wanted(run="0a.").traceql() == '{ resource.grademl.run.id =~ "0a\\\\..*" }'
    assert Wanted().traceql() == "{ }"


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("protobuf", [True, False])
def test_every_trace_is_found_once_whatever_the_limit(
    hints: bool, protobuf: bool, fake: FakeTempo, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.time_ns() - 600 * S
    fake.lines, fake.hints, fake.protobuf = shop(200, start, 2 * S), hints, protobuf
    monkeypatch.setattr(tempo_search, "_PAGE", 7)
    pieces = list(open_source(fake.url).pieces(Selection(service="shop", start=start - S), Ledger()))
    assert [piece.key for piece in pieces] == [f"{n + 1:032x}" for n in range(200)]
    assert {piece.expected for piece in pieces} == {2}


def test_the_newest_are_read_when_there_are_more_than_are_wanted(fake: FakeTempo) -> None:
    start = time.time_ns() - 600 * S
    fake.lines = shop(50, start, 2 * S)
    for hints in (True, False):
        fake.hints = hints
        telemetry = read(fake, SourceOptions(max_traces=10), service="shop")
        assert sorted(set(telemetry.spans.trace_lo.tolist())) == list(range(41, 51))
        assert "the latest 10 traces" in telemetry.ledger.warnings[0]


def test_traces_of_one_second_are_asked_for_with_the_largest_limit(
    fake: FakeTempo, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (time.time_ns() // S - 600) * S
    fake.lines = shop(60, start, 1000)
    monkeypatch.setattr(tempo_search, "_PAGE", 7)
    ledger = Ledger()
    assert len(list(open_source(fake.url).pieces(Selection(service="shop"), ledger))) == 60
    assert ledger.warnings == []
    fake.largest = 40
    assert len(list(open_source(fake.url).pieces(Selection(service="shop"), ledger))) == 40
    assert any("40 traces or more in one second: some may be missing" in line for line in ledger.warnings)


def test_a_search_whose_answer_is_too_large_is_cut_in_time(fake: FakeTempo) -> None:
    start = time.time_ns() - 600 * S
    fake.lines, fake.answer_traces = shop(100, start, 3 * S), 9
    found = list(open_source(fake.url).pieces(Selection(service="shop"), Ledger()))
    assert len(found) == 100


def test_a_server_that_never_answers_a_search_is_given_up(fake: FakeTempo) -> None:
    fake.intercept = lambda path: (0, "", b"") if path == "/api/search" else None
    error = refused(fake, service="shop")
    assert isinstance(error, TooLarge)
    assert len(fake.requests) < 200


def test_a_limit_that_shrinks_for_ever_is_given_up(fake: FakeTempo) -> None:
    limits = iter(range(200_000, 0, -1))

    def smaller(path: str) -> Reply | None:
        refusal = f"limit 1 exceeds max limit {next(limits)}".encode()
        return (400, TEXT, refusal) if path == "/api/search" else None

    fake.intercept = smaller
    api = api_for(fake)
    with pytest.raises(SourceError, match="exceeds max limit"):
        api.search(Wanted("shop"), 0, 9, 10**6)
    assert len(fake.requests) < 20


def test_traces_that_came_in_late_are_found_and_named(fake: FakeTempo) -> None:
    start = (time.time_ns() // S - 7200) * S
    fake.lines = shop(30, start, 10 * S)
    fake.late = {f"{n + 1:032x}": start // S + 3600 for n in range(5)}
    selection: dict[str, Any] = {"service": "shop", "start": start - 60 * S, "end": start + 400 * S}
    telemetry = read(fake, **selection)
    assert len(telemetry.spans) == 60
    assert [line for line in telemetry.ledger.warnings if "5 traces were found only by" in line]
    telemetry = read(fake, service="shop", start=start - 60 * S)
    assert len(telemetry.spans) == 60
    assert telemetry.ledger.warnings == []


def test_a_selection_is_searched_by_the_server(fake: FakeTempo) -> None:
    start = time.time_ns() - 600 * S
    fake.lines = shop(20, start, 10 * S) + shop(5, start, 10 * S, "other").replace(
        b'"traceId": "00', b'"traceId": "ff'
    )
    assert len(read(fake, service="shop", operation="query").spans) == 40
    assert len(read(fake, service="shop", operation="query", attributes=(("n", "3"),)).spans) == 2
    assert len(read(fake, attributes=(('odd "key"', "value 3"),)).spans) == 4
    assert len(read(fake, service="shop", start=start + 95 * S).spans) == 20
    assert len(read(fake, service="shop", end=start + 95 * S).spans) == 20
    assert "no trace of nobody" in str(refused(fake, service="nobody"))
    assert "choose other traces with --service (there: other, shop)" in str(refused(fake))
    assert isinstance(refused(fake, service="nobody"), NothingFound)


def test_traces_are_read_by_id(fake: FakeTempo) -> None:
    fake.lines = shop(3, time.time_ns() - 600 * S, S)
    telemetry = read(fake, trace_ids=(1, 3))
    assert sorted(set(telemetry.spans.trace_lo.tolist())) == [1, 3]
    assert read(fake, trace_ids=(1, 99)).ledger.partial_traces == [f"{99:032x}"]
    assert isinstance(refused(fake, trace_ids=(99,)), NothingFound)
    for path in ("/api/traces/2", "/api/v2/traces/0002/"):
        pasted = open_source(f"tempo://127.0.0.1:{fake.port}{path}")
        assert set(pasted.read(Selection()).spans.trace_lo.tolist()) == {2}


def test_reading_stops_at_the_bound_on_spans(fake: FakeTempo) -> None:
    fake.lines = shop(50, time.time_ns() - 600 * S, S)
    telemetry = read(fake, SourceOptions(max_spans=21), service="shop")
    assert len(telemetry.spans) == 21
    assert telemetry.ledger.capped


# --- What is not whole ------------------------------------------------------------------------------------


def long_trace(spans: int) -> bytes:
    """A trace of which the last span is the root, as it comes in: what is cut off leaves orphans."""
    start = time.time_ns() - 600 * S
    line = json.loads(shop(1, start, 0))
    scope = line["resourceSpans"][0]["scopeSpans"][0]
    root, child = scope["spans"]
    scope["spans"] = [{**child, "spanId": f"{n + 2:016x}"} for n in range(spans - 1)] + [root]
    return json.dumps(line).encode() + b"\n"


def test_a_trace_that_was_cut_when_it_came_in_is_known_by_its_size(
    fake: FakeTempo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.lines = long_trace(500)
    whole = traces_data(fake.traces()[f"{1:032x}"]).ByteSize()
    cap = whole // 2
    monkeypatch.setattr(tempo_caps, "CAP", cap)
    intact = judge_foreign(read(fake, service="shop"))
    assert (intact.verdict, intact.reasons) == ("unverifiable", [])
    fake.ingest_bytes = cap
    telemetry = read(fake, service="shop")
    assert 0 < len(telemetry.spans) < 300
    judged = judge_foreign(telemetry)
    assert judged.verdict == "incomplete"
    (near,) = [line for line in judged.reasons if "max_bytes_per_trace" in line]
    assert f"probably cut, {len(telemetry.spans):,} of its spans name a parent that is not here" in near


def test_a_run_near_the_cap_whose_counts_are_all_there_is_complete(
    fake: FakeTempo, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulate(started(300, epochs=1))
    fake.lines = sim.otlp_lines()
    window = f"{sc.trace_id(sim.training.run_id, 0, sc.TRACE_WINDOW):032x}"
    size = traces_data(fake.traces()[window]).ByteSize()
    monkeypatch.setattr(tempo_caps, "CAP", size)
    telemetry = read(fake, run=sim.training.run_id)
    assert len(telemetry.ledger.near_cap) == 1
    assert window in telemetry.ledger.near_cap[0]
    assert run_of(telemetry).completeness.verdict == "complete"
    groups = traces_data(fake.traces()[window]).resource_spans
    fake.ingest_bytes = sum(span.ByteSize() for g in groups for s in g.scope_spans for span in s.spans) - 1
    monkeypatch.setattr(tempo_caps, "CAP", traces_data(fake.traces()[window]).ByteSize())
    cut = run_of(read(fake, run=sim.training.run_id)).completeness
    assert cut.verdict == "incomplete"
    assert any(window in reason and "max_bytes_per_trace" in reason for reason in cut.reasons)


def test_a_trace_cut_by_a_query_is_partial_in_v2_and_refused_by_v1(fake: FakeTempo) -> None:
    fake.lines, fake.query_bytes = long_trace(300), 8000
    telemetry = read(fake, service="shop")
    assert 0 < len(telemetry.spans) < 100
    assert telemetry.ledger.partial_traces == [f"{1:032x}"]
    assert "Trace exceeds maximum size of 8000 bytes" in telemetry.ledger.warnings[0]
    fake.v2 = False
    error = refused(fake, trace_ids=(1,))
    assert isinstance(error, SourceError)
    assert "max bytes: 8000" in str(error)
    fake.lines += shop(3, time.time_ns() - 500 * S, S).replace(b'"traceId": "00', b'"traceId": "0f')
    telemetry = read(fake, service="shop")
    assert len(telemetry.spans) == 6
    assert telemetry.ledger.partial_traces == [f"{1:032x}"]


def test_spans_that_a_search_counts_and_nobody_gives_are_named(fake: FakeTempo) -> None:
    fake.lines = shop(6, time.time_ns() - 600 * S, S)
    fake.stats_of = lambda trace, spans: spans + 7 if trace.endswith(("3", "5")) else spans
    telemetry = read(fake, service="shop")
    assert telemetry.ledger.partial_traces == [f"{5:032x}", f"{3:032x}"]
    assert f"trace {5:032x}: 2 of the 9 spans that the server counts" in telemetry.ledger.warnings
    assert judge_foreign(telemetry).verdict == "incomplete"


@pytest.mark.parametrize(
    "reply",
    [(500, TEXT, b"response larger than the max (34937796 vs 16777216)"), (0, "", b"")],
    ids=["larger than the max", "no answer"],
)
def test_a_trace_too_large_to_be_given_is_named_and_the_others_are_read(
    reply: Reply, fake: FakeTempo
) -> None:
    fake.lines = shop(5, time.time_ns() - 600 * S, S)
    fake.intercept = lambda path: reply if path.endswith(f"{3:032x}") else None
    telemetry = read(fake, service="shop")
    assert sorted(set(telemetry.spans.trace_lo.tolist())) == [1, 2, 4, 5]
    assert telemetry.ledger.partial_traces == [f"{3:032x}"]
    assert telemetry.ledger.broken is None
    assert f"trace {3:032x} was not given" in telemetry.ledger.warnings[0]
    fake.intercept = lambda path: reply if "/traces/" in path else None
    for asked in ({"service": "shop"}, {"trace_ids": (3,)}, {"run": "ab" * 16, "attempt": 0}):
        with pytest.raises(SourceError, match="was not given"):  # not: no such trace
            read(fake, **asked)


def test_a_server_out_of_time_is_asked_once_more(fake: FakeTempo) -> None:
    fake.lines = shop(2, time.time_ns() - 600 * S, S)
    faults = [(500, TEXT, b"error: context deadline exceeded")]
    fake.intercept = lambda path: faults.pop() if faults and path.endswith(f"{2:032x}") else None
    assert len(read(fake, trace_ids=(1, 2)).spans) == 4
    fake.intercept = lambda path: (
        (500, TEXT, b"context deadline exceeded") if path.endswith(f"{2:032x}") else None
    )
    assert read(fake, trace_ids=(1, 2)).ledger.partial_traces == [f"{2:032x}"]


def test_what_came_before_a_fault_is_kept(fake: FakeTempo) -> None:
    fake.lines = shop(20, time.time_ns() - 600 * S, S)
    fake.intercept = lambda path: (500, TEXT, b"on fire") if path.endswith(f"{4:032x}") else None
    telemetry = read(fake, service="shop")
    assert telemetry.ledger.broken is not None
    assert "500 on fire" in telemetry.ledger.broken
    assert 0 < len(telemetry.spans) < 40


# --- Access and faults ------------------------------------------------------------------------------------


def test_a_tenant_is_named_by_a_header(fake: FakeTempo) -> None:
    fake.lines, fake.tenant = shop(2, time.time_ns() - 600 * S, S), "team-a"
    error = refused(fake, service="shop")
    assert "401 no org id" in str(error)
    assert f"{TENANT_HEADER}=..." in str(error)
    assert len(read(fake, SourceOptions(headers={TENANT_HEADER: "team-a"}), service="shop").spans) == 4
    secret = "team-b-secret"
    error = refused(fake, SourceOptions(headers={TENANT_HEADER: secret}), service="shop")
    assert isinstance(error, NothingFound)
    assert secret not in str(error)


def test_a_full_queue_is_waited_for(fake: FakeTempo) -> None:
    fake.lines = shop(6, time.time_ns() - 600 * S, S)
    asked: Counter[str] = Counter()

    def twice_full(path: str) -> Reply | None:
        asked[path] += 1
        return recorded("queue_full_429.txt") if "traces" in path and asked[path] <= 2 else None

    fake.intercept = twice_full
    telemetry = read(fake, service="shop")
    assert len(telemetry.spans) == 12
    assert telemetry.ledger.broken is None


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, "text/html", b"<html>login</html>"), "does not answer as a Tempo does"),
        ((404, TEXT, b"404 page not found\n"), "does not answer as a Tempo does"),
        ((502, "text/html", b"<html>bad gateway</html>"), "502"),
        ((0, "", b""), "closed the connection"),
    ],
)
def test_what_is_no_tempo_is_refused_in_one_line(reply: Reply, says: str, fake: FakeTempo) -> None:
    fake.intercept = _always(reply)
    error = refused(fake)
    assert says in str(error)
    assert error.exit_code == 3


@pytest.mark.parametrize("body", [b"", b"{", b"\x0a\xff\xff", b"[]", b'{"traces":7}', b"\xff\xfe"])
def test_a_garbled_answer_is_one_line(body: bytes, fake: FakeTempo) -> None:
    for kind in (PROTOBUF, "application/json"):
        api = api_for(fake)
        fake.intercept = _always((200, kind, body))
        for ask in (partial(api.trace, 1), partial(api.search, Wanted("a"), 0, 9, 5)):
            faults = []
            try:
                ask()
            except SourceError as error:
                faults.append(str(error))
            assert all("\n" not in fault and fault.startswith("tempo http://") for fault in faults)


@pytest.mark.parametrize(
    "uri", ["tempo://", "tempo://host:port", "tempo://user:secret@host", "tempo://:3200"]
)
def test_an_address_must_name_a_host_and_no_secret(uri: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(uri)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "base"),
    [
        ("tempo://host", "tempo://host:3200"),
        ("tempo://host:80/tempo/", "tempo://host:80/tempo"),
        ("tempos://host", "tempos://host:3200"),
        ("tempo://[::1]/api/v2/traces/0a", "tempo://[::1]:3200"),
    ],
)
def test_an_address_has_a_port_and_a_prefix(uri: str, base: str) -> None:
    assert open_source(uri).uri == base


def test_an_http_address_is_asked_what_it_is(fake: FakeTempo) -> None:
    fake.lines, fake.tenant = shop(2, time.time_ns() - 600 * S, S), "team-a"
    options = SourceOptions(headers={TENANT_HEADER: "team-a"})
    source = open_source(f"http://127.0.0.1:{fake.port}", options)
    assert len(source.read(Selection(service="shop")).spans) == 4
    assert source.uri == fake.url
    pasted = open_source(f"http://127.0.0.1:{fake.port}/api/v2/traces/2", options)
    assert set(pasted.read(Selection()).spans.trace_lo.tolist()) == {2}


def test_tls_with_a_ca_of_ones_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serve(FakeTempo(shop(2, time.time_ns() - 600 * S, S)), tls) as server:
        address = f"tempos://127.0.0.1:{server.port}"
        source = open_source(address, SourceOptions(ca=str(tmp_path / "ca.pem")))
        assert len(source.read(Selection(service="shop")).spans) == 4
        with pytest.raises(SourceError, match="--ca"):
            open_source(address).read(Selection(service="shop"))


# --- Copies, doctor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["run", "service", "ids"])
def test_pieces_hold_what_reading_gives(what: str, fake: FakeTempo) -> None:
    sim = simulate(started(3600, ranks=2, epochs=1, steps_per_epoch=60, rows_per_part=5))
    fake.lines = sim.otlp_lines() + shop(7, time.time_ns() - 3000 * S, S)
    selection = {
        "run": Selection(run=sim.training.run_id),
        "service": Selection(service="shop", operation="query"),
        "ids": Selection(trace_ids=(1, 2)),
    }[what]
    source, ledger, builder = open_source(fake.url), Ledger(), SpanBuilder(10**6)
    pieces = list(source.pieces(selection, ledger))
    assert len({piece.key for piece in pieces}) == len(pieces)
    assert {piece.final for piece in pieces} == {what != "ids"}
    for piece in pieces:
        before = len(builder)
        piece.read(builder, ledger)
        assert piece.expected in (None, len(builder) - before)
    assert told(builder.finish(ledger)) == told(source.read(selection).spans)
    assert ledger == Ledger()
    again = source.pieces(selection, ledger)
    assert [piece.key for piece in again] == [piece.key for piece in pieces]


def test_a_copy_holds_what_was_lost_too(
    fake: FakeTempo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.lines = long_trace(500)
    cap = traces_data(fake.traces()[f"{1:032x}"]).ByteSize() // 2
    monkeypatch.setattr(tempo_caps, "CAP", cap)
    fake.ingest_bytes = cap
    folder = str(tmp_path / "copy")
    assert grademl(["pull", fake.url, "--service", "shop", "-o", folder]) == 0
    there = read(fake, service="shop")
    here = open_source(folder).read(Selection())
    assert told(here.spans) == told(there.spans)
    assert judge_foreign(here).verdict == judge_foreign(there).verdict == "incomplete"
    assert any("max_bytes_per_trace" in line for line in judge_foreign(here).reasons)


def test_a_piece_tells_what_it_lost(fake: FakeTempo) -> None:
    fake.lines, fake.query_bytes = long_trace(300), 8000
    ledger, builder = Ledger(), SpanBuilder(10**6)
    for piece in open_source(fake.url).pieces(Selection(service="shop"), ledger):
        piece.read(builder, ledger)
    assert ledger.partial_traces == [f"{1:032x}"]
    assert 0 < len(builder) < 100


def test_the_probe_tells_what_is_there_and_what_was_lost(fake: FakeTempo) -> None:
    sim = simulate(started(300))
    fake.lines = sim.otlp_lines() + shop(2, time.time_ns() - 600 * S, S)
    fake.largest, fake.metrics = (
        1234,
        (
            b"# HELP tempo_discarded_spans_total spans\n"
            b'tempo_discarded_spans_total{reason="trace_too_large",tenant="a"} 70896\n'
            b'tempo_discarded_spans_total{reason="trace_too_large",tenant="b"} 1e+03\n'
            b'tempo_discarded_spans_total{reason="rate_limited",tenant="a"} 0\n'
            b'tempo_discarded_spans_total{reason="odd",tenant="a"} +Inf\n'
        ),
    )
    probe = open_source(fake.url).probe()
    assert (probe.kind, probe.version, probe.problems) == ("Tempo", "3.0.3", ())
    assert probe.services == ("shop",)
    assert [run.run_id for run in probe.runs] == [sim.training.run_id]
    assert any(limit.startswith("1,234;") for limit in probe.limits.values())
    assert probe.api is not None
    assert "v2" in probe.api
    assert "protobuf" in probe.api
    assert abs(probe.clock_offset_ns or 0) <= (probe.clock_error_ns or 0) < 60 * S
    assert [note for note in probe.notes if note.startswith("71,896 spans were discarded")]
    fake.v2 = fake.protobuf = False
    api = open_source(fake.url).probe().api
    assert api is not None
    assert "v1" in api
    assert "JSON" in api


def test_the_probe_of_what_cannot_be_reached_is_a_problem(fake: FakeTempo) -> None:
    fake.tenant = "team-a"
    probe = open_source(fake.url).probe()
    assert len(probe.problems) == 1
    assert TENANT_HEADER in probe.problems[0]


def test_a_search_says_what_it_asks_for() -> None:
    assert NEWEST.strip() == "with (most_recent=true)"
