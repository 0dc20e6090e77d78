# SPDX-License-Identifier: Apache-2.0
"""Jaeger as a source: our runs by derived ids, traces of others by search, and what can go wrong."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.errors import GrademlError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_http import JaegerV1
from grademl_otel.analyzers.sources.servers.refusals import error_text
from tests.support.fake_jaeger import FakeJaeger, Reply, serve
from tests.support.synthetic import MS, S, Simulated, Training, lines, simulate

from ..support import servers

DATA = Path(__file__).parent.parent / "data" / "jaeger"


@pytest.fixture
def fake() -> Iterator[FakeJaeger]:
    with serve(FakeJaeger()) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("GRADEML_HEADERS", raising=False)


def started(ago_s: int, **fields: Any) -> Training:
    """A training that began so long ago; searches are relative to now."""
    return Training(run_id=secrets.token_hex(16), start=time.time_ns() - ago_s * S, **fields)


def read(server: FakeJaeger, options: SourceOptions | None = None, **selection: Any) -> Telemetry:
    return open_source(server.url, options).read(Selection(**selection))


def run_of(telemetry: Telemetry) -> Run:
    run = build_run(telemetry)
    assert run is not None
    return run


def refused(uri: str, options: SourceOptions | None = None, **selection: Any) -> GrademlError:
    with pytest.raises(GrademlError) as caught:
        open_source(uri, options).read(Selection(**selection))
    assert "\n" not in str(caught.value)
    return caught.value


def foreign_traces(count: int, start: int, apart: int, service: str = "shop") -> bytes:
    """OTLP/JSON lines of ``count`` traces of two spans, ``apart`` ns from each other."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    out = []
    for n in range(count):
        at = start + n * apart
        spans = [
            {"traceId": f"{n + 1:032x}", "spanId": f"{span:016x}", "name": name, "kind": 2, "attributes": [],
             "startTimeUnixNano": str(at), "endTimeUnixNano": str(at + 1000), "status": {}, **parent}
            for span, name, parent in ((1, "GET /", {}), (2, "query", {"parentSpanId": f"{1:016x}"}))
        ]  # fmt: skip
        request = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
        out.append(json.dumps(request) + "\n")
    return "".join(out).encode()


# --- Our runs ---------------------------------------------------------------------------------------------

SHAPES = {
    "two ranks": started(100, ranks=2),
    "many parts and windows": started(200, epochs=1, steps_per_epoch=700, rows_per_part=5, detail_level=4),
    "killed": started(300, killed_at=25),
    "raised": started(400, raises_at=25),
}


@pytest.mark.parametrize("v3", [True, False], ids=["v3", "v1"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_run_is_fetched_whole_by_its_id(shape: str, v3: bool, fake: FakeJaeger) -> None:
    sim = simulate(SHAPES[shape])
    fake.lines, fake.v3 = sim.otlp_lines(), v3
    telemetry = read(fake, run=sim.training.run_id)
    run = run_of(telemetry)
    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    assert len(telemetry.spans) == len(sim.spans)
    assert len(run.steps) == len(sim.rows)
    assert telemetry.ledger.warnings == telemetry.ledger.partial_traces == []
    assert telemetry.ledger.duplicates == 0
    assert not [r for r in fake.requests if "query.operation" in r], "derived ids need no search"


@pytest.mark.parametrize("v3", [True, False], ids=["v3", "v1"])
def test_the_latest_run_is_found_by_search(v3: bool, fake: FakeJaeger) -> None:
    sims = [simulate(training) for training in SHAPES.values()]
    fake.lines, fake.v3 = b"".join(sim.otlp_lines() for sim in sims), v3
    assert run_of(read(fake)).run_id == SHAPES["two ranks"].run_id
    prefix = SHAPES["killed"].run_id[:12]
    assert run_of(read(fake, run=prefix)).run_id == SHAPES["killed"].run_id
    listing = open_source(fake.url).list()
    assert [run.run_id for run in listing.runs] == [training.run_id for training in SHAPES.values()]
    assert [run.ended for run in listing.runs] == ["exit", "exit", "killed", "exception"]
    assert listing.services == []


def test_a_run_that_started_days_ago_is_found(fake: FakeJaeger) -> None:
    sim = simulate(started(20 * 24 * 3600))
    fake.lines = sim.otlp_lines()
    assert run_of(read(fake)).run_id == sim.training.run_id


def test_since_finds_a_run_that_reaches_into_that_time(fake: FakeJaeger) -> None:
    sim = simulate(started(7000, startup_ns=3000 * S))
    fake.lines = sim.otlp_lines()
    assert run_of(read(fake, start=time.time_ns() - 4200 * S)).run_id == sim.training.run_id
    assert refused(fake.url, start=time.time_ns() - 3000 * S).exit_code == 5


def test_a_run_that_goes_on_is_found_by_its_windows(fake: FakeJaeger) -> None:
    sim = simulate(started(60, epochs=1, steps_per_epoch=50))
    live = [both for both in sim.spans if both[1]["name"] not in (sc.RUN, sc.EPOCH, sc.EVALUATE)]
    fake.lines = lines(sim.training, live)
    for which in (None, sim.training.run_id):
        run = run_of(read(fake, run=which))
        assert run.run_id == sim.training.run_id
        assert len(run.steps) == len(sim.rows)
        assert [end.how for end in run.completeness.ended] == ["unknown"]


def test_ranks_of_further_shards_are_fetched(fake: FakeJaeger) -> None:
    training = started(60, ranks=70, epochs=1, steps_per_epoch=2, eval_batches=0)
    fake.lines = simulate(training).otlp_lines()
    run = run_of(read(fake, run=training.run_id))
    assert run.ranks == list(range(70))
    assert run.completeness.verdict == "complete"


def test_a_server_cannot_send_us_looking_for_ever(fake: FakeJaeger) -> None:
    training = started(60, epochs=1, steps_per_epoch=20)
    for key in (sc.WINDOW_NUMBER, sc.WORLD_SIZE, sc.RANK, sc.STEPS_TOTAL, sc.WINDOW_STEPS_SO_FAR):
        fake.requests.clear()
        text = json.dumps([json.loads(line) for line in simulate(training).otlp_lines().splitlines()])
        text = re.sub(rf'("{re.escape(key)}", "value": {{"intValue": )"\d+"', r'\1"1000000000000"', text)
        assert "1000000000000" in text
        fake.lines = "".join(json.dumps(request) + "\n" for request in json.loads(text)).encode()
        read(fake, run=training.run_id)
        assert len(fake.requests) < 400


def test_the_last_attempt_by_default_any_on_demand(fake: FakeJaeger) -> None:
    first = started(500, killed_at=5)
    again = replace(first, attempt=2, start=first.start + 100 * S, killed_at=None)
    fake.lines = simulate(first).otlp_lines() + simulate(again).otlp_lines()
    for which in (None, first.run_id):
        assert run_of(read(fake, run=which)).attempt == 2
        assert run_of(read(fake, run=which, attempt=0)).attempt == 0
    assert refused(fake.url, run=first.run_id, attempt=7).exit_code == 5


def test_more_runs_than_an_answer_holds_are_all_listed(fake: FakeJaeger) -> None:
    sims = [simulate(started(60 * n, epochs=1, steps_per_epoch=1, eval_batches=0)) for n in range(1, 131)]
    fake.lines = b"".join(sim.otlp_lines() for sim in sims)
    listing = open_source(fake.url).list()
    assert [run.run_id for run in listing.runs] == [sim.training.run_id for sim in sims]


def test_other_programs_have_operations_called_run_too(fake: FakeJaeger) -> None:
    sim = simulate(started(60))
    others = foreign_traces(500, time.time_ns() - 1000 * S, S).replace(b"GET /", sc.RUN.encode())
    fake.lines = sim.otlp_lines() + others.replace(b"shop", b"trainer")
    assert run_of(read(fake)).run_id == sim.training.run_id
    searches = [request for request in fake.requests if "query.operationName" in request]
    assert len(searches) <= 4


def test_detail_is_bounded_and_the_bound_is_told(fake: FakeJaeger) -> None:
    sim = simulate(started(60, epochs=1, steps_per_epoch=300))
    fake.lines = sim.otlp_lines()
    telemetry = read(fake, SourceOptions(max_spans=900), run=sim.training.run_id)
    run = run_of(telemetry)
    assert telemetry.ledger.capped
    assert len(telemetry.spans) == 900
    assert len(run.steps) == len(sim.rows), "the census is whole"
    assert run.completeness.verdict == "incomplete"
    assert any("--max-spans" in reason for reason in run.completeness.reasons)
    steps = {step for _, step, _ in run.step_spans}
    coarse = {n for n in range(300) if sc.detail_bits(sim.training.run_id, n) >= 4}
    assert coarse <= steps, "the coarsest sample comes first"


def test_a_step_trace_that_the_server_lost_is_told(fake: FakeJaeger) -> None:
    sim = simulate(started(60))
    gone = f"{sc.trace_id(sim.training.run_id, 0, sc.TRACE_STEP, 7):032x}"
    fake.lines = lines(sim.training, [both for both in sim.spans if both[1]["traceId"] != gone])
    telemetry = read(fake, run=sim.training.run_id)
    assert telemetry.ledger.partial_traces == [gone]
    assert run_of(telemetry).completeness.verdict == "incomplete"


def test_a_server_that_breaks_off_midway_leaves_what_was_read(fake: FakeJaeger) -> None:
    sim = simulate(started(60))
    fake.lines = sim.otlp_lines()
    bad = f"/api/v3/traces/{sc.trace_id(sim.training.run_id, 0, sc.TRACE_STEP, 7):032x}"
    fake.intercept = lambda path: (500, "text/plain", b"disk on fire") if path == bad else None
    telemetry = read(fake, run=sim.training.run_id)
    assert telemetry.ledger.broken is not None
    assert "500 disk on fire" in telemetry.ledger.broken
    run = run_of(telemetry)
    assert len(run.steps) == len(sim.rows)
    assert any("broke off" in reason for reason in run.completeness.reasons)


# --- Traces of others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("v3", [True, False], ids=["v3", "v1"])
def test_foreign_traces_are_paged_by_halving_time(v3: bool, fake: FakeJaeger) -> None:
    fake.lines, fake.v3 = foreign_traces(330, time.time_ns() - 1000 * S, 2 * S), v3
    telemetry = read(fake, service="shop")
    assert len(telemetry.spans) == 660
    assert telemetry.ledger.duplicates == 0
    assert telemetry.ledger.warnings == []


def test_one_service_needs_no_name_and_several_are_listed(fake: FakeJaeger) -> None:
    now = time.time_ns()
    assert "nothing has been sent there yet" in str(refused(fake.url))
    fake.lines = foreign_traces(3, now - S, MS)
    assert len(read(fake).spans) == 6
    assert "no trace of cart in the last 30 days; widen" in str(refused(fake.url, service="cart"))
    assert "in that time" in str(refused(fake.url, service="cart", start=now))
    fake.lines += foreign_traces(1, now - S, MS, "cart").replace(b"000000000001", b"0000000000ff")
    error = refused(fake.url)
    assert isinstance(error, NothingFound)
    assert "cart, shop" in str(error)
    assert open_source(fake.url).list().services == ["cart", "shop"]
    assert len(read(fake, service="cart").spans) == 2


def test_services_that_are_not_searched_are_told(fake: FakeJaeger) -> None:
    first = time.time_ns() - 1000 * S
    for number in range(40):
        line = foreign_traces(1, first + number * S, S, f"shop-{number:02}")
        fake.lines += line.replace(b"%032x" % 1, b"%032x" % (number + 1))
    telemetry = read(fake, operation="GET /")
    told = f"jaeger {fake.url}: searched are 32 of 40 services; name one (--service)"
    assert (len(telemetry.spans), telemetry.ledger.warnings) == (64, [told])
    ledger = Ledger()
    assert list(open_source(fake.url).pieces(Selection(operation="GET /"), ledger))
    assert ledger.warnings == [told]
    telemetry = read(fake, SourceOptions(max_traces=5), operation="GET /")
    assert len(telemetry.spans) == 10
    assert "read 5 traces, of some services only" in telemetry.ledger.warnings[-1]


def test_the_number_of_foreign_traces_is_bounded_and_told(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(330, time.time_ns() - 1000 * S, 2 * S)
    telemetry = read(fake, SourceOptions(max_traces=150), service="shop")
    assert 300 <= len(telemetry.spans) < 660
    assert "there may be more" in telemetry.ledger.warnings[0]


def test_traces_by_operation_and_time(fake: FakeJaeger) -> None:
    start = time.time_ns() - 1000 * S
    fake.lines = foreign_traces(10, start, 10 * S)
    assert len(read(fake, service="shop", operation="query").spans) == 20
    assert len(read(fake, start=start + 95 * S - 10 * S).spans) == 2
    assert len(read(fake, start=start - S, end=start + 15 * S).spans) == 4
    assert refused(fake.url, service="shop", operation="absent").exit_code == 5
    assert refused(fake.url, service="shop", start=start - 9 * S, end=start - S).exit_code == 5


def test_traces_by_id_and_by_pasted_address(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(5, time.time_ns(), MS)
    assert len(read(fake, trace_ids=(2, 4)).spans) == 4
    for path in (f"/trace/{3:032x}", "/trace/3?uiFind=x", f"/api/traces/{3:032x}", "/api/v3/traces/3/"):
        spans = open_source(fake.url + path).read(Selection()).spans
        assert {spans.trace_id_hex(0), spans.trace_id_hex(1)} == {f"{3:032x}"}
    assert len(open_source(f"{fake.url}/search?service=shop").read(Selection()).spans) == 10
    error = refused(fake.url, trace_ids=(0xABC123,))
    assert isinstance(error, NothingFound)
    assert "abc123" in str(error)
    telemetry = read(fake, trace_ids=(2, 99))
    assert telemetry.ledger.partial_traces == [f"{99:032x}"]


def test_a_list_from_a_pasted_search_is_of_what_it_searches(fake: FakeJaeger) -> None:
    fake.lines = simulate(started(60)).otlp_lines() + foreign_traces(1, time.time_ns() - S, MS)
    ours = analyzers.runs(fake.url).runs[0].service
    assert [run.service for run in analyzers.runs(f"{fake.url}/search?service={ours}").runs] == [ours]
    shop = analyzers.runs(f"{fake.url}/search?service=shop")
    assert (shop.runs, shop.services) == ([], ["shop"])
    assert analyzers.runs(f"{fake.url}/search?service=shop", service=ours).services == [], "options win"
    with pytest.raises(NothingFound):
        analyzers.runs(f"{fake.url}/search?service=nosuch&lookback=1h")


def test_foreign_traces_stay_when_the_server_breaks_off(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(330, time.time_ns() - 1000 * S, 2 * S)
    searches = iter(range(100))
    fault = 500, "text/plain", b"disk on fire"
    fake.intercept = lambda path: fault if path == "/api/v3/traces" and next(searches) > 6 else None
    telemetry = read(fake, service="shop")
    assert 0 < len(telemetry.spans) < 660
    assert "500 disk on fire" in str(telemetry.ledger.broken)


# --- Servers that do not answer as hoped ------------------------------------------------------------------


def always(status: int, body: bytes, kind: str = "text/plain") -> Any:
    def intercept(path: str) -> Reply:
        return status, kind, body

    return intercept


@pytest.mark.parametrize(
    ("intercept", "says"),
    [
        (always(404, b"404 page not found"), "404 page not found; is Jaeger running there? (query port is"),
        (always(401, b"missing tenant header"), "401 missing tenant header; pass --header"),
        (always(403, b""), "403 Forbidden; pass --header"),
        (always(500, b'{"error":{"httpCode":500,"message":"boom"}}'), "500 boom"),
        (always(200, b"<!doctype html><html></html>"), "an HTML page"),
        (always(200, b""), "answered with nothing"),
        (always(200, b"{"), "not Jaeger's"),
        (always(200, b"[" * 100_000), "not Jaeger's"),
        (always(200, b'{"services": 7}'), "not Jaeger's"),
        (always(302, b"", "http://elsewhere.invalid/login"), "redirects to http://elsewhere.invalid"),
        (always(0, b""), "closed the connection"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_jaeger(intercept: Any, says: str, fake: FakeJaeger) -> None:
    fake.intercept = intercept
    error = refused(fake.url)
    assert error.exit_code == 3
    assert says in str(error)
    assert str(error).startswith(f"jaeger {fake.url}: ")


def test_redirects_on_the_same_host_are_followed_but_not_for_ever(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(1, time.time_ns(), MS)
    fake.intercept = lambda path: (307, path[4:], b"") if path.startswith("/old") else None
    assert len(open_source(f"{fake.url}/old").read(Selection()).spans) == 2
    fake.intercept = lambda path: (307, path, b"")
    assert "redirects without end" in str(refused(fake.url))


def test_a_busy_server_is_asked_again(fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grademl_otel.analyzers.sources.servers.http_client._FIRST_PAUSE_S", 0.001)
    fake.lines = foreign_traces(1, time.time_ns(), MS)
    busy = iter([429, 503, 502])
    fake.intercept = lambda path: (status, "text/plain", b"busy") if (status := next(busy, None)) else None
    assert len(read(fake).spans) == 2
    fake.intercept = always(503, b"busy")
    assert "503 busy" in str(refused(fake.url))


def test_an_answer_beyond_the_bound_is_asked_for_in_smaller_pieces(fake: FakeJaeger) -> None:
    fake.lines = foreign_traces(80, time.time_ns() - 1000 * S, 10 * S)
    telemetry = read(fake, SourceOptions(max_bytes=20_000), service="shop")
    assert len(telemetry.spans) == 160
    one = refused(fake.url, SourceOptions(max_bytes=200), trace_ids=(1,))
    assert "more than 200 bytes" in str(one)


def test_answers_that_are_cut_or_garbled(fake: FakeJaeger) -> None:
    sim = simulate(started(60))
    fake.lines = sim.otlp_lines()
    run_trace = f"/api/v3/traces/{sc.trace_id(sim.training.run_id, 0, sc.TRACE_RUN):032x}"
    fake.intercept = lambda path: (
        (200, "application/json", b'{"result":{"resourceSp') if path == run_trace else None
    )
    error = refused(fake.url, run=sim.training.run_id)
    assert error.exit_code == 3
    assert "an answer that cannot be read: it ends within" in str(error)


def test_headers_go_to_the_server_and_into_no_message(
    fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.lines, fake.tenant = foreign_traces(1, time.time_ns(), MS), "hunter2"
    assert "missing tenant header" in str(refused(fake.url))
    options = SourceOptions(headers={"x-tenant": "hunter2"})
    assert len(read(fake, options).spans) == 2
    monkeypatch.setenv("GRADEML_HEADERS", "x-tenant=hunter2,x-other=1")
    assert len(read(fake).spans) == 2
    assert fake.headers[-1]["x-other"] == "1"
    wrong = refused(fake.url, SourceOptions(headers={"x-tenant": "hunter3"}))
    assert "unknown tenant" in str(wrong)
    assert "hunter" not in str(wrong)


def test_no_credentials_are_taken_from_netrc(
    fake: FakeJaeger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login user password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fake.lines = foreign_traces(1, time.time_ns(), MS)
    read(fake)
    assert "Authorization" not in fake.headers[-1]


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://user:hunter2@host:16686", "--header"),
        ("jaeger://", "no host"),
        ("jaeger://host:notaport", "port"),
        ("jaeger://host:99999", "port"),
        ("jaeger://[::1", "write jaeger://"),
    ],
)
def test_addresses_that_are_none(uri: str, says: str) -> None:
    error = refused(uri)
    assert isinstance(error, UsageError)
    assert says in str(error)
    assert "hunter2" not in str(error)


def test_nobody_listens() -> None:
    port = servers.free_ports(1)[0]
    error = refused(f"jaeger://127.0.0.1:{port}")
    assert isinstance(error, SourceError)
    assert str(error) == (
        f"jaeger http://127.0.0.1:{port}: connection refused; is Jaeger running there?"
        " (query port is 16686, 4317/4318 take spans)"
    )


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("v1_trace_404.txt", "trace not found"),
        ("v3_find_none.txt", "No traces found"),
        ("tenant_missing.txt", "missing tenant header"),
        ("v3_find_bad_time.txt", "malformed parameter query.startTimeMin: parsing time"),
    ],
)
def test_recorded_errors_are_understood(file: str, text: str) -> None:
    assert error_text((DATA / file).read_bytes()).startswith(text)


def test_long_and_odd_errors_stay_one_short_line() -> None:
    assert error_text(b"<html>...") == ""
    assert error_text(b"\xff\n\tx" * 500).count("\n") == 0
    assert len(error_text(b"x" * 5000)) == 300
    assert error_text(b'{"errors": []}') == ""
    assert error_text(b'{"errors": "x"}') != "\n"


# --- A real Jaeger ----------------------------------------------------------------------------------------


def send(jaeger: servers.Jaeger, sim: Simulated) -> None:
    for line in sim.otlp_lines().splitlines():
        answer = requests.post(
            f"{jaeger.otlp_http}/v1/traces",
            data=line,
            headers={"Content-Type": "application/json"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text


@pytest.mark.real
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_real_jaeger_gives_back_what_the_file_holds(
    shape: str, jaeger: servers.Jaeger, tmp_path: Path
) -> None:
    training = replace(SHAPES[shape], run_id=secrets.token_hex(16))
    sim = simulate(training)
    send(jaeger, sim)
    there = open_source(jaeger.source).read(Selection(run=training.run_id))
    here = open_source(str(sim.write_store(tmp_path))).read(Selection())
    assert _facts(there) == _facts(here)
    run = run_of(there)
    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    assert there.ledger.duplicates == 0
    assert run.run_id in {summary.run_id for summary in open_source(jaeger.source).list().runs}
    found = run_of(open_source(jaeger.source).read(Selection(run=training.run_id[:16])))
    assert found.run_id == training.run_id


@pytest.mark.real
def test_the_old_api_of_a_real_jaeger(jaeger: servers.Jaeger, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a server that has no v3: the same run, in microseconds."""

    def only_v1(client: HttpClient) -> tuple[JaegerV1, list[str]]:
        return JaegerV1(client), JaegerV1(client).services()

    monkeypatch.setattr("grademl_otel.analyzers.sources.servers.jaeger.connect", only_v1)
    sim = simulate(started(60, ranks=2))
    send(jaeger, sim)
    for which in (sim.training.run_id, sim.training.run_id[:16]):
        run = run_of(open_source(jaeger.source).read(Selection(run=which)))
        assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
        assert len(run.steps) == len(sim.rows)


@pytest.mark.real
def test_a_pasted_address_of_a_real_jaeger(jaeger: servers.Jaeger) -> None:
    sim = simulate(started(60))
    send(jaeger, sim)
    trace = sc.trace_id(sim.training.run_id, 0, sc.TRACE_STEP, 7)
    spans = open_source(f"{jaeger.query_url}/trace/{trace:032x}").read(Selection()).spans
    assert sorted(spans.name(ix) for ix in range(len(spans))) == [
        sc.BACKWARD, sc.DATA_WAIT, sc.FORWARD, sc.OPTIMIZER, sc.STEP,
    ]  # fmt: skip


def _facts(telemetry: Telemetry) -> dict[tuple[str, str], tuple[Any, ...]]:
    spans = telemetry.spans
    return {
        (spans.trace_id_hex(ix), spans.span_id_hex(ix)): (
            spans.name(ix),
            int(spans.parent_id[ix]),
            int(spans.start[ix]),
            int(spans.end[ix]),
            int(spans.kind[ix]),
            int(spans.status[ix]),
            {key: (type(value), value) for key, value in spans.attributes(ix).items()},
            spans.resource(ix),
        )
        for ix in range(len(spans))
    }
