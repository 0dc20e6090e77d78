# SPDX-License-Identifier: Apache-2.0
"""What is pushed is what was read; what becomes of it is counted and said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from grademl_otel.analyzers import copying
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.copy import delivery, otlp_requests, verify
from grademl_otel.analyzers.copy import push as sending
from grademl_otel.analyzers.copy.endpoint import settings_for
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.export.settings import GRPC, HTTP
from tests.support.copied import run_in_pieces, told
from tests.support.every_format import FORMATS, otlp_protobuf
from tests.support.fake_jaeger import FakeJaeger, serve
from tests.support.otlp_server import Answer, Receiver, grpc_receiver, http_receiver
from tests.support.servers import free_ports
from tests.support.synthetic import Training, simulate
from tests.support.truth import SPANS

EVERYTHING = Selection()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(verify, "_PAUSES_S", (0.01, 0.02))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(run_in_pieces(3).values()))
    return path


def push(
    capsys: pytest.CaptureFixture[str], source: Path, to: str, *more: str
) -> tuple[int, dict[str, Any], str]:
    """Push without looking for it; return the exit code, the JSON, and the line on stderr."""
    looks = () if "--verify" in more else ("--no-verify",)
    capsys.readouterr()
    code = run(["push", str(source), "--to", to, "--json", *looks, *more])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def at(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}"


def arrived(receiver: Receiver, folder: Path) -> Any:
    """Read what arrived as a file of it is read."""
    whole = TracesData()
    for request in receiver.traces:
        whole.resource_spans.extend(request.resource_spans)
    path = folder / "arrived.binpb"
    path.write_bytes(whole.SerializeToString())
    return open_source(str(path)).read(EVERYTHING).spans


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("copied", [False, True], ids=["file", "copy"])
def test_what_arrives_is_what_was_read(
    name: str, copied: bool, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "spans"
    source.write_bytes(FORMATS[name](SPANS))
    sent = open_source(str(source)).read(EVERYTHING).spans
    if copied:
        assert run(["pull", str(source), "-o", str(tmp_path / "copy")]) == 0
        source = tmp_path / "copy"
    code, done, err = push(capsys, source, at(receiver))
    assert code == 0, err
    assert done["sent"] == done["accepted"] == len(sent)
    assert sorted(told(arrived(receiver, tmp_path))) == sorted(told(sent))


def test_spans_of_protobuf_keep_every_byte(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "spans.binpb"
    source.write_bytes(otlp_protobuf(SPANS))
    _, done, _ = push(capsys, source, at(receiver))
    there = TracesData.FromString(source.read_bytes())
    expected = [s for r in there.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert sorted(s.SerializeToString() for s in receiver.spans) == sorted(
        s.SerializeToString() for s in expected
    )
    assert any(span.trace_state for span in expected)
    assert done["notes"] == []


@pytest.mark.parametrize("copied", [False, True], ids=["file", "copy"])
def test_spans_of_json_keep_what_no_column_holds(
    copied: bool, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "spans.jsonl"
    document = json.loads(FORMATS["OTLP JSON document"](SPANS))
    given = {"droppedAttributesCount": 3, "droppedEventsCount": 2, "droppedLinksCount": 1}
    (first, *_) = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    first.update(given)
    for span in (s for r in document["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]):
        for link in span.get("links", ()):
            link |= {"traceState": "a=1", "flags": 257, "droppedAttributesCount": 4}
    source.write_text(json.dumps(document))
    if copied:
        assert run(["pull", str(source), "-o", str(tmp_path / "copy")]) == 0
        source = tmp_path / "copy"
    _, done, _ = push(capsys, source, at(receiver))
    expected = TracesData.FromString(otlp_protobuf(SPANS))
    spans = [s for r in expected.resource_spans for scope in r.scope_spans for s in scope.spans]
    for name, field in (("attributes", 3), ("events", 2), ("links", 1)):
        setattr(spans[0], f"dropped_{name}_count", field)
    for link in (link for span in spans for link in span.links):
        link.trace_state, link.flags, link.dropped_attributes_count = "a=1", 257, 4
    assert sorted(map(repr, receiver.spans)) == sorted(map(repr, spans))
    assert any(span.trace_state for span in spans)
    assert any(link.attributes for span in spans for link in span.links)
    assert done["notes"] == []


def test_what_other_formats_do_not_keep_is_said(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "spans.json"
    source.write_bytes(FORMATS["Zipkin"](SPANS))
    assert "trace states" in push(capsys, source, at(receiver))[1]["notes"][0]


def test_over_grpc(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent = open_source(str(store)).read(EVERYTHING).spans
    with grpc_receiver() as receiver:
        code, done, err = push(
            capsys, store, f"grpc://127.0.0.1:{receiver.port}", "--header", "X-Tenant=team"
        )
        assert (code, done["accepted"]) == (0, len(sent)), err
        assert receiver.attempts[0][1]["x-tenant"] == "team"
        assert sorted(told(arrived(receiver, tmp_path))) == sorted(told(sent))


def test_requests_are_bounded_and_halved(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.max_bytes = 30_000
    monkeypatch.setattr(otlp_requests, "MAX_BYTES", 100_000)
    code, done, _ = push(capsys, store, at(receiver))
    assert (code, done["rejected"]) == (0, 0)
    assert all(request.ByteSize() <= receiver.max_bytes for request in receiver.traces)
    assert len({span.span_id for span in receiver.spans}) == done["accepted"]
    receiver.max_bytes = 1000
    code, done, err = push(capsys, store, at(receiver))
    assert code == 3
    assert done["rejected"] > 0
    assert "refused" in err


def test_what_spans_share_counts_for_the_size_of_a_request(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_requests, "MAX_BYTES", 30_000)
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        for number in range(1, 41):
            ids = {"traceId": f"{number:032x}", "spanId": f"{number:016x}"}
            span = {**ids, "name": "work", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
            command = {"key": "command", "value": {"stringValue": f"{number}" * 2000}}
            resource = {"attributes": [command]}
            scopes = [{"scope": {"name": "x"}, "spans": [span]}]
            file.write(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}) + "\n")
    code, done, err = push(capsys, path, at(receiver))
    assert (code, done["accepted"]) == (0, 40), err
    assert max(request.ByteSize() for request in receiver.traces) <= 30_000
    assert len(receiver.traces) < 10, "and they are filled"


def answers(*given: Answer) -> Callable[[str], Answer]:
    left = list(given)
    return lambda signal: left.pop(0) if left else Answer()


@pytest.mark.parametrize("status", [429, 503, 502, 504])
def test_what_may_be_tried_again_is(
    status: int, store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer = answers(Answer(http=status), Answer(http=status, headers={"Retry-After": "0"}))
    code, done, _ = push(capsys, store, at(receiver))
    assert (code, done["rejected"]) == (0, 0)
    assert len(receiver.attempts) == done["requests"] + 2


def test_a_partial_success_is_counted(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer = answers(Answer(rejected=3))
    code, done, err = push(capsys, store, at(receiver))
    assert (code, done["rejected"], done["accepted"]) == (3, 3, done["sent"] - 3)
    assert f"3 of {done['sent']:,} spans were refused: no more room for those" in err


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(http=401), "HTTP 401; are the credentials in --header right?"),
        (Answer(http=404), "HTTP 404; is the path of --to right?"),
        (
            Answer(headers={"Content-Type": "text/html"}),
            "a web page for an answer; is --to right? (port 4318",
        ),
        (Answer(http=503), "HTTP 503"),
    ],
)
def test_what_cannot_be_delivered_is_one_line(
    answer: Answer, says: str, store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer = lambda signal: answer
    code, done, err = push(capsys, store, at(receiver), "--header", "Authorization=Bearer hunter2")
    assert (code, done) == (3, {})
    assert says in err
    assert err.count("\n") == 1
    assert "hunter2" not in err
    assert len(receiver.attempts) == (1 if answer.http in (200, 401, 404) else 6)


def test_nobody_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    code, _, err = push(capsys, store, f"http://127.0.0.1:{port}")
    assert code == 3
    assert "no connection; is it running, is --to right?" in err


def test_one_that_goes_away_midway(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_requests, "_MAX_SPANS", 50)
    receiver.answer = answers(Answer(), *[Answer(http=503)] * 50)
    code, done, err = push(capsys, store, at(receiver))
    assert (code, done["accepted"]) == (3, 50)
    assert "50 spans were taken; run the same command again" in err


# --- Did it arrive ----------------------------------------------------------------------------------------


def test_all_is_there(store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeJaeger(store.read_bytes())) as jaeger:
        code, done, _ = push(capsys, store, at(receiver), "--verify", f"jaeger://127.0.0.1:{jaeger.port}")
    assert (code, done["missing"]) == (0, 0)
    assert done["verified"] == done["accepted"]


def test_what_is_missing_is_told_with_numbers(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    first_line = store.read_bytes().index(b"\n") + 1
    with serve(FakeJaeger(store.read_bytes()[first_line:])) as jaeger:
        code, done, err = push(capsys, store, at(receiver), "--verify", f"jaeger://127.0.0.1:{jaeger.port}")
    assert code == 3
    assert done["missing"] > 0
    assert done["missing"] + done["verified"] == done["accepted"]
    assert f"{done['missing']:,} of {done['accepted']:,} spans are not there" in err


@pytest.mark.parametrize("there", [True, False])
def test_a_jaeger_on_the_same_host_is_asked(
    there: bool,
    store: Path,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADEML_HEADERS", "X-Of-The-Source=hunter2")
    monkeypatch.setenv("GRADEML_USER", "me:hunter2")
    with serve(FakeJaeger(store.read_bytes())) as jaeger:
        monkeypatch.setattr(copying, "_JAEGER_PORT", jaeger.port if there else free_ports(1)[0])
        assert run(["push", str(store), "--to", at(receiver)]) == 0
    for headers in jaeger.headers:
        assert not {"X-Of-The-Source", "Authorization"} & set(headers), "meant for another server"
    said = capsys.readouterr().out
    assert ("0 missing" in said) == there
    assert ("not looked for" in said) != there


def test_a_place_that_cannot_tell(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    code, done, err = push(capsys, store, at(receiver), "--verify", f"jaeger://127.0.0.1:{port}")
    assert (code, done["verified"], done["missing"]) == (3, None, None)
    assert "it is not known whether all arrived" in err
    assert f"{done['accepted']:,} spans were taken" in err


def test_a_file_can_tell_too(store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    code, done, _ = push(capsys, store, at(receiver), "--verify", str(store))
    assert (code, done["missing"]) == (0, 0)


# --- Which, and where to ----------------------------------------------------------------------------------


def test_one_run_of_several(tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ("ab" * 16, "cd" * 16)
    runs = [simulate(Training(run_id=run_id, steps_per_epoch=5)) for run_id in ids]
    path = tmp_path / "both.jsonl"
    path.write_bytes(b"".join(one.otlp_lines() for one in runs))
    code, done, _ = push(capsys, path, at(receiver), "--run", "cd")
    assert (code, done["sent"]) == (0, len(runs[1].spans))
    assert {span.trace_id for span in receiver.spans} == {
        bytes.fromhex(span["traceId"]) for _, span in runs[1].spans
    }
    code, _, err = push(capsys, path, at(receiver), "--run", "ef")
    assert code == 5, err


def test_each_resource_is_looked_at_once(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of a cluster can be many, and batches are."""
    looked: list[str] = []
    monkeypatch.setattr(sending._Push, "_is_wanted", lambda self, known: not looked.append(repr(known)))
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(run_in_pieces(30).values()))
    assert push(capsys, path, at(receiver))[0] == 0
    assert len(looked) == len(set(looked))


@pytest.mark.parametrize(
    ("address", "protocol", "endpoint"),
    [
        ("http://host:4318", HTTP, "http://host:4318/v1/traces"),
        ("http://host:4318/v1/traces", HTTP, "http://host:4318/v1/traces"),
        ("https://host/otlp/", HTTP, "https://host/otlp/v1/traces"),
        ("grpc://host:4317", GRPC, "host:4317"),
        ("grpcs://host:443", GRPC, "host:443"),
        ("http://host:4317", GRPC, "host:4317"),
    ],
)
def test_addresses(address: str, protocol: str, endpoint: str) -> None:
    settings = settings_for(address, {}, {"OTEL_EXPORTER_OTLP_HEADERS": "x-a=1"})
    assert (settings.protocol, settings.endpoint) == (protocol, endpoint)
    assert settings.insecure == (not address.startswith(("https", "grpcs")))
    assert settings.headers == {"x-a": "1"}


@pytest.mark.parametrize(
    "address", ["host:4318", "ftp://host", "http://", "http://a:b@host:4318", "http://h:x"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError) as error:
        settings_for(address, {}, {})
    assert "a:b" not in str(error.value)
